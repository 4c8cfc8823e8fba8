//! Table of layers: how the calls' time is distributed.

use blkkin_aggregator::latency::{self, phases};
use blkkin_aggregator::trace::Trace;
use blkkin_aggregator::trace::stacked::Stacked;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::RequestEvent;
use blkkin_wire::ids::DeviceId;

use super::calls::moved_bytes;
use super::classified::ClassifiedTrace;
use super::devices::DEVICES_MAX;
use super::latency::Latency;

/// Layers, in the order in which a storage operation passes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The whole system call.
    Calls,
    /// The file system's own time, with the page cache.
    FileSystem,
    /// Waiting for the journal, except while the journal's I/O is in the block layer.
    Journal,
    /// In the block layer, before the device.
    Queue,
    /// At the device.
    Device,
    /// Waiting for a lock that another task held.
    Locks,
    /// Paused because too many pages were dirty.
    Throttled,
    /// Runnable, waiting for a CPU.
    Cpu,
    /// Time that no other layer explains.
    Unaccounted,
}

impl Layer {
    /// Layers in flow order.
    pub const ALL: [Layer; 9] = [
        Layer::Calls,
        Layer::FileSystem,
        Layer::Journal,
        Layer::Queue,
        Layer::Device,
        Layer::Locks,
        Layer::Throttled,
        Layer::Cpu,
        Layer::Unaccounted,
    ];

    /// Returns the printed name.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Calls => "system calls",
            Layer::FileSystem => "file system",
            Layer::Journal => "journal",
            Layer::Queue => "block queue",
            Layer::Device => "device",
            Layer::Locks => "lock wait",
            Layer::Throttled => "throttled",
            Layer::Cpu => "CPU wait",
            Layer::Unaccounted => "unaccounted",
        }
    }
}

impl Layer {
    /// Returns where time was in this layer, in a sentence. The block queue and the device have a device's name behind it.
    pub fn place(self) -> &'static str {
        match self {
            Layer::Calls => "in system calls",
            Layer::FileSystem => "in the file system",
            Layer::Journal => "in the journal",
            Layer::Queue => "in the block queue",
            Layer::Device => "at the device",
            Layer::Locks => "waiting for a lock",
            Layer::Throttled => "throttled for dirty pages",
            Layer::Cpu => "waiting for a CPU",
            Layer::Unaccounted => "unaccounted",
        }
    }
}

/// Counters of one layer over all calls.
#[derive(Clone, Debug, Default)]
pub struct LayerRow {
    /// Time in this layer, for each call that reached it.
    pub times: Latency,
    /// Bytes that the layer transferred for these calls; `None` for a layer without bytes.
    pub bytes: Option<u64>,
}

/// Time of storage calls' requests at one device. Requests overlap, so the sums of all devices may exceed the layer's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTime {
    /// Time before the issue.
    pub queue: DurationNs,
    /// Time after the issue, of requests without others on a device below.
    pub device: DurationNs,
}

/// Counters of all layers.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    rows: [LayerRow; Layer::ALL.len()],
    /// A node has few devices, so a search beats a tree.
    devices: Vec<(DeviceId, DeviceTime)>,
}

impl Layers {
    /// Adds the root call of a trace, if it is a storage call.
    pub(crate) fn add<'a>(&mut self, classified: impl Into<ClassifiedTrace<'a>>) {
        let classified = classified.into();
        let Some(call) = classified.storage_call() else { return };
        let trace = classified.trace;
        let breakdown = latency::breakdown_of(trace, classified.subject);
        self.row_mut(Layer::Calls).times.record(classified.time);
        self.add_time(Layer::FileSystem, breakdown.file_system);
        self.add_time(Layer::Journal, breakdown.journal);
        self.add_time(Layer::Queue, breakdown.block);
        self.add_time(Layer::Device, breakdown.device);
        self.add_time(Layer::Locks, breakdown.locks);
        self.add_time(Layer::Throttled, breakdown.throttled);
        self.add_time(Layer::Cpu, breakdown.cpu);
        self.add_time(Layer::Unaccounted, breakdown.unaccounted);
        self.add_bytes(Layer::Calls, moved_bytes(call));
        self.add_block_bytes(trace);
        // All calls that waited for a commit share it; its bytes are counted with one of them.
        for cause in trace.waited_for.iter().filter(|cause| cause.primary) {
            self.add_bytes(Layer::Journal, submitted_bytes(&cause.trace));
            self.add_block_bytes(&cause.trace);
        }
    }

    /// Returns the row of a layer.
    pub fn row(&self, layer: Layer) -> &LayerRow {
        &self.rows[layer as usize]
    }

    /// Returns the total time of all storage calls, which is 100 % of the shares.
    pub fn total_time(&self) -> DurationNs {
        self.row(Layer::Calls).times.total()
    }

    /// Returns the times of the devices, at most [`DEVICES_MAX`].
    pub fn devices(&self) -> &[(DeviceId, DeviceTime)] {
        &self.devices
    }

    fn row_mut(&mut self, layer: Layer) -> &mut LayerRow {
        &mut self.rows[layer as usize]
    }

    fn add_time(&mut self, layer: Layer, time: DurationNs) {
        if time.0 > 0 {
            self.row_mut(layer).times.record(time);
        }
    }

    fn add_bytes(&mut self, layer: Layer, bytes: u64) {
        let sum = self.row_mut(layer).bytes.get_or_insert(0);
        *sum = sum.saturating_add(bytes);
    }

    fn add_block_bytes(&mut self, trace: &Trace) {
        self.add_bytes(Layer::Queue, submitted_bytes(trace));
        let stacked = Stacked::of(trace);
        let mut bytes = 0;
        for request in &trace.requests {
            let is_lowest = !stacked.is_above(request);
            bytes += if is_lowest { u64::from(request.bytes) } else { 0 };
            self.add_device_time(request, is_lowest);
        }
        self.add_bytes(Layer::Device, bytes);
    }

    fn add_device_time(&mut self, request: &RequestEvent, is_lowest: bool) {
        if let Some((_, time)) = self.devices.iter_mut().find(|(device, _)| *device == request.device) {
            time.add(request, is_lowest);
        } else if self.devices.len() < DEVICES_MAX {
            let mut time = DeviceTime::default();
            time.add(request, is_lowest);
            self.devices.push((request.device, time));
        }
    }
}

impl DeviceTime {
    fn add(&mut self, request: &RequestEvent, is_lowest: bool) {
        let sum = |sum: DurationNs, time: Option<DurationNs>| {
            DurationNs(sum.0.saturating_add(time.unwrap_or_default().0))
        };
        self.queue = sum(self.queue, phases::queue(request));
        if is_lowest {
            self.device = sum(self.device, phases::device(request));
        }
    }
}

/// Returns the bytes of the bios and commands that the root submitted.
fn submitted_bytes(trace: &Trace) -> u64 {
    let own = trace.bios.iter().filter(|bio| trace.queued_by_root(bio));
    let bios: u64 = own.map(|bio| u64::from(bio.bytes)).sum();
    let commands = trace.requests.iter().filter(|request| trace.sent_by_root(request));
    bios + commands.map(|request| u64::from(request.bytes)).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{call, on_file, request};

    #[test]
    fn layers_add_up_to_the_calls() {
        let mut layers = Layers::default();
        layers.add(&call(1, "pwrite64", 17));
        let mut trace = call(2, "fsync", 30);
        trace.requests.push(request(100, 1, Some(4), 9));
        layers.add(&trace);
        let parts = Layer::ALL[1..].iter().map(|layer| layers.row(*layer).times.total().0);
        assert_eq!(parts.sum::<u64>(), layers.total_time().0);
        assert_eq!(layers.total_time(), DurationNs(47));
        assert_eq!(layers.row(Layer::Device).bytes, Some(4096));
    }

    #[test]
    fn time_at_a_device_is_of_requests_without_others_below() {
        let mut layers = Layers::default();
        let mut trace = call(2, "fsync", 30);
        trace.requests.push(request(100, 1, Some(4), 9));
        layers.add(&trace);
        layers.add(&trace);
        let expected = DeviceTime { queue: DurationNs(6), device: DurationNs(10) };
        assert_eq!(layers.devices(), [(trace.requests[0].device, expected)]);
    }

    #[test]
    fn pipes_have_no_layers() {
        let mut layers = Layers::default();
        layers.add(&on_file(call(1, "read", 1_000), "pipe:[1]", 0o010_600));
        assert_eq!(layers.total_time(), DurationNs(0));
    }
}
