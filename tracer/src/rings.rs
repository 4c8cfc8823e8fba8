//! Reads the per-CPU rings: each in its order, all of them merged by time up to a horizon.
//!
//! *In*: ring entries. *Out*: events in the order of their times, complete up to the watermark.
//!
//! A record is stamped before it is written, by the same program run, some hundred ns apart; an interrupt may come
//! between. So after a drain that began at T, everything stamped before the *previous* drain began is there: that
//! is the watermark, one period (5 ms) of slack for what takes a microsecond. Later events are held for the next
//! round. Drained one ring after another and not merged, 463 of 500 calls found their bios; merged, 500 of 500.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use aya::maps::{MapData, RingBuf};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::LayerEvent;

use crate::accounts::Recorded;
use crate::decode::decode;
use crate::translate::translate;

/// Records taken from one ring in one drain at the most, so that one busy CPU cannot hold up the others' events
/// for ever: a ring of 8 MiB of the smallest records holds 150,000.
const PER_RING_MAX: usize = 200_000;

/// All rings of the machine.
pub struct RingReader {
    rings: Vec<Ring>,
    /// What was decoded so far.
    pub recorded: Recorded,
    watermark: MonotonicNs,
    horizon: MonotonicNs,
}

struct Ring {
    ring: RingBuf<MapData>,
    /// Events not yet given out, by time.
    held: VecDeque<LayerEvent>,
}

impl RingReader {
    /// Over the rings, one a CPU.
    pub fn new(rings: Vec<RingBuf<MapData>>) -> Self {
        let rings = rings.into_iter().map(|ring| Ring { ring, held: VecDeque::new() }).collect();
        RingReader {
            rings,
            recorded: Recorded::default(),
            watermark: MonotonicNs(0),
            horizon: MonotonicNs(0),
        }
    }

    /// Takes what is in the rings; `now` was read before. Gives the events up to the watermark, in order, into
    /// `out`, and the watermark.
    pub fn drain(&mut self, now: MonotonicNs, out: &mut Vec<LayerEvent>) -> MonotonicNs {
        self.take();
        self.watermark = self.horizon;
        self.horizon = now;
        self.merge(self.watermark, out);
        self.watermark
    }

    /// Takes and gives out everything: nothing will be written any more.
    pub fn finish(&mut self, out: &mut Vec<LayerEvent>) {
        self.take();
        self.merge(MonotonicNs(u64::MAX), out);
    }

    fn take(&mut self) {
        for ring in &mut self.rings {
            ring.take(&mut self.recorded);
        }
    }

    fn merge(&mut self, until: MonotonicNs, out: &mut Vec<LayerEvent>) {
        let fronts = self.rings.iter().enumerate();
        let mut heads: BinaryHeap<_> =
            fronts.filter_map(|(cpu, ring)| Some(Reverse((ring.held.front()?.time(), cpu)))).collect();
        while let Some(Reverse((time, cpu))) = heads.pop() {
            if time >= until {
                break;
            }
            let held = &mut self.rings[cpu].held;
            out.extend(held.pop_front());
            if let Some(next) = held.front() {
                heads.push(Reverse((next.time(), cpu)));
            }
        }
    }
}

impl Ring {
    fn take(&mut self, recorded: &mut Recorded) {
        let mut in_order = true;
        let mut last = self.held.back().map_or(MonotonicNs(0), LayerEvent::time);
        for _ in 0..PER_RING_MAX {
            let Some(entry) = self.ring.next() else { break };
            match decode(&entry).ok().and_then(|record| Some((entry[0], translate(record)?))) {
                Some((tag, event)) => {
                    recorded.count(tag, &event);
                    in_order &= event.time() >= last;
                    last = event.time();
                    self.held.push_back(event);
                }
                None => recorded.malformed += 1,
            }
        }
        if !in_order {
            // Stable: records of one moment keep the order in which they were written.
            self.held.make_contiguous().sort_by_key(LayerEvent::time);
        }
    }
}
