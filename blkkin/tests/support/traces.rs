//! What `blkkin.traces` holds, read as whoever shows them would: each number once, none missing.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{Settings, TRACES};
use blkkin_wire::fragment::{FragmentBatch, FragmentOrigin, Incarnation, Stage, TraceFragment};
use blkkin_wire::v1;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

/// How often each piece is there, by its bytes.
pub(crate) type Pieces = HashMap<Vec<u8>, u32>;

/// Adds a piece.
pub(crate) fn count(pieces: &mut Pieces, piece: &TraceFragment) {
    let from = FragmentOrigin { stage: Stage::Join, partition: 0, incarnation: Incarnation(0) };
    let bytes =
        v1::encode_fragments(&FragmentBatch { origin: from, first: 0, fragments: vec![piece.clone()] });
    *pieces.entry(bytes).or_default() += 1;
}

/// Pieces in all.
pub(crate) fn total(pieces: &Pieces) -> usize {
    pieces.values().map(|&times| times as usize).sum()
}

pub(crate) struct TraceReader {
    consumer: BaseConsumer,
    next: HashMap<(FragmentOrigin, i32), u64>,
    /// Each number once.
    pub(crate) pieces: Pieces,
    /// Numbers that came more than once.
    pub(crate) repeated: u64,
}

impl TraceReader {
    /// Reads all partitions of the topic from their beginning.
    pub(crate) fn new(settings: &Settings, partitions: i32) -> TraceReader {
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &settings.brokers)
            .set("group.id", "test-reader")
            .set("enable.auto.commit", "false")
            .set("reconnect.backoff.max.ms", "500")
            .create()
            .unwrap();
        let mut all = TopicPartitionList::new();
        for partition in 0..partitions {
            all.add_partition_offset(TRACES, partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&all).unwrap();
        TraceReader { consumer, next: HashMap::new(), pieces: HashMap::new(), repeated: 0 }
    }

    /// Reads until there are so many pieces and for two seconds no more, or the patience is over.
    pub(crate) fn read(&mut self, wanted: usize, patience: Duration) {
        self.read_until(patience, |pieces| total(pieces) >= wanted);
        self.read_until(Duration::from_secs(2), |_| false);
    }

    /// Reads until `enough` says so, or the patience is over.
    pub(crate) fn read_until(&mut self, patience: Duration, enough: impl Fn(&Pieces) -> bool) {
        let begun = Instant::now();
        while begun.elapsed() < patience && !enough(&self.pieces) {
            // An error is a broker that is away for a while.
            let Some(Ok(message)) = self.consumer.poll(Duration::from_millis(100)) else { continue };
            let batch = v1::decode_fragments(message.payload().unwrap()).unwrap();
            let next = self.next.entry((batch.origin, message.partition())).or_insert(0);
            assert!(batch.first <= *next, "number {} of {:?} never came", *next, batch.origin);
            for (number, piece) in (batch.first..).zip(&batch.fragments) {
                if number < *next {
                    self.repeated += 1;
                    continue;
                }
                *next = number + 1;
                count(&mut self.pieces, piece);
            }
        }
    }
}

/// In how many pieces two differ, as words.
pub(crate) fn difference(expected: &Pieces, found: &Pieces) -> Vec<String> {
    let keys = expected.keys().chain(found.keys().filter(|key| !expected.contains_key(*key)));
    let said = keys.filter_map(|key| {
        let [wanted, there] = [expected, found].map(|pieces| pieces.get(key).copied().unwrap_or(0));
        let piece = || v1::decode_fragments(key).unwrap();
        (wanted != there).then(|| format!("{there} times, not {wanted}: {:?}", piece().fragments))
    });
    said.take(3).collect()
}
