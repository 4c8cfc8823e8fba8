//! Release of heap memory that only loading needed.

/// Releases free heap memory to the system. The kernel's BTF takes about 10 MB in thousands of
/// blocks while it is read, and the allocator would keep those.
pub(crate) fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: releases free memory only; may be called at any time (malloc_trim(3)).
    unsafe {
        libc::malloc_trim(0);
    }
}
