//! Probe definitions: name, layer, hooks and required kernel fields of each probe, in attach order.

use std::fmt;

/// Mechanism by which a program is attached to a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttachKind {
    /// BTF-enabled raw tracepoint: typed arguments, plain loads. Preferred.
    TpBtf,
    /// Raw tracepoint: untyped arguments, read through a helper; +35 ns per call.
    RawTp,
    /// Function entry with typed arguments; tp_btf where no function is equivalent.
    Fentry,
    /// Function entry with untyped arguments; raw_tp where no function is equivalent.
    Kprobe,
    /// Perf event: of probes that no other kind can observe.
    PerfEvent,
}

impl AttachKind {
    /// Kinds that a user may choose, best first: tracepoints are stable interfaces and survive
    /// rewrites of functions.
    pub const ALL: [AttachKind; 4] =
        [AttachKind::TpBtf, AttachKind::RawTp, AttachKind::Fentry, AttachKind::Kprobe];

    /// Returns the name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            AttachKind::TpBtf => "tp_btf",
            AttachKind::RawTp => "raw_tp",
            AttachKind::Fentry => "fentry",
            AttachKind::Kprobe => "kprobe",
            AttachKind::PerfEvent => "perf_event",
        }
    }
    /// Parses the name used on the command line.
    pub fn by_name(name: &str) -> Option<Self> {
        AttachKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns whether programs of this kind attach to functions where a tracepoint has an
    /// equivalent one (`tracepoint_equivalents.rs`).
    pub fn uses_functions(self) -> bool {
        matches!(self, AttachKind::Fentry | AttachKind::Kprobe)
    }

    /// Returns whether the verifier knows the argument types. Without types the fork hook
    /// identifies a child by its pid.
    pub fn is_typed(self) -> bool {
        matches!(self, AttachKind::TpBtf | AttachKind::Fentry)
    }
}

impl fmt::Display for AttachKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Consequence of a missing probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// No correct trace is possible without the probe.
    Required,
    /// Part of the data is missing without the probe, and the report names it.
    Optional,
}

/// A tracepoint and the programs for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Name of the kernel's tracepoint.
    pub tracepoint: &'static str,
    /// Stem of the program names: `{stem}_btf`, `{stem}_raw`, and `{stem}_fentry`, `{stem}_kprobe`
    /// if the tracepoint has an equivalent function.
    pub stem: &'static str,
}

/// A probe: one event of the kernel that the tracer observes.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Name, from the object and the phase that it observes.
    pub name: &'static str,
    /// Layer, as shown to users.
    pub layer: &'static str,
    /// Preferred hook.
    pub hook: Hook,
    /// Hook for kernels without the preferred one.
    pub fallback: Option<Hook>,
    /// Consequence of its absence.
    pub need: Need,
    /// Required fields of `probe_abi::layout::Layout`.
    pub fields: &'static [&'static str],
    /// Data that the probe provides.
    pub observes: &'static str,
}

const fn probe(
    name: &'static str,
    layer: &'static str,
    tracepoint: &'static str,
    stem: &'static str,
    need: Need,
    fields: &'static [&'static str],
    observes: &'static str,
) -> Probe {
    Probe { name, layer, hook: Hook { tracepoint, stem }, fallback: None, need, fields, observes }
}

impl Probe {
    /// Adds a hook for kernels without the first one.
    const fn with_fallback(self, tracepoint: &'static str, stem: &'static str) -> Probe {
        Probe { fallback: Some(Hook { tracepoint, stem }), ..self }
    }

    /// Lists the hooks, best first.
    pub fn hooks(&self) -> impl Iterator<Item = Hook> + use<> {
        [Some(self.hook), self.fallback].into_iter().flatten()
    }
}

/// Probes that count block requests instead of recording them, in attach order.
pub const TOTALS_PROBES: &[Probe] = &[
    probe(
        "totals_complete",
        "block request",
        "block_rq_complete",
        "totals_complete",
        Need::Required,
        &[
            "rq_flags",
            "rq_queue",
            "queue_disk",
            "rq_bio",
            "bio_opf",
            "rq_data_len",
            "rq_start_time",
            "rq_state",
        ],
        "when a request completed",
    ),
    probe(
        "totals_issue",
        "block request",
        "block_rq_issue",
        "totals_issue",
        Need::Required,
        &["rq_queue", "queue_disk", "rq_cmd_flags", "rq_data_len", "rq_start_time"],
        "when a request was issued to the device",
    ),
    probe(
        "totals_start",
        "block request",
        "block_io_start",
        "totals_start",
        // 6.5 added block_io_start (5a80bd075f3b). Without it a request belongs to the task that issues it.
        Need::Optional,
        &["rq_queue", "queue_disk", "rq_cmd_flags", "rq_data_len"],
        "the submitter of a request, and when it began",
    ),
];

/// Probes of every trace, in attach order. Ends come before begins, so every observed begin has its
/// end observed. sys_enter, which begins everything, comes last.
pub const PROBES: &[Probe] = &[
    probe(
        "request_complete",
        "block request",
        "block_rq_complete",
        "request_complete",
        Need::Required,
        &["rq_flags", "rq_data_len", "rq_bio", "bio_next", "bio_size"],
        "when a request completed, and its bios",
    ),
    probe(
        "request_merge",
        "block request",
        "block_rq_merge",
        "request_merge",
        Need::Required,
        &[],
        "requests that the scheduler merged into others",
    ),
    probe(
        "request_insert",
        "block request",
        "block_rq_insert",
        "request_insert",
        Need::Optional,
        &[],
        "a request's time in the I/O scheduler",
    ),
    probe(
        "request_issue",
        "block request",
        "block_rq_issue",
        "request_issue",
        Need::Required,
        &["rq_sector", "rq_data_len", "rq_tag"],
        "when a request was issued to the device",
    ),
    probe(
        "request_start",
        "block request",
        "block_io_start",
        "request_start",
        Need::Required,
        &["rq_bio", "rq_queue", "queue_disk", "rq_cmd_flags"],
        "the system call of a request",
    )
    // 6.5 added block_io_start (5a80bd075f3b). Before, block_getrq reports the bio for which a
    // request was allocated (legacy_request.rs).
    .with_fallback("block_getrq", "request_take"),
    probe(
        "bio_complete",
        "bio",
        "block_bio_complete",
        "bio_complete",
        Need::Required,
        &["bio_status"],
        "bios that end without a request",
    ),
    probe(
        "bio_queue",
        "bio",
        "block_bio_queue",
        "bio_queue",
        Need::Required,
        &["bio_bdev", "bdev_dev", "bdev_disk", "bio_sector", "bio_size", "bio_opf"],
        "the bios of a system call",
    ),
    probe(
        "writeback_end",
        "write-back",
        "writeback_written",
        "writeback_end",
        Need::Optional,
        &[],
        "why the kernel wrote pages back",
    ),
    probe(
        "writeback_start",
        "write-back",
        "writeback_start",
        "writeback_start",
        Need::Optional,
        &["writeback_reason"],
        "why the kernel wrote pages back",
    ),
    probe(
        "commit_end",
        "journal",
        "jbd2_end_commit",
        "commit_end",
        Need::Optional,
        &[],
        "journal commits of ext4, which an fsync waits for",
    ),
    probe(
        "commit_start",
        "journal",
        "jbd2_start_commit",
        "commit_start",
        Need::Optional,
        &["journal_fs_dev", "transaction_tid"],
        "journal commits of ext4, which an fsync waits for",
    ),
    probe(
        "sync_enter",
        "file system",
        "ext4_sync_file_enter",
        "sync_enter",
        Need::Optional,
        &[],
        "which commit an fsync waited for",
    ),
    probe(
        "sync_exit",
        "file system",
        "ext4_sync_file_exit",
        "sync_exit",
        Need::Optional,
        &["ext4_vfs_inode", "ext4_sync_tid", "ext4_datasync_tid"],
        "which commit an fsync waited for",
    ),
    probe(
        "lock_end",
        "waits",
        "contention_end",
        "lock_end",
        Need::Optional,
        &[],
        "how long a system call waited for a lock",
    ),
    probe(
        "lock_begin",
        "waits",
        "contention_begin",
        "lock_begin",
        Need::Optional,
        &[
            "file_inode",
            "inode_lock",
            "inode_invalidate_lock",
            "mm_lock",
            "task_mm",
            "task_nvcsw",
            "rwsem_owner",
            "mutex_owner",
        ],
        "which lock a system call waited for, and its holder",
    ),
    probe(
        "dirty_pause",
        "waits",
        "balance_dirty_pages",
        "dirty_pause",
        Need::Optional,
        &["dirty_pause_argument"],
        "pauses of a write while too many pages are dirty",
    ),
    probe(
        "log_force",
        "waits",
        "xfs_log_force",
        "log_force",
        Need::Optional,
        // Of the same module: both probes or none.
        &["iclog_bio"],
        "when an fsync on xfs began to wait for the log",
    ),
    probe(
        "log_wait",
        "waits",
        "xlog_iclog_wait_on",
        "log_wait",
        Need::Optional,
        &["iclog_bio"],
        "which write of xfs' log an fsync waited for",
    ),
    probe(
        "async_queue",
        "asynchronous I/O",
        "io_uring_queue_async_work",
        "async_queue",
        Need::Optional,
        &["io_kiocb_opcode"],
        "requests of io_uring that a worker executes, and renames among them",
    ),
    probe(
        "task_exit",
        "tasks",
        "sched_process_exit",
        "task_exit",
        Need::Required,
        &[],
        "system calls that never return",
    ),
    probe(
        "task_exec",
        "tasks",
        "sched_process_exec",
        "task_exec",
        Need::Required,
        &["mm_exe_file"],
        "which program a task runs",
    ),
    probe(
        "task_fork",
        "tasks",
        "sched_process_fork",
        "task_fork",
        Need::Required,
        &[],
        "the children of traced tasks",
    ),
    probe(
        "call_exit",
        "system call",
        "sys_exit",
        "call_exit",
        Need::Required,
        &["task_nvcsw"],
        "when a system call returned",
    ),
    probe(
        "call_enter",
        "system call",
        "sys_enter",
        "call_enter",
        Need::Required,
        &["task_files", "files_fdt", "file_inode", "file_pos", "inode_ino", "sb_dev"],
        "system calls and their arguments",
    ),
];

/// Name of the perf event of major faults (perf-list), in place of a tracepoint's.
pub const MAJOR_FAULTS: &str = "major-faults";

/// Probes of page faults. Attached by each trace, the end before the begin; the events of a fault
/// without them are named in `kprobe-ebpf/src/task/page_fault.rs`.
pub const FAULT_PROBES: &[Probe] = &[
    probe(
        "fault_end",
        "page fault",
        MAJOR_FAULTS,
        "fault_end",
        Need::Optional,
        &["task_min_flt", "task_maj_flt"],
        "when a page fault that waited for I/O ended",
    ),
    probe(
        "fault_begin",
        "page fault",
        "mm_filemap_fault",
        "fault_begin",
        Need::Optional,
        &["task_min_flt", "task_maj_flt", "mapping_host"],
        "when a page fault began, and its file",
    )
    // Before mm_filemap_fault was added (6.12), every page fault of a user mode runs a
    // program, which costs each task of the machine some 100 ns per fault.
    .with_fallback("page_fault_user", "fault_enter"),
];

/// Probes of the pages that stores into mappings make dirty. Attached only on request.
pub const DIRTY_PROBES: &[Probe] = &[probe(
    "dirty",
    "page cache",
    "writeback_dirty_folio",
    "dirty",
    Need::Optional,
    &["mapping_host", "folio_index", "folio_flags", "folio_nr_pages", "folio_head_bit", "inode_mode"],
    "pages that stores into mappings made dirty",
)];

/// Probes of the places where system calls sleep. Attached only on request.
pub const SLEEP_PROBES: &[Probe] = &[probe(
    "sleep",
    "waits",
    "sched_switch",
    "sleep",
    Need::Required,
    &[],
    "where in the kernel a system call slept",
)];

/// Probes of io_uring. Attached where io_uring_enter or io_submit is traced.
pub const ASYNC_PROBES: &[Probe] = &[
    probe(
        "async_complete",
        "asynchronous I/O",
        "io_uring_complete",
        "async_complete",
        Need::Optional,
        &["io_kiocb_result", "io_kiocb_file", "file_inode", "inode_ino", "sb_dev"],
        "when a request of io_uring completed, and its result",
    ),
    probe(
        "async_submit",
        "asynchronous I/O",
        "io_uring_submit_req",
        "async_submit",
        Need::Optional,
        &[
            "io_kiocb_opcode",
            "io_kiocb_flags",
            "io_kiocb_user_data",
            "io_kiocb_fd",
            "io_kiocb_ctx",
            "io_ring_flags",
        ],
        "the requests of io_uring, and their bios",
    )
    // 6.3 renamed it (2ad57931db64).
    .with_fallback("io_uring_submit_sqe", "async_submit_sqe"),
];

/// Probes of NBD clients. Attached only with `--nbd`, and only by kinds that use tracepoints.
pub const NBD_PROBES: &[Probe] = &[
    probe(
        "nbd_end",
        "nbd",
        "inet_sock_set_state",
        "nbd_end",
        Need::Optional,
        &["sock_socket", "socket_inode", "inode_ino", "sock_err", "sock_shutdown"],
        "requests whose TCP connection ended",
    ),
    probe(
        "nbd_retransmit",
        "nbd",
        "tcp_retransmit_skb",
        "nbd_retransmit",
        Need::Optional,
        &[
            "sock_socket",
            "socket_inode",
            "inode_ino",
            "tcp_snd_una",
            "tcp_bytes_acked",
            "skb_cb",
            "skb_cb_seq",
            "skb_cb_end_seq",
        ],
        "requests that TCP sent more than once",
    ),
    probe("nbd_exit", "nbd", "sys_exit", "nbd_exit", Need::Required, NBD_FIELDS, "replies to NBD clients"),
    probe(
        "nbd_enter",
        "nbd",
        "sys_enter",
        "nbd_enter",
        Need::Required,
        NBD_FIELDS,
        "requests of NBD clients",
    ),
];

const NBD_FIELDS: &[&str] = &[
    "file_inode",
    "inode_mode",
    "inode_ino",
    "file_private_data",
    "socket_sk",
    "socket_inode",
    "sock_socket",
    "sock_family",
    "sock_num",
    "sock_dport",
    "sock_rcv_saddr",
    "sock_daddr",
    "unix_peer",
];

/// Result of attaching a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeStatus {
    /// Attached, or attachable.
    Works,
    /// The kernel has no such hook or field.
    Missing,
    /// The kernel rejects the program or the attachment.
    Refused,
    /// Not tried, because the process lacks privileges.
    Unknown,
}

/// A probe's status and the reason for it.
#[derive(Clone, Debug)]
pub struct ProbeReport {
    /// The probe.
    pub probe: &'static Probe,
    /// Hook that was used or tried.
    pub hook: Hook,
    /// Tracepoint or function that the program is attached to.
    pub at: &'static str,
    /// Attach kind, if the probe works.
    pub kind: Option<AttachKind>,
    /// Result.
    pub status: ProbeStatus,
    /// Reason, in the kernel's own text if it gave one.
    pub reason: String,
    /// Suggested action; empty if there is none.
    pub remedy: String,
}

impl ProbeReport {
    pub(crate) fn works(probe: &'static Probe, hook: Hook, at: &'static str, kind: AttachKind) -> Self {
        let (reason, remedy) = (String::new(), String::new());
        ProbeReport { probe, hook, at, kind: Some(kind), status: ProbeStatus::Works, reason, remedy }
    }

    pub(crate) fn refused(probe: &'static Probe, hook: Hook, reason: String) -> Self {
        let remedy = remedy(ProbeStatus::Refused);
        ProbeReport {
            probe,
            hook,
            at: hook.tracepoint,
            kind: None,
            status: ProbeStatus::Refused,
            reason,
            remedy,
        }
    }

    /// Reports a probe whose kernel requirements are missing.
    pub(crate) fn missing(probe: &'static Probe, what: &[String]) -> Self {
        ProbeReport {
            probe,
            hook: probe.hook,
            at: probe.hook.tracepoint,
            kind: None,
            status: ProbeStatus::Missing,
            reason: format!("this kernel has no {}", what.join(", ")),
            remedy: remedy(ProbeStatus::Missing),
        }
    }
}

/// Suggests an action for a status.
pub(crate) fn remedy(status: ProbeStatus) -> String {
    let text = match status {
        ProbeStatus::Works | ProbeStatus::Unknown => "",
        ProbeStatus::Missing => "a newer kernel, or the file system's module loaded before the tracer starts",
        ProbeStatus::Refused => {
            "another kernel, or another policy of this one: the reason is the kernel's own text"
        }
    };
    text.to_owned()
}
