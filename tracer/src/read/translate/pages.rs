//! Translation of the record of a bio's pages.

use blkkin_probe_abi::record::{self as raw, BioPagesRecord};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::ids::{FileId, SpanId};
use blkkin_wire::page_origin::{PageKind, PageOriginEvent, WritebackReason};

/// Returns the event of a record, without writers.
pub(crate) fn event(record: &BioPagesRecord) -> PageOriginEvent {
    let kind = match record.kind {
        raw::PAGES_FILE => PageKind::File,
        raw::PAGES_DEVICE => PageKind::Device,
        raw::PAGES_LOG => PageKind::Log,
        raw::PAGES_SWAP => PageKind::Swap,
        _ => PageKind::Metadata,
    };
    PageOriginEvent {
        time: MonotonicNs(record.header.time_ns),
        bio: SpanId(record.span),
        root: SpanId(record.root),
        kind,
        file: (kind == PageKind::File).then(|| file(record)),
        offset: record.offset,
        bytes: record.bytes,
        parts: Vec::new(),
        reason: reason(record.reason),
        writers: Vec::new(),
        bytes_unattributed: 0,
        unattributed: None,
    }
}

/// Returns whether the record is of the range that a bio of a loop device writes in its file.
pub(crate) fn is_of_loop(record: &BioPagesRecord) -> bool {
    record.kind == raw::PAGES_OF_LOOP
}

/// Returns the file of a record that has one.
pub(crate) fn file(record: &BioPagesRecord) -> FileId {
    super::file_id(&record.file)
}

/// Returns whether the bio writes the pages.
pub(crate) fn is_write(record: &BioPagesRecord) -> bool {
    record.header.flags & raw::PAGES_WRITTEN != 0
}

/// Returns whether a program that is not traced submitted the bio.
pub(crate) fn is_of_other_program(record: &BioPagesRecord) -> bool {
    record.header.flags & raw::PAGES_OF_OTHER != 0
}

/// Returns whether the bio is deferred until its operation ends, and may never come.
pub(crate) fn is_deferred(record: &BioPagesRecord) -> bool {
    record.header.flags & raw::PAGES_DEFERRED != 0
}

/// Returns whether the bio is dropped: the record states only that its pages are clean.
pub(crate) fn is_unsampled(record: &BioPagesRecord) -> bool {
    record.header.flags & raw::PAGES_UNSAMPLED != 0
}

/// Returns whether the pages are consecutive in the file.
pub(crate) fn is_consecutive(record: &BioPagesRecord) -> bool {
    record.header.flags & raw::PAGES_NOT_CONSECUTIVE == 0
}

/// Returns whether the record is of one consecutive part of a bio.
pub(crate) fn is_part(record: &BioPagesRecord) -> bool {
    record.header.flags & raw::PAGES_PART != 0
}

/// Translates 1 + `enum wb_reason` (include/linux/backing-dev-defs.h; the order is that of 6.1 to
/// 6.18).
fn reason(raw: u16) -> Option<WritebackReason> {
    Some(match raw {
        0 => return None,
        1 => WritebackReason::Background,
        2 => WritebackReason::MemoryPressure,
        3 => WritebackReason::Sync,
        4 => WritebackReason::Periodic,
        6 => WritebackReason::FreeSpace,
        8 => WritebackReason::ForeignCgroup,
        _ => WritebackReason::Other,
    })
}
