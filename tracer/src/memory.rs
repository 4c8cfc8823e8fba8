//! What loading needed and tracing does not.

/// Gives memory back to the machine that was only needed to load: the kernel's types take about 10 MB while they are read,
/// in thousands of pieces, and the allocator keeps those unless it is told.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: releases free memory only; may be called at any time (malloc_trim(3)).
    unsafe {
        libc::malloc_trim(0);
    }
}
