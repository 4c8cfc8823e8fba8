//! Parts that the fuzz targets share: a limit of allocations, memory made of the input, and input
//! cut into pieces.

use std::alloc::{GlobalAlloc, Layout, System};

use blkkin_otel_context::Memory;
pub use libfuzzer_sys::fuzz_target;

/// Largest allocation, twice the largest payload of an NBD request. libFuzzer's own limit works
/// with a sanitizer only.
const ALLOCATION_MAX: usize = 64 << 20;

#[global_allocator]
static ALLOCATOR: LimitedAllocator = LimitedAllocator;

struct LimitedAllocator;

fn check(bytes: usize) {
    if bytes > ALLOCATION_MAX {
        // libFuzzer reports the signal as a crash.
        std::process::abort();
    }
}

// SAFETY: every call is passed on to the system's allocator, or ends the process.
unsafe impl GlobalAlloc for LimitedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        check(bytes);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, bytes) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Address of the input in [`InputMemory`], where programs are mapped on x86-64.
pub const AT: u64 = 0x7f00_0000_0000;

/// Memory of a process whose only mapping is the input, at [`AT`].
pub struct InputMemory<'a>(pub &'a [u8]);

impl Memory for InputMemory<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Option<()> {
        let from = usize::try_from(address.checked_sub(AT)?).ok()?;
        into.copy_from_slice(self.0.get(from..from.checked_add(into.len())?)?);
        Some(())
    }
}

/// Takes a piece off the input: a length of 16 bits, little-endian, and that many bytes, or what is
/// left. None at the end.
pub fn piece<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = input.split_first_chunk::<2>()?;
    let (piece, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
    *input = rest;
    Some(piece)
}
