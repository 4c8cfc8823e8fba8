//! Where an entry point finds its arguments: tracepoints and fentry programs are handed an array of words, kprobe
//! programs the registers as they were when the function was entered.

use crate::access::Pointer;
use crate::arch;
use core::ffi::c_void;

/// A way to find them.
pub trait Arguments {
    /// The `n`th, for a number. What is above the bits of its type is undefined.
    fn word(context: *mut c_void, n: usize) -> u64;
    /// The `n`th, for a pointer; typed for the verifier where the kind types them.
    fn pointer(context: *mut c_void, n: usize) -> Pointer;
}

/// In an array.
pub struct Words;

/// In the registers of a call inside the kernel.
pub struct Registers;

impl Arguments for Words {
    #[inline(always)]
    fn word(context: *mut c_void, n: usize) -> u64 {
        // SAFETY: the verifier knows how many there are.
        unsafe { *context.cast::<u64>().add(n) }
    }

    #[inline(always)]
    fn pointer(context: *mut c_void, n: usize) -> Pointer {
        // SAFETY: as above.
        unsafe { *context.cast::<Pointer>().add(n) }
    }
}

impl Arguments for Registers {
    #[inline(always)]
    fn word(context: *mut c_void, n: usize) -> u64 {
        // SAFETY: the context is a struct pt_regs, and the verifier knows its size.
        unsafe { *context.byte_add(arch::PARAMETERS[n] as usize).cast::<u64>() }
    }

    #[inline(always)]
    fn pointer(context: *mut c_void, n: usize) -> Pointer {
        Registers::word(context, n) as Pointer
    }
}
