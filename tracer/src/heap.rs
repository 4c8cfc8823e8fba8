//! Release of free heap memory to the system.
//!
//! glibc keeps what was freed, in an arena for each few threads. So a process keeps the sum of what
//! each thread once needed: the memory for the kernel's BTF (10 MB in thousands of blocks, while the
//! programs are loaded), or for a partition that another aggregator has now.

/// Releases the free memory of all arenas. It takes the lock of one arena at a time; its thread may
/// wait meanwhile.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: releases free memory only; may be called at any time (malloc_trim(3)).
    unsafe {
        libc::malloc_trim(0);
    }
}
