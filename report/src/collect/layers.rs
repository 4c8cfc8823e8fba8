//! Table of layers: how the calls' time is distributed.

use blkkin_aggregator::latency;
use blkkin_aggregator::trace::Trace;
use blkkin_aggregator::trace::stacked::Stacked;
use blkkin_wire::clock::DurationNs;

use super::calls::moved_bytes;
use super::classified::ClassifiedTrace;
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

/// Counters of one layer over all calls.
#[derive(Clone, Debug, Default)]
pub struct LayerRow {
    /// Time in this layer, for each call that reached it.
    pub times: Latency,
    /// Bytes that the layer transferred for these calls; `None` for a layer without bytes.
    pub bytes: Option<u64>,
}

/// Counters of all layers.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    rows: [LayerRow; Layer::ALL.len()],
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
        let lowest = trace.requests.iter().filter(|request| !stacked.is_above(request));
        self.add_bytes(Layer::Device, lowest.map(|request| u64::from(request.bytes)).sum());
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
    fn pipes_have_no_layers() {
        let mut layers = Layers::default();
        layers.add(&on_file(call(1, "read", 1_000), "pipe:[1]", 0o010_600));
        assert_eq!(layers.total_time(), DurationNs(0));
    }
}
