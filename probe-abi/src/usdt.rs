//! USDT probes: the argument specifications that user space writes for the eBPF side, and the
//! record of an event.

use crate::plain;
use crate::record::Header;

/// Maximum number of USDT probes at one time.
pub const USDT_PROBES_MAX: usize = 64;
/// Row after the probes: the tracer's own probe, which measures the overhead of an event. It has no
/// arguments.
pub const OVERHEAD_ROW: u64 = USDT_PROBES_MAX as u64;
/// Maximum arguments read per probe. systemtap's macros define up to 12. PostgreSQL's probes have
/// up to 7; the last two report how a buffer was used.
pub const USDT_ARGS_MAX: usize = 8;
/// Maximum bytes of the one captured text, including its NUL. A query text may be of any length:
/// the record reports truncation.
pub const USDT_TEXT_MAX: usize = 256;

/// The value is a constant in the specification.
pub const FROM_CONSTANT: u32 = 1;
/// The value is in a register.
pub const FROM_REGISTER: u32 = 2;
/// The value is in memory: at a register, plus `scale` times an index register, plus `value`.
pub const FROM_MEMORY: u32 = 3;

/// Location of a USDT argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct UsdtArgSpec {
    /// `FROM_*`; 0: no argument.
    pub from: u32,
    /// Bytes of the argument: 1, 2, 4 or 8.
    pub bytes: u32,
    /// Offset of the register in the kernel's `struct pt_regs`.
    pub register: u32,
    /// Right shift that extracts a part of the register, in bits.
    pub shift: u32,
    /// Offset of the index register in `struct pt_regs`.
    pub index: u32,
    /// Factor of the index; 0: no index.
    pub scale: u32,
    /// Constant, or displacement.
    pub value: i64,
}

/// Arguments to read at a USDT probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct UsdtSpec {
    /// Locations of the arguments.
    pub arguments: [UsdtArgSpec; USDT_ARGS_MAX],
    /// Number of arguments.
    pub count: u32,
    /// 1 + index of the argument that points at the captured text; 0: none.
    pub text: u32,
}

/// A text follows the fixed part, in [`USDT_TEXT_MAX`] bytes.
pub const USDT_HAS_TEXT: u16 = 1 << 0;

/// USDT event: a traced thread reached a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct UsdtRecord {
    /// Tag, flags (`USDT_*`), length, time.
    pub header: Header,
    /// Row of the probe.
    pub row: u32,
    /// Process id, in the initial pid namespace.
    pub pid: u32,
    /// Thread id, in the initial pid namespace.
    pub tid: u32,
    /// Bit mask of the arguments that could be read.
    pub read_mask: u16,
    /// Bytes of the text, including its NUL; 0: not readable.
    pub text_bytes: u16,
    /// Arguments; only the low `bytes` of each are valid.
    pub arguments: [u64; USDT_ARGS_MAX],
    /// Thread name, NUL padded.
    pub comm: [u8; 16],
}

plain! { UsdtArgSpec = 32, UsdtSpec = 264, UsdtRecord = 112 }
