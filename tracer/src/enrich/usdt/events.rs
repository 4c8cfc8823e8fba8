//! USDT events as their consumer receives them.
//!
//! *In*: records, in time order. *Out*: one [`UsdtBatch`] before each published event batch, with
//! the events before the batch's watermark. *Invariant*: fired = recorded + dropped, counted
//! independently. Losses are reported with the first batch that may contain events after them. The
//! drop counter is read after the rings were polled, and a batch ends before that poll. So no time
//! is published before all losses up to it are known.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use blkkin_probe_abi::usdt::{USDT_HAS_TEXT, USDT_TEXT_MAX, UsdtRecord};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::ids::{Pid, Tid};
use blkkin_wire::usdt_event::UsdtEvent;

use super::UsdtProbe;

/// Maximum number of queued batches. Each event batch in the bus has one before it, so the bus
/// already bounds them.
const QUEUE_MAX: usize = 256;

/// Events without a record, because the rings were full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostEvents {
    /// Lower bound of their times.
    pub from: MonotonicNs,
    /// Upper bound of their times.
    pub until: MonotonicNs,
    /// Number of lost events.
    pub count: u64,
}

/// Events before a batch's watermark.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UsdtBatch {
    /// Events in time order.
    pub events: Vec<UsdtEvent>,
    /// Losses discovered with this batch.
    pub lost: Option<LostEvents>,
}

/// Counters of USDT events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsdtStats {
    /// Events of traced threads, as counted by the kernel side.
    pub fired: u64,
    /// Events dropped because the rings were full, as counted by the kernel side.
    pub dropped: u64,
    /// Events read.
    pub recorded: u64,
}

/// Collector of events from records.
#[derive(Debug)]
pub(crate) struct UsdtCollector {
    probes: Vec<UsdtProbe>,
    /// Probe index of each row.
    rows: Vec<usize>,
    out: SyncSender<UsdtBatch>,
    pending: Vec<UsdtEvent>,
    pub(crate) recorded: u64,
    dropped: u64,
    /// Watermark of the last emitted batch.
    emitted_until: MonotonicNs,
}

impl UsdtCollector {
    pub(crate) fn new(probes: Vec<UsdtProbe>) -> (UsdtCollector, Receiver<UsdtBatch>) {
        let (out, events) = sync_channel(QUEUE_MAX);
        let rows = rows(&probes).map(|(probe, _)| probe).collect();
        let (recorded, dropped, emitted_until) = (0, 0, MonotonicNs(0));
        (UsdtCollector { probes, rows, out, pending: Vec::new(), recorded, dropped, emitted_until }, events)
    }

    /// Adds a record.
    pub(crate) fn on_record(&mut self, record: &UsdtRecord, text: &[u8]) {
        let Some(&number) = self.rows.get(record.row as usize) else { return };
        self.recorded += 1;
        let probe = &self.probes[number];
        let arguments = probe.arguments.iter().zip(record.arguments).enumerate();
        let arguments = arguments
            .map(|(n, (argument, word))| (record.read_mask >> n & 1 != 0).then(|| argument.value(word)))
            .collect();
        self.pending.push(UsdtEvent {
            time: MonotonicNs(record.header.time_ns),
            probe: number,
            pid: Pid(record.pid),
            tid: Tid(record.tid),
            comm: until_nul(&record.comm).into(),
            arguments,
            text: (record.header.flags & USDT_HAS_TEXT != 0 && record.text_bytes > 0).then(|| {
                let length = usize::from(record.text_bytes).min(text.len());
                let text = until_nul(&text[..length]);
                if length == USDT_TEXT_MAX { format!("{text}…").into() } else { text.into() }
            }),
        });
    }

    /// Emits the events before `watermark`; `dropped` is the total of losses up to `now`.
    pub(crate) fn emit(&mut self, watermark: MonotonicNs, dropped: u64, now: MonotonicNs) {
        let count = dropped - self.dropped.min(dropped);
        let lost = (count > 0).then_some(LostEvents { from: self.emitted_until, until: now, count });
        (self.dropped, self.emitted_until) = (dropped, watermark);
        self.pending.sort_by_key(|event| event.time);
        let rest = self.pending.split_off(self.pending.partition_point(|event| event.time < watermark));
        let events = std::mem::replace(&mut self.pending, rest);
        // The consumer may be gone.
        let _ = self.out.send(UsdtBatch { events, lost });
    }
}

/// Rows of the kernel side's table: the probe's index, and the location of one of its instances.
pub(crate) fn rows(probes: &[UsdtProbe]) -> impl Iterator<Item = (usize, (u64, u64))> + '_ {
    probes
        .iter()
        .enumerate()
        .flat_map(|(number, probe)| probe.locations.iter().map(move |location| (number, *location)))
}

fn until_nul(bytes: &[u8]) -> String {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use blkkin_probe_abi::record::Header;

    use super::*;
    use crate::enrich::usdt::arguments;

    fn record(row: u32, time_ns: u64, flags: u16, text_bytes: u16) -> UsdtRecord {
        let header = Header { time_ns, flags, ..Header::default() };
        let mut comm = [0; 16];
        comm[..4].copy_from_slice(b"turn");
        UsdtRecord { header, row, pid: 7, tid: 8, read_mask: 0b01, text_bytes, comm, ..UsdtRecord::default() }
    }

    /// Two probes, the first with two instances.
    fn collector() -> (UsdtCollector, Receiver<UsdtBatch>) {
        let probe = |name: &str, locations: Vec<(u64, u64)>| UsdtProbe {
            file: "/program".into(),
            name: name.into(),
            arguments: arguments::parse("").unwrap(),
            text: None,
            locations,
        };
        UsdtCollector::new(vec![probe("a:b", vec![(16, 0), (32, 0)]), probe("a:c", vec![(48, 4)])])
    }

    #[test]
    fn each_row_maps_to_its_probe() {
        let (mut collector, events) = collector();
        for row in [1, 2, 0, 3] {
            collector.on_record(&record(row, 10 - u64::from(row), 0, 0), b"");
        }
        collector.emit(MonotonicNs(20), 0, MonotonicNs(30));
        let UsdtBatch { events, lost } = events.try_recv().unwrap();
        let emitted: Vec<_> = events
            .iter()
            .map(|event| (event.time.0, event.probe, event.pid.0, event.tid.0, &*event.comm))
            .collect();
        assert_eq!(emitted, [(8, 1, 7, 8, "turn"), (9, 0, 7, 8, "turn"), (10, 0, 7, 8, "turn")]);
        assert_eq!((lost, collector.recorded), (None, 3), "row 3 does not exist");
    }

    #[test]
    fn truncated_text_is_marked_and_unread_text_is_none() {
        let (mut collector, events) = collector();
        let room = [b'x'; USDT_TEXT_MAX];
        for bytes in [0, 5, USDT_TEXT_MAX as u16] {
            let mut room = room;
            room[usize::from(bytes.max(1)) - 1] = 0;
            collector.on_record(&record(0, 1, USDT_HAS_TEXT, bytes), &room);
        }
        collector.emit(MonotonicNs(20), 0, MonotonicNs(30));
        let emitted: Vec<_> = events.try_recv().unwrap().events.into_iter().map(|event| event.text).collect();
        let cut = "x".repeat(USDT_TEXT_MAX - 1) + "…";
        assert_eq!(emitted, [None, Some("xxxx".into()), Some(cut.into())]);
    }

    /// Losses range from the last watermark to the time at which the counter was read.
    #[test]
    fn losses_are_reported_once_with_their_time_range() {
        let (mut collector, events) = collector();
        let turns = [(10, 0, 15), (20, 3, 25), (22, 3, 25), (30, 4, 35)];
        let lost = turns.map(|(watermark, dropped, now)| {
            collector.emit(MonotonicNs(watermark), dropped, MonotonicNs(now));
            events.try_recv().unwrap().lost.map(|lost| (lost.from.0, lost.until.0, lost.count))
        });
        assert_eq!(lost, [None, Some((10, 25, 3)), None, Some((22, 35, 1))]);
    }
}
