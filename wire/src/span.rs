//! Exported spans as tracing systems define them: names, times, tags and links, without
//! storage-specific fields.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::{DurationNs, WallclockNs};
use crate::ids::{SpanId, TraceId};

/// Role of a span in a request between two services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SpanKind {
    /// Sends a request and waits for the reply.
    Client,
    /// Handles a request.
    Server,
    /// Work inside one service.
    Local,
}

/// Value of a tag. Texts compare by content, whatever their ownership.
#[derive(Clone, Debug)]
pub enum TagValue {
    /// Text.
    Text(Cow<'static, str>),
    /// Number.
    Number(i64),
    /// Text shared by many spans.
    Shared(Arc<str>),
}

impl TagValue {
    /// Returns the text, or none for a number.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            TagValue::Text(text) => Some(text),
            TagValue::Shared(text) => Some(text),
            TagValue::Number(_) => None,
        }
    }
}

impl PartialEq for TagValue {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (TagValue::Number(one), TagValue::Number(another)) => one == another,
            (TagValue::Number(_), _) | (_, TagValue::Number(_)) => false,
            _ => self.as_str() == other.as_str(),
        }
    }
}

impl Eq for TagValue {}

/// Span link: a related span that is not the parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpanLink {
    /// Trace id.
    pub trace: TraceId,
    /// Span id.
    pub span: SpanId,
    /// Relation and its evidence.
    pub relation: Cow<'static, str>,
}

/// Span of one layer, ready for export.
///
/// A function of input events only: the same events produce byte-identical spans, because Zipkin
/// keeps both of two spans that differ in one tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Trace id.
    pub trace: TraceId,
    /// Span id.
    pub id: SpanId,
    /// Parent span.
    pub parent: Option<SpanId>,
    /// Span name: short, lower case, of low cardinality; never a path or a sector.
    pub name: Cow<'static, str>,
    /// Service name: the layer.
    pub service: Arc<str>,
    /// Service at the other end, if known.
    pub remote_service: Option<Arc<str>>,
    /// Span kind.
    pub kind: SpanKind,
    /// Start.
    pub start: WallclockNs,
    /// Duration; may be less than 1 µs.
    pub duration: DurationNs,
    /// Timestamped events inside the span.
    pub annotations: Vec<(WallclockNs, Cow<'static, str>)>,
    /// Tags, in a fixed order.
    pub tags: Vec<(Cow<'static, str>, TagValue)>,
    /// Error text of a failed span.
    pub error: Option<Cow<'static, str>>,
    /// Span links.
    pub links: Vec<SpanLink>,
}

/// Key of the tag that is a span's W3C trace state.
pub const TRACE_STATE_TAG: &str = "w3c.tracestate";

impl Span {
    /// Returns a span without content, which the caller completes.
    pub fn bare(trace: TraceId, id: SpanId) -> Span {
        Span {
            trace,
            id,
            parent: None,
            name: "".into(),
            service: "".into(),
            remote_service: None,
            kind: SpanKind::Local,
            start: WallclockNs(0),
            duration: DurationNs(0),
            annotations: Vec::new(),
            tags: Vec::new(),
            error: None,
            links: Vec::new(),
        }
    }
}
