//! By device, and there by operation: a read and a flush have nothing in common but the device.

use std::collections::BTreeMap;
use std::sync::Arc;

use blkkin_aggregator::phases;
use blkkin_aggregator::trace::Trace;
use blkkin_wire::event::RequestEvent;
use blkkin_wire::ids::DeviceId;
use blkkin_wire::op::BLOCK_OPS;

use super::latency::Latency;

/// Devices with rows of their own: more than the disks of most machines. At five operations with four histograms
/// of about 29 KiB each that is 37 MiB if all of them were used in every way.
pub const DEVICES_MAX: usize = 64;

/// What a request asks of a device, by its name in [`OPERATIONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Operation {
    /// Its place there.
    place: usize,
    name: &'static str,
}

impl Operation {
    /// Of a request.
    pub fn of(request: &RequestEvent) -> Operation {
        Operation::named(request.op.name_for(request.bytes))
    }

    /// In a word.
    pub fn name(self) -> &'static str {
        self.name
    }

    fn named(name: &'static str) -> Operation {
        let place = BLOCK_OPS.iter().position(|(_, _, known)| *known == name).unwrap_or(BLOCK_OPS.len());
        Operation { place, name }
    }
}

/// All requests of one operation to one device.
#[derive(Clone, Debug, Default)]
pub struct OperationRow {
    /// How many.
    pub requests: u64,
    /// Bios that were merged into them: those beyond the first of each.
    pub merged: u64,
    /// Failed.
    pub errors: u64,
    /// Put back by the driver and issued again.
    pub requeued: u64,
    /// Bytes.
    pub bytes: u64,
    /// See [`phases`], as the next three: waiting.
    pub queue: Latency,
    /// Of those that were plugged.
    pub plug: Latency,
    /// Of those that were inserted.
    pub scheduler: Latency,
    /// At the device.
    pub device: Latency,
    /// Nothing was issued for them: they have no time in the queue or at the device.
    pub unissued: u64,
}

/// One device.
#[derive(Clone, Debug, Default)]
pub struct DeviceRow {
    /// Its name; its numbers where that is not known.
    pub name: Arc<str>,
    /// Its operations.
    pub operations: BTreeMap<Operation, OperationRow>,
}

/// All devices.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    rows: BTreeMap<DeviceId, DeviceRow>,
    others: Option<DeviceRow>,
}

impl Devices {
    pub(crate) fn add(&mut self, trace: &Trace) {
        for request in &trace.requests {
            let row = self.row(request.device);
            // The same name for thousands of requests: only a new one is taken over.
            let name = trace.names.devices.0.get(&request.device);
            if let Some(name) = name.filter(|name| !Arc::ptr_eq(&row.name, name)) {
                row.name = Arc::clone(name);
            }
            row.operations.entry(Operation::of(request)).or_default().add(request);
        }
    }

    /// All rows by device number, and at last, where there were more than [`DEVICES_MAX`], the others in one.
    pub fn rows(&self) -> impl Iterator<Item = &DeviceRow> {
        self.rows.values().chain(&self.others)
    }

    fn row(&mut self, device: DeviceId) -> &mut DeviceRow {
        let named = |name: String| DeviceRow { name: name.into(), ..DeviceRow::default() };
        if self.rows.len() >= DEVICES_MAX && !self.rows.contains_key(&device) {
            return self.others.get_or_insert_with(|| named("others".to_owned()));
        }
        self.rows.entry(device).or_insert_with(|| named(device.to_string()))
    }
}

impl OperationRow {
    fn add(&mut self, request: &RequestEvent) {
        self.requests += 1;
        self.merged += u64::from(request.bios.saturating_sub(1));
        self.errors += u64::from(!request.status.is_ok());
        self.requeued += u64::from(request.requeued);
        self.bytes += u64::from(request.bytes);
        let phases = [
            (phases::queue(request), &mut self.queue),
            (phases::plug(request), &mut self.plug),
            (phases::scheduler(request), &mut self.scheduler),
            (phases::device(request), &mut self.device),
        ];
        for (time, times) in phases {
            if let Some(time) = time {
                times.record(time);
            }
        }
        self.unissued += u64::from(request.issue.is_none());
    }
}

#[cfg(test)]
mod tests {
    use blkkin_wire::clock::DurationNs;

    use super::*;
    use crate::collect::sample::{call, request};

    #[test]
    fn devices_beyond_the_maximum_share_a_row() {
        let mut devices = Devices::default();
        for minor in 0..DEVICES_MAX as u32 + 3 {
            let mut trace = call(1, "fsync", 10);
            trace.requests.push(request(DeviceId { major: 8, minor }, Some(4)));
            devices.add(&trace);
        }
        let rows: Vec<&DeviceRow> = devices.rows().collect();
        assert_eq!(rows.len(), DEVICES_MAX + 1);
        assert_eq!((&*rows[0].name, &*rows[DEVICES_MAX].name), ("8:0", "others"));
        assert_eq!(rows[DEVICES_MAX].operations[&Operation::named("write")].requests, 3);
    }

    #[test]
    fn a_request_never_issued_has_no_time_in_the_queue() {
        let mut devices = Devices::default();
        let mut trace = call(1, "fsync", 10);
        let device = DeviceId { major: 8, minor: 0 };
        trace.requests.extend([request(device, Some(4)), request(device, None)]);
        devices.add(&trace);
        let row = &devices.rows().next().unwrap().operations[&Operation::named("write")];
        assert_eq!((row.queue.count(), row.device.count(), row.unissued), (1, 1, 1));
        assert_eq!((row.queue.max(), row.device.max()), (Some(DurationNs(3)), Some(DurationNs(5))));
    }
}
