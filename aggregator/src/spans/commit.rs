//! Span of a journal commit, in its own trace or in the trace of the call that shows it.

use blkkin_wire::event::CommitEvent;
use blkkin_wire::span::{Span, SpanKind};

use super::placement::{SpanHeader, SpanPlacement};
use super::process_tags::process_tags;
use super::tags::Tags;
use super::{block, names};
use crate::latency;

/// Adds the spans of a commit.
pub(super) fn add(placement: &SpanPlacement<'_>, commit: &CommitEvent, spans: &mut Vec<Span>) {
    let header = SpanHeader {
        id: commit.span,
        parent: placement.parent,
        name: "journal commit".into(),
        service: names::JOURNAL.clone(),
        kind: SpanKind::Server,
        start: commit.start,
        end: commit.end,
    };
    let mut span = placement.span(header);
    let mut tags = Tags::of_block_io();
    if placement.parent.is_some() {
        tags.text("blkkin.parent.evidence", "rule: ext4 transaction id");
        tags.text(
            "blkkin.waited_for_by",
            "each call that waited; child of the first, which may have begun after it",
        );
    }
    process_tags(placement.trace, &mut tags);
    tags.shared("system.device", &names::device(&placement.trace.names.devices, commit.device));
    tags.number("blkkin.journal.transaction", commit.tid);
    tags.times(commit.start, commit.end);
    let parts = latency::breakdown(placement.trace);
    tags.duration("blkkin.device.ns", parts.device);
    tags.duration("blkkin.block.ns", parts.block);
    tags.duration("blkkin.journal.ns", parts.journal);
    placement.root_tags(&mut tags);
    span.tags = tags.0;
    spans.push(span);
    block::add(placement, spans);
}
