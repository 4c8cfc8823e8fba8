//! Cost of the aggregator's first stage: decoded batches to encoded fragments, on one core.
//!
//! *In*: a number of system calls. *Out*: [`AggregateStats`]. *Invariant*: as in
//! [`crate::stages`], the same input is the same work. Kafka I/O and decoding are not included;
//! `wire` measures decoding.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

use blkkin_aggregator::stage::join::{JoinStage, JoinStageConfig};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::fragment::{FragmentOrigin, Incarnation, StageId, TraceFragment};
use blkkin_wire::stage::{Stage, StageOutput};
use blkkin_wire::v1::FragmentWriter;

use crate::records::{Entries, STEP};
use crate::stages::{BATCH, batch, stage_decode_translate};

const PARTITIONS: u32 = 12;
/// Spans per record, the aggregator's limit.
const SPANS: usize = 2_000;

/// Counters of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AggregateStats {
    /// Input events.
    pub events: u64,
    /// Output spans.
    pub spans: u64,
    /// Size of the records in bytes, before compression.
    pub bytes: u64,
    /// Processor time from decoded batches to records, independent of other load on the core.
    pub spent: Duration,
}

/// Records, built like the aggregator's.
#[derive(Default)]
struct Records {
    open: BTreeMap<u32, FragmentWriter>,
    spans: u64,
    bytes: u64,
}

const FROM: FragmentOrigin =
    FragmentOrigin { stage: StageId::Join, partition: 0, incarnation: Incarnation(1) };

impl StageOutput for Records {
    fn fragment(&mut self, partition: u32, number: u64, piece: TraceFragment) {
        let record = self.open.entry(partition).or_insert_with(|| FragmentWriter::begin(FROM, number));
        record.push(&piece);
        if record.count().spans >= SPANS
            && let Some(record) = self.open.remove(&partition)
        {
            self.record(record);
        }
    }

    fn side_output(&mut self, _: u32, _: u64, _: TraceFragment) {}

    fn dead_letter(&mut self, _why: String) {}
}

impl Records {
    fn record(&mut self, record: FragmentWriter) {
        self.spans += record.count().spans as u64;
        self.bytes += black_box(record.end()).len() as u64;
    }

    fn end(&mut self) {
        std::mem::take(&mut self.open).into_values().for_each(|record| self.record(record));
    }
}

/// Sends `calls` system calls with their block I/O through the stage.
pub fn run(calls: u64) -> AggregateStats {
    let mut stage = JoinStage::new(Incarnation(1), JoinStageConfig::new(PARTITIONS));
    let (mut records, mut done) = (Records::default(), AggregateStats::default());
    let (mut entries, mut n, mut sequence) = (Entries::names(), 0, 0);
    while n < calls {
        while entries.len() < BATCH && n < calls {
            n += 1;
            entries.add_call(n);
        }
        let events = stage_decode_translate(&entries);
        done.events += events.len() as u64;
        let batch = batch(sequence, events, MonotonicNs((n + 1) * STEP));
        let started = thread_time();
        stage.add_batch(batch, &mut records);
        if n == calls {
            records.end();
        }
        done.spent += thread_time() - started;
        entries = Entries::default();
        sequence += 1;
    }
    AggregateStats { spans: records.spans, bytes: records.bytes, ..done }
}

/// Returns the processor time of the calling thread.
pub fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable, and every Linux has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_becomes_spans() {
        let done = run(11_000);
        assert!(done.spans >= 11_000 + 2 * 2_000 && done.bytes > 10 * done.spans, "{done:?}");
    }
}
