//! Table of devices, with one row for each op: the latencies of a read and of a flush are not
//! comparable.

use std::collections::BTreeMap;
use std::sync::Arc;

use blkkin_aggregator::latency::phases;
use blkkin_aggregator::trace::Trace;
use blkkin_wire::event::RequestEvent;
use blkkin_wire::ids::DeviceId;
use blkkin_wire::op::BLOCK_OPS;

use super::latency::Latency;

/// Maximum number of devices with their own rows: more than the disks of most machines. Five ops
/// with four histograms of about 29 KiB each take 37 MiB if every device uses all of them.
pub const DEVICES_MAX: usize = 64;

/// Kind of a request, ordered as in [`BLOCK_OPS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceOp {
    /// Index in [`BLOCK_OPS`].
    index: usize,
    name: &'static str,
}

impl DeviceOp {
    /// Returns the op of a request.
    pub fn of(request: &RequestEvent) -> DeviceOp {
        DeviceOp::named(request.op.name_for(request.bytes))
    }

    /// Returns the name of the op.
    pub fn name(self) -> &'static str {
        self.name
    }

    fn named(name: &'static str) -> DeviceOp {
        let index = BLOCK_OPS.iter().position(|(_, _, known)| *known == name).unwrap_or(BLOCK_OPS.len());
        DeviceOp { index, name }
    }
}

/// Counters of all requests of one op to one device.
#[derive(Clone, Debug, Default)]
pub struct OpRow {
    /// Number of requests.
    pub requests: u64,
    /// Bios that were merged into these requests: all except the first of each.
    pub merged: u64,
    /// Failed requests.
    pub errors: u64,
    /// Requests that the driver requeued and issued again.
    pub requeued: u64,
    /// Bytes transferred.
    pub bytes: u64,
    /// Time in the queue, see [`phases`].
    pub queue: Latency,
    /// Time in the plug, of requests that were plugged.
    pub plug: Latency,
    /// Time in the scheduler, of requests that were inserted.
    pub scheduler: Latency,
    /// Time at the device.
    pub device: Latency,
    /// Requests that were never issued; they have no time in the queue or at the device.
    pub unissued: u64,
}

/// Rows of one device.
#[derive(Clone, Debug, Default)]
pub struct DeviceRow {
    /// Device name; its numbers if the name is unknown.
    pub name: Arc<str>,
    /// Rows by op.
    pub ops: BTreeMap<DeviceOp, OpRow>,
}

/// Rows of all devices.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    rows: BTreeMap<DeviceId, DeviceRow>,
    others: Option<DeviceRow>,
}

impl Devices {
    /// Adds all requests of a trace.
    pub(crate) fn add(&mut self, trace: &Trace) {
        for request in &trace.requests {
            let row = self.row(request.device);
            // Thousands of requests share one name, so only a new name is stored.
            let name = trace.names.devices.names.get(&request.device);
            if let Some(name) = name.filter(|name| !Arc::ptr_eq(&row.name, name)) {
                row.name = Arc::clone(name);
            }
            row.ops.entry(DeviceOp::of(request)).or_default().add(request);
        }
    }

    /// Returns the name of a device; its numbers if it has no row.
    pub fn name(&self, device: DeviceId) -> String {
        self.rows.get(&device).map_or_else(|| device.to_string(), |row| row.name.to_string())
    }

    /// Returns all rows by device number. If there are more than [`DEVICES_MAX`] devices, the last
    /// row sums the others.
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

impl OpRow {
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
    use crate::sample::{call, request};

    #[test]
    fn devices_beyond_the_maximum_share_a_row() {
        let mut devices = Devices::default();
        for minor in 0..DEVICES_MAX as u32 + 3 {
            let mut trace = call(1, "fsync", 10);
            let device = DeviceId { major: 8, minor };
            trace.requests.push(RequestEvent { device, ..request(100, 1, Some(4), 9) });
            devices.add(&trace);
        }
        let rows: Vec<&DeviceRow> = devices.rows().collect();
        assert_eq!(rows.len(), DEVICES_MAX + 1);
        assert_eq!((&*rows[0].name, &*rows[DEVICES_MAX].name), ("8:0", "others"));
        assert_eq!(rows[DEVICES_MAX].ops[&DeviceOp::named("write")].requests, 3);
    }

    #[test]
    fn a_request_that_was_never_issued_has_no_queue_time() {
        let mut devices = Devices::default();
        let mut trace = call(1, "fsync", 10);
        trace.requests.extend([request(100, 1, Some(4), 9), request(100, 1, None, 9)]);
        devices.add(&trace);
        let row = &devices.rows().next().unwrap().ops[&DeviceOp::named("write")];
        assert_eq!((row.queue.count(), row.device.count(), row.unissued), (1, 1, 1));
        assert_eq!((row.queue.max(), row.device.max()), (Some(DurationNs(3)), Some(DurationNs(5))));
    }
}
