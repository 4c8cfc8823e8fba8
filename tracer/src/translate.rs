//! Records to events: the one place that knows both vocabularies.

use std::sync::Arc;

use blkkin_probe_abi::context::Head;
use blkkin_probe_abi::record as raw;
use blkkin_wire::calls::{Arch, CallId, CallSpec};
use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::event::{
    BioEvent, BlockStatus, CallEvent, CommitEvent, ContextFrom, Ending, FileEvent, InnerTask, Kept,
    LayerEvent, OpenFile, PairEvent, RequestEvent, Submitter, TaskChange, TaskEvent, TaskRef, TraceContext,
};
use blkkin_wire::ids::{CgroupId, DeviceId, Fd, FileId, Pid, Sector, SpanId, TaskId, Tid, TraceId, Uid};

use crate::context::attributes;
use crate::decode::{self, Record};
use crate::operations::Operations;

pub(crate) mod nbd;
pub(crate) mod unended;

/// Appends the event that a record says. Not of a call whose number is not in the table (then it is malformed: the kernel
/// side records only numbers that it was given).
#[inline]
pub fn append(record: Record<'_>, operations: &Operations, events: &mut Vec<LayerEvent>) -> bool {
    match record {
        Record::Call(made) => {
            let Some(id) = CallId::by_number(Arch::HOST, made.record.number.into()) else { return false };
            put(events, || LayerEvent::Call(call(id, made)));
        }
        Record::Bio(record) => put(events, || LayerEvent::Bio(bio(record, operations))),
        Record::Request(record) => put(events, || LayerEvent::Request(request(record, operations))),
        Record::Pair(record) => put(events, || LayerEvent::Pair(pair(record, operations))),
        Record::Commit(record) => put(events, || LayerEvent::Commit(commit(record))),
        Record::Task(record) => put(events, || LayerEvent::Task(task(record))),
        Record::File(record, path) => put(events, || LayerEvent::File(file(record, path))),
        // Of two of them one event is made: see `nbd`.
        Record::NbdAsked(_) | Record::NbdAnswered(_) | Record::NbdResent(_) | Record::Hit(..) => {
            return false;
        }
    }
    true
}

/// Makes an event where it will lie: it is 264 bytes, and `push` would make it elsewhere and copy it.
#[inline(always)]
fn put(events: &mut Vec<LayerEvent>, event: impl FnOnce() -> LayerEvent) {
    if events.len() == events.capacity() {
        events.reserve(1);
    }
    if let Some(place) = events.spare_capacity_mut().first_mut() {
        place.write(event());
        // SAFETY: what lies there was written just now.
        unsafe { events.set_len(events.len() + 1) };
    }
}

#[inline(always)]
fn call(call: CallId, made: decode::Call<'_>) -> CallEvent {
    let decode::Call { record, second, paths, head, attributes } = made;
    let has = |flag| record.header.flags & flag != 0;
    let spec = call.spec();
    // The kernel side reads positions for every call that *may* use them; this one's arguments say whether it did.
    let uses_position =
        |fd_arg: Option<usize>| fd_arg.is_some_and(|arg| spec.uses_position_of(arg, &record.args));
    CallEvent {
        span: SpanId(record.span),
        task: task_ref(record.task, record.task_version),
        call,
        args: own(record.args, spec),
        enter: MonotonicNs(record.enter_ns),
        exit: MonotonicNs(record.header.time_ns),
        ending: if has(raw::CALL_NO_EXIT) { Ending::NoExit } else { Ending::Returned(record.ret) },
        file: has(raw::CALL_HAS_FILE).then(|| OpenFile {
            fd: Fd(record.fd),
            file: file_id(&record.file),
            position_before: (has(raw::CALL_HAS_POSITION_BEFORE) && uses_position(spec.fd_arg()))
                .then_some(record.position_before),
            position_after: (has(raw::CALL_HAS_POSITION_AFTER) && uses_position(spec.fd_arg()))
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
        paths: texts(spec, paths),
        paths_kept: if has(raw::CALL_PATH_TRUNCATED) {
            Kept::Truncated
        } else if has(raw::CALL_PATH_FAULT) {
            Kept::Unreadable
        } else {
            Kept::Whole
        },
        bios: record.bios,
        sleeps: record.sleeps,
        cpu_wait: has(raw::CALL_HAS_CPU_WAIT).then_some(DurationNs(record.cpu_wait_ns)),
        sync_tid: has(raw::CALL_HAS_SYNC_TID).then_some(record.sync_tid),
        context: head.and_then(context),
        attributes: head.and_then(|head| attributes::said(head.attributes, attributes)),
    }
}

/// Bytes of a program's own: none if they name no trace or no span. The kernel side has looked, and it is its word that counts.
fn context(head: &Head) -> Option<Box<TraceContext>> {
    let trace = TraceId(u128::from_be_bytes(head.trace));
    let span = SpanId(u64::from_be_bytes(head.span));
    (trace.0 != 0 && span.0 != 0)
        .then(|| Box::new(TraceContext { trace, span, flags: head.flags, from: ContextFrom::Thread }))
}

/// Registers without what was left by chance in those behind the call's own.
fn own(mut registers: [u64; 6], spec: &CallSpec) -> [u64; 6] {
    registers.iter_mut().skip(spec.args.len()).for_each(|register| *register = 0);
    registers
}

/// Path arguments; most calls have none.
fn texts(spec: &CallSpec, paths: [&[u8]; 2]) -> [Option<Box<str>>; 2] {
    if paths.iter().all(|path| path.is_empty()) {
        return [None, None];
    }
    let [first, second] = spec.path_args();
    let text = |arg: Option<usize>, bytes: &[u8]| {
        arg.filter(|_| !bytes.is_empty()).map(|_| String::from_utf8_lossy(bytes).into())
    };
    [text(first, paths[0]), text(second, paths[1])]
}

fn bio(record: &raw::BioRecord, operations: &Operations) -> BioEvent {
    let has = |flag| record.header.flags & flag != 0;
    BioEvent {
        span: SpanId(record.span),
        submitter: submitter(record.parent),
        root: SpanId(record.root),
        task: task_ref(record.task, record.task_version),
        request: (record.request != 0).then_some(SpanId(record.request)),
        first: has(raw::BIO_FIRST),
        split: has(raw::BIO_SPLIT),
        queue: MonotonicNs(record.queue_ns),
        end: MonotonicNs(record.header.time_ns),
        device: DeviceId::from_kernel(record.dev),
        sector: Sector(record.sector),
        bytes: record.bytes,
        op: operations.translate(record.opf),
        status: BlockStatus(record.status as u8),
    }
}

fn request(record: &raw::RequestRecord, operations: &Operations) -> RequestEvent {
    let has = |flag| record.header.flags & flag != 0;
    RequestEvent {
        span: SpanId(record.span),
        parent: (record.parent != 0).then_some(SpanId(record.parent)),
        root: SpanId(record.root),
        task: task_ref(record.task, record.task_version),
        start: MonotonicNs(record.start_ns),
        insert: moment(record.insert_ns),
        issue: moment(record.issue_ns),
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
        flush_sequence: has(raw::REQUEST_FLUSH_SEQUENCE) || has(raw::REQUEST_SERVED),
    }
}

#[inline(always)]
fn pair(record: &raw::PairRecord, operations: &Operations) -> PairEvent {
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
        // One that is inserted is kept apart from its bio.
        insert: None,
        issue: moment(record.issue_ns),
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
        flush_sequence: request_has(raw::REQUEST_FLUSH_SEQUENCE) || request_has(raw::REQUEST_SERVED),
    };
    PairEvent { bio, request }
}

fn submitter(parent: u64) -> Submitter {
    if parent == 0 { Submitter::Kernel } else { Submitter::Span(SpanId(parent)) }
}

/// None of what never happened.
fn moment(ns: u64) -> Option<MonotonicNs> {
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
            TaskChange::Seen
        },
        tid: Tid(record.tid),
        pid: Pid(record.pid),
        ppid: Pid(record.ppid),
        uid: Uid(record.uid),
        cgroup: CgroupId(record.cgroup),
        comm: padded(&record.comm),
        exe: (record.exe != raw::FileId::default()).then(|| file_id(&record.exe)),
        kernel_thread: has(raw::TASK_KERNEL_THREAD),
        inner: (record.pid_ns != 0).then_some(InnerTask {
            pid_ns: record.pid_ns,
            pid: Pid(record.inner_pid),
            tid: Tid(record.inner_tid),
        }),
    }
}

fn file(record: &raw::FileRecord, leaf_first: &[u8]) -> FileEvent {
    let truncated = record.header.flags & raw::FILE_PATH_TRUNCATED != 0;
    FileEvent {
        time: MonotonicNs(record.header.time_ns),
        file: file_id(&record.file),
        path: path(leaf_first, truncated, is_on_a_tree(&record.filesystem)).into(),
        kept: if truncated { Kept::Truncated } else { Kept::Whole },
        filesystem: padded(&record.filesystem),
        device_file: (record.rdev != 0 && record.mode & S_IFMT == S_IFBLK)
            .then(|| DeviceId::from_kernel(record.rdev)),
        mode: record.mode,
    }
}

/// Type bits of `st_mode`, and those of a block device (include/uapi/linux/stat.h).
const S_IFMT: u32 = 0o170_000;
const S_IFBLK: u32 = 0o060_000;

/// Pipes, sockets and anonymous inodes have a name and no place.
fn is_on_a_tree(filesystem: &[u8]) -> bool {
    !matches!(padded(filesystem).as_ref(), "pipefs" | "sockfs" | "anon_inodefs" | "bdev" | "memfd")
}

fn path(leaf_first: &[u8], truncated: bool, on_a_tree: bool) -> String {
    let components = leaf_first.split(|byte| *byte == 0).filter(|component| !component.is_empty());
    let mut components: Vec<_> = components.map(String::from_utf8_lossy).collect();
    components.reverse();
    let joined = components.join("/");
    if truncated {
        format!("…/{joined}")
    } else if on_a_tree {
        format!("/{}", joined.trim_start_matches('/'))
    } else {
        joined
    }
}

fn padded(bytes: &[u8]) -> Arc<str> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into()
}

fn task_ref(id: u64, version: u16) -> TaskRef {
    TaskRef { id: TaskId(id), version }
}

fn file_id(file: &raw::FileId) -> FileId {
    FileId { device: DeviceId::from_kernel(file.dev), ino: file.ino, generation: file.generation }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_come_leaf_first_and_leave_as_a_path() {
        assert_eq!(path(b"c\0b\0a\0", false, true), "/a/b/c");
        assert_eq!(path(b"c\0b\0", true, true), "…/b/c");
        assert_eq!(path(b"\0", false, true), "/");
        assert_eq!(path(b"[eventpoll]\0", false, false), "[eventpoll]");
    }

    #[test]
    fn a_call_that_is_not_in_the_table_is_no_event() {
        let record = raw::CallRecord { number: 39, ..raw::CallRecord::default() };
        let mut events = Vec::new();
        let call =
            decode::Call { record: &record, second: None, paths: [&[], &[]], head: None, attributes: &[] };
        assert!(!append(Record::Call(call), &Operations::default(), &mut events));
        assert!(events.is_empty());
    }
}
