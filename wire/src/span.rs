//! A span as tracing systems know it: no storage in it, only names, times, tags and links.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::{DurationNs, WallclockNs};
use crate::ids::{SpanId, TraceId};

/// Which side of a conversation between two services a span shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SpanKind {
    /// It asked another service and waited.
    Client,
    /// It was asked.
    Server,
    /// Neither: work inside one service.
    Local,
}

/// A tag's value. Words are equal by what they say, whoever owns them.
#[derive(Clone, Debug)]
pub enum TagValue {
    /// Words.
    Text(Cow<'static, str>),
    /// A number.
    Number(i64),
    /// Words shared by many spans.
    Shared(Arc<str>),
}

impl TagValue {
    /// The words, if it is no number.
    pub fn words(&self) -> Option<&str> {
        match self {
            TagValue::Text(words) => Some(words),
            TagValue::Shared(words) => Some(words),
            TagValue::Number(_) => None,
        }
    }
}

impl PartialEq for TagValue {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (TagValue::Number(one), TagValue::Number(another)) => one == another,
            (TagValue::Number(_), _) | (_, TagValue::Number(_)) => false,
            _ => self.words() == other.words(),
        }
    }
}

impl Eq for TagValue {}

/// Another span that this one has to do with and that is not its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanLink {
    /// Its trace.
    pub trace: TraceId,
    /// Its id.
    pub span: SpanId,
    /// What they have to do with each other and how that is known.
    pub relation: Cow<'static, str>,
}

/// One layer's part of a request, ready to be shown.
///
/// A function of input events only: the same events give byte-identical spans, because Zipkin keeps both of
/// two that differ in one tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its trace.
    pub trace: TraceId,
    /// Its id.
    pub id: SpanId,
    /// The span above it.
    pub parent: Option<SpanId>,
    /// Short, lower case, of low cardinality: never a path or a sector.
    pub name: Cow<'static, str>,
    /// The layer, as a person would say it.
    pub service: Arc<str>,
    /// The service on the other side, where that is known.
    pub remote_service: Option<Arc<str>>,
    /// Its side.
    pub kind: SpanKind,
    /// Begin.
    pub start: WallclockNs,
    /// Length; may be below a microsecond.
    pub duration: DurationNs,
    /// Moments inside it.
    pub annotations: Vec<(WallclockNs, Cow<'static, str>)>,
    /// Facts about it, in a fixed order.
    pub tags: Vec<(Cow<'static, str>, TagValue)>,
    /// Why it failed, if it did.
    pub error: Option<Cow<'static, str>>,
    /// Other spans that it has to do with.
    pub links: Vec<SpanLink>,
}
