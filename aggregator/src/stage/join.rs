//! Join stage: the events of one partition to trace fragments.
//!
//! *In*: records of `blkkin.events`. *Out*: fragments for `blkkin.spans`, RPC endpoints for
//! `blkkin.links`, and counters ([`JoinStageStats`]).
//!
//! *Invariant*: that of [`super`]; and received = joined + late + orphaned + pending since the
//! state was created, across all restarts. The counters are part of the state.
//!
//! *Rejected*: one joiner for all sources of a process. A partition that moves to another member
//! takes its sources along.

use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::fragment::{Incarnation, StageId, TraceFragment};
use blkkin_wire::ids::Source;
use blkkin_wire::remote_link::RemoteLink;
use blkkin_wire::stage::{InputRecord, Stage, StageOutput};
use blkkin_wire::v1;
use serde::{Deserialize, Serialize};

use super::fragments::{endpoints, fragments};
use super::observer::Observer;
use super::sequence::SequenceNumbers;
use super::snapshot::{self, SnapshotError};
use super::source_timeout::{NodeClaim, SourceTimeouts, Timeout};
use crate::join::{Applied, JoinConfig, JoinStats, Joiner, TraceSink};
use crate::trace::Trace;

/// Configuration of the join stage.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JoinStageConfig {
    /// Limits of the join.
    pub join: JoinConfig,
    /// Partitions of the output.
    pub partitions: u32,
    /// Partitions of the topic of links.
    pub links: u32,
    /// Source timeout, in ms of the log's time. A source without a record for longer is closed: its
    /// open traces are emitted. A running tracer sends a batch each second, also an empty one. 30 s
    /// is also the inactivity timeout of a trace ([`JoinConfig::quiet_after`]).
    pub idle_after: u64,
    /// Time in ms after which an inactive source is forgotten, with its names. One hour. An agent
    /// that was cut off for longer sends its spool later, and names that it reported before appear
    /// as numbers.
    pub forget_after: u64,
    /// Observes a node that two agents claim at the same time, at least each 10 s while it lasts.
    #[serde(skip)]
    pub on_node_claim: Observer<(Source, NodeClaim)>,
    /// Observes each trace before it is cut into fragments.
    #[serde(skip)]
    pub on_trace: Observer<Trace>,
}

impl JoinStageConfig {
    /// Creates a configuration with defaults for all but the number of partitions of the outputs.
    pub fn new(partitions: u32) -> Self {
        JoinStageConfig {
            join: JoinConfig::default(),
            partitions,
            links: partitions,
            idle_after: 30_000,
            forget_after: 3_600_000,
            on_node_claim: Observer::default(),
            on_trace: Observer::default(),
        }
    }
}

/// Counters of records since the state was created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinStageStats {
    /// Records read, including ticks and unreadable ones.
    pub records: u64,
    /// Ticks.
    pub ticks: u64,
    /// Unreadable records, copied to the dead-letter topic.
    pub poison: u64,
    /// System calls without a name in this version, dropped.
    pub calls_unknown: u64,
    /// Sources closed because the log had no record of them.
    pub idle_closed: u64,
    /// Times that a node was found to have two agents.
    pub nodes_contested: u64,
    /// Fragments emitted.
    pub fragments: u64,
    /// Spans in them.
    pub spans: u64,
    /// RPC endpoints emitted.
    pub endpoints: u64,
}

/// State of one partition of events.
#[derive(Debug, Serialize, Deserialize)]
pub struct JoinStage {
    incarnation: u64,
    numbers: SequenceNumbers,
    links: SequenceNumbers,
    source_timeouts: SourceTimeouts,
    joiner: Joiner,
    stats: JoinStageStats,
    #[serde(skip, default = "no_config")]
    config: JoinStageConfig,
}

impl Stage for JoinStage {
    const ID: StageId = StageId::Join;
    type Config = JoinStageConfig;
    type Error = SnapshotError;

    fn new(incarnation: Incarnation, config: Self::Config) -> Self {
        JoinStage {
            incarnation: incarnation.0,
            numbers: SequenceNumbers::new(config.partitions),
            links: SequenceNumbers::new(config.links),
            source_timeouts: SourceTimeouts::default(),
            joiner: Joiner::new(config.join.clone()),
            stats: JoinStageStats::default(),
            config,
        }
    }

    fn restore(bytes: &[u8], config: Self::Config, incarnation: Incarnation) -> Result<Self, Self::Error> {
        let snapshot::Snapshot { state, fingerprint } = snapshot::read::<JoinStage>(Self::ID, bytes)?;
        let mut stage = state;
        if fingerprint != snapshot::fingerprint(&config) {
            stage.incarnation = incarnation.0;
            (stage.numbers, stage.links) =
                (SequenceNumbers::new(config.partitions), SequenceNumbers::new(config.links));
        }
        stage.joiner.set_limits(config.join.clone());
        stage.config = config;
        Ok(stage)
    }

    fn apply(&mut self, record: InputRecord<'_>, out: &mut dyn StageOutput) {
        self.stats.records += 1;
        let expired =
            self.source_timeouts.advance(record.at, self.config.idle_after, self.config.forget_after);
        for expired in expired {
            self.expire(expired, out);
        }
        let decoded = match v1::decode(record.bytes) {
            Ok(decoded) => decoded,
            Err(why) => {
                self.stats.poison += 1;
                return out.dead_letter(why.to_string());
            }
        };
        self.stats.calls_unknown += decoded.calls_unknown;
        self.add_batch(decoded.batch, out);
    }

    fn save(&mut self) -> Result<Vec<u8>, Self::Error> {
        self.joiner.drop_caches();
        snapshot::write(Self::ID, snapshot::fingerprint(&self.config), self)
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation)
    }

    fn pending(&self) -> u64 {
        self.joiner.stats().pending()
    }

    fn overflows(&self) -> Vec<(&'static str, u64)> {
        let stats = self.joiner.stats();
        vec![
            ("sources", stats.sources_evicted),
            ("open traces", stats.closed_for_room),
            ("window", stats.ahead_of_window),
            ("names", stats.names_dropped),
        ]
    }

    fn tick() -> Vec<u8> {
        v1::encode(&EventBatch::tick())
    }
}

impl JoinStage {
    /// Adds a decoded batch, at the current log time.
    pub fn add_batch(&mut self, batch: EventBatch, out: &mut dyn StageOutput) {
        if batch.source.is_none() {
            self.stats.ticks += 1;
            return;
        }
        let (source, watermark) = (batch.source, batch.watermark);
        let (numbers, links) = (&mut self.numbers, &mut self.links);
        let on_trace = &self.config.on_trace;
        let mut writer = FragmentWriter { numbers, links, stats: &mut self.stats, on_trace, out };
        let applied = self.joiner.apply(batch, &mut writer);
        self.notice(source, watermark, applied);
        if let Some(evicted) = self.joiner.take_evicted() {
            self.source_timeouts.remove(&evicted);
        }
    }

    /// Records the source's activity, and reports a node that has two agents.
    fn notice(&mut self, source: Source, watermark: MonotonicNs, applied: Applied) {
        let claim = self.source_timeouts.touch(source, watermark, applied == Applied::Repeated);
        let claim = if applied == Applied::Contested { Some(NodeClaim::SameStart) } else { claim };
        let Some(claim) = claim else { return };
        if claim == NodeClaim::SameStart {
            self.joiner.contest(&source);
        }
        self.stats.nodes_contested += 1;
        self.config.on_node_claim.observe(&(source, claim));
    }

    fn expire(&mut self, expired: Timeout, out: &mut dyn StageOutput) {
        let (numbers, links) = (&mut self.numbers, &mut self.links);
        let on_trace = &self.config.on_trace;
        let mut writer = FragmentWriter { numbers, links, stats: &mut self.stats, on_trace, out };
        match expired {
            Timeout::Close(source) => {
                writer.stats.idle_closed += 1;
                self.joiner.close(&source, &mut writer);
            }
            Timeout::Forget(source) => self.joiner.forget(&source, &mut writer),
        }
    }

    /// Returns the counters of records.
    pub fn stats(&self) -> &JoinStageStats {
        &self.stats
    }

    /// Returns the counters of events.
    pub fn join_stats(&self) -> &JoinStats {
        self.joiner.stats()
    }
}

/// Returns a placeholder until a restored stage gets its configuration.
fn no_config() -> JoinStageConfig {
    JoinStageConfig::new(1)
}

/// Writes finished traces as fragments.
struct FragmentWriter<'a> {
    numbers: &'a mut SequenceNumbers,
    links: &'a mut SequenceNumbers,
    stats: &'a mut JoinStageStats,
    on_trace: &'a Observer<Trace>,
    out: &'a mut dyn StageOutput,
}

impl TraceSink for FragmentWriter<'_> {
    fn receive(&mut self, trace: &Trace) {
        self.on_trace.observe(trace);
        for fragment in fragments(trace) {
            self.stats.fragments += 1;
            self.stats.spans += fragment.spans.len() as u64;
            self.numbers.write(fragment, self.out);
        }
        for endpoint in endpoints(trace) {
            self.stats.endpoints += 1;
            let fragment = TraceFragment::link_only(endpoint.trace, RemoteLink::Endpoint(endpoint.into()));
            self.links.write_side(fragment, self.out);
        }
    }
}
