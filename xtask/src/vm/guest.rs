//! Which guests there are, and which tests run in each.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::kernel::Kernel;
use crate::shell;
use crate::test::TestProgram;

/// A kernel with its command line, and what runs in it.
pub(crate) struct Guest {
    pub(super) name: &'static str,
    pub(super) kernel: &'static Kernel,
    /// Added to the kernel's command line.
    pub(super) command_line: &'static str,
    suites: &'static [Suite],
    /// What no other kernel has.
    own: &'static [Suite],
    /// What a full run adds.
    more: &'static [Suite],
}

/// Tests of one program, on one disk.
struct Suite {
    /// As in `blkkin/tests/NAME.rs`.
    program: &'static str,
    /// Tests whose names contain this; all with the empty one.
    tests: &'static str,
    disk: Disk,
    attach: Attach,
}

/// By which kind of probe, where a test asks for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attach {
    /// What the tracer chooses: tp_btf.
    Best,
    RawTp,
    Fentry,
    Kprobe,
}

impl Attach {
    /// As `init.sh` knows it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Attach::Best => "best",
            Attach::RawTp => "raw_tp",
            Attach::Fentry => "fentry",
            Attach::Kprobe => "kprobe",
        }
    }
}

/// What the tests take for their disk; `init.sh` makes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Disk {
    /// A loop device of their own, as on the host.
    Loop,
    /// The machine's first virtio disk.
    Virtio,
    /// null_blk in memory, with two hardware queues.
    Null,
    /// device-mapper: the first virtio disk, 1 MiB further on.
    Linear,
    /// device-mapper: the same through its crypt target.
    Crypt,
    /// device-mapper: the same, 100 ms later.
    Delay,
    /// null_blk that takes 100 ms.
    Slow,
    /// null_blk that takes 5 s.
    Mute,
    /// device-mapper: null_blk that completes at once, 1 MiB further on.
    Quick,
    /// device-mapper: stripes of 8 KiB on both virtio disks.
    Striped,
    /// device-mapper: one that fails everything.
    Flakey,
    /// null_blk with bad sectors.
    Bad,
    /// null_blk with zones.
    Zoned,
    /// scsi_debug: a SCSI disk in memory.
    Scsi,
    /// md: a mirror of both virtio disks.
    Mirror,
    /// device-mapper on md on both virtio disks.
    Tower,
}

impl Disk {
    /// As `init.sh` knows it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Disk::Loop => "loop",
            Disk::Virtio => "virtio",
            Disk::Null => "null",
            Disk::Linear => "linear",
            Disk::Crypt => "crypt",
            Disk::Delay => "delay",
            Disk::Slow => "slow",
            Disk::Mute => "mute",
            Disk::Quick => "quick",
            Disk::Scsi => "scsi",
            Disk::Striped => "striped",
            Disk::Flakey => "flakey",
            Disk::Bad => "bad",
            Disk::Zoned => "zoned",
            Disk::Mirror => "mirror",
            Disk::Tower => "tower",
        }
    }
}

const fn suite(program: &'static str, tests: &'static str, disk: Disk) -> Suite {
    Suite { program, tests, disk, attach: Attach::Best }
}

impl Suite {
    const fn by(self, attach: Attach) -> Suite {
        Suite { attach, ..self }
    }

    fn name(&self) -> String {
        let kind = match self.attach {
            Attach::Best => String::new(),
            kind => format!(" by {}", kind.name()),
        };
        format!("blkkin/tests/{} on {}{kind}", self.program, self.disk.name())
    }
}

/// How much is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Depth {
    /// As part of all tests: what holds in one kernel and not in another.
    Short,
    /// Also on further devices.
    Full,
}

/// What must hold in every kernel that blkkin is for.
const EVERYWHERE: &[Suite] = &[
    suite("kernels", "", Disk::Virtio),
    suite("attach", "", Disk::Loop),
    suite("device", "", Disk::Virtio),
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
];

/// What Debian's 6.12 has and its 6.1 has not.
const SINCE_6_12: &[Suite] = &[suite("guest_ublk", "", Disk::Loop)];

/// The same on other devices, and what is hard to say of a device.
const FURTHER: &[Suite] = &[
    suite("fio", "the_report", Disk::Virtio),
    suite("conservation", "", Disk::Loop),
    suite("kernels", "tracepoints", Disk::Null),
    suite("device", "", Disk::Null),
    suite("links", "", Disk::Null),
    suite("device", "", Disk::Virtio).by(Attach::RawTp),
    suite("fio", "the_report", Disk::Virtio).by(Attach::RawTp),
    suite("links", "", Disk::Null).by(Attach::RawTp),
    suite("guest_stacked", "linear", Disk::Linear).by(Attach::RawTp),
    suite("guest_stacked", "crypt", Disk::Crypt).by(Attach::RawTp),
    suite("guest_stacked", "mirror", Disk::Mirror).by(Attach::RawTp),
    suite("guest_stacked", "tower", Disk::Tower).by(Attach::RawTp),
    suite("stacked", "", Disk::Loop).by(Attach::RawTp),
    suite("guest_unended", "table", Disk::Quick),
    suite("guest_unended", "table", Disk::Quick).by(Attach::RawTp),
    suite("guest_devices", "stripe", Disk::Striped).by(Attach::RawTp),
    suite("guest_devices", "flakey", Disk::Flakey).by(Attach::RawTp),
    suite("guest_devices", "bad", Disk::Bad).by(Attach::RawTp),
    suite("guest_zones", "", Disk::Zoned).by(Attach::RawTp),
    suite("guest_devices", "discard", Disk::Scsi).by(Attach::RawTp),
    suite("guest_flush", "sync", Disk::Null),
    suite("guest_flush", "sync", Disk::Scsi),
    suite("guest_flush", "sync", Disk::Virtio).by(Attach::RawTp),
    suite("device", "", Disk::Scsi),
    suite("device", "", Disk::Scsi).by(Attach::RawTp),
    suite("guest_scsi", "", Disk::Scsi).by(Attach::RawTp),
    suite("guest_passthrough", "", Disk::Scsi).by(Attach::RawTp),
    suite("guest_passthrough", "", Disk::Scsi).by(Attach::Fentry),
    suite("guest_passthrough", "", Disk::Scsi).by(Attach::Kprobe),
    suite("device", "", Disk::Virtio).by(Attach::Fentry),
    suite("device", "", Disk::Virtio).by(Attach::Kprobe),
    suite("fio", "the_report", Disk::Virtio).by(Attach::Kprobe),
    suite("links", "", Disk::Null).by(Attach::Kprobe),
    suite("guest_stacked", "crypt", Disk::Crypt).by(Attach::Kprobe),
    suite("guest_nbd", "", Disk::Loop).by(Attach::RawTp),
    suite("guest_kinds", "", Disk::Loop),
    suite("guest_stacked", "tower", Disk::Tower).by(Attach::Fentry),
];

/// Longest first: two run at a time.
pub(super) const GUESTS: &[Guest] = &[
    Guest {
        name: "6.12",
        kernel: &Kernel::LINUX_6_12,
        command_line: "",
        suites: EVERYWHERE,
        own: SINCE_6_12,
        more: FURTHER,
    },
    Guest {
        name: "6.1",
        kernel: &Kernel::LINUX_6_1,
        command_line: "",
        suites: EVERYWHERE,
        own: &[],
        more: FURTHER,
    },
    Guest {
        name: "6.12-confidentiality",
        kernel: &Kernel::LINUX_6_12,
        command_line: "lockdown=confidentiality",
        suites: &[suite("guest_lockdown", "", Disk::Loop)],
        own: &[],
        more: &[],
    },
    Guest {
        name: "6.12-integrity",
        kernel: &Kernel::LINUX_6_12,
        command_line: "lockdown=integrity",
        suites: &[suite("kernels", "doctor", Disk::Loop)],
        own: &[],
        more: &[],
    },
    Guest {
        name: "5.10",
        kernel: &Kernel::LINUX_5_10,
        command_line: "",
        suites: &[suite("guest_too_old", "", Disk::Loop)],
        own: &[],
        more: &[],
    },
];

/// One program to run in a guest.
pub(super) struct Work {
    /// As it is counted: `blkkin/tests/attach on loop`.
    pub(super) name: String,
    pub(super) executable: PathBuf,
    /// The tests, by their exact names.
    pub(super) tests: Vec<String>,
    pub(super) disk: Disk,
    pub(super) attach: Attach,
}

impl Guest {
    /// What is to run here, of that what `filter` leaves: a part of a test's name, or a program's whole name.
    pub(super) fn work(
        &self,
        programs: &[TestProgram],
        depth: Depth,
        filter: Option<&str>,
    ) -> Result<Vec<Work>> {
        let mut work = Vec::new();
        let more = if depth == Depth::Full { self.more } else { &[] };
        for suite in self.suites.iter().chain(self.own).chain(more) {
            let name = format!("blkkin/tests/{}", suite.program);
            let program = programs.iter().find(|program| program.name == name);
            let executable = program.with_context(|| format!("there is no {name}"))?.executable.clone();
            let listed = shell::capture(Command::new(&executable).args(["--list", "--format", "terse"]))?;
            let tests = listed.lines().filter_map(|line| line.strip_suffix(": test"));
            let wanted = |test: &str| filter.is_none_or(|part| test.contains(part) || suite.program == part);
            let tests = tests.filter(|test| test.contains(suite.tests) && wanted(test));
            let tests: Vec<String> = tests.map(str::to_owned).collect();
            if !tests.is_empty() {
                let (name, disk, attach) = (suite.name(), suite.disk, suite.attach);
                work.push(Work { name, executable, tests, disk, attach });
            }
        }
        Ok(work)
    }
}

/// Their names, for somebody who looks for one.
pub(super) fn list() -> String {
    GUESTS
        .iter()
        .map(|guest| format!("  {} {}", guest.name, guest.command_line).trim_end().to_owned() + "\n")
        .collect()
}
