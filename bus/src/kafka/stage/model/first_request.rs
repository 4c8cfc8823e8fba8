//! A producer's first request to a partition without a leader.
//!
//! *In*: librdkafka's limit of requests in flight. *Out*: records in the log, and those that count as
//! delivered. *Invariant*: each record that counts as delivered is in the log.
//!
//! The two sides are models, since both are outside of this repository; the limit is the real
//! setting.
//!
//! | rule | source |
//! |---|---|
//! | a broker that does not know a producer accepts any sequence | `ProducerAppendInfo.checkSequence`, Kafka 4.2 |
//! | a broker that knows it accepts the next sequence, and reports an older one as a duplicate | KIP-98 |
//! | a partition without a leader refuses, and the request is sent again | KIP-98 |
//! | an acknowledged record acknowledges those before it | `rd_kafka_dr_implicit_ack`, librdkafka 2.12 |

use std::collections::{BTreeSet, VecDeque};

use super::search::{System, search};
use super::world::hash;
use crate::kafka::Settings;

/// Number of records, one a request.
const RECORDS: u32 = 4;

#[derive(Clone, Copy, Debug)]
enum Step {
    Send,
    /// The broker answers the oldest request.
    Answer,
    /// The producer reads the oldest reply.
    Read,
    ElectLeader,
}

#[derive(Clone, Debug, Hash)]
struct Producer {
    in_flight_max: usize,
    /// Records to send, in order.
    queue: BTreeSet<u32>,
    delivered: BTreeSet<u32>,
    requests: VecDeque<u32>,
    /// Replies: a record, and whether it was accepted.
    replies: VecDeque<(u32, bool)>,
    has_leader: bool,
    last_sequence: Option<u32>,
    log: Vec<u32>,
}

impl Producer {
    fn new(in_flight_max: usize) -> Producer {
        Producer {
            in_flight_max,
            queue: (0..RECORDS).collect(),
            delivered: BTreeSet::new(),
            requests: VecDeque::new(),
            replies: VecDeque::new(),
            has_leader: false,
            last_sequence: None,
            log: Vec::new(),
        }
    }

    fn answer(&mut self, sequence: u32) {
        let is_next = self.last_sequence.is_none_or(|last| sequence == last + 1);
        let is_duplicate = self.last_sequence.is_some_and(|last| sequence <= last);
        if self.has_leader && is_next {
            self.last_sequence = Some(sequence);
            self.log.push(sequence);
        }
        self.replies.push_back((sequence, self.has_leader && (is_next || is_duplicate)));
    }

    fn read(&mut self, sequence: u32, accepted: bool) {
        if accepted {
            self.delivered.extend(0..=sequence);
            self.queue.retain(|queued| *queued > sequence);
        } else if !self.delivered.contains(&sequence) {
            self.queue.insert(sequence);
        }
    }
}

impl System for Producer {
    type Step = Step;

    fn steps(&self) -> Vec<(Step, bool)> {
        let in_flight = self.requests.len() + self.replies.len();
        let possible = [
            (Step::ElectLeader, !self.has_leader),
            (Step::Read, !self.replies.is_empty()),
            (Step::Answer, !self.requests.is_empty()),
            (Step::Send, !self.queue.is_empty() && in_flight < self.in_flight_max),
        ];
        possible.into_iter().filter(|(_, possible)| *possible).map(|(step, _)| (step, false)).collect()
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::ElectLeader => self.has_leader = true,
            Step::Send => self.requests.extend(self.queue.pop_first()),
            Step::Answer => {
                if let Some(sequence) = self.requests.pop_front() {
                    self.answer(sequence);
                }
            }
            Step::Read => {
                if let Some((sequence, accepted)) = self.replies.pop_front() {
                    self.read(sequence, accepted);
                }
            }
        }
    }

    fn fingerprint(&self) -> u64 {
        hash(self)
    }

    fn violation(&self) -> Option<String> {
        let lost: Vec<_> = self.delivered.iter().filter(|record| !self.log.contains(record)).collect();
        let doubled = self.log.windows(2).any(|pair| pair[0] >= pair[1]);
        (!lost.is_empty() || doubled).then(|| format!("called delivered and not in the log: {lost:?}"))
    }

    fn unfinished(&self) -> Option<String> {
        (self.delivered.len() < RECORDS as usize).then(|| format!("delivered: {:?}", self.delivered))
    }
}

#[test]
fn a_refused_first_request_is_not_lost_with_the_limit_of_requests_in_flight() {
    let config = Settings::new("localhost:1").producer();
    let limit = config.get("max.in.flight.requests.per.connection").and_then(|limit| limit.parse().ok());
    let searched = search(|| Producer::new(limit.expect("a set limit")), 10_000);
    assert!(searched.finding.is_none(), "{:?}", searched.finding);
    // librdkafka's own limit of an idempotent producer.
    let before = search(|| Producer::new(5), 10_000).finding.expect("the fault before the mend");
    println!("{before:#?}");
    assert_eq!(before.rule, "called delivered and not in the log: [0]");
    // The first is refused, a leader is elected, the second is under way already and accepted.
    assert_eq!(before.schedule, ["Send", "Answer", "ElectLeader", "Send", "Read", "Answer", "Read"]);
}
