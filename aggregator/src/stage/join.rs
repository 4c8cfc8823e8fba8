//! Stage one: the events of one partition to pieces of traces.
//!
//! *In*: records of `blkkin.events`. *Out*: pieces, and what became of everything ([`JoinBooks`]).
//! *Invariant*: that of [`super`]; and received = joined + late + orphaned + pending, since the state began, over all
//! restarts: the books are part of the state.

use blkkin_wire::batch::EventBatch;
use blkkin_wire::fragment::{Incarnation, Stage, TraceFragment};
use blkkin_wire::remote_link::RemoteLink;
use blkkin_wire::v1;
use serde::{Deserialize, Serialize};

use super::idle::{Due, Idle};
use super::numbers::Numbers;
use super::pieces::{halves, pieces};
use super::saved::{self, Unreadable};
use super::{Outlet, Record};
use crate::join::{JoinAccounts, JoinConfig, Joiner, TraceSink};
use crate::trace::Trace;

/// What the first stage may be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinStageConfig {
    /// Bounds of the join.
    pub join: JoinConfig,
    /// Partitions of the output.
    pub partitions: u32,
    /// Partitions of the topic of links.
    pub links: u32,
    /// A source of which the log has held nothing for longer is finished: what is open of it is given out. In ms, by the log's
    /// time. A tracer that lives sends a batch each second, also an empty one; 30 s are what the join waits for a sign of
    /// life of a trace ([`JoinConfig::quiet_after`]).
    pub idle_after: u64,
    /// And after so long nothing of it is kept, its names neither. An hour: an agent that was cut off for longer comes back with
    /// what its spool held, and what it had named before is named by number.
    pub forget_after: u64,
}

impl JoinStageConfig {
    /// With defaults for all but the number of partitions of the outputs.
    pub fn new(partitions: u32) -> Self {
        JoinStageConfig {
            join: JoinConfig::default(),
            partitions,
            links: partitions,
            idle_after: 30_000,
            forget_after: 3_600_000,
        }
    }
}

/// What became of records, since the state began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinBooks {
    /// Records read, ticks and poison among them.
    pub records: u64,
    /// Ticks.
    pub ticks: u64,
    /// Records that could not be read: copied to where dead letters go.
    pub poison: u64,
    /// Calls that this version has no name for: left out.
    pub calls_unknown: u64,
    /// Sources finished because the log held nothing of them.
    pub idle_closed: u64,
    /// Pieces given out.
    pub pieces: u64,
    /// Spans in them.
    pub spans: u64,
    /// Ends of requests between nodes given out.
    pub halves: u64,
}

/// The state of one partition of events.
#[derive(Debug, Serialize, Deserialize)]
pub struct JoinStage {
    epoch: u64,
    numbers: Numbers,
    links: Numbers,
    idle: Idle,
    joiner: Joiner,
    books: JoinBooks,
    #[serde(skip, default = "no_config")]
    config: JoinStageConfig,
}

impl JoinStage {
    /// One that has read nothing. An epoch is drawn by whoever makes it, and never used twice.
    pub fn begin(epoch: Incarnation, config: JoinStageConfig) -> Self {
        JoinStage {
            epoch: epoch.0,
            numbers: Numbers::new(config.partitions),
            links: Numbers::new(config.links),
            idle: Idle::default(),
            joiner: Joiner::new(config.join.clone()),
            books: JoinBooks::default(),
            config,
        }
    }

    /// Takes the next record in.
    pub fn apply(&mut self, record: Record<'_>, out: &mut dyn Outlet) {
        self.books.records += 1;
        let due = self.idle.advance(record.at, self.config.idle_after, self.config.forget_after);
        for due in due {
            self.expire(due, out);
        }
        let decoded = match v1::decode(record.bytes) {
            Ok(decoded) => decoded,
            Err(why) => {
                self.books.poison += 1;
                return out.dead(why.to_string());
            }
        };
        self.books.calls_unknown += decoded.calls_unknown;
        self.take(decoded.batch, out);
    }

    /// The same for what is decoded already, and at the log's time so far.
    pub fn take(&mut self, batch: EventBatch, out: &mut dyn Outlet) {
        if batch.source.is_none() {
            self.books.ticks += 1;
            return;
        }
        self.idle.hear(batch.source);
        let (numbers, links) = (&mut self.numbers, &mut self.links);
        let mut writer = Writer { numbers, links, books: &mut self.books, out };
        self.joiner.apply(batch, &mut writer);
        // Seldom: a source more than the join follows has made another go.
        if self.idle.len() > self.joiner.sources() {
            let joiner = &self.joiner;
            self.idle.retain(|source| joiner.follows(source));
        }
    }

    fn expire(&mut self, due: Due, out: &mut dyn Outlet) {
        let (numbers, links) = (&mut self.numbers, &mut self.links);
        let mut writer = Writer { numbers, links, books: &mut self.books, out };
        match due {
            Due::Close(source) => {
                writer.books.idle_closed += 1;
                self.joiner.close(&source, &mut writer);
            }
            Due::Forget(source) => self.joiner.forget(&source, &mut writer),
        }
    }

    /// The whole of it.
    pub fn save(&mut self) -> Result<Vec<u8>, Unreadable> {
        self.joiner.lighten();
        saved::write(Stage::Join, saved::fingerprint(&self.config), self)
            .map_err(|error| Unreadable::Damaged(error.to_string()))
    }

    /// The same again; under another configuration (or of another release) it begins `epoch`.
    pub fn restore(bytes: &[u8], config: JoinStageConfig, epoch: Incarnation) -> Result<Self, Unreadable> {
        let saved::Read { state, fingerprint } = saved::read::<JoinStage>(Stage::Join, bytes)?;
        let mut stage = state;
        if fingerprint != saved::fingerprint(&config) {
            stage.epoch = epoch.0;
            (stage.numbers, stage.links) = (Numbers::new(config.partitions), Numbers::new(config.links));
        }
        stage.joiner.set_bounds(config.join.clone());
        stage.config = config;
        Ok(stage)
    }

    /// Under which its pieces are numbered.
    pub fn epoch(&self) -> Incarnation {
        Incarnation(self.epoch)
    }

    /// Events that no trace was given out of. While there are some, and the partition is silent, it needs ticks.
    pub fn pending(&self) -> u64 {
        self.joiner.accounts().pending()
    }

    /// What became of records.
    pub fn books(&self) -> &JoinBooks {
        &self.books
    }

    /// What became of events.
    pub fn accounts(&self) -> &JoinAccounts {
        self.joiner.accounts()
    }
}

/// A stage that was read back is given one before it is used.
fn no_config() -> JoinStageConfig {
    JoinStageConfig::new(1)
}

/// Where finished traces go.
struct Writer<'a> {
    numbers: &'a mut Numbers,
    links: &'a mut Numbers,
    books: &'a mut JoinBooks,
    out: &'a mut dyn Outlet,
}

impl TraceSink for Writer<'_> {
    fn take(&mut self, trace: &Trace) {
        self.out.seen(trace);
        for piece in pieces(trace) {
            self.books.pieces += 1;
            self.books.spans += piece.spans.len() as u64;
            self.numbers.write(piece, self.out);
        }
        for half in halves(trace) {
            self.books.halves += 1;
            let piece = TraceFragment::link_only(half.trace, RemoteLink::Endpoint(half.into()));
            self.links.write_aside(piece, self.out);
        }
    }
}
