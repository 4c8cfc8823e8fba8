//! How far a member of a group is behind.
//!
//! *In*: where a member stands, told by itself ([`Progress`]), and where the topic begins and ends, asked of the cluster
//! ([`Ends`]). *Out*: how many records of its partitions are not done ([`Lag`]). *Invariant*: an end is asked for and never
//! remembered, and a member's part is that of its own partitions: the lags of a group's members add up to the group's.
//!
//! What is *done* is the member's to say: an exporter has a record behind it when its destinations have acknowledged it, a
//! stage of the aggregator when its machine has taken it in.
//!
//! It costs two requests a broker, whatever the number of partitions, by a client of its own: a member may be waiting for
//! something just when its lag is looked at.
//!
//! *Rejected*: librdkafka's statistics (`consumer_lag`). They know a partition's end from answers to fetches, and a member that
//! waits for its destination fetches nothing: the lag would stand still just while it grows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError as Driver;
use rdkafka::{Offset, TopicPartitionList};

use super::settings::FIRST_ANSWER;
use super::{KafkaError, Settings};

/// Of each partition of a member the offset of the first record that is not done; none where that is the first there is.
type Places = BTreeMap<i32, Option<i64>>;

/// Where a member stands, shared by it and who looks.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Mutex<Places>>);

impl Progress {
    /// It has no partitions (any more).
    pub(super) fn clear(&self) {
        self.places().clear();
    }

    /// A partition is this member's, and done up to there.
    pub(super) fn stands(&self, partition: i32, next: Option<i64>) {
        self.places().insert(partition, next);
    }

    /// A partition is not this member's any more.
    pub(super) fn gave(&self, partition: i32) {
        self.places().remove(&partition);
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far behind a member is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Records of its partitions that are there and not done.
    pub records: u64,
    /// Partitions that it has.
    pub partitions: usize,
}

/// Asks a cluster where topics begin and end.
pub struct Ends {
    asking: BaseConsumer,
    settings: Settings,
}

impl Ends {
    /// The cluster need not be there yet.
    pub fn new(settings: &Settings) -> Result<Ends, KafkaError> {
        let asking =
            settings.client().create().map_err(|error| KafkaError::of(settings, "set up", &error))?;
        Ok(Ends { asking, settings: settings.clone() })
    }

    /// How far whoever stands there is behind in `topic`.
    pub fn lag(&self, topic: &str, progress: &Progress) -> Result<Lag, KafkaError> {
        let places = progress.places().clone();
        if places.is_empty() {
            return Ok(Lag::default());
        }
        // The end last: what is done cannot lie behind it.
        let begins = self.ask(topic, &places, Offset::Beginning)?;
        let ends = self.ask(topic, &places, Offset::End)?;
        Ok(Lag { records: behind(&places, &begins, &ends), partitions: places.len() })
    }

    /// ListOffsets takes these two for moments (ListOffsetsRequest.json: -2 the first offset, -1 the one behind the last).
    fn ask(&self, topic: &str, places: &Places, which: Offset) -> Result<BTreeMap<i32, i64>, KafkaError> {
        let fail = |error: Driver| KafkaError::of(&self.settings, "ask for the ends of", &error);
        let mut wanted = TopicPartitionList::new();
        for partition in places.keys() {
            wanted.add_partition_offset(topic, *partition, which).map_err(fail)?;
        }
        let found = self.asking.offsets_for_times(wanted, FIRST_ANSWER).map_err(fail)?;
        let mut offsets = BTreeMap::new();
        for element in found.elements() {
            element.error().map_err(fail)?;
            if let Offset::Offset(offset) = element.offset() {
                offsets.insert(element.partition(), offset);
            }
        }
        Ok(offsets)
    }
}

/// What was deleted before it was done is not behind any more.
fn behind(places: &Places, begins: &BTreeMap<i32, i64>, ends: &BTreeMap<i32, i64>) -> u64 {
    let of = |(partition, next): (&i32, &Option<i64>)| {
        let begin = begins.get(partition).copied().unwrap_or(0);
        let next = next.map_or(begin, |next| next.max(begin));
        ends.get(partition).map_or(0, |end| u64::try_from(end - next).unwrap_or(0))
    };
    places.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_is_what_is_there_and_not_done() {
        let places = Places::from([(0, Some(5)), (1, None), (2, Some(3)), (3, Some(9)), (4, Some(1))]);
        let begins = BTreeMap::from([(0, 0), (1, 2), (2, 7), (3, 0), (4, 0)]);
        let ends = BTreeMap::from([(0, 9), (1, 6), (2, 10), (3, 8)]);
        // 4 more, all 4 that there are, 3 since the others were deleted, none behind the end, one that did not answer.
        assert_eq!(behind(&places, &begins, &ends), 4 + 4 + 3);
    }

    #[test]
    fn a_partition_that_went_is_not_this_members_lag() {
        let progress = Progress::default();
        progress.stands(1, None);
        progress.stands(2, Some(7));
        progress.stands(1, Some(3));
        progress.gave(2);
        assert_eq!(*progress.places(), Places::from([(1, Some(3))]));
        progress.clear();
        assert!(progress.places().is_empty());
    }
}
