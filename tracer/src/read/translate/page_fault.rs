//! Translation of page fault and dirty page records.

use blkkin_probe_abi::fault as raw;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{DirtyEvent, FaultEvent};
use blkkin_wire::ids::SpanId;

use super::{context, file_id, task_ref};

pub(super) fn fault(record: &raw::FaultRecord) -> FaultEvent {
    let has = |flag| record.header.flags & flag != 0;
    FaultEvent {
        span: SpanId(record.span),
        task: task_ref(record.task, record.task_version),
        major: has(raw::FAULT_MAJOR),
        address: has(raw::FAULT_HAS_ADDRESS).then_some(record.address),
        file: has(raw::FAULT_HAS_FILE).then(|| file_id(&record.file)),
        offset: has(raw::FAULT_HAS_PAGE).then(|| record.page.wrapping_mul(page_bytes())),
        begin: MonotonicNs(record.begin_ns),
        begin_seen: !has(raw::FAULT_BEGIN_UNSEEN),
        end: MonotonicNs(record.end_ns),
        end_seen: !has(raw::FAULT_END_UNSEEN),
        time: MonotonicNs(record.header.time_ns),
        bios: record.bios,
        context: if has(raw::FAULT_HAS_CONTEXT) { context(&record.head) } else { None },
    }
}

pub(super) fn dirty(record: &raw::DirtyRecord) -> DirtyEvent {
    DirtyEvent {
        task: task_ref(record.task, record.task_version),
        span: (record.span != 0).then_some(SpanId(record.span)),
        file: file_id(&record.file),
        offset: record.page.wrapping_mul(page_bytes()),
        bytes: u64::from(record.pages).wrapping_mul(page_bytes()).try_into().unwrap_or(u32::MAX),
        time: MonotonicNs(record.header.time_ns),
    }
}

/// Returns the bytes of a page of this kernel.
fn page_bytes() -> u64 {
    // SAFETY: no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    bytes.try_into().unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_probe_abi::record::{FileId, Header};

    #[test]
    fn an_unseen_end_leaves_no_address() {
        let flags = raw::FAULT_HAS_FILE | raw::FAULT_HAS_PAGE | raw::FAULT_END_UNSEEN;
        let header = Header { tag: raw::TAG_FAULT, flags, time_ns: 90, ..Header::default() };
        let file = FileId { dev: 7, generation: 1, ino: 5, name: 0 };
        let record = raw::FaultRecord {
            header,
            begin_ns: 10,
            end_ns: 20,
            file,
            page: 3,
            address: 0x7000,
            ..raw::FaultRecord::default()
        };
        let event = fault(&record);
        assert_eq!(
            (event.address, event.major, event.begin_seen, event.end_seen),
            (None, false, true, false)
        );
        assert_eq!((event.begin, event.end, event.time), (MonotonicNs(10), MonotonicNs(20), MonotonicNs(90)));
        assert_eq!((event.file, event.offset), (Some(file_id(&file)), Some(3 * page_bytes())));
    }

    #[test]
    fn dirty_pages_are_bytes_of_a_file() {
        let record = raw::DirtyRecord { page: 2, pages: 16, span: 0, ..raw::DirtyRecord::default() };
        let event = dirty(&record);
        assert_eq!((event.offset, u64::from(event.bytes)), (2 * page_bytes(), 16 * page_bytes()));
        assert_eq!(event.span, None);
    }
}
