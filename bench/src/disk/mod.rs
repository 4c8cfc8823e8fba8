//! Disks of the benchmarks: a raw loop device, ext4 on one, and a file on the machine's disk. All
//! are removed on drop.
//!
//! The loop devices use files on tmpfs, the fastest device of any machine, where the cost of a
//! tracer is largest. The file on the real disk uses direct I/O and has the size of one loop
//! device.

mod looped;
mod mounted;
mod real;

use std::path::PathBuf;

pub(crate) use looped::Looped;
pub(crate) use mounted::Mounted;
pub(crate) use real::RealFile;

/// Size of each: small enough for any /dev/shm; the cost of a tracer does not depend on it.
pub(crate) const BYTES: u64 = 1 << 30;

/// Target of a load.
#[derive(Clone, Debug)]
pub(crate) struct DiskTarget {
    /// Name in tables.
    pub(crate) name: &'static str,
    /// Device or file that fio opens.
    pub(crate) target: PathBuf,
    /// Block device, for example `/dev/loop0`.
    pub(crate) device: String,
    /// Device number as in the kernel's tracepoints: major << 20 or'ed with minor.
    pub(crate) number: u32,
}

/// Converts a device number of `stat` to the kernel's encoding (include/linux/kdev_t.h).
fn kernel_number(device: u64) -> u32 {
    libc::major(device) << 20 | libc::minor(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_match_the_kernel() {
        assert_eq!(kernel_number(libc::makedev(7, 3)), 7 << 20 | 3);
        assert_eq!(kernel_number(libc::makedev(254, 0)), 254 << 20);
    }
}
