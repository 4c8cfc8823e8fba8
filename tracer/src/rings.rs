//! Reads the per-CPU rings: each in its order, all of them merged by time up to a watermark.
//!
//! *In*: ring entries. *Out*: events in the order of their times, complete up to the watermark.
//!
//! A record is stamped before it is written, by the same program run, some hundred ns apart; an interrupt may come
//! between. So after a drain that began at T, everything stamped before the *previous* drain began is there, or before 5 ms before T
//! where that is later: that is the watermark, 2 to 5 ms of slack for what takes a microsecond. What is later stays in its ring until
//! the next drain. Drained one ring after another and not merged, 463 of 500 calls found their bios; merged, 500 of 500.
//!
//! *Rejected*: the previous drain alone. Where little happens drains are 20 ms apart, and what happened was known 20 to 40 ms later
//! instead of 5 to 25.
//!
//! *But*: the program of a probe may be put off its CPU between taking room in the ring and writing it, for as long as the machine
//! likes (`kprobe-ebpf/src/hit.rs`), and what lies behind that room cannot be read. While a ring stops there the watermark stays.
//!
//! A record becomes an event once, where it will lie: from the ring into the batch.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::LayerEvent;

use crate::accounts::Recorded;
use crate::decode::{Record, decode};
use crate::nbd::Requests;
use crate::operations::Operations;
use crate::ring::Ring;
use crate::translate;
use crate::usdt::hits::Collector;

#[cfg(test)]
mod tests;

/// What was stamped so long before a drain is written. ns.
const SLACK: u64 = 5_000_000;

/// All rings of the machine.
pub struct RingReader {
    rings: Vec<Ring>,
    operations: Operations,
    /// What was decoded so far.
    pub recorded: Recorded,
    /// What programs ask NBD servers, where that is asked for.
    pub nbd: Option<Requests>,
    /// What threads say at probes of their programs, if somebody asked.
    pub(crate) hits: Option<Collector>,
    /// At the last look a record that is not written lay before the end of a ring, and may lie there for long.
    unwritten: bool,
    /// Up to which events are given out in this round.
    until: MonotonicNs,
    /// Before which all were.
    watermark: MonotonicNs,
    horizon: MonotonicNs,
}

impl RingReader {
    /// Over the rings, one a CPU.
    pub(crate) fn new(rings: Vec<Ring>, operations: Operations) -> Self {
        RingReader {
            rings,
            operations,
            recorded: Recorded::default(),
            nbd: None,
            hits: None,
            unwritten: false,
            until: MonotonicNs(0),
            watermark: MonotonicNs(0),
            horizon: MonotonicNs(0),
        }
    }

    /// Looks what is in the rings; `now` was read before. How many bytes are new in the ring that has most.
    pub fn look(&mut self, now: MonotonicNs) -> usize {
        self.until = self.horizon.max(MonotonicNs(now.0.saturating_sub(SLACK)));
        self.horizon = now;
        let new = self.rings.iter_mut().map(Ring::look).max().unwrap_or(0);
        // Only the program at a probe may be put off its CPU in the middle of its record. What then lies behind it may be younger, and
        // is reached only when it is written: that it is by the time of the merge says nothing of what was passed over.
        self.unwritten = self.hits.is_some() && self.rings.iter().any(Ring::has_unwritten);
        new as usize
    }

    /// Nothing will be written any more: what is there is complete.
    pub fn close(&mut self) {
        self.look(MonotonicNs(u64::MAX));
        self.until = MonotonicNs(u64::MAX);
    }

    /// No event earlier than this will come any more, once [`RingReader::merge`] has no more to give.
    pub fn watermark(&self) -> MonotonicNs {
        self.watermark
    }

    /// Moves the next events below the watermark into `out`, in order, until it holds `most`. If there are more it says
    /// before which time none of them is.
    pub fn merge(&mut self, out: &mut Vec<LayerEvent>, most: usize) -> Option<MonotonicNs> {
        let fronts = self.rings.iter().enumerate();
        let mut heads: BinaryHeap<_> =
            fronts.filter_map(|(cpu, ring)| Some(Reverse((ring.head()?, cpu)))).collect();
        let mut more = false;
        while let Some(Reverse((mut time, cpu))) = heads.pop() {
            let ring = &mut self.rings[cpu];
            let others = heads.peek().map_or(MonotonicNs(u64::MAX), |Reverse((time, _))| *time);
            // As long as it is this one's turn.
            while time < self.until || ring.has_elders(self.until) {
                if out.len() >= most {
                    more = true;
                    break;
                }
                ring.take(|bytes| {
                    let record = decode(bytes).ok();
                    if let (Some(hits), Some(Record::Hit(record, text))) = (&mut self.hits, record) {
                        return hits.take(record, text);
                    }
                    if let (Some(requests), Some(record)) = (&mut self.nbd, record)
                        && take_nbd(requests, record, out)
                    {
                        return;
                    }
                    if record.is_some_and(|record| translate::append(record, &self.operations, out)) {
                        self.recorded.count(bytes[0], out);
                        if let (Some(requests), Some(event)) = (&mut self.nbd, out.last()) {
                            requests.look(event);
                        }
                    } else {
                        self.recorded.malformed += 1;
                    }
                });
                match ring.head() {
                    Some(next) if next <= others => time = next,
                    next => {
                        heads.extend(next.map(|next| Reverse((next, cpu))));
                        break;
                    }
                }
            }
            if more {
                break;
            }
        }
        self.rings.iter().for_each(Ring::give_back);
        in_order(out);
        let earliest = || self.rings.iter().filter_map(Ring::earliest).min();
        let reached = if more {
            earliest().map_or(self.until, |earliest| earliest.min(self.until))
        } else {
            self.until
        };
        if !self.unwritten && !self.rings.iter().any(Ring::is_blocked) {
            self.watermark = self.watermark.max(reached);
        }
        more.then_some(self.watermark)
    }
}

/// Whether the record is of an NBD request; what comes of it is appended.
#[cold]
fn take_nbd(requests: &mut Requests, record: Record<'_>, out: &mut Vec<LayerEvent>) -> bool {
    match record {
        Record::NbdAsked(record) => requests.asked(record, out),
        Record::NbdAnswered(record) => requests.answered(record, out),
        Record::NbdResent(record) => requests.resent(record),
        _ => return false,
    }
    true
}

/// Puts each event that is older than the one before it where it belongs: there are few, and none belongs far away. Of those
/// of one moment the order stays.
fn in_order(events: &mut [LayerEvent]) {
    for next in 1..events.len() {
        let mut at = next;
        while at > 0 && events[at - 1].time() > events[at].time() {
            events.swap(at - 1, at);
            at -= 1;
        }
    }
}
