//! Where a trace was when: the moments of its way from the kernel to Zipkin, by different witnesses.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use blkkin_wire::ids::TraceId;

/// A moment, in the order of the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    /// The call returned: the last event of its trace. By the kernel.
    Ended,
    /// Its record was closed: the last drain of the rings before that. By the batch's watermark.
    Drained,
    /// The record is in blkkin.events. By the log.
    Appended,
    /// A consumer has it. By one of ours beside the aggregator's.
    EventsRead,
    /// Its spans were handed to the producer. By the record.
    Joined,
    /// By a consumer of blkkin.spans.
    SpansRead,
    /// It was kept. By the record.
    Assembled,
    /// By a consumer of blkkin.traces.
    TraceRead,
    /// It went by on its way from the exporter to Zipkin. By what lies between them.
    Posted,
    /// Zipkin shows it. By asking, again and again.
    Visible,
}

use Point::*;

const POINTS: usize = 10;

/// From one moment to another, for a person.
pub(super) const PARTS: [(&str, Point, Point); 9] = [
    ("ring (drained each 2 to 20 ms) and the agent's gathering (up to 75 ms)", Ended, Drained),
    ("agent to broker: encode, compress, send, append", Drained, Appended),
    ("broker to join", Appended, EventsRead),
    ("join, and gathering by trace (up to 75 ms)", EventsRead, Joined),
    ("broker", Joined, SpansRead),
    ("assemble, and gathering (up to 75 ms)", SpansRead, Assembled),
    ("broker", Assembled, TraceRead),
    ("exporter: gathering (up to 50 ms), encode, post", TraceRead, Posted),
    ("Zipkin, and asking it", Posted, Visible),
];
/// The whole of it.
pub(super) const WHOLE: (&str, Point, Point) = ("kernel event to visible in Zipkin", Ended, Visible);

/// µs since the Unix epoch, at each point; 0 where it has not been.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Journey([u64; POINTS]);

impl Journey {
    /// ms between two points. One clock gives µs, another ms: what comes out below 0 is 0.
    pub(super) fn ms(&self, from: Point, to: Point) -> f64 {
        (self.0[to as usize] as f64 - self.0[from as usize] as f64).max(0.0) / 1e3
    }

    pub(super) fn at(&self, point: Point) -> Option<u64> {
        Some(self.0[point as usize]).filter(|at| *at > 0)
    }

    /// It has been everywhere.
    pub(super) fn is_whole(&self) -> bool {
        self.0.iter().all(|at| *at > 0)
    }
}

/// Those of one source: its traces' ids begin alike.
#[derive(Default)]
pub(super) struct Journeys {
    source: OnceLock<u64>,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    journeys: HashMap<u128, Journey>,
    /// Kept, and not seen in Zipkin yet.
    awaited: HashSet<u128>,
}

impl Journeys {
    /// Which ones.
    pub(super) fn are_of(&self, trace: TraceId) {
        let _ = self.source.set((trace.0 >> 64) as u64);
    }

    /// With what their ids begin, once it is known.
    pub(super) fn prefix(&self) -> Option<[u8; 8]> {
        self.source.get().map(|source| source.to_be_bytes())
    }

    /// The first time counts.
    pub(super) fn note(&self, trace: u128, point: Point, at: u64) {
        if self.source.get() == Some(&((trace >> 64) as u64)) {
            let mut all = self.lock();
            let place = &mut all.journeys.entry(trace).or_default().0[point as usize];
            if *place == 0 {
                *place = at;
                match point {
                    TraceRead => drop(all.awaited.insert(trace)),
                    Visible => drop(all.awaited.remove(&trace)),
                    _ => {}
                }
            }
        }
    }

    /// Those that were kept and are not seen in Zipkin yet.
    pub(super) fn awaited(&self) -> Vec<u128> {
        self.lock().awaited.iter().copied().collect()
    }

    /// All that ended in this time.
    pub(super) fn ended_in(&self, from: u64, to: u64) -> Vec<Journey> {
        let in_time = |journey: &&Journey| journey.at(Ended).is_some_and(|at| from <= at && at < to);
        self.lock().journeys.values().filter(in_time).copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journey_is_of_its_source_and_its_first_times_count() {
        let journeys = Journeys::default();
        let (ours, foreign) = (7_u128 << 64 | 1, 8_u128 << 64 | 1);
        journeys.note(ours, Ended, 5);
        assert!(journeys.ended_in(0, 10).is_empty(), "whose is not known yet");
        journeys.are_of(TraceId(ours));
        [Ended, TraceRead].iter().for_each(|point| journeys.note(ours, *point, 3_000));
        journeys.note(ours, Ended, 9_000);
        journeys.note(foreign, Ended, 3_000);
        assert_eq!(journeys.awaited(), [ours]);
        let [journey] = journeys.ended_in(0, 10_000)[..] else { panic!() };
        assert_eq!((journey.at(Ended), journey.is_whole()), (Some(3_000), false));
        journeys.note(ours, Visible, 4_500);
        assert_eq!(journeys.ended_in(0, 10_000)[0].ms(Ended, Visible), 1.5);
    }

    #[test]
    fn the_parts_are_the_whole() {
        assert_eq!((PARTS[0].1, PARTS[8].2), (WHOLE.1, WHOLE.2));
        assert!(PARTS.windows(2).all(|two| two[0].2 == two[1].1));
    }
}
