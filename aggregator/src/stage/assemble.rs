//! Assemble stage: the fragments of each trace, deduplicated, reparented and sampled.
//!
//! *In*: records of `blkkin.spans`, written by every partition of the join and link stages. *Out*:
//! sampled fragments for `blkkin.traces`; reparented fragments for `blkkin.spans` again; counters
//! ([`AssembleStats`]).
//!
//! *Invariant*: that of [`super`]. Each number of an origin is accepted once. received = sampled +
//! dropped + without_trace_id + reparents + unlinks + reparented + misplaced + pending. Duplicates
//! and gaps are counted.
//!
//! A first fragment passes at once, also an incomplete one: the join stage has already waited for
//! the rest. A late fragment is sent on its own, by the sampling decision of the first one.
//!
//! # A server's trace
//!
//! A trace whose root served a request of another node waits until [`super::link`] answers. If it
//! found the client, the fragments go, under the client's trace id, to the partition of that trace,
//! and later fragments follow. So an operation over three nodes is reparented twice. If it found
//! none, the trace is emitted as it is, and stays so.
//!
//! The link stage answers every server endpoint, at the latest when its own log is
//! [`LinkStageConfig::wait_for`](super::link::LinkStageConfig::wait_for) past it. So an answer that
//! is outstanding means that the link stage has not read that far: it is down or behind. The trace
//! waits for as long as `blkkin.links` keeps the endpoint ([`AssembleStageConfig::await_link`]),
//! and its bytes are bounded. A healthy link stage is never waited for longer than its own wait and
//! its delay.
//!
//! *Rejected*: a wait of some seconds by this log's time. It is too long for a request without a
//! client that the link stage refused at once, and too short whenever the link stage restarts.
//! *Rejected*: a late move. One part of the trace would be here and one there, and both would be
//! wrong.
//!
//! # A trace in parts
//!
//! The work of a daemon span (system calls, further daemon spans) ends before the span does, and
//! arrives as fragments of its own. These wait for their root, which determines whether the trace
//! is sampled, and whether it is reparented. If the root does not arrive within the same time, they
//! are emitted by the ratio.
//!
//! *Limit*: reparented fragments are sampled by the parts of the trace that arrived before them. If
//! a rule samples failed traces, and the client's part arrives after them, the ratio decides.
//!
//! *Rejected*: sampling in the join stage. It sees the parts of one node only.

use std::hash::RandomState;

use blkkin_wire::fragment::{FragmentBatch, FragmentKind, Incarnation, StageId, TraceFragment};
use blkkin_wire::ids::TraceId;
use blkkin_wire::remote_link::{RemoteLink, Reparented};
use blkkin_wire::span::TRACE_STATE_TAG;
use blkkin_wire::stage::{InputRecord, LogTime, Stage, StageOutput};
use blkkin_wire::v1;
use serde::{Deserialize, Serialize};

use super::dedup::{InputCounters, SequenceTracker};
use super::pending_traces::{Awaited, Limits, PendingTraces};
use super::reparent;
use super::sampling::{SamplingReason, SamplingRules};
use super::sequence::SequenceNumbers;
use super::snapshot::{self, SnapshotError};
use crate::join::generational_cache::GenerationalCache;

/// Maximum number of remembered traces that a rule samples and the ratio would not: as many as may
/// be open in the join.
const REASONS_MAX: usize = 65_536;
/// Maximum number of remembered traces that were reparented, that timed out, or whose root arrived,
/// for their later fragments.
const TRACES_MAX: usize = 65_536;

/// Configuration of the assemble stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssembleStageConfig {
    /// Partitions of the output.
    pub partitions: u32,
    /// Sampling rules.
    pub rules: SamplingRules,
    /// Partitions of its own input, which receives reparented fragments.
    pub input: u32,
    /// Time that parts of a trace wait for their root, in ms of the log's time. It covers the delay
    /// of agents and the join stage: tenths of seconds, or seconds if one of them was killed.
    pub await_for: u64,
    /// Time that a server's trace waits for the link stage's answer, in ms of the log's time: as
    /// long as `blkkin.links` retains the endpoint that is to be answered. Kafka's default is seven
    /// days. Only a trace whose endpoint was lost waits for that long.
    pub await_link: u64,
}

/// Default of [`AssembleStageConfig::await_link`]: seven days.
const AWAIT_LINK: u64 = 7 * 24 * 3_600_000;
/// Maximum number of bytes of waiting traces of all partitions, which one member may hold.
const PENDING_BYTES_MAX: u64 = 512 << 20;
/// Maximum number of bytes of waiting traces of one partition.
const PENDING_BYTES_OF_PARTITION: u64 = 64 << 20;
/// Maximum number of spans of waiting traces of all partitions that stay decoded: some 21 MB.
const PENDING_DECODED_SPANS: usize = 16_384;

impl AssembleStageConfig {
    /// Creates a configuration with the same number of partitions everywhere and the other
    /// defaults.
    pub fn new(partitions: u32, rules: SamplingRules) -> Self {
        AssembleStageConfig {
            partitions,
            rules,
            input: partitions,
            await_for: 10_000,
            await_link: AWAIT_LINK,
        }
    }

    /// Returns the maximum number of bytes of waiting traces of one partition. A trace of ten spans
    /// takes some 1.9 kB.
    fn pending_bytes(&self) -> u64 {
        PENDING_BYTES_OF_PARTITION.min(PENDING_BYTES_MAX / u64::from(self.input.max(1)))
    }

    fn limits(&self) -> Limits {
        let decoded = PENDING_DECODED_SPANS / self.input.max(1) as usize;
        Limits { root: self.await_for, link: self.await_link, bytes: self.pending_bytes(), decoded }
    }
}

/// Counters of fragments since the state was created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssembleStats {
    /// Records read, including unreadable ones.
    pub records: u64,
    /// Unreadable records, copied to the dead-letter topic.
    pub poison: u64,
    /// Fragments accepted, each number once.
    pub received: u64,
    /// Fragments that were accepted before.
    pub duplicates: u64,
    /// Fragments that never arrived, by the gaps in their numbers.
    pub missed: u64,
    /// Fragments emitted.
    pub sampled: u64,
    /// Fragments dropped by sampling.
    pub dropped: u64,
    /// Fragments with an all-zero trace id, which is invalid (W3C trace context). No destination
    /// shows them. Their record is copied to the dead-letter topic.
    pub without_trace_id: u64,
    /// Spans in emitted fragments.
    pub spans: u64,
    /// Fragments that reparent a trace.
    pub reparents: u64,
    /// Of these, those that arrived after the trace was emitted, or a second time.
    pub reparents_late: u64,
    /// Answers that a trace has no known client.
    pub unlinks: u64,
    /// Fragments sent on to their client's trace.
    pub reparented: u64,
    /// Traces that waited for a root that did not arrive, or for a client that is not known.
    pub timed_out: u64,
    /// Traces that waited for an answer of the link stage that did not arrive, or had to leave
    /// because too many bytes waited. They may have a client.
    pub unanswered: u64,
    /// Fragments that were reparented too often, and were emitted where they were.
    pub reparent_loops: u64,
    /// Fragments that belong to another topic, dropped.
    pub misplaced: u64,
    /// Ticks.
    pub ticks: u64,
}

impl AssembleStats {
    fn input(&mut self) -> InputCounters<'_> {
        let AssembleStats { poison, ticks, duplicates, missed, .. } = self;
        InputCounters { poison, ticks, duplicates, missed }
    }
}

/// State of one partition of `blkkin.spans`.
#[derive(Debug, Serialize, Deserialize)]
pub struct AssembleStage {
    incarnation: u64,
    numbers: SequenceNumbers,
    reparented_numbers: SequenceNumbers,
    tracker: SequenceTracker,
    now: LogTime,
    pending: PendingTraces,
    reparented: GenerationalCache<TraceId, Reparented, RandomState>,
    timed_out: GenerationalCache<TraceId, (), RandomState>,
    /// Roots that arrived, for parts that wait for them.
    roots: GenerationalCache<TraceId, (), RandomState>,
    /// Sampling reasons that differ from the ratio's decision, for late fragments.
    reasons: GenerationalCache<TraceId, SamplingReason, RandomState>,
    stats: AssembleStats,
    #[serde(skip, default = "no_config")]
    config: AssembleStageConfig,
}

impl Stage for AssembleStage {
    const ID: StageId = StageId::Assemble;
    type Config = AssembleStageConfig;
    type Error = SnapshotError;

    fn new(incarnation: Incarnation, config: Self::Config) -> Self {
        AssembleStage {
            incarnation: incarnation.0,
            numbers: SequenceNumbers::new(config.partitions),
            reparented_numbers: SequenceNumbers::new(config.input),
            tracker: SequenceTracker::default(),
            now: LogTime::default(),
            pending: PendingTraces::default(),
            reparented: GenerationalCache::new(TRACES_MAX),
            timed_out: GenerationalCache::new(TRACES_MAX),
            roots: GenerationalCache::new(TRACES_MAX),
            reasons: GenerationalCache::new(REASONS_MAX),
            stats: AssembleStats::default(),
            config,
        }
    }

    fn restore(bytes: &[u8], config: Self::Config, incarnation: Incarnation) -> Result<Self, Self::Error> {
        let snapshot::Snapshot { state, fingerprint } = snapshot::read::<AssembleStage>(Self::ID, bytes)?;
        let mut stage = state;
        if fingerprint != snapshot::fingerprint(&config) {
            stage.incarnation = incarnation.0;
            (stage.numbers, stage.reparented_numbers) =
                (SequenceNumbers::new(config.partitions), SequenceNumbers::new(config.input));
        }
        stage.reparented.set_max(TRACES_MAX);
        stage.timed_out.set_max(TRACES_MAX);
        stage.roots.set_max(TRACES_MAX);
        stage.reasons.set_max(REASONS_MAX);
        stage.config = config;
        Ok(stage)
    }

    fn apply(&mut self, record: InputRecord<'_>, out: &mut dyn StageOutput) {
        self.stats.records += 1;
        self.advance(record.at.unwrap_or_default(), out);
        let Some(fragments) = self.tracker.receive(record.bytes, self.stats.input(), out) else { return };
        let mut without_trace_id = None;
        for (number, fragment) in fragments {
            if !self.add_fragment(fragment, out) {
                without_trace_id.get_or_insert(number);
            }
        }
        if let Some(number) = without_trace_id {
            out.dead_letter(format!("fragment {number} has an all-zero trace id"));
        }
    }

    fn save(&mut self) -> Result<Vec<u8>, Self::Error> {
        self.pending.encode_all_but(0);
        snapshot::write(Self::ID, snapshot::fingerprint(&self.config), self)
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation)
    }

    fn pending(&self) -> u64 {
        self.pending.fragments()
    }

    fn overflows(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("origins", self.tracker.forgotten()),
            ("waiting traces", self.pending.evicted(Awaited::Root)),
            ("traces that await the link stage", self.pending.evicted(Awaited::Link)),
        ]
    }

    fn tick() -> Vec<u8> {
        v1::encode_fragments(&FragmentBatch::tick())
    }
}

impl AssembleStage {
    /// Advances the log's time, and emits traces that waited for too long.
    pub fn advance(&mut self, at: LogTime, out: &mut dyn StageOutput) {
        self.now = self.now.max(at);
        let limits = self.config.limits();
        while let Some((trace, awaited)) = self.pending.due(self.now, &limits) {
            match awaited {
                Awaited::Root => self.stats.timed_out += 1,
                Awaited::Link => self.stats.unanswered += 1,
            }
            self.release(trace, out);
        }
    }

    /// Emits a trace as it is. It is never reparented afterwards.
    fn release(&mut self, trace: TraceId, out: &mut dyn StageOutput) {
        self.timed_out.insert(trace, ());
        for fragment in self.pending.remove(trace) {
            self.decide(fragment, out);
        }
    }

    /// Adds a fragment. Returns false for an all-zero trace id, which is invalid.
    pub fn add_fragment(&mut self, fragment: TraceFragment, out: &mut dyn StageOutput) -> bool {
        self.stats.received += 1;
        if fragment.trace == TraceId(0) {
            self.stats.without_trace_id += 1;
            return false;
        }
        self.fragment(fragment, out);
        true
    }

    fn fragment(&mut self, fragment: TraceFragment, out: &mut dyn StageOutput) {
        match &fragment.remote_link {
            RemoteLink::Endpoint(_) => self.stats.misplaced += 1,
            RemoteLink::Reparented(target) => self.reparent_trace(fragment.trace, target, out),
            RemoteLink::Unlinked => self.unlink_trace(fragment.trace, out),
            RemoteLink::None
            | RemoteLink::Root
            | RemoteLink::Child
            | RemoteLink::PendingParent
            | RemoteLink::Forwarded(_) => {
                self.span_fragment(fragment, out);
            }
        }
    }

    /// Adds spans: they are sampled here, wait, or go on to another trace.
    fn span_fragment(&mut self, fragment: TraceFragment, out: &mut dyn StageOutput) {
        if let Some(target) = self.reparented.peek(&fragment.trace).cloned() {
            return self.forward(fragment, &target, out);
        }
        let trace = fragment.trace;
        let waits = match fragment.remote_link {
            RemoteLink::PendingParent => self.timed_out.peek(&trace).is_none(),
            RemoteLink::Child => self.roots.peek(&trace).is_none() && self.timed_out.peek(&trace).is_none(),
            RemoteLink::Root => {
                self.roots.insert(trace, ());
                // The root decides for all parts, so it comes first.
                self.decide(fragment, out);
                return self
                    .pending
                    .remove(trace)
                    .into_iter()
                    .for_each(|fragment| self.decide(fragment, out));
            }
            _ => self.pending.holds(trace),
        };
        if waits {
            return self.pending.add(fragment, self.now);
        }
        self.decide(fragment, out);
    }

    fn reparent_trace(&mut self, trace: TraceId, target: &Reparented, out: &mut dyn StageOutput) {
        self.stats.reparents += 1;
        let late = self.timed_out.peek(&trace).is_some() || self.reparented.peek(&trace).is_some();
        if late || trace == target.trace {
            self.stats.reparents_late += 1;
            return;
        }
        self.reparented.insert(trace, target.clone());
        for fragment in self.pending.remove(trace) {
            self.forward(fragment, target, out);
        }
    }

    /// Handles the answer that a trace has no known client. It may arrive before the trace.
    fn unlink_trace(&mut self, trace: TraceId, out: &mut dyn StageOutput) {
        self.stats.unlinks += 1;
        if self.reparented.peek(&trace).is_some() {
            return;
        }
        self.stats.timed_out += u64::from(self.pending.holds(trace));
        self.release(trace, out);
    }

    fn forward(&mut self, fragment: TraceFragment, target: &Reparented, out: &mut dyn StageOutput) {
        match reparent::reparented(&fragment, target) {
            Some(forwarded) => {
                self.stats.reparented += 1;
                self.reparented_numbers.write_side(forwarded, out);
            }
            None => {
                self.stats.reparent_loops += 1;
                self.decide(fragment, out);
            }
        }
    }

    fn decide(&mut self, fragment: TraceFragment, out: &mut dyn StageOutput) {
        let rules = &self.config.rules;
        let reasons = match fragment.kind {
            FragmentKind::First => rules.sample_first(&fragment),
            FragmentKind::Late => {
                self.reasons.peek(&fragment.trace).copied().or_else(|| rules.sample_late(&fragment))
            }
        };
        let Some(reasons) = reasons else {
            self.stats.dropped += 1;
            return;
        };
        if fragment.kind == FragmentKind::First && rules.sample_by_ratio(fragment.trace) != Some(reasons) {
            self.reasons.insert(fragment.trace, reasons);
        }
        self.stats.sampled += 1;
        self.stats.spans += fragment.spans.len() as u64;
        let (sampled, remote_link) = (rules.annotation(reasons), RemoteLink::None);
        let mut fragment = fragment;
        if sampled.is_some() {
            // The threshold of head sampling is no longer the probability with which the trace is exported.
            let tags = fragment.spans.iter_mut().map(|span| &mut span.tags);
            tags.for_each(|tags| tags.retain(|(key, _)| key != TRACE_STATE_TAG));
        }
        self.numbers
            .write(TraceFragment { sampled, sampled_by_application: false, remote_link, ..fragment }, out);
    }

    /// Returns the counters.
    pub fn stats(&self) -> &AssembleStats {
        &self.stats
    }
}

/// Returns a placeholder until a restored stage gets its configuration.
fn no_config() -> AssembleStageConfig {
    AssembleStageConfig::new(1, SamplingRules::default())
}
