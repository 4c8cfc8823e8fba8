//! Where a trace's spans go: mostly its own trace, for an adopted commit another.

use std::borrow::Cow;
use std::sync::Arc;

use blkkin_wire::clock::{ClockAnchor, MonotonicNs};
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::span::{Span, SpanKind};

use super::names;
use super::tags::Tags;
use crate::trace::{FragmentKind, Root, Trace};

/// Into which trace, and below what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) trace: &'a Trace,
    /// The trace that is exported.
    pub(super) id: TraceId,
    /// That trace's clock: one for all spans of a picture.
    pub(super) anchor: ClockAnchor,
    /// What the root is shown below.
    pub(super) parent: Option<SpanId>,
    /// What the root's own bios are shown below.
    pub(super) bios_below: SpanId,
}

/// What a span is, before its tags.
pub(super) struct Outline {
    pub(super) id: SpanId,
    pub(super) parent: Option<SpanId>,
    pub(super) name: Cow<'static, str>,
    pub(super) service: Arc<str>,
    pub(super) kind: SpanKind,
    pub(super) start: MonotonicNs,
    pub(super) end: MonotonicNs,
}

impl<'a> Place<'a> {
    /// A trace by itself.
    pub(super) fn of(trace: &'a Trace) -> Self {
        Place { trace, id: trace.id, anchor: trace.anchor, parent: None, bios_below: trace.root_span }
    }

    pub(super) fn span(&self, outline: Outline) -> Span {
        let Outline { id, parent, name, service, kind, start, end } = outline;
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

    /// What is said once a trace, on its root or on each part that lacks one.
    pub(super) fn root_tags(&self, tags: &mut Tags) {
        let trace = self.trace;
        tags.shared("host.id", &names::host(trace.source.node));
        if let FragmentKind::Late = trace.part {
            tags.text("blkkin.part", "later: this trace had been closed before");
        }
        if let Root::Missing = trace.root {
            tags.text("blkkin.missing.root", "its record was lost, or it had not ended");
        }
        tags.count("blkkin.missing.bios", trace.missing.bios);
        tags.count("blkkin.missing.requests", trace.missing.requests);
        tags.count("blkkin.missing.commits", trace.missing.commits);
    }
}
