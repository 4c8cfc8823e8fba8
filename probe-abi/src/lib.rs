//! Binary interface between the tracer's eBPF programs and its user-space loader and reader.
//!
//! *In*: nothing. *Out*: plain `repr(C)` types that both sides compile:
//!
//! - the **records** that the eBPF programs write into the rings ([`record`]), and those of USDT
//!   probes ([`usdt`]) and of page faults ([`fault`]),
//! - the **settings** that the loader freezes into the programs before verification ([`settings`],
//!   [`layout`]),
//! - the **counters** of fired and dropped records ([`counters`]),
//! - the bios and requests **in flight** ([`in_flight`]),
//! - the rule of **head sampling** ([`head_sampling`]), and operations that are **deferred** until they end
//!   ([`deferred`]),
//! - the **totals** of block requests that are counted instead of recorded ([`totals`]),
//! - the location and head of **thread contexts** ([`context`]).
//!
//! *Invariant*: every type has a fixed size (explicit padding, no `bool`, no Rust `enum`; each size
//! is asserted at compile time). Every bit pattern of the right length is a valid value, so one
//! checked copy turns ring bytes into a record.
//!
//! *Stability*: none. Both sides ship in one binary; the `wire` crate defines the formats that must
//! survive version skew.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod context;
pub mod counters;
pub mod deferred;
pub mod excluded_paths;
pub mod fault;
pub mod head_sampling;
pub mod in_flight;
pub mod layout;
pub mod record;
pub mod settings;
pub mod sleep;
pub mod totals;
pub mod usdt;
pub mod wait;

/// Maximum number of CPUs for which rings and counters exist. Linux's default configuration for
/// distributions allows up to 8192, but an array of maps of that size wastes memory.
pub const CPUS_MAX: u32 = 512;

/// Type of which every bit pattern is valid and which has no padding bytes.
///
/// # Safety
/// The implementor is `repr(C)`, has no padding, and contains only integers and arrays of integers.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($t:ty = $size:expr),+ $(,)?) => {$(
        // SAFETY: repr(C), integers only, explicit padding; otherwise the size asserted below would
        // differ.
        unsafe impl $crate::Plain for $t {}
        const _: () = assert!(core::mem::size_of::<$t>() == $size);
        const _: () = assert!(core::mem::align_of::<$t>() <= 8);
    )+};
}
pub(crate) use plain;
