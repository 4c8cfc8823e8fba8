//! The only file here that knows where kernel fields are: the loader's offsets, frozen before verification, so
//! that the verifier takes each for a constant.

use blkkin_probe_abi::layout::Layout;

/// Set by the loader.
#[unsafe(no_mangle)]
pub static LAYOUT: Layout = Layout::EMPTY;

/// The value that the loader put at `place`. Volatile, or the compiler would take the value that it has in the
/// object for the one that it has in the kernel.
#[inline(always)]
pub fn frozen<T: Copy>(place: &'static T) -> T {
    // SAFETY: a live reference; the memory is never written after loading.
    unsafe { core::ptr::read_volatile(place) }
}

/// The offset of a field, by the name that `probe_abi::layout` gives it.
macro_rules! offset {
    ($field:ident) => {
        $crate::layout::frozen(&$crate::layout::LAYOUT.$field)
    };
}
pub(crate) use offset;
