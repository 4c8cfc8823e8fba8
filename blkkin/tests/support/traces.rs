//! A consumer of `blkkin.traces` that checks the fragment numbers as an exporter does: each number
//! once, none missing. And what the traces should be: those that the join stage alone makes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use blkkin_aggregator::stage::join::{JoinStage, JoinStageConfig};
use blkkin_bus::kafka::{STATE, Settings, TRACES};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::fragment::{FragmentBatch, FragmentOrigin, Incarnation, StageId, TraceFragment};
use blkkin_wire::span::Span;
use blkkin_wire::stage::{InputRecord, Stage, StageOutput};
use blkkin_wire::v1;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Message, Offset, TopicPartitionList};

use crate::broker::client::{client, record_count};

/// Trace fragments by their encoded bytes, each with its number of occurrences.
pub(crate) type FragmentCounts = HashMap<Vec<u8>, u32>;

/// Counts one fragment.
pub(crate) fn count(fragments: &mut FragmentCounts, fragment: &TraceFragment) {
    let origin = FragmentOrigin { stage: StageId::Join, partition: 0, incarnation: Incarnation(0) };
    let bytes = v1::encode_fragments(&FragmentBatch { origin, first: 0, fragments: vec![fragment.clone()] });
    *fragments.entry(bytes).or_default() += 1;
}

/// Returns the number of fragments in total.
pub(crate) fn total(fragments: &FragmentCounts) -> usize {
    fragments.values().map(|&times| times as usize).sum()
}

/// Fragments of a stage's main output.
#[derive(Default)]
struct MainOutput(FragmentCounts);

impl StageOutput for MainOutput {
    fn fragment(&mut self, _: u32, _: u64, fragment: TraceFragment) {
        count(&mut self.0, &fragment);
    }
    fn side_output(&mut self, _: u32, _: u64, fragment: TraceFragment) {
        panic!("{fragment:?}");
    }
    fn dead_letter(&mut self, reason: String) {
        panic!("{reason}");
    }
}

/// Returns the fragments that the join stage alone, without Kafka, makes of each node's batches.
pub(crate) fn joined_alone(all: &[Vec<EventBatch>], partitions: u32) -> FragmentCounts {
    let mut output = MainOutput::default();
    for batches in all {
        let mut stage = JoinStage::new(Incarnation(1), JoinStageConfig::new(partitions));
        for batch in batches {
            stage.apply(InputRecord { at: None, bytes: &v1::encode(batch) }, &mut output);
        }
        assert_eq!(stage.pending(), 0);
    }
    output.0
}

/// Asserts that the reader has exactly these fragments.
pub(crate) fn assert_same(expected: &FragmentCounts, reader: &TraceReader, output: &str) {
    let found = &reader.fragments;
    println!("{} fragments, {} of them repeated", total(found), reader.repeated);
    let difference = difference(expected, found);
    assert!(
        difference.is_empty(),
        "{} fragments, not {}: {difference:#?}\n{output}",
        total(found),
        total(expected)
    );
}

/// Waits for the topic that the aggregator creates last.
pub(crate) fn wait_for_topics(settings: &Settings, limit: Duration) {
    let started = Instant::now();
    while settings.partitions(STATE).is_err() {
        assert!(started.elapsed() < limit, "no topics");
        std::thread::sleep(Duration::from_millis(100));
    }
}

pub(crate) struct TraceReader {
    consumer: BaseConsumer,
    next: HashMap<(FragmentOrigin, i32), u64>,
    /// Fragments, each number once.
    pub(crate) fragments: FragmentCounts,
    /// Fragments whose number had been read before.
    pub(crate) repeated: u64,
    /// Records of the topic.
    records: u64,
}

impl TraceReader {
    /// Reads all partitions of the topic from their beginning.
    pub(crate) fn new(settings: &Settings, partitions: i32) -> TraceReader {
        let mut config = client(settings, "test-reader");
        config.set("enable.auto.commit", "false").set("reconnect.backoff.max.ms", "500");
        let consumer: BaseConsumer = config.create().unwrap();
        let mut all = TopicPartitionList::new();
        for partition in 0..partitions {
            all.add_partition_offset(TRACES, partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&all).unwrap();
        TraceReader { consumer, next: HashMap::new(), fragments: HashMap::new(), repeated: 0, records: 0 }
    }

    /// Reads until there are `wanted` fragments, then for two more seconds, at most until the time
    /// limit.
    pub(crate) fn read(&mut self, wanted: usize, time_limit: Duration) {
        self.read_until(time_limit, |fragments| total(fragments) >= wanted);
        self.read_until(Duration::from_secs(2), |_| false);
    }

    /// Reads until `enough` returns true, or until the time limit.
    pub(crate) fn read_until(&mut self, time_limit: Duration, enough: impl Fn(&FragmentCounts) -> bool) {
        let begun = Instant::now();
        while begun.elapsed() < time_limit && !enough(&self.fragments) {
            self.read_one();
        }
    }

    /// Reads everything that the topic has now. No writer may be at work.
    pub(crate) fn read_to_end(&mut self, settings: &Settings, time_limit: Duration) {
        let (begun, records) = (Instant::now(), record_count(settings, TRACES));
        while self.records < records {
            assert!(begun.elapsed() < time_limit, "{} of {records} records", self.records);
            self.read_one();
        }
    }

    /// Returns the spans of all fragments.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let fragments =
            self.fragments.keys().flat_map(|bytes| v1::decode_fragments(bytes).unwrap().fragments);
        fragments.flat_map(|fragment| fragment.spans).collect()
    }

    fn read_one(&mut self) {
        // An error means that a broker is unreachable for a while.
        let Some(Ok(message)) = self.consumer.poll(Duration::from_millis(100)) else { return };
        self.records += 1;
        let batch = v1::decode_fragments(message.payload().unwrap()).unwrap();
        let next = self.next.entry((batch.origin, message.partition())).or_insert(0);
        assert!(batch.first <= *next, "number {} of {:?} is missing", *next, batch.origin);
        for (number, fragment) in (batch.first..).zip(&batch.fragments) {
            if number < *next {
                self.repeated += 1;
                continue;
            }
            *next = number + 1;
            count(&mut self.fragments, fragment);
        }
    }
}

/// Describes up to three fragments whose number of occurrences differs.
pub(crate) fn difference(expected: &FragmentCounts, found: &FragmentCounts) -> Vec<String> {
    let keys = expected.keys().chain(found.keys().filter(|key| !expected.contains_key(*key)));
    let differences = keys.filter_map(|key| {
        let [wanted, actual] = [expected, found].map(|fragments| fragments.get(key).copied().unwrap_or(0));
        let fragment = || v1::decode_fragments(key).unwrap();
        (wanted != actual).then(|| format!("{actual} times, not {wanted}: {:?}", fragment().fragments))
    });
    differences.take(3).collect()
}
