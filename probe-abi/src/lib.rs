//! What the kernel side and the user side of the tracer say to each other.
//!
//! *In*: nothing. *Out*: plain `repr(C)` types that both sides compile: the **records** that the eBPF
//! programs put into the rings ([`record`]), the **settings** that the loader freezes into them before they
//! are verified ([`settings`], [`layout`]), the **counters** that say what was fired and what was dropped
//! ([`counters`]), what is in **flight** ([`flight`]), where applications say for which span they work ([`context`]), and what
//! threads say at probes of their programs ([`hit`]).
//!
//! *Invariant*: every type here has a size that does not depend on the compiler's mood (explicit padding, no
//! `bool`, no Rust `enum`; each size asserted at compile time), and every bit pattern of the right length is
//! a valid value, so that bytes from a ring become a record by one checked copy and nothing else.
//!
//! *Stability*: none. Both sides ship in one binary; what must survive version skew is `wire`.
#![no_std]

pub mod context;
pub mod counters;
pub mod flight;
pub mod hit;
pub mod layout;
pub mod record;
pub mod settings;

/// Most CPUs that rings and counters are made for; more than any machine that Linux's default configuration
/// for distributions allows would be 8192, but an array of maps of that size costs memory for nothing.
pub const CPUS_MAX: u32 = 512;

/// A type whose every bit pattern is valid and which has no padding bytes.
///
/// # Safety
/// The implementor is `repr(C)`, has no padding, and contains integers and arrays of them only.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($t:ty = $size:expr),+ $(,)?) => {$(
        // SAFETY: repr(C), integers only, padding spelled out; the size below would differ otherwise.
        unsafe impl $crate::Plain for $t {}
        const _: () = assert!(core::mem::size_of::<$t>() == $size);
        const _: () = assert!(core::mem::align_of::<$t>() <= 8);
    )+};
}
pub(crate) use plain;
