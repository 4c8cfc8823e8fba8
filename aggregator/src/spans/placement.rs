//! Placement of a trace's spans: in their own trace or, for a commit that a call shows, in the
//! call's trace.

use std::borrow::Cow;
use std::sync::Arc;

use blkkin_wire::clock::{ClockAnchor, MonotonicNs};
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::span::{Span, SpanKind};

use super::names;
use super::tags::Tags;
use crate::trace::{FragmentKind, Root, Trace};

/// Target trace and parent of a trace's spans.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanPlacement<'a> {
    pub(super) trace: &'a Trace,
    /// Trace id of the exported spans.
    pub(super) id: TraceId,
    /// Clock of that trace: one for all spans that are shown together.
    pub(super) anchor: ClockAnchor,
    /// Parent of the root.
    pub(super) parent: Option<SpanId>,
    /// Parent of the root's own bios.
    pub(super) bio_parent: SpanId,
}

/// A span without its tags.
pub(super) struct SpanHeader {
    pub(super) id: SpanId,
    pub(super) parent: Option<SpanId>,
    pub(super) name: Cow<'static, str>,
    pub(super) service: Arc<str>,
    pub(super) kind: SpanKind,
    pub(super) start: MonotonicNs,
    pub(super) end: MonotonicNs,
}

impl<'a> SpanPlacement<'a> {
    /// Returns the placement of a trace in its own trace.
    pub(super) fn of(trace: &'a Trace) -> Self {
        SpanPlacement { trace, id: trace.id, anchor: trace.anchor, parent: None, bio_parent: trace.root_span }
    }

    pub(super) fn span(&self, header: SpanHeader) -> Span {
        let SpanHeader { id, parent, name, service, kind, start, end } = header;
        Span {
            trace: self.id,
            id,
            parent,
            name,
            service,
            remote_service: None,
            kind,
            start: self.anchor.wallclock(start),
            duration: end.since(start),
            annotations: Vec::new(),
            tags: Vec::new(),
            error: None,
            links: Vec::new(),
        }
    }

    /// Adds the tags that a trace has once: on its root, or on each part that lacks one.
    pub(super) fn root_tags(&self, tags: &mut Tags) {
        let trace = self.trace;
        tags.shared("host.id", &names::host(trace.source.node));
        if let FragmentKind::Late = trace.kind {
            tags.text("blkkin.part", "later: this trace had been closed before");
        }
        if let Root::Missing = trace.root {
            tags.text("blkkin.missing.root", "its record was lost, or it had not ended");
        }
        tags.count("blkkin.missing.bios", trace.incomplete.bios);
        tags.count("blkkin.missing.requests", trace.incomplete.requests);
        tags.count("blkkin.missing.commits", trace.incomplete.commits);
        tags.count("blkkin.missing.page_origins", trace.incomplete.page_origins);
    }
}
