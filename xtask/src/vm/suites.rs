//! Which tests run in guests, on which disks, and by which kinds of probes.

use super::disk::Attach::{self, Fentry, Kprobe, RawTp};
use super::disk::Disk;

/// Tests of one program, on one disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Suite {
    /// As in `blkkin/tests/NAME.rs`.
    pub(super) program: &'static str,
    /// Tests whose names contain this; all with the empty one.
    pub(super) tests: &'static str,
    pub(super) disk: Disk,
    pub(super) attach: Attach,
}

pub(super) const fn suite(program: &'static str, tests: &'static str, disk: Disk) -> Suite {
    Suite { program, tests, disk, attach: Attach::Best }
}

impl Suite {
    pub(super) const fn by(self, attach: Attach) -> Suite {
        Suite { attach, ..self }
    }

    /// All tests of its program, of which it may be some.
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

/// All that a tracer is not likely to choose.
const ALL_OTHER: &[Attach] = &[RawTp, Fentry, Kprobe];

/// What must hold in every kernel that blkkin is for.
pub(super) const EVERYWHERE: &[Suite] = &[
    suite("kernels", "", Disk::Virtio),
    suite("attach", "", Disk::Loop),
    suite("device", "", Disk::Virtio),
    suite("names", "container", Disk::Virtio),
    suite("stacked", "", Disk::Loop),
    suite("guest_stacked", "linear", Disk::Linear),
    suite("guest_stacked", "crypt", Disk::Crypt),
    suite("guest_stacked", "mirror", Disk::Mirror),
    suite("guest_stacked", "tower", Disk::Tower),
    suite("guest_faults", "delay", Disk::Delay),
    suite("guest_faults", "slow", Disk::Slow),
    suite("guest_unended", "removed", Disk::Linear),
    suite("guest_unended", "suspended", Disk::Linear),
    suite("guest_unended", "silent", Disk::Mute),
    suite("guest_scsi", "", Disk::Scsi),
    suite("guest_passthrough", "", Disk::Scsi),
    suite("guest_devices", "stripe", Disk::Striped),
    suite("guest_devices", "flakey", Disk::Flakey),
    suite("guest_devices", "bad", Disk::Bad),
    suite("guest_zones", "", Disk::Zoned),
    suite("guest_devices", "discard", Disk::Scsi),
    suite("guest_flush", "sync", Disk::Virtio),
    suite("guest_nbd", "", Disk::Loop),
    // What a place is found by is the same in every kernel (FURTHER has it); what is read by it is not.
    suite("context", "a_programs_own_slot", Disk::Loop),
    suite("context", "comes_and_goes", Disk::Loop),
    suite("context", "attributes", Disk::Loop),
    suite("writers", "submitted", Disk::Loop),
];

/// What Debian's 6.12 has and its 6.1 has not.
pub(super) const SINCE_6_12: &[Suite] = &[suite("guest_ublk", "", Disk::Loop)];
pub(super) const SINCE_6_12_BY_KIND: &[(Suite, &[Attach])] =
    &[(suite("guest_ublk", "", Disk::Loop), ALL_OTHER)];

/// The same on other devices, and what is hard to say of a device.
pub(super) const FURTHER: &[Suite] = &[
    suite("context", "", Disk::Loop),
    suite("fio", "the_report", Disk::Virtio),
    suite("conservation", "", Disk::Loop),
    suite("kernels", "tracepoints", Disk::Null),
    suite("device", "", Disk::Null),
    suite("device", "", Disk::Scsi),
    suite("links", "", Disk::Null),
    suite("blktrace", "guest", Disk::Null),
    suite("guest_unended", "table", Disk::Quick),
    suite("guest_stacked", "raid0", Disk::Raid0),
    suite("guest_stacked", "raid10", Disk::Raid10),
    suite("guest_thin", "", Disk::Thin),
    suite("guest_flush", "sync", Disk::Null),
    suite("guest_flush", "sync", Disk::Scsi),
    suite("guest_kinds", "", Disk::Loop),
];

/// Of all these, what is also held by another kind. A test whose path through the programs is another test's too is not repeated
/// by all: a tracer takes 4 s to be loaded where everything is emulated.
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
    (suite("guest_unended", "removed", Disk::Linear), &[RawTp]),
    (suite("guest_unended", "suspended", Disk::Linear), &[Fentry]),
    (suite("guest_unended", "silent", Disk::Mute), &[RawTp, Kprobe]),
    (suite("guest_unended", "table", Disk::Quick), &[RawTp]),
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
