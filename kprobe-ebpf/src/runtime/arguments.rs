//! Arguments of an entry point: the kernel passes an array of words to tracepoint and fentry
//! programs, and the registers at function entry to kprobe programs.

use crate::runtime::arch;
use crate::runtime::read::Pointer;
use core::ffi::c_void;

/// Access to the arguments of one kind of program.
pub trait Arguments {
    /// Returns the `n`th argument as a number. The bits above its type are undefined.
    fn word(context: *mut c_void, n: usize) -> u64;
    /// Returns the `n`th argument as a pointer; typed for the verifier where the program type
    /// provides types.
    fn pointer(context: *mut c_void, n: usize) -> Pointer;
}

/// Arguments in an array of words.
pub struct ArgArray;

/// Arguments in the registers of a kernel function call.
pub struct ArgRegisters;

impl Arguments for ArgArray {
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

impl Arguments for ArgRegisters {
    #[inline(always)]
    fn word(context: *mut c_void, n: usize) -> u64 {
        // SAFETY: the context is a struct pt_regs, and the verifier knows its size.
        unsafe { *context.byte_add(arch::PARAMETERS[n] as usize).cast::<u64>() }
    }

    #[inline(always)]
    fn pointer(context: *mut c_void, n: usize) -> Pointer {
        ArgRegisters::word(context, n) as Pointer
    }
}
