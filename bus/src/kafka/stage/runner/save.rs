//! Saves of partitions, in this order: output records, states, commit.
//!
//! *In*: stages with unsaved input. *Out*: their records and states in Kafka, and the commit.
//! *Invariant*: nothing is committed before the cluster has acknowledged all output and the state
//! that the commit refers to.

use std::time::{Duration, Instant};

use blkkin_wire::fragment::{FragmentBatch, FragmentOrigin, TraceFragment};
use blkkin_wire::stage::Stage;
use blkkin_wire::v1;

use super::super::super::dead_letters::DeadLetter;
use super::super::super::{DEAD, KafkaError};
use super::super::cluster::{Cluster, GroupMember};
use super::super::owned_partition::OwnedPartition;
use super::super::record_batcher::OutputTopic;
use super::super::stage_producer::{OutgoingRecord, StageProducer};
use super::super::state_ref::StateRef;
use super::super::state_store::{StateStore, WrittenState};
use super::{ACK_TIMEOUT, Runner, RunnerConfig};

/// Number of parts in which a stage saves its partitions, over half of the save interval.
///
/// A save waits for the output, the states and the commit, and receives nothing meanwhile. A
/// producer has one request in flight to a broker, and a request has one partition. Saving all
/// partitions at once would pause the stage for the sum of these requests.
const SAVES_PER_INTERVAL: u32 = 12;

impl<S: Stage, C: Cluster> Runner<S, C> {
    pub(super) fn save_due(&mut self, now: Instant) -> Result<(), KafkaError> {
        let every = self.config.save_every;
        if now.saturating_duration_since(self.last_save) < every / (2 * SAVES_PER_INTERVAL) {
            return Ok(());
        }
        let due = self.owned.values().filter(|owned| owned.save_due(every, now));
        let mut due: Vec<_> = due.map(|owned| (owned.saved_at(), owned.partition)).collect();
        due.sort_unstable();
        due.truncate(self.owned.len().div_ceil(SAVES_PER_INTERVAL as usize));
        if due.is_empty() {
            return Ok(());
        }
        self.save(&due.into_iter().map(|(_, partition)| partition).collect::<Vec<_>>(), ACK_TIMEOUT)?;
        self.last_save = self.cluster.now();
        Ok(())
    }

    /// Saves the current states of `partitions`: sends their output, then the states, then the
    /// commit. Returns false if the cluster did not answer in time: the previous state stays valid,
    /// and the next attempt sends the same output.
    pub(super) fn save(&mut self, partitions: &[i32], timeout: Duration) -> Result<bool, KafkaError> {
        let mut written = Vec::new();
        for partition in partitions {
            let Some(owned) = self.owned.get_mut(partition).filter(|owned| owned.has_unsaved()) else {
                continue;
            };
            owned.batcher.flush();
            if !send_ready(&self.config, &self.output, owned, timeout, &mut self.oversize)? {
                return Ok(false);
            }
            let (next, slot, state) = (owned.next, owned.next_slot(), owned.stage.save());
            let state = state.map_err(|why| self.save_error(*partition, &why))?;
            let Some(state) = self.state_store(*partition).write(slot, &state, &self.output, timeout)? else {
                return Ok(false);
            };
            written.push((*partition, next, state));
        }
        if written.is_empty() {
            return Ok(true);
        }
        self.commit(&written, timeout)
    }

    pub(super) fn commit(
        &mut self,
        written: &[(i32, i64, WrittenState)],
        timeout: Duration,
    ) -> Result<bool, KafkaError> {
        let flushed = self.output.flush(timeout)?;
        let commits: Vec<(i32, i64, StateRef)> =
            written.iter().map(|(partition, next, state)| (*partition, *next, state.state_ref())).collect();
        let committed = flushed && self.member()?.commit(&commits)?;
        let now = self.cluster.now();
        for (partition, next, state_ref) in commits {
            let store = self.state_store(partition);
            let Some(owned) = self.owned.get_mut(&partition) else { continue };
            if committed {
                owned.set_saved(next, state_ref.bytes, now);
                for key in owned.obsolete_keys.drain(..) {
                    store.empty_key(&key, &self.output)?;
                }
                for (slot, chunks) in owned.obsolete_slots.drain(..) {
                    store.empty(slot, chunks, &self.output)?;
                }
            }
            // Obsolete after the next commit. A commit without a reply may have succeeded, so the
            // slot is kept until then.
            owned.obsolete_slots.push((state_ref.slot, state_ref.chunks));
        }
        Ok(committed)
    }

    pub(super) fn state_store(&self, partition: i32) -> StateStore {
        let bytes_max = self.output.record_bytes();
        StateStore { stage: S::ID, partition, partitions: self.state_partitions, bytes_max }
    }

    pub(super) fn commit_timeout(&self, partition: i32) -> KafkaError {
        KafkaError {
            what: format!("the state of partition {partition} of {} cannot be saved", self.config.input),
            why: "the cluster did not reply in time, or has assigned the partition to another member"
                .to_owned(),
            remedy: "check that all brokers run, then restart the service: committed work is kept".to_owned(),
        }
    }

    pub(super) fn save_error(&self, partition: i32, why: &S::Error) -> KafkaError {
        KafkaError {
            what: format!("the state of partition {partition} of {} cannot be saved", self.config.input),
            why: why.to_string(),
            remedy: format!(
                "this is a bug in blkkin: report it; records that cannot be decoded are in {DEAD}"
            ),
        }
    }
}

/// Sends the dead letters and the closed records; returns whether all fitted into the queue. What did
/// not fit stays, so that neither the state nor the offset moves past it.
pub(super) fn send_ready<S: Stage>(
    config: &RunnerConfig,
    output: &impl StageProducer,
    owned: &mut OwnedPartition<S>,
    timeout: Duration,
    oversize: &mut u64,
) -> Result<bool, KafkaError> {
    loop {
        while let Some(letter) = owned.dead_letters.front() {
            if !output.send_to_dlq(&letter.headers, &letter.payload, timeout)? {
                return Ok(false);
            }
            owned.dead_letters.pop_front();
        }
        let Some(batched) = owned.batcher.first() else { return Ok(true) };
        let partition = batched.partition as i32;
        let topic = match batched.topic {
            OutputTopic::Main => &config.output,
            OutputTopic::Side => &config.side_output,
        };
        let record = OutgoingRecord {
            topic,
            partition: Some(partition),
            payload: Some(&batched.bytes),
            ..OutgoingRecord::default()
        };
        if !output.send(&record, timeout)? {
            return Ok(false);
        }
        if let Some((from, number, fragment)) = &batched.oversize {
            *oversize += 1;
            let why =
                format!("trace {}: {} spans are longer than a record", fragment.trace, fragment.spans.len());
            for payload in split_fragment(*from, *number, fragment.clone(), output.record_bytes()) {
                let headers = vec![
                    ("blkkin.by", config.group.name.clone()),
                    ("blkkin.reason", why.clone()),
                    ("blkkin.topic", topic.clone()),
                    ("blkkin.partition", partition.to_string()),
                    ("blkkin.origin", from.to_string()),
                    ("blkkin.number", number.to_string()),
                ];
                owned.dead_letters.push_back(DeadLetter { headers, payload });
            }
        }
        owned.batcher.pop_first();
    }
}

/// Splits a fragment that is longer than a record into records that fit, each with some of its
/// spans and the same number. A single span that is too long stays too long: the dead-letter topic
/// gets only its length.
fn split_fragment(
    from: FragmentOrigin,
    first: u64,
    mut fragment: TraceFragment,
    bytes_max: usize,
) -> Vec<Vec<u8>> {
    let bytes =
        v1::encode_fragments(&FragmentBatch { origin: from, first, fragments: vec![fragment.clone()] });
    if bytes.len() <= bytes_max || fragment.spans.len() < 2 {
        return vec![bytes];
    }
    let spans = fragment.spans.split_off(fragment.spans.len() / 2);
    let rest = TraceFragment { spans, ..fragment.clone() };
    let mut all = split_fragment(from, first, fragment, bytes_max);
    all.extend(split_fragment(from, first, rest, bytes_max));
    all
}

#[cfg(test)]
mod tests {
    use super::super::super::super::settings::{Group, Settings};
    use super::super::super::output::Output;
    use super::*;
    use blkkin_wire::clock::{DurationNs, WallclockNs};
    use blkkin_wire::fragment::{Incarnation, StageId};
    use blkkin_wire::ids::{SpanId, TraceId};

    use blkkin_wire::span::{Span, TagValue};
    use blkkin_wire::stage::{InputRecord, StageOutput};

    /// A stage without a state, for the runner's own part.
    struct Empty;

    impl Stage for Empty {
        const ID: StageId = StageId::Join;
        type Config = ();
        type Error = String;

        fn new(_: Incarnation, (): ()) -> Empty {
            Empty
        }
        fn restore(_: &[u8], (): (), _: Incarnation) -> Result<Empty, String> {
            Ok(Empty)
        }
        fn apply(&mut self, _: InputRecord<'_>, out: &mut dyn StageOutput) {
            out.dead_letter("unreadable".to_owned());
        }
        fn save(&mut self) -> Result<Vec<u8>, String> {
            Ok(Vec::new())
        }
        fn incarnation(&self) -> Incarnation {
            Incarnation(1)
        }
        fn pending(&self) -> u64 {
            0
        }
        fn overflows(&self) -> Vec<(&'static str, u64)> {
            Vec::new()
        }
        fn tick() -> Vec<u8> {
            Vec::new()
        }
    }

    #[test]
    fn a_dead_letter_without_room_in_the_queue_stays_and_nothing_is_sent_past_it() {
        // No broker answers here, and the queue has room for one record.
        let mut settings = Settings::new("127.0.0.1:1");
        settings.extra.insert("queue.buffering.max.messages".to_owned(), "1".to_owned());
        let output = Output::new(&settings).expect("a producer without a broker");
        let mut owned = OwnedPartition::new(Empty, 0, 0, 1, 1_000, Instant::now());
        for payload in [b"first", b"other", b"third"] {
            let headers = vec![("blkkin.reason", "unreadable".to_owned())];
            owned.dead_letters.push_back(DeadLetter { headers, payload: payload.to_vec() });
        }
        let config = RunnerConfig {
            input: "in".to_owned(),
            output: "out".to_owned(),
            side_output: "side".to_owned(),
            group: Group { name: "group".to_owned(), member: None },
            save_every: Duration::ZERO,
            tick_after: Duration::ZERO,
            forget: false,
        };
        let sent = send_ready(&config, &output, &mut owned, Duration::ZERO, &mut 0);
        assert!(!sent.expect("no error: the cluster may come back"));
        let left: Vec<_> = owned.dead_letters.iter().map(|letter| letter.payload.as_slice()).collect();
        assert_eq!(left, [b"other", b"third"]);
    }

    #[test]
    fn an_oversize_fragment_is_split_into_records_that_fit() {
        let span = |n: u64| Span {
            name: "pwrite64".into(),
            service: "db".into(),
            start: WallclockNs(1),
            duration: DurationNs(1),
            tags: vec![("file.path".into(), TagValue::Text(format!("{n:05}").repeat(200).into()))],
            ..Span::bare(TraceId(7), SpanId(n + 1))
        };
        let spans: Vec<Span> = (0..20).map(span).collect();
        let fragment = TraceFragment::whole(TraceId(7), spans);
        let from = FragmentOrigin { stage: StageId::Join, partition: 0, incarnation: Incarnation(1) };
        let parts = split_fragment(from, 9, fragment.clone(), 3_000);
        assert!(parts.iter().all(|part| part.len() <= 3_000));
        let read = parts.iter().map(|part| v1::decode_fragments(part).unwrap());
        let spans: Vec<Span> = read
            .flat_map(|batch| {
                assert_eq!(batch.first, 9);
                batch.fragments.into_iter().flat_map(|fragment| fragment.spans)
            })
            .collect();
        assert_eq!(spans, fragment.spans);
    }
}
