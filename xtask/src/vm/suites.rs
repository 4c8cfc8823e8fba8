//! Suites: which tests run in guests, on which disks, and with which attach kinds.

use super::disk::Attach::{self, Fentry, Kprobe, RawTp};
use super::disk::Disk;

/// Tests of one program on one disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Suite {
    /// Name of the program, `blkkin/tests/NAME.rs`.
    pub(super) program: &'static str,
    /// Part of the tests' names; empty for all tests.
    pub(super) tests: &'static str,
    pub(super) disk: Disk,
    pub(super) attach: Attach,
}

pub(super) const fn suite(program: &'static str, tests: &'static str, disk: Disk) -> Suite {
    Suite { program, tests, disk, attach: Attach::Best }
}

impl Suite {
    pub(super) const fn with_attach(self, attach: Attach) -> Suite {
        Suite { attach, ..self }
    }

    /// Returns the suite of all tests of the same program.
    pub(super) const fn whole(self) -> Suite {
        Suite { tests: "", ..self }
    }

    pub(super) fn name(&self) -> String {
        let kind = match self.attach {
            Attach::Best => String::new(),
            kind => format!(" by {}", kind.name()),
        };
        format!("blkkin/tests/{} on {}{kind}", self.program, self.disk.name())
    }
}

/// Attach kinds that the tracer does not prefer.
const ALL_OTHER: &[Attach] = &[RawTp, Fentry, Kprobe];

/// Suites that a short run has in both 6.1 and 6.12: their hooks or the kernel's structures differ, or the
/// host's policy may refuse their hooks.
pub(super) const EVERYWHERE: &[Suite] = &[
    suite("kernels", "doctor", Disk::Virtio),
    suite("async_io", "requests_of_workers_are", Disk::Loop),
    suite("async_io", "iocbs", Disk::Loop),
    suite("writeback", "ext4", Disk::Loop),
    suite("guest_passthrough", "commands_have", Disk::Scsi),
    suite("guest_zones", "", Disk::Zoned),
    suite("keep", "submissions_of_io_uring", Disk::Loop),
];

/// Suites that differ by device or program and not by kernel, or that the oldest kernel and the host's
/// cover. A short run has these in 6.1 only; a full run has them in both kernels.
pub(super) const ONCE_6_1: &[Suite] = &[
    suite("kernels", "by_typed_functions", Disk::Virtio),
    suite("kernels", "by_raw_tracepoints", Disk::Virtio),
    suite("async_io", "requests_of_a_poll_thread", Disk::Loop),
    suite("async_io", "requests_of_workers_have", Disk::Loop),
    suite("stacked", "reads_of", Disk::Loop),
    suite("guest_passthrough", "of_two_tasks", Disk::Scsi),
    // Before 6.5 no request is announced.
    suite("top", "more_programs", Disk::Loop),
    suite("top", "the_time", Disk::Loop),
    suite("request_totals", "each_request", Disk::Loop),
    suite("head_sampling", "submission_of_io_uring_is_recorded", Disk::Loop),
    suite("keep", "iocbs", Disk::Loop),
    suite("device", "", Disk::Virtio),
    suite("overlay", "", Disk::Loop),
    suite("file_names", "a_path_follows", Disk::Loop),
    suite("filters", "programs_by_name", Disk::Loop),
    suite("guest_in_flight", "removed", Disk::Linear),
    suite("guest_scsi", "", Disk::Scsi),
    // Finding a context works the same in every kernel (FURTHER covers it); reading it does not.
    suite("context", "the_attributes_of_a_call", Disk::Loop),
    suite("guest_flush", "sync", Disk::Virtio),
    suite("page_faults", "stores", Disk::Loop),
    suite("names", "container", Disk::Virtio),
    suite("loop_files", "that_was_written", Disk::Loop),
    suite("guest_stacked", "linear", Disk::Linear),
    suite("guest_stacked", "crypt", Disk::Crypt),
    suite("guest_faults", "delay", Disk::Delay),
    suite("guest_in_flight", "suspended", Disk::Linear),
    suite("guest_devices", "stripe", Disk::Striped),
    suite("guest_devices", "bad", Disk::Bad),
    suite("guest_nbd", "", Disk::Loop),
    suite("page_faults", "sqlite", Disk::Loop),
];

/// Like [`ONCE_6_1`], in 6.12.
pub(super) const ONCE_6_12: &[Suite] = &[
    suite("kernels", "by_untyped_functions", Disk::Virtio),
    suite("kernels", "by_typed_tracepoints", Disk::Virtio),
    suite("async_io", "requests_of_a_call", Disk::Loop),
    suite("stacked", "merged", Disk::Loop),
    suite("waits", "files_lock", Disk::Loop),
    suite("page_faults", "major_fault", Disk::Loop),
    suite("guest_passthrough", "outlives", Disk::Scsi),
    suite("head_sampling", "a_call_is_recorded", Disk::Loop),
    suite("keep", "slow_calls", Disk::Loop),
    suite("guest_stacked", "tower", Disk::Tower),
    suite("guest_stacked", "mirror", Disk::Mirror),
    suite("guest_faults", "slow", Disk::Slow),
    suite("guest_in_flight", "silent", Disk::Mute),
    suite("guest_devices", "flakey", Disk::Flakey),
    suite("guest_devices", "discard", Disk::Scsi),
    suite("thread_contexts", "submitted", Disk::Loop),
    suite("guest_modules", "", Disk::Loop),
    // Content as ground truth, on a disk that maps its blocks.
    suite("guest_thin", "", Disk::Thin),
    suite("blktrace", "guest", Disk::Scsi),
];

/// Suites for features that Debian's 6.12 has and its 6.1 lacks.
pub(super) const SINCE_6_12: &[Suite] = &[suite("guest_ublk", "", Disk::Loop)];
pub(super) const SINCE_6_12_BY_KIND: &[(Suite, &[Attach])] =
    // btrfs before 6.3 has no way from a bio to its file.
    &[
        (suite("guest_ublk", "", Disk::Loop), ALL_OTHER),
        (suite("writeback", "btrfs", Disk::Loop), &[RawTp]),
    ];

/// Suites on further devices, and for device features that are hard to reproduce.
pub(super) const FURTHER: &[Suite] = &[
    suite("attach", "", Disk::Loop),
    suite("async_io", "", Disk::Loop),
    suite("async_io", "polled", Disk::Null),
    suite("context", "", Disk::Loop),
    suite("file_names", "", Disk::Loop),
    suite("page_faults", "", Disk::Loop),
    suite("stacked", "writes_of", Disk::Loop),
    suite("waits", "dirty_pages", Disk::Loop),
    suite("fio", "the_report", Disk::Virtio),
    suite("conservation", "", Disk::Loop),
    suite("writeback", "io_uring", Disk::Loop),
    suite("writeback", "xfs", Disk::Loop),
    suite("writeback", "overlayfs", Disk::Loop),
    suite("loop_files", "", Disk::Loop),
    suite("page_cache", "", Disk::Loop),
    suite("xfs_log", "", Disk::Loop),
    suite("sleeps", "", Disk::Loop),
    suite("nbd_connections", "", Disk::Loop),
    suite("kernels", "tracepoints", Disk::Null),
    suite("device", "", Disk::Null),
    suite("device", "", Disk::Scsi),
    suite("links", "", Disk::Null),
    suite("blktrace", "guest", Disk::Null),
    suite("guest_in_flight", "table", Disk::Quick),
    suite("guest_stacked", "raid0", Disk::Raid0),
    suite("guest_stacked", "raid10", Disk::Raid10),
    suite("guest_thin", "", Disk::Thin),
    suite("guest_flush", "sync", Disk::Null),
    suite("guest_flush", "sync", Disk::Scsi),
    suite("guest_kinds", "", Disk::Loop),
];

/// Suites that are repeated with other attach kinds. A test that takes the same path through the
/// eBPF programs as another is not repeated with every kind, because a tracer takes 10 s to start
/// under emulation.
pub(super) const BY_KIND: &[(Suite, &[Attach])] = &[
    (suite("device", "", Disk::Virtio), ALL_OTHER),
    (suite("device", "", Disk::Scsi), &[RawTp]),
    (suite("fio", "the_report", Disk::Virtio), ALL_OTHER),
    (suite("links", "", Disk::Null), ALL_OTHER),
    (suite("blktrace", "guest", Disk::Null), ALL_OTHER),
    (suite("stacked", "", Disk::Loop), &[RawTp, Kprobe]),
    (suite("guest_stacked", "linear", Disk::Linear), ALL_OTHER),
    (suite("guest_stacked", "crypt", Disk::Crypt), ALL_OTHER),
    (suite("guest_stacked", "mirror", Disk::Mirror), &[RawTp, Kprobe]),
    (suite("guest_stacked", "tower", Disk::Tower), &[RawTp, Fentry]),
    (suite("guest_stacked", "raid0", Disk::Raid0), &[RawTp, Kprobe]),
    (suite("guest_stacked", "raid10", Disk::Raid10), &[RawTp, Fentry]),
    (suite("guest_thin", "", Disk::Thin), &[RawTp, Kprobe]),
    (suite("guest_faults", "delay", Disk::Delay), &[RawTp, Kprobe]),
    (suite("guest_faults", "slow", Disk::Slow), &[Fentry]),
    (suite("guest_in_flight", "removed", Disk::Linear), &[RawTp]),
    (suite("guest_in_flight", "suspended", Disk::Linear), &[Fentry]),
    (suite("guest_in_flight", "silent", Disk::Mute), &[RawTp, Kprobe]),
    (suite("guest_in_flight", "table", Disk::Quick), &[RawTp]),
    (suite("guest_scsi", "", Disk::Scsi), ALL_OTHER),
    (suite("guest_passthrough", "", Disk::Scsi), ALL_OTHER),
    (suite("guest_devices", "stripe", Disk::Striped), &[RawTp]),
    (suite("guest_devices", "flakey", Disk::Flakey), &[RawTp]),
    (suite("guest_devices", "bad", Disk::Bad), &[RawTp]),
    (suite("guest_devices", "discard", Disk::Scsi), ALL_OTHER),
    (suite("guest_zones", "", Disk::Zoned), ALL_OTHER),
    (suite("guest_flush", "sync", Disk::Virtio), ALL_OTHER),
    (suite("guest_nbd", "", Disk::Loop), ALL_OTHER),
];
