//! Record of where a system call slept inside the kernel.
//!
//! A call that slept has one such record if sleeps are recorded. It precedes the call's own record in the same ring.

use crate::plain;
use crate::record::Header;

/// Sleeps of a system call.
pub const TAG_SLEEPS: u8 = 17;

/// Functions of a place: the innermost ones outside the scheduler.
pub const PLACE_FUNCTIONS: usize = 3;
/// Places of one call that have counts of their own. Further ones are counted together.
pub const PLACES: usize = 4;

/// A place in the kernel, and the sleeps there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SleepPlace {
    /// Return addresses: in the function that slept, in its caller, and in the caller of that. 0: unknown.
    pub functions: [u64; PLACE_FUNCTIONS],
    /// Time in ns, without the time in which the task was runnable but not running.
    pub time_ns: u64,
    /// Number of sleeps.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

/// Sleeps of one system call: voluntary context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SleepsRecord {
    /// Tag, length, time of the call's return.
    pub header: Header,
    /// Span of the system call.
    pub span: u64,
    /// Places. Those with a count of 0 are the last.
    pub places: [SleepPlace; PLACES],
    /// Time in ns at further places.
    pub others_ns: u64,
    /// Sleeps at further places.
    pub others: u32,
    /// Sleeps, at any place, of which the end was not observed. They are counted without a time.
    pub unended: u32,
}

plain! { SleepPlace = 40 }
plain! { SleepsRecord = 200 }
