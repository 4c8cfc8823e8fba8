//! Table of the paths that a path filter excludes: user space writes it, the kernel side reads it at
//! the entry of system calls.
//!
//! *Content*: numbers of paths (`FileId::name`). *Invariant*: a number is used for one path only, so
//! an entry stays right when files are renamed. Calls on a path that the full set displaced are
//! recorded again.

/// Numbers of a set; 0: free.
pub const WAYS: usize = 4;

/// Sets of the table (512 KiB). It has one if no path filter is set.
pub const EXCLUDED_SETS: usize = 16_384;

/// Set of numbers.
pub type ExcludedSet = [u64; WAYS];

/// Returns the set of a path's number, which is a hash.
#[inline(always)]
pub const fn set_of(name: u64) -> u32 {
    (name >> 32) as u32 & (EXCLUDED_SETS as u32 - 1)
}
