//! Messages of `blkkin.proto` in Rust, field by field; the schema documents them. A test decodes
//! the output with protoc.

use prost::{Enumeration, Message};

/// Event kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum Kind {
    Unspecified = 0,
    Syscall = 1,
    Bio = 2,
    Request = 3,
    Pair = 4,
    Commit = 5,
    Task = 6,
    File = 7,
    Device = 8,
    RpcEndpoint = 9,
    DaemonSpan = 10,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EventBatch {
    #[prost(uint32, tag = "1")]
    pub(super) version: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) node: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) boot: Vec<u8>,
    #[prost(fixed64, tag = "4")]
    pub(super) epoch: u64,
    #[prost(uint64, tag = "5")]
    pub(super) sequence: u64,
    #[prost(message, required, tag = "6")]
    pub(super) anchor: Anchor,
    #[prost(uint64, tag = "7")]
    pub(super) watermark: u64,
    #[prost(message, required, tag = "8")]
    pub(super) stats: SourceStats,
    #[prost(message, repeated, tag = "9")]
    pub(super) crashed_runs: Vec<CrashedRun>,
    #[prost(enumeration = "Kind", repeated, tag = "10")]
    pub(super) kinds: Vec<i32>,
    #[prost(sint64, repeated, tag = "11")]
    pub(super) times: Vec<i64>,
    #[prost(uint32, repeated, tag = "12")]
    pub(super) origins: Vec<u32>,
    #[prost(uint64, repeated, tag = "13")]
    pub(super) counters: Vec<u64>,
    #[prost(message, required, tag = "14")]
    pub(super) tasks: Tasks,
    #[prost(message, required, tag = "15")]
    pub(super) files: Files,
    #[prost(uint32, repeated, tag = "16")]
    pub(super) devices: Vec<u32>,
    #[prost(message, repeated, tag = "17")]
    pub(super) syscalls: Vec<Syscall>,
    #[prost(string, repeated, tag = "18")]
    pub(super) strings: Vec<String>,
    #[prost(message, optional, tag = "19")]
    pub(super) contexts: Option<Contexts>,
    #[prost(message, required, tag = "20")]
    pub(super) syscall_events: SyscallEvents,
    #[prost(message, required, tag = "21")]
    pub(super) bio_events: BioEvents,
    #[prost(message, required, tag = "22")]
    pub(super) request_events: RequestEvents,
    #[prost(message, required, tag = "23")]
    pub(super) commit_events: CommitEvents,
    #[prost(message, required, tag = "24")]
    pub(super) task_events: TaskEvents,
    #[prost(message, required, tag = "25")]
    pub(super) file_events: FileEvents,
    #[prost(message, required, tag = "26")]
    pub(super) device_events: DeviceEvents,
    #[prost(message, optional, tag = "27")]
    pub(super) rpc_endpoint_events: Option<RpcEndpointEvents>,
    #[prost(message, optional, tag = "28")]
    pub(super) daemon_span_events: Option<DaemonSpanEvents>,
    #[prost(message, repeated, tag = "29")]
    pub(super) process_context_events: Vec<ProcessContextEvent>,
    #[prost(message, optional, tag = "30")]
    pub(super) thread_attributes: Option<ThreadAttributes>,
}

/// Fields of an event batch that [`super::peek`] needs; the rest is skipped.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(uint32, tag = "1")]
    pub(super) version: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) node: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) boot: Vec<u8>,
    #[prost(fixed64, tag = "4")]
    pub(super) epoch: u64,
    #[prost(uint64, tag = "5")]
    pub(super) sequence: u64,
    #[prost(enumeration = "Kind", repeated, tag = "10")]
    pub(super) kinds: Vec<i32>,
    /// Present to be counted.
    #[prost(message, repeated, tag = "29")]
    pub(super) process_context_events: Vec<Unread>,
}

/// Message whose content is skipped.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Unread {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessContextEvent {
    #[prost(uint32, tag = "1")]
    pub(super) before: u32,
    #[prost(uint64, tag = "2")]
    pub(super) time: u64,
    #[prost(uint32, tag = "3")]
    pub(super) pid: u32,
    #[prost(uint32, repeated, tag = "4")]
    pub(super) key: Vec<u32>,
    #[prost(uint32, repeated, tag = "5")]
    pub(super) value: Vec<u32>,
    #[prost(sint64, repeated, tag = "6")]
    pub(super) number: Vec<i64>,
    #[prost(uint32, tag = "7")]
    pub(super) dropped_attributes_count: u32,
    #[prost(uint32, repeated, tag = "8")]
    pub(super) thread_key: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CrashedRun {
    #[prost(fixed64, tag = "1")]
    pub(super) epoch: u64,
    #[prost(bool, tag = "2")]
    pub(super) unknown: bool,
    #[prost(message, optional, tag = "3")]
    pub(super) fired: Option<RecordCounts>,
    #[prost(message, optional, tag = "4")]
    pub(super) dropped: Option<RecordCounts>,
    #[prost(message, optional, tag = "5")]
    pub(super) read: Option<RecordCounts>,
    #[prost(message, optional, tag = "6")]
    pub(super) persisted: Option<RecordCounts>,
    #[prost(message, optional, tag = "7")]
    pub(super) unacknowledged: Option<RecordCounts>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RecordCounts {
    #[prost(uint64, tag = "1")]
    pub(super) calls: u64,
    #[prost(uint64, tag = "2")]
    pub(super) bios: u64,
    #[prost(uint64, tag = "3")]
    pub(super) requests: u64,
    #[prost(uint64, tag = "4")]
    pub(super) commits: u64,
    #[prost(uint64, tag = "5")]
    pub(super) names: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Anchor {
    #[prost(uint64, tag = "1")]
    pub(super) monotonic: u64,
    #[prost(uint64, tag = "2")]
    pub(super) wallclock: u64,
    #[prost(uint64, tag = "3")]
    pub(super) uncertainty: u64,
    #[prost(uint64, tag = "4")]
    pub(super) suspended: u64,
    #[prost(uint64, optional, tag = "5")]
    pub(super) max_error: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SourceStats {
    #[prost(message, required, tag = "1")]
    pub(super) calls: RecordStats,
    #[prost(message, required, tag = "2")]
    pub(super) bios: RecordStats,
    #[prost(message, required, tag = "3")]
    pub(super) requests: RecordStats,
    #[prost(message, required, tag = "4")]
    pub(super) commits: RecordStats,
    #[prost(message, required, tag = "5")]
    pub(super) names: RecordStats,
    #[prost(uint64, tag = "6")]
    pub(super) calls_entered: u64,
    #[prost(uint64, tag = "7")]
    pub(super) calls_filtered: u64,
    #[prost(uint64, tag = "8")]
    pub(super) calls_incomplete: u64,
    #[prost(uint64, tag = "9")]
    pub(super) calls_truncated: u64,
    #[prost(uint64, tag = "10")]
    pub(super) files_truncated: u64,
    #[prost(uint64, tag = "11")]
    pub(super) calls_compat: u64,
    #[prost(uint64, tag = "12")]
    pub(super) bios_queued: u64,
    #[prost(uint64, tag = "13")]
    pub(super) requests_started: u64,
    #[prost(uint64, tag = "14")]
    pub(super) requests_merged: u64,
    #[prost(uint64, tag = "15")]
    pub(super) ends_missed: u64,
    #[prost(uint64, tag = "16")]
    pub(super) untracked: u64,
    #[prost(uint64, tag = "17")]
    pub(super) tasks_missed: u64,
    #[prost(uint64, tag = "18")]
    pub(super) recursion_misses: u64,
    #[prost(uint64, tag = "19")]
    pub(super) malformed: u64,
    #[prost(uint64, tag = "20")]
    pub(super) requests_foreign: u64,
    #[prost(uint64, tag = "21")]
    pub(super) paths_failed: u64,
    #[prost(uint64, tag = "22")]
    pub(super) walk_overflow: u64,
    #[prost(uint64, tag = "23")]
    pub(super) flushes_served: u64,
    #[prost(uint64, tag = "24")]
    pub(super) flush_overflow: u64,
    #[prost(uint64, tag = "25")]
    pub(super) contexts_faulted: u64,
    #[prost(uint64, tag = "26")]
    pub(super) contexts_unread: u64,
    #[prost(uint64, tag = "27")]
    pub(super) contexts_invalid: u64,
    #[prost(uint64, tag = "28")]
    pub(super) contexts_publishing: u64,
    #[prost(uint64, tag = "29")]
    pub(super) contexts_denied: u64,
    #[prost(uint64, tag = "30")]
    pub(super) contexts_no_room: u64,
    #[prost(uint64, tag = "31")]
    pub(super) resources_publishing: u64,
    #[prost(uint64, tag = "32")]
    pub(super) resources_malformed: u64,
    #[prost(uint64, tag = "33")]
    pub(super) resources_unread: u64,
    #[prost(uint64, tag = "34")]
    pub(super) resources_no_room: u64,
    #[prost(uint64, tag = "35")]
    pub(super) attributes_cut: u64,
    #[prost(uint64, tag = "36")]
    pub(super) attributes_unread: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RecordStats {
    #[prost(uint64, tag = "1")]
    pub(super) fired: u64,
    #[prost(uint64, tag = "2")]
    pub(super) recorded: u64,
    #[prost(uint64, tag = "3")]
    pub(super) dropped: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Ids {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) origin: Vec<u32>,
    #[prost(sint64, repeated, tag = "2")]
    pub(super) counter: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Tasks {
    #[prost(message, required, tag = "1")]
    pub(super) task: Ids,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) version: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Files {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) device: Vec<u32>,
    #[prost(sint64, repeated, tag = "2")]
    pub(super) inode: Vec<i64>,
    #[prost(uint32, repeated, tag = "3")]
    pub(super) generation: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Syscall {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(uint32, tag = "2")]
    pub(super) arguments: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SyscallEvents {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) syscall: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) flags: Vec<u32>,
    #[prost(message, required, tag = "3")]
    pub(super) span: Ids,
    #[prost(uint32, repeated, tag = "4")]
    pub(super) task: Vec<u32>,
    #[prost(uint64, repeated, tag = "5")]
    pub(super) duration: Vec<u64>,
    #[prost(sint64, repeated, tag = "6")]
    pub(super) returned: Vec<i64>,
    #[prost(uint32, repeated, tag = "7")]
    pub(super) file: Vec<u32>,
    #[prost(sint32, repeated, tag = "8")]
    pub(super) fd: Vec<i32>,
    #[prost(sint64, repeated, tag = "9")]
    pub(super) position: Vec<i64>,
    #[prost(sint64, repeated, tag = "10")]
    pub(super) moved: Vec<i64>,
    #[prost(uint32, repeated, tag = "11")]
    pub(super) other_file: Vec<u32>,
    #[prost(sint32, repeated, tag = "12")]
    pub(super) other_fd: Vec<i32>,
    #[prost(sint64, repeated, tag = "13")]
    pub(super) other_position: Vec<i64>,
    #[prost(sint64, repeated, tag = "14")]
    pub(super) other_moved: Vec<i64>,
    #[prost(string, repeated, tag = "15")]
    pub(super) paths: Vec<String>,
    #[prost(uint32, repeated, tag = "16")]
    pub(super) bios: Vec<u32>,
    #[prost(uint32, repeated, tag = "17")]
    pub(super) sleeps: Vec<u32>,
    #[prost(uint64, repeated, tag = "18")]
    pub(super) cpu_wait: Vec<u64>,
    #[prost(uint32, repeated, tag = "19")]
    pub(super) sync_tid: Vec<u32>,
    #[prost(uint64, repeated, tag = "20")]
    pub(super) argument0: Vec<u64>,
    #[prost(uint64, repeated, tag = "21")]
    pub(super) argument1: Vec<u64>,
    #[prost(uint64, repeated, tag = "22")]
    pub(super) argument2: Vec<u64>,
    #[prost(uint64, repeated, tag = "23")]
    pub(super) argument3: Vec<u64>,
    #[prost(uint64, repeated, tag = "24")]
    pub(super) argument4: Vec<u64>,
    #[prost(uint64, repeated, tag = "25")]
    pub(super) argument5: Vec<u64>,
    #[prost(uint32, repeated, tag = "26")]
    pub(super) context: Vec<u32>,
    #[prost(uint32, repeated, tag = "27")]
    pub(super) attributes: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ThreadAttributes {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) entries: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) dropped_attributes_count: Vec<u32>,
    #[prost(uint32, repeated, tag = "3")]
    pub(super) bytes_unread: Vec<u32>,
    #[prost(uint32, repeated, tag = "4")]
    pub(super) key: Vec<u32>,
    #[prost(uint32, repeated, tag = "5")]
    pub(super) value: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Contexts {
    #[prost(fixed64, repeated, tag = "1")]
    pub(super) trace_high: Vec<u64>,
    #[prost(fixed64, repeated, tag = "2")]
    pub(super) trace_low: Vec<u64>,
    #[prost(fixed64, repeated, tag = "3")]
    pub(super) span: Vec<u64>,
    #[prost(uint32, repeated, tag = "4")]
    pub(super) flags: Vec<u32>,
    #[prost(bool, repeated, tag = "5")]
    pub(super) daemon_span: Vec<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BioEvents {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) flags: Vec<u32>,
    #[prost(message, required, tag = "2")]
    pub(super) span: Ids,
    #[prost(message, required, tag = "3")]
    pub(super) submitter: Ids,
    #[prost(message, required, tag = "4")]
    pub(super) root: Ids,
    #[prost(uint32, repeated, tag = "5")]
    pub(super) task: Vec<u32>,
    #[prost(message, required, tag = "6")]
    pub(super) request: Ids,
    #[prost(uint64, repeated, tag = "7")]
    pub(super) duration: Vec<u64>,
    #[prost(uint32, repeated, tag = "8")]
    pub(super) device: Vec<u32>,
    #[prost(sint64, repeated, tag = "9")]
    pub(super) sector: Vec<i64>,
    #[prost(uint32, repeated, tag = "10")]
    pub(super) bytes: Vec<u32>,
    #[prost(uint32, repeated, tag = "11")]
    pub(super) op: Vec<u32>,
    #[prost(uint32, repeated, tag = "12")]
    pub(super) status: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestEvents {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) flags: Vec<u32>,
    #[prost(message, required, tag = "2")]
    pub(super) span: Ids,
    #[prost(message, required, tag = "3")]
    pub(super) parent: Ids,
    #[prost(message, required, tag = "4")]
    pub(super) root: Ids,
    #[prost(uint32, repeated, tag = "5")]
    pub(super) task: Vec<u32>,
    #[prost(uint64, repeated, tag = "6")]
    pub(super) duration: Vec<u64>,
    #[prost(sint64, repeated, tag = "7")]
    pub(super) insert: Vec<i64>,
    #[prost(sint64, repeated, tag = "8")]
    pub(super) issue: Vec<i64>,
    #[prost(uint32, repeated, tag = "9")]
    pub(super) device: Vec<u32>,
    #[prost(sint64, repeated, tag = "10")]
    pub(super) sector: Vec<i64>,
    #[prost(uint32, repeated, tag = "11")]
    pub(super) bytes: Vec<u32>,
    #[prost(uint32, repeated, tag = "12")]
    pub(super) op: Vec<u32>,
    #[prost(uint32, repeated, tag = "13")]
    pub(super) status: Vec<u32>,
    #[prost(uint32, repeated, tag = "14")]
    pub(super) bios: Vec<u32>,
    #[prost(uint32, repeated, tag = "15")]
    pub(super) tag: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CommitEvents {
    #[prost(message, required, tag = "1")]
    pub(super) span: Ids,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) task: Vec<u32>,
    #[prost(uint64, repeated, tag = "3")]
    pub(super) duration: Vec<u64>,
    #[prost(uint32, repeated, tag = "4")]
    pub(super) device: Vec<u32>,
    #[prost(uint32, repeated, tag = "5")]
    pub(super) tid: Vec<u32>,
    #[prost(uint32, repeated, tag = "6")]
    pub(super) bios: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TaskEvents {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) task: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) change: Vec<u32>,
    #[prost(uint32, repeated, tag = "3")]
    pub(super) flags: Vec<u32>,
    #[prost(message, required, tag = "4")]
    pub(super) parent: Ids,
    #[prost(uint32, repeated, tag = "5")]
    pub(super) tid: Vec<u32>,
    #[prost(uint32, repeated, tag = "6")]
    pub(super) pid: Vec<u32>,
    #[prost(uint32, repeated, tag = "7")]
    pub(super) ppid: Vec<u32>,
    #[prost(uint32, repeated, tag = "8")]
    pub(super) uid: Vec<u32>,
    #[prost(uint64, repeated, tag = "9")]
    pub(super) cgroup: Vec<u64>,
    #[prost(string, repeated, tag = "10")]
    pub(super) comm: Vec<String>,
    #[prost(uint32, repeated, tag = "11")]
    pub(super) exe: Vec<u32>,
    #[prost(uint32, repeated, tag = "12")]
    pub(super) pid_ns: Vec<u32>,
    #[prost(uint32, repeated, tag = "13")]
    pub(super) ns_pid: Vec<u32>,
    #[prost(uint32, repeated, tag = "14")]
    pub(super) ns_tid: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FileEvents {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) file: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) captured: Vec<u32>,
    #[prost(string, repeated, tag = "3")]
    pub(super) path: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub(super) filesystem: Vec<String>,
    #[prost(uint32, repeated, tag = "5")]
    pub(super) flags: Vec<u32>,
    #[prost(uint32, repeated, tag = "6")]
    pub(super) device_file: Vec<u32>,
    #[prost(uint32, repeated, tag = "7")]
    pub(super) mode: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeviceEvents {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) device: Vec<u32>,
    #[prost(string, repeated, tag = "2")]
    pub(super) name: Vec<String>,
    #[prost(uint32, repeated, tag = "3")]
    pub(super) flags: Vec<u32>,
    #[prost(uint32, repeated, tag = "4")]
    pub(super) partition_of: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RpcEndpointEvents {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) flags: Vec<u32>,
    #[prost(message, required, tag = "2")]
    pub(super) span: Ids,
    #[prost(message, required, tag = "3")]
    pub(super) root: Ids,
    #[prost(uint64, repeated, tag = "4")]
    pub(super) duration: Vec<u64>,
    #[prost(uint32, repeated, tag = "5")]
    pub(super) protocol: Vec<u32>,
    #[prost(uint32, repeated, tag = "6")]
    pub(super) connection: Vec<u32>,
    #[prost(fixed64, repeated, tag = "7")]
    pub(super) cookie: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DaemonSpanEvents {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) flags: Vec<u32>,
    #[prost(fixed64, repeated, tag = "2")]
    pub(super) span: Vec<u64>,
    #[prost(fixed64, repeated, tag = "3")]
    pub(super) parent: Vec<u64>,
    #[prost(fixed64, repeated, tag = "4")]
    pub(super) trace_high: Vec<u64>,
    #[prost(fixed64, repeated, tag = "5")]
    pub(super) trace_low: Vec<u64>,
    #[prost(uint64, repeated, tag = "6")]
    pub(super) duration: Vec<u64>,
    #[prost(uint32, repeated, tag = "7")]
    pub(super) name: Vec<u32>,
    #[prost(uint32, repeated, tag = "8")]
    pub(super) service: Vec<u32>,
    #[prost(uint32, repeated, tag = "9")]
    pub(super) pid: Vec<u32>,
    #[prost(uint32, repeated, tag = "10")]
    pub(super) tid: Vec<u32>,
    #[prost(uint32, repeated, tag = "11")]
    pub(super) errno: Vec<u32>,
    #[prost(uint32, repeated, tag = "12")]
    pub(super) sample_rate: Vec<u32>,
    #[prost(uint32, repeated, tag = "13")]
    pub(super) annotations: Vec<u32>,
    #[prost(sint64, repeated, tag = "14")]
    pub(super) annotation_after: Vec<i64>,
    #[prost(uint32, repeated, tag = "15")]
    pub(super) annotation_key: Vec<u32>,
    #[prost(uint32, repeated, tag = "16")]
    pub(super) annotation_kind: Vec<u32>,
    #[prost(uint32, repeated, tag = "17")]
    pub(super) annotation_text: Vec<u32>,
    #[prost(sint64, repeated, tag = "18")]
    pub(super) annotation_number: Vec<i64>,
}
