//! Trace fragments: spans in transit between the aggregator's stages and to the exporters, grouped
//! by trace and numbered by their writer.
//!
//! *In*: spans from a stage. *Out*: the same spans to readers of the topic, each fragment once.
//!
//! *Invariant*: fragment `i` of a batch has the permanent number `first + i` of its
//! [`FragmentOrigin`] and output partition. After a restart, a stage recreates a fragment from the
//! same events with the same number and the same bytes. A reader drops duplicates by number alone,
//! and a gap in the numbers is a countable loss.
//!
//! *Rejected*: a content hash instead of the number (it does not reveal gaps, and two equal
//! fragments may both be intended); the record offset (it changes with each replay).

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::TraceId;
use crate::remote_link::RemoteLink;
use crate::span::Span;

/// Id of a stage of the aggregator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StageId {
    /// Makes spans from the events of one join domain; writes them by trace.
    Join,
    /// Assembles the spans of a trace; writes sampled traces.
    Assemble,
    /// Links the two endpoints of requests between nodes; writes by the trace of the server
    /// endpoint.
    Link,
}

/// Random number drawn when a stage's state of one partition was created. Fragment numbers restart
/// with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Incarnation(pub u64);

/// Writer of fragments: a stage and the partition of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FragmentOrigin {
    /// Stage.
    pub stage: StageId,
    /// Partition of the input topic.
    pub partition: u32,
    /// Incarnation of the stage's state.
    pub incarnation: Incarnation,
}

impl fmt::Display for FragmentOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            StageId::Join => "join",
            StageId::Assemble => "assemble",
            StageId::Link => "link",
        };
        write!(f, "{stage}/{}/{:016x}", self.partition, self.incarnation.0)
    }
}

/// Position of a fragment in the output of its trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FragmentKind {
    /// The first and usually only fragment of the trace.
    #[default]
    First,
    /// A late fragment: the trace was closed and emitted before.
    Late,
}

/// Sampling rule that kept a trace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sampled {
    /// Text of the rule.
    pub rule: Cow<'static, str>,
    /// Inverse sampling rate: each kept trace represents this number of traces.
    pub one_in: u32,
}

/// Some or all spans of one trace, from one origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFragment {
    /// Trace.
    pub trace: TraceId,
    /// Spans. The trace of a span overrides `trace`.
    pub spans: Vec<Span>,
    /// First or late fragment.
    pub kind: FragmentKind,
    /// True if the root had ended and nothing was in flight.
    pub complete: bool,
    /// Sampling rule that kept the trace; none without sampling.
    pub sampled: Option<Sampled>,
    /// True if the application sampled its trace (W3C trace flags of the thread context). Set
    /// between stages only; for kept traces, `sampled` has the reason.
    pub sampled_by_application: bool,
    /// Relation to other nodes.
    pub remote_link: RemoteLink,
}

impl TraceFragment {
    /// Returns the only fragment of a complete trace without remote links.
    pub fn whole(trace: TraceId, spans: Vec<Span>) -> TraceFragment {
        TraceFragment { spans, complete: true, ..TraceFragment::link_only(trace, RemoteLink::None) }
    }

    /// Returns a fragment without spans that only carries a remote link.
    pub fn link_only(trace: TraceId, remote_link: RemoteLink) -> TraceFragment {
        let (kind, complete, sampled) = (FragmentKind::First, false, None);
        TraceFragment {
            trace,
            spans: Vec::new(),
            kind,
            complete,
            sampled,
            sampled_by_application: false,
            remote_link,
        }
    }
}

/// Record of `blkkin.spans`, `blkkin.traces` or `blkkin.links`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragmentBatch {
    /// Writer.
    pub origin: FragmentOrigin,
    /// Number of the first fragment, of this origin and output partition. Numbers wrap at 64 bits.
    pub first: u64,
    /// Fragments, in the order of their numbers.
    pub fragments: Vec<TraceFragment>,
}

impl FragmentBatch {
    /// Returns a tick, as [`EventBatch::tick`](crate::batch::EventBatch::tick) does for events: a
    /// record without fragments that only advances time.
    pub fn tick() -> FragmentBatch {
        let origin =
            FragmentOrigin { stage: StageId::Link, partition: u32::MAX, incarnation: Incarnation(0) };
        FragmentBatch { origin, first: 0, fragments: Vec::new() }
    }
}
