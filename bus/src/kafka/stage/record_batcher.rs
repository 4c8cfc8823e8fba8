//! Batches trace fragments into records for the producer of a stage.
//!
//! *In*: fragments with their sequence numbers, by output partition. *Out*: records, each of one
//! origin and one partition, with consecutive numbers. *Invariant*: each fragment is in one record.
//! Record boundaries depend on the clock and are no part of any identity.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use blkkin_wire::fragment::{FragmentOrigin, TraceFragment};
use blkkin_wire::stage::StageOutput;
use blkkin_wire::v1::{FragmentCount, FragmentWriter};

/// Number of spans in a record: about 300 KiB before compression.
const SPANS_MAX: usize = 2_000;
/// Longest time that a fragment waits for others, equal to an event's in an agent.
pub(super) const AGE_MAX: Duration = Duration::from_millis(75);

/// Output of a stage that is not sent yet.
#[derive(Debug)]
pub(super) struct RecordBatcher {
    from: FragmentOrigin,
    open: BTreeMap<(OutputTopic, u32), FragmentWriter>,
    /// Records that wait for room in the producer's queue, in order.
    ready: VecDeque<BatchedRecord>,
    rejection: Option<String>,
    since: Option<Instant>,
    /// Longest record, in bytes before compression.
    bytes_max: usize,
}

/// Output topic of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OutputTopic {
    /// The stage's main output.
    Main,
    /// The stage's side output: RPC endpoints of the join stage, fragments for the assemble stage's
    /// own input.
    Side,
}

/// Encoded record.
#[derive(Debug)]
pub(super) struct BatchedRecord {
    pub(super) topic: OutputTopic,
    pub(super) partition: u32,
    pub(super) bytes: Vec<u8>,
    /// A fragment longer than a record, with its number. The record has the number without its
    /// spans.
    pub(super) oversize: Option<(FragmentOrigin, u64, TraceFragment)>,
}

impl BatchedRecord {
    fn whole((topic, partition): (OutputTopic, u32), record: FragmentWriter) -> Self {
        BatchedRecord { topic, partition, bytes: record.end(), oversize: None }
    }

    /// Encodes a fragment that is too long without its spans, which go to the dead-letter topic.
    fn without_spans(
        target: (OutputTopic, u32),
        (from, number): (FragmentOrigin, u64),
        fragment: TraceFragment,
    ) -> Self {
        let mut record = FragmentWriter::begin(from, number);
        record.push(&TraceFragment { spans: Vec::new(), ..fragment.clone() });
        BatchedRecord { oversize: Some((from, number, fragment)), ..BatchedRecord::whole(target, record) }
    }
}

impl StageOutput for RecordBatcher {
    fn fragment(&mut self, partition: u32, number: u64, fragment: TraceFragment) {
        self.push((OutputTopic::Main, partition), number, fragment);
    }

    fn side_output(&mut self, partition: u32, number: u64, fragment: TraceFragment) {
        self.push((OutputTopic::Side, partition), number, fragment);
    }

    fn dead_letter(&mut self, why: String) {
        self.rejection = Some(why);
    }
}

impl RecordBatcher {
    pub(super) fn new(from: FragmentOrigin, bytes_max: usize) -> RecordBatcher {
        RecordBatcher {
            from,
            open: BTreeMap::new(),
            ready: VecDeque::new(),
            rejection: None,
            since: None,
            bytes_max,
        }
    }

    /// Encodes a fragment at once and drops it, so its memory is reused while it is in the
    /// processor's cache.
    fn push(&mut self, target: (OutputTopic, u32), number: u64, fragment: TraceFragment) {
        let (from, bytes_max) = (self.from, self.bytes_max);
        let begin = || FragmentWriter::begin(from, number);
        let record = self.open.entry(target).or_insert_with(begin);
        if record.count().fragments > 0 && record.bytes_with(&fragment) > bytes_max {
            let full = std::mem::replace(record, begin());
            self.ready.push_back(BatchedRecord::whole(target, full));
        }
        record.push(&fragment);
        let FragmentCount { fragments, spans } = record.count();
        let long = record.bytes_max() > bytes_max;
        if (long || spans >= SPANS_MAX || fragments >= SPANS_MAX)
            && let Some(record) = self.open.remove(&target)
        {
            let record = BatchedRecord::whole(target, record);
            // One fragment: a second is added only if both fit.
            let long = record.bytes.len() > bytes_max;
            self.ready.push_back(if long {
                BatchedRecord::without_spans(target, (from, number), fragment)
            } else {
                record
            });
        }
    }

    /// Takes the reason why the last input record was rejected.
    pub(super) fn take_rejection(&mut self) -> Option<String> {
        self.rejection.take()
    }

    /// Closes all records once the oldest fragment has waited long enough.
    pub(super) fn flush_due(&mut self, now: Instant) {
        if self.open.is_empty() {
            self.since = None;
        } else if now.saturating_duration_since(*self.since.get_or_insert(now)) >= AGE_MAX {
            self.flush();
        }
    }

    /// Returns the next record to send.
    pub(super) fn first(&self) -> Option<&BatchedRecord> {
        self.ready.front()
    }

    /// Removes the first record after it was queued.
    pub(super) fn pop_first(&mut self) {
        self.ready.pop_front();
    }

    /// Closes all records.
    pub(super) fn flush(&mut self) {
        self.since = None;
        let open = std::mem::take(&mut self.open);
        self.ready.extend(open.into_iter().map(|(target, record)| BatchedRecord::whole(target, record)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use blkkin_wire::fragment::{Incarnation, StageId};
    use blkkin_wire::ids::{SpanId, TraceId};

    use blkkin_wire::span::Span;
    use blkkin_wire::v1;

    const BYTES_MAX: usize = 1_000_000;

    fn fragment(n: u64) -> TraceFragment {
        TraceFragment::whole(TraceId(n.into()), Vec::new())
    }

    fn span(name: String) -> Span {
        Span { name: name.into(), service: "a".into(), ..Span::bare(TraceId(1), SpanId(1)) }
    }

    #[test]
    fn records_are_filled_up_to_the_limit_and_an_oversize_fragment_has_no_spans() {
        let from = FragmentOrigin { stage: StageId::Join, partition: 1, incarnation: Incarnation(2) };
        let with_span =
            |n: u64, bytes: usize| TraceFragment { spans: vec![span(format!("{n:0bytes$}"))], ..fragment(n) };
        let mut batcher = RecordBatcher::new(from, 5_000);
        let lengths = [900, 900, 900, 900, 900, 900, 4_500, 100, 6_000, 100];
        for (n, bytes) in (0..).zip(lengths) {
            batcher.fragment(0, n, with_span(n, bytes));
        }
        batcher.flush();
        let mut next = 0;
        for record in &batcher.ready {
            assert!(record.bytes.len() <= 5_000 || record.oversize.is_some(), "{}", record.bytes.len());
            let batch = v1::decode_fragments(&record.bytes).unwrap();
            assert_eq!(batch.first, next);
            next += batch.fragments.len() as u64;
        }
        assert_eq!(next, 10);
        let counts: Vec<_> = batcher
            .ready
            .iter()
            .map(|record| v1::decode_fragments(&record.bytes).unwrap().fragments.len())
            .collect();
        assert_eq!(counts, [4, 2, 1, 1, 1, 1]);
        let oversize = batcher.ready.iter().filter_map(|record| record.oversize.as_ref());
        assert_eq!(oversize.map(|(_, number, _)| *number).collect::<Vec<_>>(), [8]);
    }

    #[test]
    fn each_fragment_is_in_one_record_under_its_number_for_any_boundaries() {
        let mut batcher = RecordBatcher::new(
            FragmentOrigin { stage: StageId::Join, partition: 1, incarnation: Incarnation(2) },
            BYTES_MAX,
        );
        let start = Instant::now();
        let (mut records, mut next) = (Vec::new(), [100_u64, 200]);
        for n in 0..50 {
            let partition = n % 3 % 2;
            batcher.fragment(partition, next[partition as usize], fragment(n.into()));
            next[partition as usize] += 1;
            batcher.flush_due(start + AGE_MAX * n / 7);
            records.extend(std::mem::take(&mut batcher.ready));
        }
        batcher.flush();
        records.extend(batcher.ready);
        assert!(records.len() > 4, "{}", records.len());
        let mut numbers = [100_u64, 200];
        for record in records {
            let batch = v1::decode_fragments(&record.bytes).unwrap();
            assert_eq!(batch.first, numbers[record.partition as usize]);
            numbers[record.partition as usize] += batch.fragments.len() as u64;
        }
        assert_eq!(numbers, next);
    }
}
