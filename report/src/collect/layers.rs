//! By layer: where the calls' time went.

use blkkin_aggregator::account;
use blkkin_aggregator::stacked::Stacked;
use blkkin_aggregator::trace::Trace;
use blkkin_wire::clock::DurationNs;

use super::calls::moved_bytes;
use super::latency::Latency;
use super::seen::Seen;

/// The layers in the order in which a request meets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// All of a call's time.
    Calls,
    /// The file system's own part, page cache included.
    FileSystem,
    /// Waiting for the journal, while it was not at the device.
    Journal,
    /// In the block layer, before the device had it.
    Queue,
    /// At the device.
    Device,
    /// Ready to run, with no CPU that ran the task.
    Cpu,
    /// Nobody's.
    Unaccounted,
}

impl Layer {
    /// All, in flow order.
    pub const ALL: [Layer; 7] = [
        Layer::Calls,
        Layer::FileSystem,
        Layer::Journal,
        Layer::Queue,
        Layer::Device,
        Layer::Cpu,
        Layer::Unaccounted,
    ];

    /// As a person would say it.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Calls => "system calls",
            Layer::FileSystem => "file system",
            Layer::Journal => "journal",
            Layer::Queue => "block queue",
            Layer::Device => "device",
            Layer::Cpu => "CPU wait",
            Layer::Unaccounted => "unaccounted",
        }
    }
}

/// One layer's part of all calls.
#[derive(Clone, Debug, Default)]
pub struct LayerRow {
    /// Its part of the time of each call that reached it.
    pub times: Latency,
    /// Bytes that it moved for them; none where a layer has no bytes of its own.
    pub bytes: Option<u64>,
}

/// All layers.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    rows: [LayerRow; Layer::ALL.len()],
}

impl Layers {
    pub(crate) fn add<'a>(&mut self, seen: impl Into<Seen<'a>>) {
        let seen = seen.into();
        let Some(call) = seen.storage_call() else { return };
        let trace = seen.trace;
        let split = account::breakdown_of(trace, seen.subject);
        self.row_mut(Layer::Calls).times.record(seen.time);
        self.add_time(Layer::FileSystem, split.file_system);
        self.add_time(Layer::Journal, split.journal);
        self.add_time(Layer::Queue, split.block);
        self.add_time(Layer::Device, split.device);
        self.add_time(Layer::Cpu, split.cpu);
        self.add_time(Layer::Unaccounted, split.unaccounted);
        self.add_bytes(Layer::Calls, moved_bytes(call));
        self.add_block_bytes(trace);
        // A commit is shared by all who waited for it; its bytes are counted with one of them.
        for cause in trace.causes.iter().filter(|cause| cause.primary) {
            self.add_bytes(Layer::Journal, asked_bytes(&cause.trace));
            self.add_block_bytes(&cause.trace);
        }
    }

    /// One layer's row.
    pub fn row(&self, layer: Layer) -> &LayerRow {
        &self.rows[layer as usize]
    }

    /// The time of all calls on storage: what shares are shares of.
    pub fn whole(&self) -> DurationNs {
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
        self.add_bytes(Layer::Queue, asked_bytes(trace));
        let stacked = Stacked::of(trace);
        let bottom = trace.requests.iter().filter(|request| !stacked.is_above(request));
        self.add_bytes(Layer::Device, bottom.map(|request| u64::from(request.bytes)).sum());
    }
}

/// Of what the root asked for.
fn asked_bytes(trace: &Trace) -> u64 {
    let own = trace.bios.iter().filter(|bio| trace.queued_by_root(bio));
    let bios: u64 = own.map(|bio| u64::from(bio.bytes)).sum();
    let commands = trace.requests.iter().filter(|request| trace.sent_by_root(request));
    bios + commands.map(|request| u64::from(request.bytes)).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::sample::{call, on_file, request};
    use blkkin_wire::ids::DeviceId;

    #[test]
    fn the_layers_add_up_to_the_calls() {
        let mut layers = Layers::default();
        layers.add(&call(1, "pwrite64", 17));
        let mut trace = call(2, "fsync", 30);
        trace.requests.push(request(DeviceId { major: 8, minor: 0 }, Some(4)));
        layers.add(&trace);
        let parts = Layer::ALL[1..].iter().map(|layer| layers.row(*layer).times.total().0);
        assert_eq!(parts.sum::<u64>(), layers.whole().0);
        assert_eq!(layers.whole(), DurationNs(47));
        assert_eq!(layers.row(Layer::Device).bytes, Some(4096));
    }

    #[test]
    fn pipes_have_no_layers() {
        let mut layers = Layers::default();
        layers.add(&on_file(call(1, "read", 1_000), "pipe:[1]", 0o010_600));
        assert_eq!(layers.whole(), DurationNs(0));
    }
}
