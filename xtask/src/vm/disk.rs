//! Requirements of a suite: a disk and an attach kind. `init.sh` receives both by the names given
//! here.

/// Attach kind for tests that do not choose one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Attach {
    /// Default of the tracer: tp_btf.
    Best,
    RawTp,
    Fentry,
    Kprobe,
}

impl Attach {
    /// Returns the name for `init.sh`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Attach::Best => "best",
            Attach::RawTp => "raw_tp",
            Attach::Fentry => "fentry",
            Attach::Kprobe => "kprobe",
        }
    }
}

/// Disk of a suite, which `init.sh` makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Disk {
    /// Loop device that the test makes, as on the host.
    Loop,
    /// First virtio disk.
    Virtio,
    /// null_blk in memory, with two hardware queues.
    Null,
    /// device-mapper linear: the first virtio disk with an offset of 1 MiB.
    Linear,
    /// device-mapper crypt: the first virtio disk with an offset of 1 MiB.
    Crypt,
    /// device-mapper delay: the first virtio disk with an offset of 1 MiB and a latency of 100 ms.
    Delay,
    /// null_blk with a latency of 100 ms.
    Slow,
    /// null_blk with a latency of 5 s.
    Mute,
    /// device-mapper linear: null_blk that completes at once, with an offset of 1 MiB.
    Quick,
    /// device-mapper striped: stripes of 8 KiB on both virtio disks.
    Striped,
    /// device-mapper flakey: every request fails.
    Flakey,
    /// null_blk with bad sectors.
    Bad,
    /// null_blk with zones.
    Zoned,
    /// scsi_debug: a SCSI disk in memory.
    Scsi,
    /// md: a mirror of both virtio disks.
    Mirror,
    /// device-mapper linear on an md mirror of both virtio disks.
    Tower,
    /// md: stripes of 64 KiB on both virtio disks.
    Raid0,
    /// md: raid10 of both virtio disks.
    Raid10,
    /// device-mapper: a thin volume with the pool's data on the first virtio disk and its metadata
    /// on the second.
    Thin,
}

impl Disk {
    /// Returns the name for `init.sh`.
    pub(super) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}
