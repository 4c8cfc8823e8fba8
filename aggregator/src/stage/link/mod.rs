//! Link stage: finds both RPC endpoints of a request between two nodes.
//!
//! *In*: records of `blkkin.links`: endpoints, those of one connection in one partition. *Out*: for
//! `blkkin.spans`, one answer for each server endpoint: the client's trace and span as the parent of
//! the server's trace, or that it has no known client; counters ([`LinkStats`]); and clock
//! estimates for metrics.
//!
//! *Invariant*: that of [`super`]. Each endpoint is in at most one match: received = matched +
//! unmatched + refused + pending. Each server endpoint that is not pending has one answer.
//!
//! # Matching
//!
//! Two endpoints are one request if they have the same key: the protocol's connection and cookie
//! ([`RpcKey`]). Nearness in time is never a reason: a busy connection has a hundred near requests.
//! But a key alone can mislead:
//!
//! - *A repeated cookie.* Some protocols number tags and not requests: tag 7 is another request a
//!   millisecond later. If one endpoint of the first request was lost, the second request's
//!   endpoint finds the remaining one. So such endpoints match only if the difference of both
//!   clocks is known ([`clock_bounds`]) and exactly one candidate is within the other. If two are,
//!   neither matches. The clocks must also be known to less than the length of the server's
//!   endpoint. Then the endpoint of the request before or after would have to be off by more than
//!   its own length to fit.
//! - *A unique cookie* (Linux' NBD client: a 32-bit counter next to the tag) is exact. Still the
//!   server's endpoint must not be longer than the client's, and must be within it if the clocks
//!   are known. Otherwise it is invalid, or another request has the same key: it is refused, and
//!   counted.
//! - *A request without a reply*
//!   ([`RpcEndpointEvent::no_reply`](blkkin_wire::remote_link::RpcEndpointEvent)): the client has
//!   left, and the server may continue for long. Then the server only has to start after the
//!   request was sent. With a repeated cookie it must start before the client left, since a next
//!   request may follow.
//! - *One trace on both sides* is refused: no span is its own parent.
//!
//! - *A request to a virtual machine's disk* has operation and range as its cookie, and QEMU may merge and split
//!   requests: `disk.rs` decides about those.
//!
//! # No client is an answer too
//!
//! The assemble stage holds the server's trace meanwhile. By its own log's time it cannot
//! distinguish a request without a client from a link stage that is down or behind. So a server
//! endpoint that is refused, given up for room, or unmatched within
//! [`LinkStageConfig::wait_for`], gets the answer [`RemoteLink::Unlinked`]. It is a record of some
//! 30 bytes, and only for requests whose client is not traced.
//!
//! *Rejected*: this stage's progress as a watermark to all partitions of `blkkin.spans`. It would
//! be partitions² records for each step of time, and a fragment would have to carry the position of
//! its endpoint in `blkkin.links`, which its writer does not know.
//!
//! # Clock shift
//!
//! The clocks of two nodes differ. The only certainty is that the server's endpoint is within the
//! client's. So the server's endpoint is centered in the client's, and its error is up to half of
//! the difference of their lengths. The shift and its error are part of the result and shown as
//! tags. For a request without a reply, the only certainty is that the server did not start before
//! it was sent. The server's endpoint is placed there, and the error tag states that there is no
//! bound.
//!
//! *Rejected*: a shift by the bound of all requests between two nodes ([`clock_bounds`]), which is
//! narrower. It depends on which of them had arrived by then. So the same events, read again from
//! topics that were filled in another order, would give other times, and Zipkin would show both.
//! The bound is published as a metric, and the shift is a function of the two endpoints alone.

#[cfg(test)]
mod backing_tests;
mod choice;
pub mod clock_bounds;
#[cfg(test)]
mod cluster_tests;
mod clusters;
mod disk;
#[cfg(test)]
mod disk_tests;
mod flush_index;
mod flushes;
mod of_disk;
mod ranges;
mod rests;
mod rule;
#[cfg(test)]
mod tests;
mod unplaced;
mod waiting;

use std::collections::{BTreeMap, VecDeque};

use blkkin_wire::clock::{DurationNs, clamp};
use blkkin_wire::disk_request::DISK_PROTOCOL;
use blkkin_wire::fragment::{FragmentBatch, Incarnation, StageId, TraceFragment};
use blkkin_wire::remote_link::{ClockShift, LinkEndpoint, RemoteLink, Reparented, RpcKey, RpcSide};
use blkkin_wire::stage::{InputRecord, LogTime, Stage, StageOutput};
use blkkin_wire::v1;
use serde::{Deserialize, Serialize};

use super::dedup::{InputCounters, SequenceTracker};
use super::observer::Observer;
use super::sequence::SequenceNumbers;
use super::snapshot::{self, SnapshotError};
use clock_bounds::{ClockBound, ClockBounds, Containment};
use disk::{Decision, DiskRequests};
use rule::Rule;

/// Maximum number of waiting endpoints, 106 MiB (`cargo xtask bench fleet`). Beyond it the one that has waited longest is
/// given up.
const WAITING_MAX: usize = 65_536;

/// Configuration of the link stage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkStageConfig {
    /// Partitions of the topic of spans.
    pub partitions: u32,
    /// Time that an endpoint waits for the other, in ms of the log's time.
    pub wait_for: u64,
    /// Observes the estimates of two nodes' clocks.
    #[serde(skip)]
    pub on_clock_bound: Observer<ClockBound>,
}

impl LinkStageConfig {
    /// Creates a configuration with the default wait, the same as a server's trace waits
    /// ([`super::assemble::AssembleStageConfig::await_for`]).
    pub fn new(partitions: u32) -> Self {
        LinkStageConfig { partitions, wait_for: 10_000, on_clock_bound: Observer::default() }
    }
}

/// Counters of endpoints since the state was created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStats {
    /// Records read, including ticks and unreadable ones.
    pub records: u64,
    /// Ticks.
    pub ticks: u64,
    /// Unreadable records, copied to the dead-letter topic.
    pub poison: u64,
    /// Fragments that were accepted before.
    pub duplicates: u64,
    /// Fragments that never arrived, by the gaps in their numbers.
    pub missed: u64,
    /// Fragments that are not endpoints, dropped.
    pub misplaced: u64,
    /// Endpoints accepted, each once.
    pub received: u64,
    /// Endpoints with a match: two for each request, and up to six for a write with flushes.
    pub matched: u64,
    /// Endpoints whose other endpoint did not arrive in time.
    pub unmatched: u64,
    /// Of the unmatched ones, those given up early because too many waited.
    pub evicted: u64,
    /// Endpoints with several candidates, or with another endpoint's key that cannot be its
    /// counterpart.
    pub refused: u64,
    /// Of `matched` and `refused`, those of virtual machines' disks.
    pub disks_matched: u64,
    /// See `disks_matched`.
    pub disks_refused: u64,
}

impl LinkStats {
    fn input(&mut self) -> InputCounters<'_> {
        let LinkStats { poison, ticks, duplicates, missed, .. } = self;
        InputCounters { poison, ticks, duplicates, missed }
    }
}

/// State of one partition of links.
#[derive(Debug, Serialize, Deserialize)]
pub struct LinkStage {
    incarnation: u64,
    numbers: SequenceNumbers,
    tracker: SequenceTracker,
    now: LogTime,
    waiting: BTreeMap<RpcKey, Vec<Waiting>>,
    /// Order of arrival. Entries that were matched meanwhile are skipped.
    order: VecDeque<(LogTime, u64, RpcKey)>,
    count: u64,
    pending: u64,
    disks: DiskRequests,
    clocks: ClockBounds,
    stats: LinkStats,
    #[serde(skip, default = "no_config")]
    config: LinkStageConfig,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Waiting {
    number: u64,
    endpoint: LinkEndpoint,
}

impl Stage for LinkStage {
    const ID: StageId = StageId::Link;
    type Config = LinkStageConfig;
    type Error = SnapshotError;

    fn new(incarnation: Incarnation, config: Self::Config) -> Self {
        LinkStage {
            incarnation: incarnation.0,
            numbers: SequenceNumbers::new(config.partitions),
            tracker: SequenceTracker::default(),
            now: LogTime::default(),
            waiting: BTreeMap::new(),
            order: VecDeque::new(),
            count: 0,
            pending: 0,
            disks: DiskRequests::default(),
            clocks: ClockBounds::default(),
            stats: LinkStats::default(),
            config,
        }
    }

    fn restore(bytes: &[u8], config: Self::Config, incarnation: Incarnation) -> Result<Self, Self::Error> {
        let snapshot::Snapshot { state, fingerprint } = snapshot::read::<LinkStage>(Self::ID, bytes)?;
        let mut stage = state;
        if fingerprint != snapshot::fingerprint(&config) {
            (stage.incarnation, stage.numbers) = (incarnation.0, SequenceNumbers::new(config.partitions));
        }
        stage.config = config;
        Ok(stage)
    }

    fn apply(&mut self, record: InputRecord<'_>, out: &mut dyn StageOutput) {
        self.stats.records += 1;
        self.advance(record.at.unwrap_or_default(), out);
        let Some(fragments) = self.tracker.receive(record.bytes, self.stats.input(), out) else { return };
        for (_, fragment) in fragments {
            match fragment.remote_link {
                RemoteLink::Endpoint(endpoint) => self.add_endpoint(*endpoint, out),
                _ => self.stats.misplaced += 1,
            }
        }
    }

    fn save(&mut self) -> Result<Vec<u8>, Self::Error> {
        snapshot::write(Self::ID, snapshot::fingerprint(&self.config), self)
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation)
    }

    fn pending(&self) -> u64 {
        self.pending + self.disks.pending()
    }

    fn overflows(&self) -> Vec<(&'static str, u64)> {
        vec![("origins", self.tracker.forgotten()), ("waiting endpoints", self.stats.evicted)]
    }

    fn tick() -> Vec<u8> {
        v1::encode_fragments(&FragmentBatch::tick())
    }
}

impl LinkStage {
    /// Advances the log's time, and gives up endpoints that waited for too long.
    pub fn advance(&mut self, at: LogTime, out: &mut dyn StageOutput) {
        self.now = self.now.max(at);
        self.expire(out);
        self.advance_disks(out);
    }

    /// Matches an endpoint with a waiting one, or makes it wait.
    pub fn add_endpoint(&mut self, endpoint: LinkEndpoint, out: &mut dyn StageOutput) {
        self.stats.received += 1;
        if &*endpoint.event.key.protocol == DISK_PROTOCOL {
            return self.disks.add(self.now, endpoint);
        }
        let candidates = self.waiting.get(&endpoint.event.key).map(Vec::as_slice).unwrap_or_default();
        let candidates = candidates.iter().filter(|other| other.endpoint.event.side != endpoint.event.side);
        let (mut fitting, mut contradicting) = (Vec::new(), Vec::new());
        for other in candidates {
            let (client, server) = client_and_server(&endpoint, &other.endpoint);
            let exact = client.event.unique && server.event.unique;
            let fits = client.trace != server.trace
                && match self.clocks.check(client, server) {
                    Containment::Inside => true,
                    Containment::Unknown => exact,
                    Containment::Outside => false,
                };
            match (fits, exact) {
                (true, _) => fitting.push(other.number),
                (false, true) => contradicting.push(other.number),
                (false, false) => {}
            }
        }
        match (fitting.as_slice(), contradicting.is_empty()) {
            (&[one], true) => self.matched(endpoint, one, out),
            ([], true) => self.wait(endpoint, out),
            // One key has several candidates, or one that does not fit. It is unknown which of them
            // is wrong.
            _ => {
                fitting.extend(contradicting);
                for number in fitting {
                    if let Some(other) = self.remove(&endpoint.event.key, number) {
                        self.stats.refused += 1;
                        answer_unlinked(&mut self.numbers, &other.endpoint, out);
                    }
                }
                self.stats.refused += 1;
                answer_unlinked(&mut self.numbers, &endpoint, out);
            }
        }
    }

    fn matched(&mut self, endpoint: LinkEndpoint, other: u64, out: &mut dyn StageOutput) {
        let Some(other) = self.remove(&endpoint.event.key, other) else { return };
        self.stats.matched += 2;
        let (client, server) = client_and_server(&endpoint, &other.endpoint);
        let exact = client.event.unique && server.event.unique;
        if exact {
            self.clocks.learn(client, server);
            if let Some(bound) = self.clocks.bound(client, server) {
                self.config.on_clock_bound.observe(&bound);
            }
        }
        let name = &endpoint.event.key.protocol;
        let no_reply = if client.event.no_reply { ", which saw no answer" } else { "" };
        let rule = if exact {
            format!("exact: {name} connection and cookie{no_reply}")
        } else {
            format!("rule: {name} connection and cookie, inside by both clocks{no_reply}")
        };
        answer_linked(&mut self.numbers, client, server, rule, out);
    }

    /// Decides about endpoints of virtual machines' disks.
    fn advance_disks(&mut self, out: &mut dyn StageOutput) {
        let LinkStage { disks, clocks, numbers, stats, config, now, pending, .. } = self;
        let room = (WAITING_MAX as u64).saturating_sub(*pending);
        disks.advance(*now, config.wait_for, room, clocks, &mut |clocks, decision| match decision {
            Decision::Linked { server, client, rule, clients } => {
                stats.matched += 1 + clients;
                stats.disks_matched += 1 + clients;
                if rule == Rule::Same {
                    clocks.learn_by_agreement(&client, &server);
                    clocks
                        .bound(&client, &server)
                        .iter()
                        .for_each(|bound| config.on_clock_bound.observe(bound));
                }
                answer_linked(numbers, &client, &server, rule.text(server.image.is_some()), out);
            }
            Decision::Refused(endpoint) => {
                stats.refused += 1;
                stats.disks_refused += 1;
                answer_unlinked(numbers, &endpoint, out);
            }
            Decision::Unmatched { endpoint, was_evicted } => {
                stats.unmatched += 1;
                stats.evicted += u64::from(was_evicted);
                answer_unlinked(numbers, &endpoint, out);
            }
            Decision::Ended => {}
        });
    }

    fn wait(&mut self, endpoint: LinkEndpoint, out: &mut dyn StageOutput) {
        let (number, key) = (self.count, endpoint.event.key.clone());
        self.count += 1;
        self.pending += 1;
        self.order.push_back((self.now, number, key.clone()));
        self.waiting.entry(key).or_default().push(Waiting { number, endpoint });
        self.expire(out);
    }

    fn expire(&mut self, out: &mut dyn StageOutput) {
        while let Some((since, number, key)) = self.order.front() {
            let expired = self.now.0.saturating_sub(since.0) > self.config.wait_for;
            let present =
                self.waiting.get(key).is_some_and(|all| all.iter().any(|one| one.number == *number));
            if present && !expired && self.pending <= WAITING_MAX as u64 {
                return;
            }
            let (number, key) = (*number, key.clone());
            self.order.pop_front();
            if let Some(removed) = self.remove(&key, number) {
                self.stats.unmatched += 1;
                self.stats.evicted += u64::from(!expired);
                answer_unlinked(&mut self.numbers, &removed.endpoint, out);
            }
        }
    }

    fn remove(&mut self, key: &RpcKey, number: u64) -> Option<Waiting> {
        let all = self.waiting.get_mut(key)?;
        let found = all.swap_remove(all.iter().position(|one| one.number == number)?);
        if all.is_empty() {
            self.waiting.remove(key);
        }
        self.pending -= 1;
        Some(found)
    }

    /// Returns the counters.
    pub fn stats(&self) -> &LinkStats {
        &self.stats
    }

    /// Returns the known bounds of the nodes' clocks.
    pub fn clocks(&self) -> &ClockBounds {
        &self.clocks
    }
}

/// Answers a server endpoint with its client.
fn answer_linked(
    numbers: &mut SequenceNumbers,
    client: &LinkEndpoint,
    server: &LinkEndpoint,
    rule: String,
    out: &mut dyn StageOutput,
) {
    let target = Reparented {
        trace: client.trace,
        parent: client.event.span,
        rule: rule.into(),
        clock: shift(client, server),
    };
    numbers.write(TraceFragment::link_only(server.trace, RemoteLink::Reparented(target.into())), out);
}

/// Answers a server endpoint that has no client. A client's trace waits for no answer.
fn answer_unlinked(numbers: &mut SequenceNumbers, endpoint: &LinkEndpoint, out: &mut dyn StageOutput) {
    if endpoint.event.side == RpcSide::Server {
        numbers.write(TraceFragment::link_only(endpoint.trace, RemoteLink::Unlinked), out);
    }
}

/// Returns the client's and the server's endpoint.
fn client_and_server<'a>(
    one: &'a LinkEndpoint,
    other: &'a LinkEndpoint,
) -> (&'a LinkEndpoint, &'a LinkEndpoint) {
    if one.event.side == RpcSide::Client { (one, other) } else { (other, one) }
}

/// Error bound of a server that may have started at any time after the request was sent.
const NO_BOUND: DurationNs = DurationNs(u64::MAX);

/// Centers the server's endpoint in the client's, within what the client's node has measured of the clocks. What the
/// stage learned is left out: the result is a function of the two endpoints.
fn shift(client: &LinkEndpoint, server: &LinkEndpoint) -> ClockShift {
    let wall = clock_bounds::wall_less_monotonic;
    let offset = clock_bounds::interval(client, server);
    let on_clock_bound = wall(client) - wall(server);
    let (offset, error) = match client.event.no_reply {
        _ if clock_bounds::one_clock(client, server) => (0, DurationNs(0)),
        true => (offset.high, NO_BOUND),
        false => (offset.middle(), DurationNs(offset.half_width())),
    };
    ClockShift { shift: clamp(on_clock_bound - offset), error }
}

/// Returns a placeholder until a restored stage gets its configuration.
fn no_config() -> LinkStageConfig {
    LinkStageConfig::new(1)
}
