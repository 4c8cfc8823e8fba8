//! Identifiers of spans, traces, tasks, files, devices and nodes.

use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($($(#[$doc:meta])* $name:ident($inner:ty)),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub $inner);
    )+};
}

id! {
    /// Span of one layer. Generated where the span begins, never reused within a start of the
    /// tracer.
    SpanId(u64),
    /// A trace over all layers and nodes: 128 bits, as in W3C trace context and Zipkin.
    TraceId(u128),
    /// A traced task (thread) over its lifetime. Unlike a tid it is never reused, and it stays
    /// the same across exec.
    TaskId(u64),
    /// A machine: stable over restarts.
    NodeId(u128),
    /// A boot of a machine.
    BootId(u128),
    /// A start of a tracer: random.
    StartEpoch(u64),
    /// Process id in the initial pid namespace.
    Pid(u32),
    /// Thread id in the initial pid namespace.
    Tid(u32),
    /// User id in the initial user namespace.
    Uid(u32),
    /// Cgroup of the default hierarchy: its inode number below /sys/fs/cgroup.
    CgroupId(u64),
    /// Path of a file, as a number: a hash that the kernel side makes of the names on the way to the
    /// root. 0: the file, whatever its path. A path that could not be read has a number that no
    /// `FileEvent` has.
    NameId(u64),
    /// File descriptor number.
    Fd(i32),
    /// First sector, in units of 512 B whatever the device's block size.
    Sector(u64),
}

/// A task at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskRef {
    /// Task.
    pub id: TaskId,
    /// Number of the [`TaskEvent`](crate::event::TaskEvent) in force at that moment.
    pub version: u16,
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

/// Block device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceId {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl DeviceId {
    /// Decodes the kernel's encoding, `major << 20 | minor` (include/linux/kdev_t.h).
    pub const fn from_kernel(dev: u32) -> Self {
        DeviceId { major: dev >> 20, minor: dev & 0xf_ffff }
    }
    /// Encodes as the kernel does.
    pub const fn to_kernel(self) -> u32 {
        self.major << 20 | self.minor
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// File under one of its paths. Device, inode and generation identify the file: exact while it
/// exists and, through the generation, after its inode number was reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileId {
    /// Device of the file system.
    pub device: DeviceId,
    /// Inode number.
    pub ino: u64,
    /// Inode generation; 0 if the file system keeps none.
    pub generation: u32,
    /// Path of the descriptor that was used. Hard links of a file have different names, and so has
    /// a file before and after a rename.
    pub name: NameId,
}

/// Two words for five fields: a file is looked up for nearly every system call.
impl Hash for FileId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let DeviceId { major, minor } = self.device;
        state.write_u64(self.ino ^ self.name.0.rotate_left(32));
        state.write_u64(u64::from(major ^ self.generation) << 32 | u64::from(minor));
    }
}

impl FileId {
    /// Returns the file itself, whatever its path: equal for all its names.
    pub fn unnamed(self) -> FileId {
        FileId { name: NameId::NONE, ..self }
    }
}

impl NameId {
    /// No name: the file is known by its inode, or paths are not recorded.
    pub const NONE: NameId = NameId(0);
}

/// Source of an event stream. It distinguishes machines, boots of a machine, and tracer starts in a
/// boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Source {
    /// Machine.
    pub node: NodeId,
    /// Boot.
    pub boot: BootId,
    /// Start of the tracer.
    pub epoch: StartEpoch,
}

impl TraceId {
    /// Returns a hash that is the same on every node and uniform over traces, for sampling one
    /// trace in n.
    pub fn sampling_hash(self) -> u64 {
        mix(mix(self.0 as u64) ^ (self.0 >> 64) as u64)
    }
}

impl Source {
    /// No source: marks a record that only advances time. See [`crate::batch::EventBatch::tick`].
    pub const NONE: Source = Source { node: NodeId(0), boot: BootId(0), epoch: StartEpoch(0) };

    /// Returns whether this is [`Source::NONE`].
    pub fn is_none(&self) -> bool {
        *self == Source::NONE
    }

    /// Returns the id of the trace that begins at `root`: a function of machine, boot, tracer start
    /// and root span. A replay of the event yields the same id, and ids of two nodes do not collide
    /// by accident.
    ///
    /// The upper half comes from the source, the lower half is the root's span id, so each id
    /// leads to the other.
    pub fn trace_id(&self, root: SpanId) -> TraceId {
        TraceId((self.upper_half() as u128) << 64 | root.0 as u128)
    }

    fn upper_half(&self) -> u64 {
        let mut hash = 0x9e37_79b9_7f4a_7c15_u64;
        for id in [self.node.0, self.boot.0] {
            hash = mix(hash ^ id as u64);
            hash = mix(hash ^ (id >> 64) as u64);
        }
        // W3C trace context forbids the trace id zero.
        mix(hash ^ self.epoch.0).max(1)
    }
}

/// Multipliers of [`mix`].
pub(crate) const MIX_FIRST: u64 = 0xbf58_476d_1ce4_e5b9;
pub(crate) const MIX_SECOND: u64 = 0x94d0_49bb_1331_11eb;

/// Mixes 64 bits with the finalizer of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom
/// number generators, 2014): a bijection in which every input bit flips half of the output bits.
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(MIX_FIRST);
    z = (z ^ (z >> 27)).wrapping_mul(MIX_SECOND);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip_through_kernel_encoding() {
        for (major, minor) in [(8, 0), (259, 5), (7, 3), (4095, 0xf_ffff)] {
            let device = DeviceId { major, minor };
            assert_eq!(DeviceId::from_kernel(device.to_kernel()), device);
        }
    }

    #[test]
    fn trace_id_depends_on_each_source_field_and_contains_the_root() {
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
