//! Reads of kernel memory, behind one trait, so that the tp_btf and raw_tp variants of a program
//! share one body.
//!
//! [`DirectLoad`] loads through a pointer whose type the verifier knows (an argument of a tp_btf
//! program, the current task, or a pointer loaded through one of these). It is an ordinary
//! instruction of about 1 ns; a bad address reads as 0 by the kernel's exception table.
//! [`ProbeRead`] calls bpf_probe_read_kernel: 20 to 35 ns, any address.

use aya_ebpf::helpers::generated::bpf_probe_read_kernel;
use core::mem::MaybeUninit;

/// Kernel address, typed or untyped for the verifier.
pub type Pointer = *const u8;

/// Method of reading kernel memory.
pub trait KernelRead {
    /// True if a read costs about one instruction.
    const CHEAP: bool;

    /// Returns the value at `base + offset`; zero if unreadable.
    ///
    /// # Safety
    /// `T` is an integer or a pointer, and `base` is of the kind that the implementor reads.
    unsafe fn read<T: Copy>(base: Pointer, offset: u32) -> T;
}

/// Loads through typed pointers.
pub struct DirectLoad;

/// Reads by bpf_probe_read_kernel.
pub struct ProbeRead;

impl KernelRead for DirectLoad {
    const CHEAP: bool = true;

    #[inline(always)]
    unsafe fn read<T: Copy>(base: Pointer, offset: u32) -> T {
        // SAFETY: the verifier has checked type and offset, or rejected the program.
        unsafe { core::ptr::read_volatile(base.wrapping_add(offset as usize).cast()) }
    }
}

impl KernelRead for ProbeRead {
    const CHEAP: bool = false;

    #[inline(always)]
    unsafe fn read<T: Copy>(base: Pointer, offset: u32) -> T {
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: bpf_probe_read_kernel writes size_of::<T>() bytes or zeros; any address is
        // allowed.
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
