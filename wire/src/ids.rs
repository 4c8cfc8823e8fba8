//! Names of things: spans, traces, tasks, files, devices, nodes.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($($(#[$doc:meta])* $name:ident($inner:ty)),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub $inner);
    )+};
}

id! {
    /// One layer's part of a request. Minted where the part begins, never reused within a start of the tracer.
    SpanId(u64),
    /// One storage request over all its layers and nodes: 128 bits, as W3C trace context and Zipkin have it.
    TraceId(u128),
    /// One task (thread) that was followed, for as long as it lived; unlike a tid never used twice, and kept
    /// when the thread executes another program.
    TaskId(u64),
    /// One machine: stable over restarts.
    NodeId(u128),
    /// One boot of a machine.
    BootId(u128),
    /// One start of a tracer: random.
    StartEpoch(u64),
    /// Process id in the initial pid namespace.
    Pid(u32),
    /// Thread id in the initial pid namespace.
    Tid(u32),
    /// User id in the initial user namespace.
    Uid(u32),
    /// Id of a cgroup of the default hierarchy: its inode number below /sys/fs/cgroup.
    CgroupId(u64),
    /// A file descriptor's number.
    Fd(i32),
    /// First sector of something, in units of 512 B whatever the device's block size.
    Sector(u64),
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A block device, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceId {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl DeviceId {
    /// From the kernel's own encoding, `major << 20 | minor` (include/linux/kdev_t.h).
    pub const fn from_kernel(dev: u32) -> Self {
        DeviceId { major: dev >> 20, minor: dev & 0xf_ffff }
    }
    /// To the kernel's own encoding.
    pub const fn to_kernel(self) -> u32 {
        self.major << 20 | self.minor
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// Which file: exact while it exists, and, by its generation, after its inode number was given to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId {
    /// The file system's device.
    pub device: DeviceId,
    /// Inode number.
    pub ino: u64,
    /// Inode generation; 0 where the file system keeps none.
    pub generation: u32,
}

/// Where a stream of events comes from: enough to tell apart two machines, two boots of one, and two starts of
/// the tracer in one boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Source {
    /// The machine.
    pub node: NodeId,
    /// Its boot.
    pub boot: BootId,
    /// The tracer's start.
    pub epoch: StartEpoch,
}

impl TraceId {
    /// A number that is the same wherever this trace is looked at, and uniform over traces: for who keeps one in so many.
    pub fn draw(self) -> u64 {
        mix(mix(self.0 as u64) ^ (self.0 >> 64) as u64)
    }
}

impl Source {
    /// No machine: says nothing but that time goes on. See [`crate::batch::EventBatch::tick`].
    pub const NOBODY: Source = Source { node: NodeId(0), boot: BootId(0), epoch: StartEpoch(0) };

    /// Whether this is [`Source::NOBODY`].
    pub fn is_nobody(&self) -> bool {
        *self == Source::NOBODY
    }

    /// The trace that begins at `root`: a function of the machine, its boot, this start and the root's span, so
    /// that the same event replayed names the same trace, and two nodes never share one by accident.
    ///
    /// The upper half is the source's, the lower half is the root's span id: a person who sees either id finds
    /// the other.
    pub fn trace_id(&self, root: SpanId) -> TraceId {
        TraceId((self.half() as u128) << 64 | root.0 as u128)
    }

    fn half(&self) -> u64 {
        let mut hash = 0x9e37_79b9_7f4a_7c15_u64;
        for id in [self.node.0, self.boot.0] {
            hash = mix(hash ^ id as u64);
            hash = mix(hash ^ (id >> 64) as u64);
        }
        // Zero is no trace id in W3C's trace context.
        mix(hash ^ self.epoch.0).max(1)
    }
}

/// What [`mix`] multiplies by.
pub(crate) const MIX_FIRST: u64 = 0xbf58_476d_1ce4_e5b9;
pub(crate) const MIX_SECOND: u64 = 0x94d0_49bb_1331_11eb;

/// The finalizer of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014): a
/// bijection in which every input bit changes half of the output's.
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(MIX_FIRST);
    z = (z ^ (z >> 27)).wrapping_mul(MIX_SECOND);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip_through_the_kernels_encoding() {
        for (major, minor) in [(8, 0), (259, 5), (7, 3), (4095, 0xf_ffff)] {
            let device = DeviceId { major, minor };
            assert_eq!(DeviceId::from_kernel(device.to_kernel()), device);
        }
    }

    #[test]
    fn trace_ids_differ_by_each_part_of_the_source_and_keep_the_root() {
        let source = Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) };
        let root = SpanId(0xabc);
        let id = source.trace_id(root);
        assert_eq!(id, source.trace_id(root));
        assert_eq!(id.0 as u64, root.0);
        for other in [
            Source { node: NodeId(9), ..source },
            Source { boot: BootId(9), ..source },
            Source { epoch: StartEpoch(9), ..source },
        ] {
            assert_ne!(other.trace_id(root), id);
        }
    }
}
