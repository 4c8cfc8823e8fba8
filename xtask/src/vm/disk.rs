//! What a suite asks for besides its tests: a disk, and a kind of probe. `init.sh` knows both by the names that are given here.

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
    /// md: stripes of 64 KiB on both virtio disks.
    Raid0,
    /// md: raid10 of both virtio disks.
    Raid10,
    /// device-mapper: a thin volume, whose pool's data is on the first virtio disk and its metadata on the second.
    Thin,
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
            Disk::Raid0 => "raid0",
            Disk::Raid10 => "raid10",
            Disk::Thin => "thin",
        }
    }
}
