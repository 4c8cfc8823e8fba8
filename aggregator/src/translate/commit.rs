//! A journal commit's span, in its own trace or in that of the call that shows it.

use blkkin_wire::event::CommitEvent;
use blkkin_wire::span::{Span, SpanKind};

use super::call::process_tags;
use super::place::{Outline, Place};
use super::tags::Tags;
use super::{block, names};
use crate::account;

/// Adds the spans of a commit.
pub(super) fn add(place: &Place<'_>, commit: &CommitEvent, spans: &mut Vec<Span>) {
    let outline = Outline {
        id: commit.span,
        parent: place.parent,
        name: "journal commit".into(),
        service: names::JOURNAL.clone(),
        kind: SpanKind::Server,
        start: commit.start,
        end: commit.end,
    };
    let mut span = place.span(outline);
    let mut tags = Tags::of_block_io();
    if place.parent.is_some() {
        tags.text("blkkin.link", "rule: ext4 transaction id");
        tags.text(
            "blkkin.caused_by",
            "each call that waited; shown below the first, which may have begun after it",
        );
    }
    process_tags(place.trace, &mut tags);
    tags.shared("system.device", &names::device(&place.trace.names.devices, commit.device));
    tags.number("blkkin.journal.transaction", commit.tid);
    tags.times(commit.start, commit.end);
    let parts = account::breakdown(place.trace);
    tags.duration("blkkin.device.ns", parts.device);
    tags.duration("blkkin.block.ns", parts.block);
    tags.duration("blkkin.journal.ns", parts.journal);
    place.root_tags(&mut tags);
    span.tags = tags.0;
    spans.push(span);
    block::add(place, spans);
}
