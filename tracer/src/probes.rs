//! The hooks: their names, their layers, and what each needs.

use std::fmt;

/// A way of attaching a program to a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttachKind {
    /// BTF-enabled raw tracepoint: typed arguments, plain loads. Preferred.
    TpBtf,
    /// Raw tracepoint: untyped arguments, read by helper: +35 ns a call.
    RawTp,
    /// Entry of a function, typed; what has no function by tp_btf.
    Fentry,
    /// Entry of a function, untyped; what has no function by raw_tp.
    Kprobe,
}

impl AttachKind {
    /// The best first: tracepoints are meant to be hooked, and stay when functions are rewritten.
    pub const ALL: [AttachKind; 4] =
        [AttachKind::TpBtf, AttachKind::RawTp, AttachKind::Fentry, AttachKind::Kprobe];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            AttachKind::TpBtf => "tp_btf",
            AttachKind::RawTp => "raw_tp",
            AttachKind::Fentry => "fentry",
            AttachKind::Kprobe => "kprobe",
        }
    }
    /// From the command line.
    pub fn by_name(name: &str) -> Option<Self> {
        AttachKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether it is put at functions, where a function says what the tracepoint says (`functions.rs`).
    pub fn is_at_functions(self) -> bool {
        matches!(self, AttachKind::Fentry | AttachKind::Kprobe)
    }

    /// Whether the verifier knows the types of its arguments. The fork hook knows a child by number where it does not.
    pub fn is_typed(self) -> bool {
        matches!(self, AttachKind::TpBtf | AttachKind::Fentry)
    }
}

impl fmt::Display for AttachKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What happens to the trace without a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Without it nothing true can be said.
    Required,
    /// Without it one thing is not seen, and that is said.
    Optional,
}

/// A place in the kernel, and the programs for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The kernel's tracepoint.
    pub tracepoint: &'static str,
    /// Stem of its programs' names: `{stem}_btf`, `{stem}_raw`, and `{stem}_fentry`, `{stem}_kprobe` where a function stands for
    /// it.
    pub stem: &'static str,
}

/// Something that is to be seen of every kernel.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Layer, operation, phase.
    pub name: &'static str,
    /// The layer, for people.
    pub layer: &'static str,
    /// Where it is put.
    pub hook: Hook,
    /// Where a kernel has not that.
    pub older: Option<Hook>,
    /// See [`Need`].
    pub need: Need,
    /// Fields of `probe_abi::layout::Layout` without which it cannot work.
    pub fields: &'static [&'static str],
    /// What is not seen without it.
    pub shows: &'static str,
}

const fn probe(
    name: &'static str,
    layer: &'static str,
    tracepoint: &'static str,
    stem: &'static str,
    need: Need,
    fields: &'static [&'static str],
    shows: &'static str,
) -> Probe {
    Probe { name, layer, hook: Hook { tracepoint, stem }, older: None, need, fields, shows }
}

impl Probe {
    /// The same, with another hook for kernels that have not the first.
    const fn or(self, tracepoint: &'static str, stem: &'static str) -> Probe {
        Probe { older: Some(Hook { tracepoint, stem }), ..self }
    }

    /// The best first.
    pub fn hooks(&self) -> impl Iterator<Item = Hook> + use<> {
        [Some(self.hook), self.older].into_iter().flatten()
    }
}

/// All hooks, in the order in which they are attached: what ends things before what begins them, so that nothing
/// is begun whose end would be missed; and sys_enter last, which begins everything.
pub const PROBES: &[Probe] = &[
    probe(
        "request_complete",
        "block request",
        "block_rq_complete",
        "request_complete",
        Need::Required,
        &["rq_flags", "rq_data_len", "rq_bio", "bio_next", "bio_size"],
        "when a request ended, and which bios it carried",
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
        "how long a request was in the scheduler, apart from the rest of its wait",
    ),
    probe(
        "request_issue",
        "block request",
        "block_rq_issue",
        "request_issue",
        Need::Required,
        &["rq_sector", "rq_data_len", "rq_tag"],
        "when a request went to the device",
    ),
    probe(
        "request_start",
        "block request",
        "block_io_start",
        "request_start",
        Need::Required,
        &["rq_bio", "rq_queue", "queue_disk", "rq_cmd_flags"],
        "which call a request belongs to",
    )
    // 6.5 added block_io_start (5a80bd075f3b); before, this says for which bio a request was taken (late.rs).
    .or("block_getrq", "request_take"),
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
        "what a call asked of the block layer",
    ),
    probe(
        "commit_end",
        "journal",
        "jbd2_end_commit",
        "commit_end",
        Need::Optional,
        &[],
        "what the journal of ext4 wrote for an fsync",
    ),
    probe(
        "commit_start",
        "journal",
        "jbd2_start_commit",
        "commit_start",
        Need::Optional,
        &["journal_fs_dev", "transaction_tid"],
        "what the journal of ext4 wrote for an fsync",
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
        "task_exit",
        "tasks",
        "sched_process_exit",
        "task_exit",
        Need::Required,
        &[],
        "calls that never return",
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
        "the children of followed tasks",
    ),
    probe(
        "call_exit",
        "system call",
        "sys_exit",
        "call_exit",
        Need::Required,
        &["task_nvcsw"],
        "when a call returned",
    ),
    probe(
        "call_enter",
        "system call",
        "sys_enter",
        "call_enter",
        Need::Required,
        &["task_files", "files_fdt", "file_inode", "file_pos", "inode_ino", "sb_dev"],
        "what was asked",
    ),
];

/// Those for what programs ask NBD servers: only where that is asked for, and only by kinds that are put at tracepoints.
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
        "nbd_resend",
        "nbd",
        "tcp_retransmit_skb",
        "nbd_resend",
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
    probe(
        "nbd_exit",
        "nbd",
        "sys_exit",
        "nbd_exit",
        Need::Required,
        NBD_FIELDS,
        "what NBD clients were told",
    ),
    probe("nbd_enter", "nbd", "sys_enter", "nbd_enter", Need::Required, NBD_FIELDS, "what NBD clients asked"),
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

/// What became of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Attached, or could be.
    Works,
    /// This kernel has no such hook or field.
    Missing,
    /// The kernel has it and refuses.
    Refused,
    /// Not tried: privilege is missing.
    Unknown,
}

/// A probe's verdict, with its reason.
#[derive(Clone, Debug)]
pub struct ProbeVerdict {
    /// Which.
    pub probe: &'static Probe,
    /// Which hook of those that would do.
    pub hook: Hook,
    /// The tracepoint or function that it is put at.
    pub at: &'static str,
    /// By which kind, if it works.
    pub kind: Option<AttachKind>,
    /// What became of it.
    pub verdict: Verdict,
    /// Why, in the kernel's words where it gave any.
    pub reason: String,
    /// What to do; empty when there is nothing to do.
    pub remedy: String,
}

impl ProbeVerdict {
    pub(crate) fn works(probe: &'static Probe, hook: Hook, at: &'static str, kind: AttachKind) -> Self {
        let (reason, remedy) = (String::new(), String::new());
        ProbeVerdict { probe, hook, at, kind: Some(kind), verdict: Verdict::Works, reason, remedy }
    }

    pub(crate) fn refused(probe: &'static Probe, hook: Hook, reason: String) -> Self {
        let remedy = remedy(Verdict::Refused);
        ProbeVerdict {
            probe,
            hook,
            at: hook.tracepoint,
            kind: None,
            verdict: Verdict::Refused,
            reason,
            remedy,
        }
    }

    /// This kernel has not what the probe needs.
    pub(crate) fn missing(probe: &'static Probe, what: &[String]) -> Self {
        ProbeVerdict {
            probe,
            hook: probe.hook,
            at: probe.hook.tracepoint,
            kind: None,
            verdict: Verdict::Missing,
            reason: format!("this kernel has no {}", what.join(", ")),
            remedy: remedy(Verdict::Missing),
        }
    }
}

/// What to do about it.
pub(crate) fn remedy(verdict: Verdict) -> String {
    let words = match verdict {
        Verdict::Works | Verdict::Unknown => "",
        Verdict::Missing => "a newer kernel, or one with the file system built in",
        Verdict::Refused => "another kernel, or another policy of this one: the reason is in its own words",
    };
    words.to_owned()
}
