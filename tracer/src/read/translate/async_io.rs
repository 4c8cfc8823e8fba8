//! Translation of records of asynchronous I/O.

use blkkin_probe_abi::record as raw;
use blkkin_wire::async_io::{AsyncDescriptor, AsyncInterface, AsyncIoEvent, AsyncIoOutcome, operation};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::ids::SpanId;

use super::{file_id, nonzero_time, task_ref};

/// Converts a record to its event.
pub(super) fn event(record: &raw::AsyncIoRecord) -> AsyncIoEvent {
    let has = |flag| record.header.flags & flag != 0;
    let interface = match record.interface {
        raw::ASYNC_LIBAIO => AsyncInterface::Libaio,
        _ => AsyncInterface::IoUring,
    };
    let operation = operation(interface, record.opcode);
    AsyncIoEvent {
        span: SpanId(record.span),
        submitter: (record.parent != 0).then_some(SpanId(record.parent)),
        task: task_ref(record.task, record.task_version),
        interface,
        opcode: record.opcode,
        start: MonotonicNs(record.start_ns),
        end: MonotonicNs(record.header.time_ns),
        queued: nonzero_time(record.queued_ns),
        user_data: record.user_data,
        outcome: if has(raw::ASYNC_NO_END) {
            AsyncIoOutcome::NoEnd
        } else if has(raw::ASYNC_HAS_RESULT) {
            AsyncIoOutcome::Returned(record.result)
        } else {
            AsyncIoOutcome::Ended
        },
        file: has(raw::ASYNC_HAS_FILE).then(|| file_id(&record.file)),
        // The kernel sets the descriptor of these operations only.
        descriptor: operation.has_file.then(|| match has(raw::ASYNC_HAS_FD) {
            true => AsyncDescriptor::Descriptor(record.fd),
            false => AsyncDescriptor::Registered(record.fd),
        }),
        offset: has(raw::ASYNC_HAS_OFFSET).then_some(record.offset),
        length: (has(raw::ASYNC_HAS_LENGTH) && !operation.is_vectored).then_some(record.length),
        bios: record.bios,
        ring_flags: record.ring_flags,
        sqe_flags: record.sqe_flags,
        writes_page_cache: has(raw::ASYNC_WRITES_PAGE_CACHE),
        sampling: super::head_sampling(&record.header),
    }
}
