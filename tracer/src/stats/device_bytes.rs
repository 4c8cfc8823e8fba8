//! Bytes of each device by cause, for the monitoring of a service.
//!
//! *In*: the records of bios as they are read, and the complete origins of pages. *Out*: totals since
//! tracing began, through a [`DeviceBytesHandle`]. *Invariant*: each bio that was read is counted once,
//! under the device that it was queued for. A bio of the kernel's own that writes pages is counted when
//! the origin of its pages is complete; each other one at its end.
//!
//! *Rejected*: the causes in the aggregator, which has whole traces. The share of a device's own count
//! needs both numbers of one machine and of one time, and an agent that only records has no aggregator.

use std::sync::{Arc, Mutex, PoisonError};

use blkkin_probe_abi::record::{
    BIO_HAS_PAGES, BIO_IN_COMMIT, BIO_IN_FAULT, BIO_KERNEL_ORIGIN, BIO_LOWER, BIO_OF_OTHER,
};
use blkkin_wire::cause::{BytesByCause, Cause, split_by_origin};
use blkkin_wire::event::BlockOp;
use blkkin_wire::ids::DeviceId;
use blkkin_wire::page_origin::PageOriginEvent;

/// Maximum number of devices; the bytes of more are counted together, under the device 0:0.
const DEVICES_MAX: usize = 256;
/// The device number of those beyond the maximum.
const OTHERS: DeviceId = DeviceId { major: 0, minor: 0 };

/// Bytes of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBytes {
    /// A disk or a partition.
    pub device: DeviceId,
    /// Bytes by cause, as in [`Cause::ALL`].
    pub by_cause: BytesByCause,
    /// Bytes of I/O for a device above (device-mapper, md, loop), which has their cause.
    pub of_upper_device: u64,
}

/// Shared snapshot of the totals.
#[derive(Clone, Debug, Default)]
pub struct DeviceBytesHandle(Arc<Mutex<Vec<DeviceBytes>>>);

impl DeviceBytesHandle {
    /// Returns totals that are at most 50 ms old.
    pub fn get(&self) -> Vec<DeviceBytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, counters: [&DeviceByteCounters; 2]) {
        let mut all = DeviceByteCounters::default();
        for row in counters.into_iter().flat_map(|counters| &counters.0) {
            let sum = all.of(row.device);
            sum.of_upper_device += row.of_upper_device;
            sum.by_cause.iter_mut().zip(row.by_cause).for_each(|(sum, bytes)| *sum += bytes);
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = all.0;
    }
}

/// Totals in the order of the devices' first use. A machine has a few devices, so a search is cheap.
#[derive(Debug, Default)]
pub(crate) struct DeviceByteCounters(Vec<DeviceBytes>);

impl DeviceByteCounters {
    /// Counts a bio at its end, with the flags of its record.
    #[inline(always)]
    pub(crate) fn on_bio(&mut self, device: DeviceId, flags: u16, op: BlockOp, bytes: u32) {
        let bytes = u64::from(bytes);
        let is_kernels = flags & BIO_KERNEL_ORIGIN != 0;
        if bytes == 0 || is_kernels && flags & BIO_HAS_PAGES != 0 && op.is_write() {
            return;
        }
        let row = self.of(device);
        if flags & BIO_LOWER != 0 {
            row.of_upper_device += bytes;
            return;
        }
        let cause = match flags & (BIO_IN_FAULT | BIO_IN_COMMIT) {
            0 if flags & BIO_OF_OTHER != 0 => Cause::OtherPrograms,
            0 if is_kernels => Cause::of_kernel(op),
            0 => Cause::Call,
            BIO_IN_FAULT => Cause::Fault,
            _ => Cause::Journal,
        };
        row.by_cause[cause as usize] += bytes;
    }

    /// Counts a bio of the kernel's own that writes pages, once their origin is complete. `of_other`: a
    /// program that is not traced submitted it.
    pub(crate) fn on_origin(&mut self, (device, of_other): (DeviceId, bool), origin: &PageOriginEvent) {
        if origin.root != origin.bio {
            return;
        }
        let split = split_by_origin(origin, origin.bytes.into(), of_other);
        self.of(device).by_cause.iter_mut().zip(split).for_each(|(sum, bytes)| *sum += bytes);
    }

    fn of(&mut self, device: DeviceId) -> &mut DeviceBytes {
        let device = if self.0.len() < DEVICES_MAX { device } else { self.known_or_others(device) };
        let at = self.0.iter().position(|row| row.device == device).unwrap_or_else(|| {
            let by_cause = BytesByCause::default();
            self.0.push(DeviceBytes { device, by_cause, of_upper_device: 0 });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    #[cold]
    fn known_or_others(&self, device: DeviceId) -> DeviceId {
        if self.0.iter().any(|row| row.device == device) { device } else { OTHERS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: BlockOp = BlockOp(1);
    const READ: BlockOp = BlockOp(0);

    fn rows(counters: &DeviceByteCounters) -> Vec<DeviceBytes> {
        let handle = DeviceBytesHandle::default();
        handle.set([counters, &DeviceByteCounters::default()]);
        handle.get()
    }

    #[test]
    fn each_bio_counts_once_under_its_cause() {
        let device = DeviceId { major: 8, minor: 1 };
        let mut counters = DeviceByteCounters::default();
        counters.on_bio(device, 0, WRITE, 1);
        counters.on_bio(device, BIO_IN_FAULT, READ, 2);
        counters.on_bio(device, BIO_IN_COMMIT, WRITE, 4);
        counters.on_bio(device, BIO_KERNEL_ORIGIN, READ, 8);
        counters.on_bio(device, BIO_KERNEL_ORIGIN, BlockOp(3), 256);
        counters.on_bio(device, BIO_KERNEL_ORIGIN | BIO_OF_OTHER | BIO_HAS_PAGES, READ, 128);
        counters.on_bio(device, BIO_LOWER | BIO_HAS_PAGES, WRITE, 16);
        counters.on_bio(device, BIO_HAS_PAGES, WRITE, 32);
        counters.on_bio(device, BIO_KERNEL_ORIGIN | BIO_HAS_PAGES, WRITE, 64);
        let rows = rows(&counters);
        let [row] = rows[..] else { panic!("{rows:?}") };
        let of = |cause: Cause| row.by_cause[cause as usize];
        assert_eq!((of(Cause::Call), of(Cause::Fault), of(Cause::Journal)), (33, 2, 4));
        assert_eq!((of(Cause::Unknown), row.of_upper_device), (8, 16));
        assert_eq!((of(Cause::OtherPrograms), of(Cause::Discard)), (128, 256));
        assert_eq!(row.by_cause.iter().sum::<u64>(), 47 + 128 + 256, "the origin of the last one counts it");
    }

    #[test]
    fn devices_beyond_the_maximum_are_counted_together() {
        let mut counters = DeviceByteCounters::default();
        for minor in 1..=DEVICES_MAX as u32 + 10 {
            counters.on_bio(DeviceId { major: 8, minor }, 0, WRITE, 1);
            counters.on_bio(DeviceId { major: 8, minor: 1 }, 0, WRITE, 1);
        }
        let rows = rows(&counters);
        let others = rows.iter().find(|row| row.device == OTHERS).unwrap();
        assert_eq!((rows.len(), others.by_cause[Cause::Call as usize]), (DEVICES_MAX + 1, 10));
    }
}
