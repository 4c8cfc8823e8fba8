//! Translation of records into events: the only module that knows both types.

use std::sync::Arc;

use blkkin_probe_abi::context::ContextHead;
use blkkin_probe_abi::record as raw;
use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::event::{
    BioEvent, BlockStatus, Captured, CommitEvent, ContextSource, FileEvent, LayerEvent, OpenFile, PairEvent,
    PidNsIds, RequestEvent, Submitter, SyscallEvent, SyscallOutcome, TaskChange, TaskEvent, TaskRef,
    TraceContext,
};
use blkkin_wire::head_sampling::HeadSampling;
use blkkin_wire::ids::{
    CgroupId, DeviceId, Fd, FileId, NameId, Pid, Sector, SpanId, TaskId, Tid, TraceId, Uid,
};
use blkkin_wire::syscalls::{Arch, SyscallId, SyscallSpec};
use blkkin_wire::thread_attributes::{ThreadAttribute, ThreadAttributes};

use crate::attach::req_op::ReqOpTable;
use crate::read::decode::{self, Record};
use crate::read::path_text::{PathStart, path};

mod async_io;
pub(crate) mod in_flight;
pub(crate) mod nbd;
mod page_fault;
pub(crate) mod pages;
pub(crate) mod pending;
pub(crate) mod sleeps;
pub(crate) mod waits;

/// Appends the event of a record. Returns false for a system call whose number is not in the table.
/// That is malformed, since the kernel side records only numbers that it was given.
#[inline]
pub fn append(record: Record<'_>, operations: &ReqOpTable, events: &mut Vec<LayerEvent>) -> bool {
    match record {
        Record::Syscall(made) => {
            let Some(id) = SyscallId::by_number(Arch::HOST, made.record.number.into()) else { return false };
            push_in_place(events, || LayerEvent::Syscall(syscall(id, made)));
        }
        Record::Bio(record) => push_in_place(events, || LayerEvent::Bio(bio(record, operations))),
        Record::Request(record) => push_in_place(events, || LayerEvent::Request(request(record, operations))),
        Record::BioRequest(record) => {
            push_in_place(events, || LayerEvent::Pair(bio_request(record, operations)))
        }
        Record::AsyncIo(record) => {
            push_in_place(events, || LayerEvent::AsyncIo(async_io::event(record)));
        }
        Record::Commit(record) => push_in_place(events, || LayerEvent::Commit(commit(record))),
        Record::Task(record) => push_in_place(events, || LayerEvent::Task(task(record))),
        Record::File(record, path) => push_in_place(events, || LayerEvent::File(file(record, path))),
        Record::Fault(record) => push_in_place(events, || LayerEvent::Fault(page_fault::fault(record))),
        Record::Dirty(record) => push_in_place(events, || LayerEvent::Dirty(page_fault::dirty(record))),
        // These become events of their own kind, or a part of one, elsewhere: see `nbd`, `usdt`,
        // `page_origins` and `waits`.
        Record::NbdRequest(_)
        | Record::NbdReply(_)
        | Record::NbdRetransmit(_)
        | Record::UsdtEvent(..)
        | Record::BioPages(_)
        | Record::Sleeps(_)
        | Record::Waits(_) => return false,
    }
    true
}

/// Constructs an event in place: it has 264 bytes, and `push` would construct it elsewhere and copy
/// it.
#[inline(always)]
fn push_in_place(events: &mut Vec<LayerEvent>, event: impl FnOnce() -> LayerEvent) {
    if events.len() == events.capacity() {
        events.reserve(1);
    }
    if let Some(element) = events.spare_capacity_mut().first_mut() {
        element.write(event());
        // SAFETY: the element was written just now.
        unsafe { events.set_len(events.len() + 1) };
    }
}

#[inline(always)]
fn syscall(call: SyscallId, made: decode::SyscallEntry<'_>) -> SyscallEvent {
    let decode::SyscallEntry { record, second, paths, context: head, attributes } = made;
    let has = |flag| record.header.flags & flag != 0;
    let spec = call.spec();
    // The kernel side reads positions for every call that *may* use them; the arguments of this
    // call decide.
    let uses_position =
        |fd_arg: Option<usize>| fd_arg.is_some_and(|arg| spec.uses_position_of(arg, &record.args));
    SyscallEvent {
        span: SpanId(record.span),
        task: task_ref(record.task, record.task_version),
        call,
        args: clear_unused_args(record.args, spec),
        enter: MonotonicNs(record.enter_ns),
        exit: MonotonicNs(record.header.time_ns),
        outcome: if has(raw::SYSCALL_NO_EXIT) {
            SyscallOutcome::NoExit
        } else {
            SyscallOutcome::Returned(record.ret)
        },
        file: has(raw::SYSCALL_HAS_FILE).then(|| OpenFile {
            fd: Fd(record.fd),
            file: file_id(&record.file),
            position_before: (has(raw::SYSCALL_HAS_POSITION_BEFORE) && uses_position(spec.fd_arg()))
                .then_some(record.position_before),
            position_after: (has(raw::SYSCALL_HAS_POSITION_AFTER) && uses_position(spec.fd_arg()))
                .then_some(record.position_after),
        }),
        second_file: second.map(|second| {
            Box::new(OpenFile {
                fd: Fd(second.fd),
                file: file_id(&second.file),
                position_before: uses_position(spec.second_fd_arg()).then_some(second.position_before),
                position_after: (second.position_after >= 0 && uses_position(spec.second_fd_arg()))
                    .then_some(second.position_after),
            })
        }),
        paths: path_texts(spec, paths),
        paths_captured: if has(raw::SYSCALL_PATH_TRUNCATED) {
            Captured::Truncated
        } else if has(raw::SYSCALL_PATH_FAULT) {
            Captured::Faulted
        } else {
            Captured::Full
        },
        bios: record.bios,
        sleeps: record.sleeps,
        cpu_wait: has(raw::SYSCALL_HAS_CPU_WAIT).then_some(DurationNs(record.cpu_wait_ns)).into(),
        sync_tid: has(raw::SYSCALL_HAS_SYNC_TID).then_some(record.sync_tid),
        context: head.and_then(context),
        attributes: head.and_then(|head| thread_attributes(head.attribute_bytes, attributes)),
        writes_page_cache: has(raw::SYSCALL_WRITES_PAGE_CACHE),
        reads_page_cache: has(raw::SYSCALL_READS_PAGE_CACHE),
        // `waits` has them.
        waits: None,
        slept: None,
        sampling: head_sampling(&record.header),
    }
}

/// Returns the ratio by which a root was recorded.
#[inline(always)]
fn head_sampling(header: &raw::Header) -> HeadSampling {
    HeadSampling::from_code(header.sampling).unwrap_or(HeadSampling::MIN_RATIO)
}

/// Decodes a thread context; none without a trace id or span id. The kernel side has validated it
/// already.
fn context(head: &ContextHead) -> Option<Box<TraceContext>> {
    let trace = TraceId(u128::from_be_bytes(head.trace));
    let span = SpanId(u64::from_be_bytes(head.span));
    (trace.0 != 0 && span.0 != 0).then(|| {
        Box::new(TraceContext { trace, span, flags: head.flags, source: ContextSource::ThreadContext })
    })
}

/// Decodes the attributes of a thread context. `length` is their length in bytes, as in the
/// context; none if it is 0. `bytes` is empty if they could not be read.
fn thread_attributes(length: u16, bytes: &[u8]) -> Option<Arc<ThreadAttributes>> {
    if length == 0 {
        return None;
    }
    let decoded = blkkin_otel_context::thread_attributes::decode(bytes);
    let entries = decoded.entries.into_iter().map(|(key, value)| ThreadAttribute { key, value });
    Some(Arc::new(ThreadAttributes {
        entries: entries.collect(),
        dropped_attributes_count: decoded.dropped_attributes,
        bytes_unread: if bytes.is_empty() { length.into() } else { 0 },
    }))
}

/// Zeroes the registers after the call's last argument, which contain leftovers.
fn clear_unused_args(mut registers: [u64; 6], spec: &SyscallSpec) -> [u64; 6] {
    registers.iter_mut().skip(spec.args.len()).for_each(|register| *register = 0);
    registers
}

/// Decodes path arguments; most calls have none.
fn path_texts(spec: &SyscallSpec, paths: [&[u8]; 2]) -> [Option<Box<str>>; 2] {
    if paths.iter().all(|path| path.is_empty()) {
        return [None, None];
    }
    let [first, second] = spec.path_args();
    let text = |arg: Option<usize>, bytes: &[u8]| {
        arg.filter(|_| !bytes.is_empty()).map(|_| String::from_utf8_lossy(bytes).into())
    };
    [text(first, paths[0]), text(second, paths[1])]
}

fn bio(record: &raw::BioRecord, operations: &ReqOpTable) -> BioEvent {
    let has = |flag| record.header.flags & flag != 0;
    BioEvent {
        span: SpanId(record.span),
        submitter: submitter(record.parent),
        root: SpanId(record.root),
        task: task_ref(record.task, record.task_version),
        request: (record.request != 0).then_some(SpanId(record.request)),
        first: has(raw::BIO_FIRST),
        split: has(raw::BIO_SPLIT),
        has_page_origin: has(raw::BIO_HAS_PAGES),
        of_other_program: has(raw::BIO_OF_OTHER),
        queue: MonotonicNs(record.queue_ns),
        end: MonotonicNs(record.header.time_ns),
        device: DeviceId::from_kernel(record.dev),
        sector: Sector(record.sector),
        bytes: record.bytes,
        op: operations.translate(record.opf),
        status: BlockStatus(record.status as u8),
    }
}

fn request(record: &raw::RequestRecord, operations: &ReqOpTable) -> RequestEvent {
    let has = |flag| record.header.flags & flag != 0;
    RequestEvent {
        span: SpanId(record.span),
        parent: (record.parent != 0).then_some(SpanId(record.parent)),
        root: SpanId(record.root),
        task: task_ref(record.task, record.task_version),
        start: MonotonicNs(record.start_ns),
        insert: nonzero_time(record.insert_ns),
        issue: nonzero_time(record.issue_ns),
        complete: MonotonicNs(record.header.time_ns),
        device: DeviceId::from_kernel(record.dev),
        sector: Sector(record.sector),
        bytes: record.bytes,
        op: operations.translate(record.opf),
        status: BlockStatus(record.status as u8),
        bios: record.bios,
        tag: u32::try_from(record.tag).ok(),
        plugged: has(raw::REQUEST_PLUGGED),
        requeued: has(raw::REQUEST_REQUEUED),
        flush_sequence: has(raw::REQUEST_FLUSH_SEQUENCE) || has(raw::REQUEST_SERVED_BY_FLUSH),
    }
}

#[inline(always)]
fn bio_request(record: &raw::BioRequestRecord, operations: &ReqOpTable) -> PairEvent {
    let bio_has = |flag| record.bio_flags & flag != 0;
    let request_has = |flag| record.header.flags & flag != 0;
    let (root, task) = (SpanId(record.root), task_ref(record.task, record.task_version));
    let end = MonotonicNs(record.header.time_ns);
    let status = BlockStatus(record.status as u8);
    let bio = BioEvent {
        span: SpanId(record.bio),
        submitter: submitter(record.parent),
        root,
        task,
        request: (record.request != 0).then_some(SpanId(record.request)),
        first: bio_has(raw::BIO_FIRST),
        split: bio_has(raw::BIO_SPLIT),
        has_page_origin: bio_has(raw::BIO_HAS_PAGES),
        of_other_program: bio_has(raw::BIO_OF_OTHER),
        queue: MonotonicNs(record.queue_ns),
        end,
        device: DeviceId::from_kernel(record.dev),
        sector: Sector(record.sector),
        bytes: record.bytes,
        op: operations.translate(record.bio_opf),
        status,
    };
    let request = RequestEvent {
        span: SpanId(record.request),
        parent: (record.bio != 0).then_some(SpanId(record.bio)),
        root,
        task,
        start: MonotonicNs(record.start_ns),
        // An inserted request has an entry of its own, apart from its bio.
        insert: None,
        issue: nonzero_time(record.issue_ns),
        complete: end,
        device: DeviceId::from_kernel(record.disk),
        sector: Sector(record.disk_sector),
        bytes: record.bytes,
        op: operations.translate(record.request_opf),
        status,
        bios: 1,
        tag: u32::try_from(record.tag).ok(),
        plugged: request_has(raw::REQUEST_PLUGGED),
        requeued: request_has(raw::REQUEST_REQUEUED),
        flush_sequence: request_has(raw::REQUEST_FLUSH_SEQUENCE) || request_has(raw::REQUEST_SERVED_BY_FLUSH),
    };
    PairEvent { bio, request }
}

fn submitter(parent: u64) -> Submitter {
    if parent == 0 { Submitter::Kernel } else { Submitter::Span(SpanId(parent)) }
}

/// Converts a time, with 0 as none.
fn nonzero_time(ns: u64) -> Option<MonotonicNs> {
    (ns != 0).then_some(MonotonicNs(ns))
}

fn commit(record: &raw::CommitRecord) -> CommitEvent {
    CommitEvent {
        span: SpanId(record.span),
        task: task_ref(record.task, record.task_version),
        start: MonotonicNs(record.start_ns),
        end: MonotonicNs(record.header.time_ns),
        device: DeviceId::from_kernel(record.dev),
        tid: record.tid,
        bios: record.bios,
    }
}

fn task(record: &raw::TaskRecord) -> TaskEvent {
    let has = |flag| record.header.flags & flag != 0;
    TaskEvent {
        time: MonotonicNs(record.header.time_ns),
        task: task_ref(record.task, record.version),
        parent: (record.parent_task != 0).then_some(TaskId(record.parent_task)),
        change: if has(raw::TASK_EXITED) {
            TaskChange::Exited
        } else if has(raw::TASK_EXECED) {
            TaskChange::Execed
        } else if has(raw::TASK_FORKED) {
            TaskChange::Forked
        } else if has(raw::TASK_CHANGED) {
            TaskChange::Changed
        } else {
            TaskChange::Discovered
        },
        tid: Tid(record.tid),
        pid: Pid(record.pid),
        ppid: Pid(record.ppid),
        uid: Uid(record.uid),
        cgroup: CgroupId(record.cgroup),
        comm: nul_terminated(&record.comm),
        exe: (record.exe != raw::FileId::default()).then(|| file_id(&record.exe)),
        kernel_thread: has(raw::TASK_KERNEL_THREAD),
        ns_ids: (record.pid_ns != 0).then_some(PidNsIds {
            pid_ns: record.pid_ns,
            pid: Pid(record.inner_pid),
            tid: Tid(record.inner_tid),
        }),
    }
}

fn file(record: &raw::FileRecord, leaf_first: &[u8]) -> FileEvent {
    let has = |flag| record.header.flags & flag != 0;
    let truncated = has(raw::FILE_PATH_TRUNCATED);
    let start = match (truncated, has_path(&record.filesystem)) {
        (true, _) => PathStart::Unknown,
        (false, false) => PathStart::NameOnly,
        (false, true) if has(raw::FILE_UNMOUNTED) => PathStart::Unmounted,
        (false, true) => PathStart::Root,
    };
    FileEvent {
        time: MonotonicNs(record.header.time_ns),
        file: file_id(&record.file),
        path: path(leaf_first, start).into(),
        captured: if truncated { Captured::Truncated } else { Captured::Full },
        filesystem: nul_terminated(&record.filesystem),
        device_file: (record.rdev != 0 && record.mode & S_IFMT == S_IFBLK)
            .then(|| DeviceId::from_kernel(record.rdev)),
        mode: record.mode,
        removed: has(raw::FILE_NAME_REMOVED),
    }
}

/// Type bits of `st_mode`, and those of a block device (include/uapi/linux/stat.h).
const S_IFMT: u32 = 0o170_000;
const S_IFBLK: u32 = 0o060_000;

/// Returns whether files of this file system have a path. Pipes, sockets and anonymous inodes have
/// only a name.
fn has_path(filesystem: &[u8]) -> bool {
    !matches!(nul_terminated(filesystem).as_ref(), "pipefs" | "sockfs" | "anon_inodefs" | "bdev" | "memfd")
}

fn nul_terminated(bytes: &[u8]) -> Arc<str> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into()
}

fn task_ref(id: u64, version: u16) -> TaskRef {
    TaskRef { id: TaskId(id), version }
}

fn file_id(file: &raw::FileId) -> FileId {
    FileId {
        device: DeviceId::from_kernel(file.dev),
        ino: file.ino,
        generation: file.generation,
        name: NameId(file.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_attributes_are_reported_by_length() {
        let expected = ThreadAttributes { bytes_unread: 613, ..ThreadAttributes::default() };
        assert_eq!(thread_attributes(613, b"").as_deref(), Some(&expected));
        assert_eq!(thread_attributes(0, b""), None);
    }

    #[test]
    fn unknown_system_call_yields_no_event() {
        let record = raw::SyscallRecord { number: 39, ..raw::SyscallRecord::default() };
        let mut events = Vec::new();
        let call = decode::SyscallEntry {
            record: &record,
            second: None,
            paths: [&[], &[]],
            context: None,
            attributes: &[],
        };
        assert!(!append(Record::Syscall(call), &ReqOpTable::default(), &mut events));
        assert!(events.is_empty());
    }
}
