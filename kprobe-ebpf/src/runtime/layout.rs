//! Offsets of kernel fields: the loader freezes them before verification, so the verifier treats
//! each as a constant. No other file of this crate knows where a kernel field is.

use blkkin_probe_abi::layout::Layout;

/// Field offsets, written by the loader.
#[unsafe(no_mangle)]
pub static LAYOUT: Layout = Layout::EMPTY;

/// Returns the value that the loader wrote to `place`. The read is volatile: otherwise the compiler
/// would use the value in the object file instead of the one in the kernel.
#[inline(always)]
pub fn frozen<T: Copy>(place: &'static T) -> T {
    // SAFETY: a live reference; the memory is never written after loading.
    unsafe { core::ptr::read_volatile(place) }
}

/// Offset of a field, by its name in `probe_abi::layout`.
macro_rules! offset {
    ($field:ident) => {
        $crate::runtime::layout::frozen(&$crate::runtime::layout::LAYOUT.$field)
    };
}
pub(crate) use offset;
