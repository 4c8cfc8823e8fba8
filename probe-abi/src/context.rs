//! Thread contexts: the location of a thread's OpenTelemetry context record (OTEP 4947), and the
//! head of that record.
//!
//! User space finds the TLS slot of each process; the eBPF side reads it at each system call that
//! it records.
//! All of it is the traced process's own memory, so the only trusted result is whether a read
//! succeeds or fails.

use crate::plain;

/// A process's TLS slot for its thread context. Valid for one address space: a program started by
/// execve has another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct TlsSlot {
    /// `mm->start_stack`, which with `start_code` identifies the address space: under address
    /// randomisation no two programs share the pair.
    pub start_stack: u64,
    /// `mm->start_code`: see `start_stack`.
    pub start_code: u64,
    /// Offset of the slot from the thread pointer; with TLS_DYNAMIC, from the start of the module's
    /// TLS block. The slot holds a pointer to a [`ContextHead`], or null. Sums wrap.
    pub offset: u64,
    /// With TLS_DYNAMIC: the TLS module id.
    pub module: u64,
    /// Offset from the thread pointer to the pointer to the thread's dynamic thread vector (DTV).
    pub dtv_offset: u64,
    /// Offset from the DTV to the number of modules that it has room for.
    pub dtv_length_offset: u64,
    /// Address inside the library that defines the slot: unmapping that library removes the slot.
    /// 0: the program itself.
    pub anchor: u64,
    /// `TLS_*`.
    pub kind: u32,
    /// Bytes of one DTV entry.
    pub dtv_stride: u32,
}

/// The slot is at a fixed distance from the thread pointer.
pub const TLS_STATIC: u32 = 1;
/// The slot is in a TLS block that each thread allocates on first use.
pub const TLS_DYNAMIC: u32 = 2;
/// No read uses the slot: user space has found the defining library and waits to see whether it
/// stays loaded.
pub const TLS_CLAIMED: u32 = 3;

/// Maximum number of processes with a known slot at one time. A further process is not read, and is
/// counted.
pub const TLS_SLOTS_MAX: u32 = 65_536;

/// Head of the context record that a thread publishes. In the process's memory the last four bytes
/// are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ContextHead {
    /// Trace id, most significant byte first.
    pub trace: [u8; 16],
    /// Span id, most significant byte first.
    pub span: [u8; 8],
    /// 1: the record is complete and may be read.
    pub valid: u8,
    /// Trace flags (W3C trace context).
    pub flags: u8,
    /// Bytes of attributes that follow the head: see [`ATTRIBUTES_MAX`].
    pub attribute_bytes: u16,
    /// Zero.
    pub reserved: u32,
}

/// Bytes of a [`ContextHead`] in a process's memory.
pub const HEAD_BYTES: usize = 28;

/// Maximum attribute bytes read. The eBPF side reads all or none, because a later entry may
/// override an earlier one.
/// OTEP 4947 (*Thread-Local Context Record*; open-telemetry/opentelemetry-specification,
/// oteps/profiles/4947-thread-ctx.md at 009fafa5) recommends records of up to 640 bytes. A writer
/// that follows it loses no attribute.
pub const ATTRIBUTES_MAX: usize = 640 - HEAD_BYTES;

plain! { TlsSlot = 64, ContextHead = 32 }
