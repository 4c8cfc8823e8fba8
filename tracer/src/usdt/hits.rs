//! Threads that came by probes, as who makes sense of them takes them.
//!
//! *In*: records, in order of time. *Out*: [`Hits`], one for each batch of events that the tracer publishes, and before it: what came
//! before the batch's watermark. *Invariant*: fired = recorded + dropped, kept by different hands. What was dropped is told with
//! the first batch that may have what came after it: the count is read after the rings were looked at, and a batch ends before that
//! look, so nothing of a time goes out before all that was dropped until then is known.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use blkkin_probe_abi::hit::{HIT_HAS_TEXT, HitRecord, TEXT_MAX};
use blkkin_wire::clock::MonotonicNs;

use super::Probe;

/// Messages on their way; each batch that lies in the bus has its own before it, so this bounds nothing that the bus does not.
const WAITING_MAX: usize = 256;

/// One thread came by one probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// When.
    pub time: MonotonicNs,
    /// Which of the probes that were asked for.
    pub probe: usize,
    /// The process, in the initial pid namespace.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The thread's name.
    pub comm: Box<str>,
    /// Its arguments; none of those that could not be read.
    pub arguments: Vec<Option<i128>>,
    /// The text that was asked for; none if it could not be read. Where it was longer it ends with `…`.
    pub text: Option<Box<str>>,
}

/// Some of which no record was made: the rings had no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostHits {
    /// None of them was before.
    pub from: MonotonicNs,
    /// None was after.
    pub until: MonotonicNs,
    /// How many.
    pub count: u64,
}

/// What came before a batch's watermark.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hits {
    /// In order of time.
    pub hits: Vec<Hit>,
    /// What was found to be lost.
    pub lost: Option<LostHits>,
}

/// What became of hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HitBooks {
    /// Followed threads that came by a probe, as the kernel side counted.
    pub fired: u64,
    /// Of these, those for which the rings had no room.
    pub dropped: u64,
    /// Those that were read.
    pub recorded: u64,
}

/// Where records become hits.
#[derive(Debug)]
pub(crate) struct Collector {
    probes: Vec<Probe>,
    /// Which probe each row is of.
    rows: Vec<usize>,
    out: SyncSender<Hits>,
    waiting: Vec<Hit>,
    pub(crate) recorded: u64,
    dropped: u64,
    /// Up to when hits were given out.
    given: MonotonicNs,
}

impl Collector {
    pub(crate) fn new(probes: Vec<Probe>) -> (Collector, Receiver<Hits>) {
        let (out, hits) = sync_channel(WAITING_MAX);
        let rows = rows(&probes).map(|(probe, _)| probe).collect();
        let (recorded, dropped, given) = (0, 0, MonotonicNs(0));
        (Collector { probes, rows, out, waiting: Vec::new(), recorded, dropped, given }, hits)
    }

    /// One more.
    pub(crate) fn take(&mut self, record: &HitRecord, text: &[u8]) {
        let Some(&number) = self.rows.get(record.row as usize) else { return };
        self.recorded += 1;
        let probe = &self.probes[number];
        let arguments = probe.arguments.iter().zip(record.arguments).enumerate();
        let arguments = arguments
            .map(|(n, (argument, word))| (record.read >> n & 1 != 0).then(|| argument.value(word)))
            .collect();
        self.waiting.push(Hit {
            time: MonotonicNs(record.header.time_ns),
            probe: number,
            pid: record.pid,
            tid: record.tid,
            comm: until_nul(&record.comm).into(),
            arguments,
            text: (record.header.flags & HIT_HAS_TEXT != 0 && record.text_bytes > 0).then(|| {
                let taken = usize::from(record.text_bytes).min(text.len());
                let said = until_nul(&text[..taken]);
                if taken == TEXT_MAX { format!("{said}…").into() } else { said.into() }
            }),
        });
    }

    /// Gives out what is before `watermark`; so many were dropped until `now`, all told.
    pub(crate) fn give(&mut self, watermark: MonotonicNs, dropped: u64, now: MonotonicNs) {
        let count = dropped - self.dropped.min(dropped);
        let lost = (count > 0).then_some(LostHits { from: self.given, until: now, count });
        (self.dropped, self.given) = (dropped, watermark);
        self.waiting.sort_by_key(|hit| hit.time);
        let rest = self.waiting.split_off(self.waiting.partition_point(|hit| hit.time < watermark));
        let hits = std::mem::replace(&mut self.waiting, rest);
        // Nobody may want them any more.
        let _ = self.out.send(Hits { hits, lost });
    }
}

/// Each place of each probe, by the row that the kernel side knows it by: which probe, and where.
pub(crate) fn rows(probes: &[Probe]) -> impl Iterator<Item = (usize, (u64, u64))> + '_ {
    probes
        .iter()
        .enumerate()
        .flat_map(|(number, probe)| probe.places.iter().map(move |place| (number, *place)))
}

fn until_nul(bytes: &[u8]) -> String {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use blkkin_probe_abi::record::Header;

    use super::*;
    use crate::usdt::arguments;

    fn record(row: u32, time_ns: u64, flags: u16, text_bytes: u16) -> HitRecord {
        let header = Header { time_ns, flags, ..Header::default() };
        let mut comm = [0; 16];
        comm[..4].copy_from_slice(b"turn");
        HitRecord { header, row, pid: 7, tid: 8, read: 0b01, text_bytes, comm, ..HitRecord::default() }
    }

    /// Two probes, of which the first is at two places.
    fn collector() -> (Collector, Receiver<Hits>) {
        let probe = |name: &str, places: Vec<(u64, u64)>| Probe {
            file: "/program".into(),
            name: name.into(),
            arguments: arguments::parse("").unwrap(),
            text: None,
            places,
        };
        Collector::new(vec![probe("a:b", vec![(16, 0), (32, 0)]), probe("a:c", vec![(48, 4)])])
    }

    #[test]
    fn a_row_is_a_probes_place() {
        let (mut collector, hits) = collector();
        for row in [1, 2, 0, 3] {
            collector.take(&record(row, 10 - u64::from(row), 0, 0), b"");
        }
        collector.give(MonotonicNs(20), 0, MonotonicNs(30));
        let Hits { hits, lost } = hits.try_recv().unwrap();
        let told: Vec<_> =
            hits.iter().map(|hit| (hit.time.0, hit.probe, hit.pid, hit.tid, &*hit.comm)).collect();
        assert_eq!(told, [(8, 1, 7, 8, "turn"), (9, 0, 7, 8, "turn"), (10, 0, 7, 8, "turn")]);
        assert_eq!((lost, collector.recorded), (None, 3), "there is no fourth row");
    }

    #[test]
    fn a_text_that_was_cut_says_so_and_one_that_was_not_read_is_none() {
        let (mut collector, hits) = collector();
        let room = [b'x'; TEXT_MAX];
        for bytes in [0, 5, TEXT_MAX as u16] {
            let mut room = room;
            room[usize::from(bytes.max(1)) - 1] = 0;
            collector.take(&record(0, 1, HIT_HAS_TEXT, bytes), &room);
        }
        collector.give(MonotonicNs(20), 0, MonotonicNs(30));
        let told: Vec<_> = hits.try_recv().unwrap().hits.into_iter().map(|hit| hit.text).collect();
        let cut = "x".repeat(TEXT_MAX - 1) + "…";
        assert_eq!(told, [None, Some("xxxx".into()), Some(cut.into())]);
    }

    /// From the last watermark, before which all is known, until the count was read.
    #[test]
    fn what_was_dropped_is_told_once_with_when_it_may_have_been() {
        let (mut collector, hits) = collector();
        let turns = [(10, 0, 15), (20, 3, 25), (22, 3, 25), (30, 4, 35)];
        let lost = turns.map(|(watermark, dropped, now)| {
            collector.give(MonotonicNs(watermark), dropped, MonotonicNs(now));
            hits.try_recv().unwrap().lost.map(|lost| (lost.from.0, lost.until.0, lost.count))
        });
        assert_eq!(lost, [None, Some((10, 25, 3)), None, Some((22, 35, 1))]);
    }
}
