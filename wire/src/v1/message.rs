//! `blkkin.proto` in Rust, field by field: what each means stands there. A test has protoc read what this writes.

use prost::{Enumeration, Message};

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum Kind {
    Unspecified = 0,
    Call = 1,
    Bio = 2,
    Request = 3,
    Pair = 4,
    Commit = 5,
    Task = 6,
    File = 7,
    Device = 8,
    Meeting = 9,
    Operation = 10,
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
    pub(super) accounts: Accounts,
    #[prost(message, repeated, tag = "9")]
    pub(super) killed: Vec<Killed>,
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
    pub(super) calls: Vec<Call>,
    #[prost(string, repeated, tag = "18")]
    pub(super) words: Vec<String>,
    #[prost(message, optional, tag = "19")]
    pub(super) contexts: Option<Contexts>,
    #[prost(message, required, tag = "20")]
    pub(super) call_events: CallEvents,
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
    pub(super) meeting_events: Option<MeetingEvents>,
    #[prost(message, optional, tag = "28")]
    pub(super) operation_events: Option<OperationEvents>,
    #[prost(message, repeated, tag = "29")]
    pub(super) process_events: Vec<ProcessEvent>,
    #[prost(message, optional, tag = "30")]
    pub(super) thread_attributes: Option<ThreadAttributes>,
}

/// What of an event batch a look at it needs: the rest is skipped.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Head {
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
    /// That they are there.
    #[prost(message, repeated, tag = "29")]
    pub(super) process_events: Vec<Unread>,
}

/// What is not looked into.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Unread {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessEvent {
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
    pub(super) left_out: u32,
    #[prost(uint32, repeated, tag = "8")]
    pub(super) thread_key: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Killed {
    #[prost(fixed64, tag = "1")]
    pub(super) epoch: u64,
    #[prost(bool, tag = "2")]
    pub(super) unknown: bool,
    #[prost(message, optional, tag = "3")]
    pub(super) fired: Option<Tally>,
    #[prost(message, optional, tag = "4")]
    pub(super) dropped: Option<Tally>,
    #[prost(message, optional, tag = "5")]
    pub(super) read: Option<Tally>,
    #[prost(message, optional, tag = "6")]
    pub(super) kept: Option<Tally>,
    #[prost(message, optional, tag = "7")]
    pub(super) doubtful: Option<Tally>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Tally {
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
    pub(super) claimed: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Accounts {
    #[prost(message, required, tag = "1")]
    pub(super) calls: Account,
    #[prost(message, required, tag = "2")]
    pub(super) bios: Account,
    #[prost(message, required, tag = "3")]
    pub(super) requests: Account,
    #[prost(message, required, tag = "4")]
    pub(super) commits: Account,
    #[prost(message, required, tag = "5")]
    pub(super) names: Account,
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
pub(super) struct Account {
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
pub(super) struct Call {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(uint32, tag = "2")]
    pub(super) arguments: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CallEvents {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) call: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) flags: Vec<u32>,
    #[prost(message, required, tag = "3")]
    pub(super) span: Ids,
    #[prost(uint32, repeated, tag = "4")]
    pub(super) task: Vec<u32>,
    #[prost(uint64, repeated, tag = "5")]
    pub(super) took: Vec<u64>,
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
    pub(super) left_out: Vec<u32>,
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
    pub(super) operation: Vec<bool>,
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
    pub(super) took: Vec<u64>,
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
    pub(super) took: Vec<u64>,
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
    pub(super) took: Vec<u64>,
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
    pub(super) inner_pid: Vec<u32>,
    #[prost(uint32, repeated, tag = "14")]
    pub(super) inner_tid: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FileEvents {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) file: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) kept: Vec<u32>,
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
pub(super) struct MeetingEvents {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) flags: Vec<u32>,
    #[prost(message, required, tag = "2")]
    pub(super) span: Ids,
    #[prost(message, required, tag = "3")]
    pub(super) root: Ids,
    #[prost(uint64, repeated, tag = "4")]
    pub(super) took: Vec<u64>,
    #[prost(uint32, repeated, tag = "5")]
    pub(super) rule: Vec<u32>,
    #[prost(uint32, repeated, tag = "6")]
    pub(super) connection: Vec<u32>,
    #[prost(fixed64, repeated, tag = "7")]
    pub(super) cookie: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OperationEvents {
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
    pub(super) took: Vec<u64>,
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
    pub(super) kept: Vec<u32>,
    #[prost(uint32, repeated, tag = "13")]
    pub(super) notes: Vec<u32>,
    #[prost(sint64, repeated, tag = "14")]
    pub(super) note_after: Vec<i64>,
    #[prost(uint32, repeated, tag = "15")]
    pub(super) note_key: Vec<u32>,
    #[prost(uint32, repeated, tag = "16")]
    pub(super) note_kind: Vec<u32>,
    #[prost(uint32, repeated, tag = "17")]
    pub(super) note_text: Vec<u32>,
    #[prost(sint64, repeated, tag = "18")]
    pub(super) note_number: Vec<i64>,
}
