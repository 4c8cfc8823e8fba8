//! Spans of a page fault: the fault, its bios and requests. The program accessed memory, so the
//! fault is a client like a system call. It has no span of the file system: its bios are its
//! children.

use blkkin_wire::event::FaultEvent;
use blkkin_wire::span::{Span, SpanKind};

use super::placement::{SpanHeader, SpanPlacement};
use super::process_tags::process_tags;
use super::tags::Tags;
use super::{block, names};
use crate::latency;
use crate::trace::Trace;
use crate::trace::interned_file::inode;

/// Adds the spans of a page fault's trace.
pub(super) fn add(trace: &Trace, fault: &FaultEvent, spans: &mut Vec<Span>) {
    let placement = SpanPlacement::of(trace);
    spans.push(fault_span(&placement, fault));
    block::add(&placement, spans);
}

fn fault_span(placement: &SpanPlacement<'_>, fault: &FaultEvent) -> Span {
    let trace = placement.trace;
    let mut span = placement.span(SpanHeader {
        id: fault.span,
        parent: fault.context.as_ref().map(|context| context.span),
        name: "page fault".into(),
        service: names::program(&trace.names),
        kind: SpanKind::Client,
        start: fault.begin,
        end: fault.end,
    });
    let has_bios = !trace.bios.is_empty();
    span.remote_service = has_bios.then(|| names::BLOCK.clone());
    let mut tags = Tags::of_a_call();
    if fault.context.is_some() {
        let evidence = "exact: the thread's own context named this span (OpenTelemetry)";
        tags.text("blkkin.parent.evidence", evidence);
    }
    process_tags(trace, &mut tags);
    fault_tags(trace, fault, &mut tags);
    tags.times(fault.begin, fault.end);
    let parts = latency::breakdown(trace);
    tags.duration("blkkin.device.ns", parts.device);
    tags.duration("blkkin.block.ns", parts.block);
    tags.duration("blkkin.file_system.ns", parts.file_system);
    tags.duration("blkkin.unaccounted.ns", parts.unaccounted);
    placement.root_tags(&mut tags);
    span.tags = tags.0;
    span
}

fn fault_tags(trace: &Trace, fault: &FaultEvent, tags: &mut Tags) {
    tags.text("blkkin.fault", if fault.major { "major" } else { "read-ahead only" });
    if let Some(address) = fault.address {
        tags.owned("blkkin.address", format!("{address:#x}"));
    }
    if let Some(file) = &trace.names.file {
        tags.shared("file.path", file.shown_path());
    }
    if let Some(file) = &fault.file {
        tags.owned("blkkin.inode", inode(file));
    }
    tags.maybe("blkkin.offset", fault.offset);
    if !fault.begin_seen {
        tags.text("blkkin.begin", "not seen: the time of the first bio or, without bios, the end");
    }
    if !fault.end_seen {
        tags.text("blkkin.end", "not seen: the time of the last bio");
    }
}
