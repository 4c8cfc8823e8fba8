//! Timelines of traces: the times of their checkpoints from the kernel to Zipkin, by different
//! observers.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use blkkin_wire::ids::TraceId;

/// Checkpoint of a trace, in the order of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checkpoint {
    /// Return of the system call, the last event of its trace; by the kernel.
    Ended,
    /// Last poll of the rings before the batch was closed; by the batch's watermark.
    Drained,
    /// Append to blkkin.events; by the timestamp in the log.
    Appended,
    /// Read from blkkin.events; by an additional consumer.
    EventsRead,
    /// Spans passed to the producer by the join; by the record's timestamp.
    Joined,
    /// Read from blkkin.spans; by an additional consumer.
    SpansRead,
    /// Trace sampled and passed to the producer; by the record's timestamp.
    Assembled,
    /// Read from blkkin.traces; by an additional consumer.
    TraceRead,
    /// Post from the exporter to Zipkin; by the proxy.
    Posted,
    /// Visible in Zipkin; by polling.
    Visible,
}

use Checkpoint::*;

const POINTS: usize = 10;

/// Parts of the path between two checkpoints, with their names in tables.
pub(super) const PARTS: [(&str, Checkpoint, Checkpoint); 9] = [
    ("ring (polled each 2 to 20 ms) and the agent's batching (up to 75 ms)", Ended, Drained),
    ("agent to broker: encode, compress, send, append", Drained, Appended),
    ("broker to join", Appended, EventsRead),
    ("join, and batching by trace (up to 75 ms)", EventsRead, Joined),
    ("broker", Joined, SpansRead),
    ("assemble, and batching (up to 75 ms)", SpansRead, Assembled),
    ("broker", Assembled, TraceRead),
    ("exporter: batching (up to 50 ms), encode, post", TraceRead, Posted),
    ("Zipkin, and polling it", Posted, Visible),
];
/// Full path.
pub(super) const WHOLE: (&str, Checkpoint, Checkpoint) =
    ("kernel event to visible in Zipkin", Ended, Visible);

/// Time of each checkpoint in µs since the Unix epoch; 0 if unknown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TraceTimeline([u64; POINTS]);

impl TraceTimeline {
    /// Returns the ms between two checkpoints. The clocks have different resolutions (µs and ms),
    /// so negative values become 0.
    pub(super) fn ms(&self, from: Checkpoint, to: Checkpoint) -> f64 {
        (self.0[to as usize] as f64 - self.0[from as usize] as f64).max(0.0) / 1e3
    }

    pub(super) fn at(&self, point: Checkpoint) -> Option<u64> {
        Some(self.0[point as usize]).filter(|at| *at > 0)
    }

    /// Returns whether all checkpoints are known.
    pub(super) fn is_whole(&self) -> bool {
        self.0.iter().all(|at| *at > 0)
    }
}

/// Timelines of one source, whose trace ids have the same prefix.
#[derive(Default)]
pub(super) struct TraceTimelines {
    source: OnceLock<u64>,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    timelines: HashMap<u128, TraceTimeline>,
    /// Sampled traces that are not visible in Zipkin yet.
    pending: HashSet<u128>,
}

impl TraceTimelines {
    /// Sets the source by one of its traces.
    pub(super) fn set_source(&self, trace: TraceId) {
        let _ = self.source.set((trace.0 >> 64) as u64);
    }

    /// Notes the time of a checkpoint; only the first time counts.
    pub(super) fn note(&self, trace: u128, point: Checkpoint, at: u64) {
        if self.source.get() == Some(&((trace >> 64) as u64)) {
            let mut all = self.lock();
            let place = &mut all.timelines.entry(trace).or_default().0[point as usize];
            if *place == 0 {
                *place = at;
                match point {
                    TraceRead => drop(all.pending.insert(trace)),
                    Visible => drop(all.pending.remove(&trace)),
                    _ => {}
                }
            }
        }
    }

    /// Returns the sampled traces that are not visible in Zipkin yet.
    pub(super) fn pending(&self) -> Vec<u128> {
        self.lock().pending.iter().copied().collect()
    }

    /// Returns the timelines whose system call returned in this time.
    pub(super) fn ended_in(&self, from: u64, to: u64) -> Vec<TraceTimeline> {
        let in_time = |timeline: &&TraceTimeline| timeline.at(Ended).is_some_and(|at| from <= at && at < to);
        self.lock().timelines.values().filter(in_time).copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeline_belongs_to_its_source_and_keeps_first_times() {
        let timelines = TraceTimelines::default();
        let (own, foreign) = (7_u128 << 64 | 1, 8_u128 << 64 | 1);
        timelines.note(own, Ended, 5);
        assert!(timelines.ended_in(0, 10).is_empty(), "the source is not known yet");
        timelines.set_source(TraceId(own));
        [Ended, TraceRead].iter().for_each(|point| timelines.note(own, *point, 3_000));
        timelines.note(own, Ended, 9_000);
        timelines.note(foreign, Ended, 3_000);
        assert_eq!(timelines.pending(), [own]);
        let [timeline] = timelines.ended_in(0, 10_000)[..] else { panic!() };
        assert_eq!((timeline.at(Ended), timeline.is_whole()), (Some(3_000), false));
        timelines.note(own, Visible, 4_500);
        assert_eq!(timelines.ended_in(0, 10_000)[0].ms(Ended, Visible), 1.5);
    }

    #[test]
    fn parts_add_up_to_the_whole() {
        assert_eq!((PARTS[0].1, PARTS[8].2), (WHOLE.1, WHOLE.2));
        assert!(PARTS.windows(2).all(|two| two[0].2 == two[1].1));
    }
}
