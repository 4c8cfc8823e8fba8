//! Reads the per-CPU rings: each in its order, all of them merged by time up to a horizon.
//!
//! *In*: ring entries. *Out*: events in the order of their times, complete up to the watermark.
//!
//! A record is stamped before it is written, by the same program run, some hundred ns apart; an interrupt may come
//! between. So after a drain that began at T, everything stamped before the *previous* drain began is there: that
//! is the watermark, one period (2 ms or more) of slack for what takes a microsecond. Later events are held for the next
//! round. Drained one ring after another and not merged, 463 of 500 calls found their bios; merged, 500 of 500.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use aya::maps::{MapData, RingBuf};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::LayerEvent;

use crate::accounts::Recorded;
use crate::decode::decode;
use crate::operations::Operations;
use crate::translate::translate;

/// Records taken from one ring in one drain at the most: it bounds what is held (at 230 B an event 2 MB a CPU), and one
/// busy CPU does not keep the others' events waiting. A ring that has more is drained again at once.
const PER_RING_MAX: usize = 8_192;

/// All rings of the machine.
pub struct RingReader {
    rings: Vec<Ring>,
    operations: Operations,
    /// What was decoded so far.
    pub recorded: Recorded,
    watermark: MonotonicNs,
    horizon: MonotonicNs,
    /// Bytes that the last drain took from the ring that had most.
    most: usize,
}

struct Ring {
    ring: RingBuf<MapData>,
    /// Events not yet given out, by time.
    held: VecDeque<LayerEvent>,
}

/// What was taken from one ring.
struct Taken {
    bytes: usize,
    /// Up to when, if there is more.
    reached: Option<MonotonicNs>,
}

/// What a drain came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every ring was emptied.
    All,
    /// A ring had more than is taken at once.
    Part,
}

impl RingReader {
    /// Over the rings, one a CPU.
    pub fn new(rings: Vec<RingBuf<MapData>>, operations: Operations) -> Self {
        let rings = rings.into_iter().map(|ring| Ring { ring, held: VecDeque::new() }).collect();
        RingReader {
            rings,
            operations,
            recorded: Recorded::default(),
            watermark: MonotonicNs(0),
            horizon: MonotonicNs(0),
            most: 0,
        }
    }

    /// Takes what is in the rings; `now` was read before.
    pub fn drain(&mut self, now: MonotonicNs) -> Drained {
        self.watermark = self.horizon;
        self.horizon = now;
        let mut drained = Drained::All;
        self.most = 0;
        for ring in &mut self.rings {
            let taken = ring.take(&mut self.recorded, &self.operations);
            self.most = self.most.max(taken.bytes);
            if let Some(reached) = taken.reached {
                self.horizon = self.horizon.min(reached);
                drained = Drained::Part;
            }
        }
        // A part of a ring may reach less far than the drain before it did.
        self.horizon = self.horizon.max(self.watermark);
        drained
    }

    /// Bytes that the last drain took from the ring that had most.
    pub fn most_taken(&self) -> usize {
        self.most
    }

    /// Nothing will be written any more: what is held is complete.
    pub fn close(&mut self) {
        while self.drain(MonotonicNs(u64::MAX)) == Drained::Part {}
        self.watermark = MonotonicNs(u64::MAX);
    }

    /// No event earlier than this will come any more.
    pub fn watermark(&self) -> MonotonicNs {
        self.watermark
    }

    /// Events taken and not yet given out.
    pub fn held(&self) -> usize {
        self.rings.iter().map(|ring| ring.held.len()).sum()
    }

    /// Moves the next events below the watermark into `out`, in order, until it holds `most`. If there are more it says
    /// the time of the next.
    pub fn merge(&mut self, out: &mut Vec<LayerEvent>, most: usize) -> Option<MonotonicNs> {
        let fronts = self.rings.iter().enumerate();
        let mut heads: BinaryHeap<_> =
            fronts.filter_map(|(cpu, ring)| Some(Reverse((ring.held.front()?.time(), cpu)))).collect();
        while let Some(Reverse((time, cpu))) = heads.pop() {
            if time >= self.watermark {
                return None;
            }
            if out.len() >= most {
                return Some(time);
            }
            let held = &mut self.rings[cpu].held;
            if let Some(event) = held.pop_front() {
                out.push(event);
            }
            if let Some(next) = held.front() {
                heads.push(Reverse((next.time(), cpu)));
            }
        }
        None
    }
}

impl Ring {
    /// Takes what is there, up to the maximum.
    fn take(&mut self, recorded: &mut Recorded, operations: &Operations) -> Taken {
        let mut in_order = true;
        let mut last = self.held.back().map_or(MonotonicNs(0), LayerEvent::time);
        let (mut taken, mut bytes) = (0, 0);
        while let Some(entry) = self.ring.next() {
            // An event is large: it goes from the entry to its place without a stop.
            match decode(&entry).ok().and_then(|record| translate(record, operations)) {
                Some(event) => {
                    recorded.count(entry[0], &event);
                    in_order &= event.time() >= last;
                    last = event.time();
                    self.held.push_back(event);
                }
                None => recorded.malformed += 1,
            }
            taken += 1;
            bytes += entry.len();
            if taken == PER_RING_MAX {
                break;
            }
        }
        if !in_order {
            // Stable: records of one moment keep the order in which they were written.
            self.held.make_contiguous().sort_by_key(LayerEvent::time);
        }
        Taken { bytes, reached: (taken == PER_RING_MAX).then_some(last) }
    }
}
