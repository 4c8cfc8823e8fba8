//! Block devices: the numbers of a bio's or request's device and disk, and the device filter.

use crate::runtime::layout::offset;
use crate::runtime::read::{KernelRead, Pointer};
use crate::runtime::settings::setting;
use blkkin_probe_abi::settings::FILTERS_MAX;

/// Returns the numbers of a bio's device (which may be a partition) and of its disk.
///
/// # Safety
/// `bio` is of the kind that `R` reads.
#[inline(always)]
pub unsafe fn devices<R: KernelRead>(bio: Pointer) -> (u32, u32) {
    // SAFETY: by the contract.
    unsafe {
        let bdev: Pointer = R::read(bio, offset!(bio_bdev));
        let disk: Pointer = R::read(bdev, offset!(bdev_disk));
        (R::read(bdev, offset!(bdev_dev)), disk_number::<R>(disk))
    }
}

/// Returns the number of a disk.
///
/// # Safety
/// `disk` is of the kind that `R` reads.
#[inline(always)]
pub unsafe fn disk_number<R: KernelRead>(disk: Pointer) -> u32 {
    // SAFETY: by the contract.
    unsafe {
        let major: u32 = R::read(disk, offset!(disk_major));
        let minor: u32 = R::read(disk, offset!(disk_first_minor));
        major << 20 | minor
    }
}

/// Returns the number of a request's disk.
///
/// # Safety
/// `rq` is of the kind that `R` reads.
#[inline(always)]
pub unsafe fn disk_of<R: KernelRead>(rq: Pointer) -> u32 {
    // SAFETY: by the contract.
    unsafe {
        let queue: Pointer = R::read(rq, offset!(rq_queue));
        disk_number::<R>(R::read(queue, offset!(queue_disk)))
    }
}

/// Returns whether a device passes the device filter.
#[inline(always)]
pub fn device_passes(dev: u32, disk: u32) -> bool {
    let len = setting!(devices_len);
    if len == 0 {
        return true;
    }
    let mut i = 0;
    while i < FILTERS_MAX {
        if (i as u32) < len {
            let wanted = setting!(devices[i]);
            if wanted == dev || wanted == disk {
                return true;
            }
        }
        i += 1;
    }
    false
}
