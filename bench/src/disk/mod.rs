//! What is read and written: a raw loop device, ext4 on one, a file on the machine's own disk. All gone when dropped.
//!
//! The loop devices lie over files on tmpfs, the fastest device that any machine has: there a tracer's cost shows most.
//! The file on the real disk is read and written with direct I/O, as large as one loop device.

mod looped;
mod mounted;
mod real;

use std::path::PathBuf;

pub(crate) use looped::Looped;
pub(crate) use mounted::Mounted;
pub(crate) use real::RealFile;

/// Bytes of each: small enough for any /dev/shm, and what a tracer costs does not depend on it.
pub(crate) const BYTES: u64 = 1 << 30;

/// Where a load goes.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// For people.
    pub(crate) name: &'static str,
    /// The device or file that fio opens.
    pub(crate) target: PathBuf,
    /// The block device behind it: `/dev/loop0`.
    pub(crate) device: String,
    /// Its number, as the kernel's tracepoints have it: major << 20 | minor.
    pub(crate) number: u32,
}

/// The kernel's own number of a device (include/linux/kdev_t.h), from that of `stat`.
fn kernel_number(device: u64) -> u32 {
    libc::major(device) << 20 | libc::minor(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_kernels() {
        assert_eq!(kernel_number(libc::makedev(7, 3)), 7 << 20 | 3);
        assert_eq!(kernel_number(libc::makedev(254, 0)), 254 << 20);
    }
}
