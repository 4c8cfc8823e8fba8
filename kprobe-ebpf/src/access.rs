//! Two ways to read the kernel's memory, behind one trait, so that the tp_btf and the raw_tp twin of a program
//! share one body.
//!
//! [`Direct`] loads through a pointer whose type the verifier knows (an argument of a tp_btf program, the
//! current task, or what was loaded through one of these): an ordinary instruction, about 1 ns; a bad address
//! reads as 0 by the kernel's exception table. [`Probe`] asks bpf_probe_read_kernel: 20 to 35 ns, any address.

use aya_ebpf::helpers::generated::bpf_probe_read_kernel;
use core::mem::MaybeUninit;

/// An address in the kernel, typed for the verifier or not.
pub type Pointer = *const u8;

/// A way to read.
pub trait Access {
    /// Reading costs about one instruction.
    const CHEAP: bool;

    /// The value at `base + offset`; zero where it cannot be read.
    ///
    /// # Safety
    /// `T` is an integer or a pointer, and `base` is of the kind that the implementor reads.
    unsafe fn read<T: Copy>(base: Pointer, offset: u32) -> T;
}

/// Loads through typed pointers.
pub struct Direct;

/// Reads by helper.
pub struct Probe;

impl Access for Direct {
    const CHEAP: bool = true;

    #[inline(always)]
    unsafe fn read<T: Copy>(base: Pointer, offset: u32) -> T {
        // SAFETY: the verifier has checked type and offset, or refused the program.
        unsafe { core::ptr::read_volatile(base.wrapping_add(offset as usize).cast()) }
    }
}

impl Access for Probe {
    const CHEAP: bool = false;

    #[inline(always)]
    unsafe fn read<T: Copy>(base: Pointer, offset: u32) -> T {
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: the helper writes size_of::<T>() bytes or zeroes them; any address is allowed.
        unsafe {
            bpf_probe_read_kernel(
                value.as_mut_ptr().cast(),
                size_of::<T>() as u32,
                base.wrapping_add(offset as usize).cast(),
            );
            value.assume_init()
        }
    }
}
