//! A thread came by a probe of its program (USDT): what the kernel side is told of the probe, and what it says.

use crate::plain;
use crate::record::Header;

/// Places of probes at once.
pub const HITS_MAX: usize = 64;
/// The row behind them: a place of our own, at which the cost of a hit is measured. It has no arguments.
pub const OWN_ROW: u64 = HITS_MAX as u64;
/// Arguments of a probe that are read. systemtap's macros make up to 12; PostgreSQL's have up to 7, of which the last two say how
/// a buffer was used.
pub const ARGUMENTS_MAX: usize = 8;
/// Bytes of the one text that is taken, its NUL included. The text of a query may be of any length: what is cut is said.
pub const TEXT_MAX: usize = 256;

/// The value is in the specification.
pub const FROM_CONSTANT: u32 = 1;
/// In a register.
pub const FROM_REGISTER: u32 = 2;
/// In memory, at a register, and `scale` times an index, and so much behind them.
pub const FROM_MEMORY: u32 = 3;

/// Where an argument is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ArgumentSpec {
    /// `FROM_*`; 0: there is none.
    pub from: u32,
    /// How much of it: 1, 2, 4 or 8.
    pub bytes: u32,
    /// Offset of the register in the kernel's `struct pt_regs`.
    pub register: u32,
    /// By how many bits a register's part lies up.
    pub shift: u32,
    /// Offset of the index.
    pub index: u32,
    /// 0: there is no index.
    pub scale: u32,
    /// The constant, or how far behind.
    pub value: i64,
}

/// What to read at a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Spec {
    /// Where.
    pub arguments: [ArgumentSpec; ARGUMENTS_MAX],
    /// How many there are.
    pub count: u32,
    /// 1 + which points at a text that is taken; 0: none.
    pub text: u32,
}

/// A text follows the fixed part, in [`TEXT_MAX`] bytes.
pub const HIT_HAS_TEXT: u16 = 1 << 0;

/// A followed thread came by a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HitRecord {
    /// Tag, flags (`HIT_*`), length, time.
    pub header: Header,
    /// Which row.
    pub row: u32,
    /// Process and thread, in the initial pid namespace.
    pub pid: u32,
    /// See above.
    pub tid: u32,
    /// Bits: the arguments that could be read.
    pub read: u16,
    /// Bytes of the text, its NUL included; 0: it could not be read.
    pub text_bytes: u16,
    /// The arguments; of each its lower bytes count.
    pub arguments: [u64; ARGUMENTS_MAX],
    /// The thread's name, NUL padded.
    pub comm: [u8; 16],
}

plain! { ArgumentSpec = 32, Spec = 264, HitRecord = 112 }
