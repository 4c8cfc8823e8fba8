//! Where the threads of a process say which span they work for (OpenTelemetry's thread context, OTEP 4947), and what they say.
//!
//! User space finds the place (`tracer/src/context`), the kernel side reads it at each call that it records. Nothing in it is
//! to be believed but that a read of it fails or does not: all of it is the process's own memory.

use crate::plain;

/// A place. It holds for one address space: another program after execve has another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Place {
    /// `mm->start_stack`, and the next `mm->start_code`: with addresses given out at random no two programs have the same pair.
    pub start_stack: u64,
    /// See `start_stack`.
    pub start_code: u64,
    /// From the thread pointer to the slot; with PLACE_DYNAMIC from the begin of the module's block. The slot is a pointer to a
    /// [`Head`], or null. Sums wrap.
    pub offset: u64,
    /// With PLACE_DYNAMIC: the module's number.
    pub module: u64,
    /// From the thread pointer to the pointer to the thread's vector of blocks (its DTV).
    pub vector_at: u64,
    /// From there to how many modules it has room for.
    pub length_at: u64,
    /// An address inside of the library that has the slot: who unmaps it takes the place away. 0: the program itself.
    pub anchor: u64,
    /// `PLACE_*`.
    pub kind: u32,
    /// Bytes of one of the vector's entries.
    pub stride: u32,
}

/// At a fixed distance from the thread pointer.
pub const PLACE_STATIC: u32 = 1;
/// In a block that each thread is given when it first needs it.
pub const PLACE_DYNAMIC: u32 = 2;
/// Nothing is read by it: user space has seen the library that has it, and waits whether it stays.
pub const PLACE_CLAIMED: u32 = 3;

/// Processes whose place is known at once, at the most. One more is not read, and counted.
pub const PLACES_MAX: u32 = 65_536;

/// The first bytes of what a thread publishes; in memory without the last four.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Head {
    /// The trace's id, first byte first.
    pub trace: [u8; 16],
    /// The span's id, first byte first.
    pub span: [u8; 8],
    /// 1: what is here may be read.
    pub valid: u8,
    /// Trace flags (W3C trace context).
    pub flags: u8,
    /// Bytes of attributes behind it: see [`ATTRIBUTES_MAX`].
    pub attributes: u16,
    /// Zero.
    pub reserved: u32,
}

/// Bytes of a [`Head`] in a process's memory.
pub const HEAD_BYTES: usize = 28;

/// Bytes of attributes that are read: all or none, since a later entry may stand for an earlier one. A record is recommended to stay at or under
/// 640 bytes (OTEP 4947, *Thread-Local Context Record*; open-telemetry/opentelemetry-specification, oteps/profiles/4947-thread-ctx.md at
/// 009fafa5), so of a writer that keeps to that nothing is left out.
pub const ATTRIBUTES_MAX: usize = 640 - HEAD_BYTES;

plain! { Place = 64, Head = 32 }
