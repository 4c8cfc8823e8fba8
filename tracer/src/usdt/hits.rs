//! Threads that came by probes, as who makes sense of them takes them.
//!
//! *In*: records, in order of time. *Out*: [`Hits`], one for each batch of events that the tracer publishes, and before it: what came
//! before the batch's watermark. *Invariant*: fired = recorded + dropped, kept by different hands. What was dropped is told with
//! the first batch that may have what came after it: the count is read after the rings were looked at, and a batch ends where the look
//! before that was, so nothing of a time goes out before all that was dropped until then is known.

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
    /// In order of time, but for a few.
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

    /// Gives out what is there, all before `watermark`; so many were dropped until `now`, all told.
    pub(crate) fn give(&mut self, watermark: MonotonicNs, dropped: u64, now: MonotonicNs) {
        let count = dropped - self.dropped.min(dropped);
        let lost = (count > 0).then_some(LostHits { from: self.given, until: now, count });
        (self.dropped, self.given) = (dropped, watermark);
        let mut hits = std::mem::take(&mut self.waiting);
        hits.sort_by_key(|hit| hit.time);
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
