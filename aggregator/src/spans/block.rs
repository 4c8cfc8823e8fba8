//! Spans of bios and block requests.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use blkkin_wire::event::{BioEvent, BlockOp, BlockStatus, RequestEvent, Submitter};
use blkkin_wire::ids::{DeviceId, Sector, SpanId, TraceId};
use blkkin_wire::span::{Span, SpanKind, SpanLink};

use super::placement::{SpanHeader, SpanPlacement};
use super::process_tags::process_tags;
use super::tags::Tags;
use super::{async_io, names, page_origin};
use crate::latency::phases;
use crate::trace::id_map::SpanMap;
use crate::trace::page_origins::OriginIndex;
use crate::trace::{Root, Trace};

/// Adds the spans of a trace's asynchronous I/O, bios and requests.
pub(super) fn add(placement: &SpanPlacement<'_>, spans: &mut Vec<Span>) {
    let submissions = async_io::add(placement, spans);
    if placement.trace.bios.is_empty() && placement.trace.requests.is_empty() {
        return;
    }
    let index = BlockIndex::of(placement, submissions);
    spans.extend(placement.trace.bios.iter().map(|bio| bio_span(placement, &index, bio)));
    spans.extend(placement.trace.requests.iter().map(|request| request_span(placement, &index, request)));
}

/// Index of the trace's bios and requests by span. A large `sync` has tens of thousands.
struct BlockIndex<'a> {
    bios: SpanMap<()>,
    /// Parts with lower bios: requests, and bios of devices without requests.
    upper: SpanMap<()>,
    /// Requests by the trace that shows them: this one, or the one whose request a bio of this
    /// trace was merged into.
    requests: SpanMap<TraceId>,
    origins: OriginIndex<'a>,
    /// Parents of the bios of each submission of asynchronous I/O.
    submissions: SpanMap<SpanId>,
}

impl<'a> BlockIndex<'a> {
    fn of(placement: &SpanPlacement<'a>, submissions: SpanMap<SpanId>) -> Self {
        let Trace { bios, requests, merged_into, .. } = placement.trace;
        let merged = merged_into.iter().filter_map(|link| Some((link.request.span, link.trace?)));
        let lower_bios = bios.iter().filter_map(|bio| match bio.submitter {
            Submitter::Span(upper) if upper != placement.trace.root_span => Some((upper, ())),
            Submitter::Span(_) | Submitter::Kernel => None,
        });
        let lower_bios = lower_bios.filter(|(upper, ())| !submissions.contains_key(upper));
        BlockIndex {
            bios: bios.iter().map(|bio| (bio.span, ())).collect(),
            upper: lower_bios.collect(),
            requests: merged.chain(requests.iter().map(|request| (request.span, placement.id))).collect(),
            origins: OriginIndex::of(placement.trace),
            submissions,
        }
    }
}

fn bio_span(placement: &SpanPlacement<'_>, index: &BlockIndex<'_>, bio: &BioEvent) -> Span {
    let (parent, evidence) = match bio.submitter {
        Submitter::Kernel => (None, None),
        Submitter::Span(span) if index.submissions.contains_key(&span) => {
            (Some(span), Some("exact: it serves the kiocb of this submission"))
        }
        Submitter::Span(span) if span == placement.trace.root_span => {
            (Some(span), Some(submitted_evidence(placement.trace)))
        }
        Submitter::Span(upper) => (Some(upper), Some(lower_evidence(index, upper))),
    };
    let below_root = parent == Some(placement.trace.root_span);
    let (service, kind) = side(placement, index, bio);
    let origin = index.origins.of_bio(bio);
    let kernel_name = page_origin::kernel_bio_name(bio, origin);
    let mut span = placement.span(SpanHeader {
        id: bio.span,
        parent: match parent.and_then(|parent| index.submissions.get(&parent)) {
            Some(submission) => Some(*submission),
            None if below_root => Some(placement.bio_parent),
            None => parent,
        },
        name: kernel_name.map_or_else(|| bio_name(bio.op.name_for(bio.bytes)), Cow::Borrowed),
        service,
        kind,
        start: bio.queue,
        end: bio.end,
    });
    if parent.is_none() {
        span.remote_service = names::client_service(&placement.trace.names);
    }
    let mut tags = Tags::of_block_io();
    if let Some(evidence) = evidence {
        tags.text("blkkin.parent.evidence", evidence);
    }
    let lost = parent.filter(|parent| match below_root {
        true => matches!(placement.trace.root, Root::Missing),
        false => {
            !index.requests.contains_key(parent)
                && !index.bios.contains_key(parent)
                && !index.submissions.contains_key(parent)
        }
    });
    top_tags(placement, parent, lost, &mut tags);
    io_tags(placement, bio.device, bio.sector, bio.bytes, bio.op, &mut tags);
    if bio.split {
        tags.text("blkkin.split", "more than one request carried it");
    }
    span.links = merge_links(index, bio, &mut tags);
    if let Some(origin) = origin {
        page_origin::tags(origin, &placement.trace.origin_names, &mut tags);
        span.links.extend(page_origin::links(origin));
    }
    tags.times(bio.queue, bio.end);
    span.error = status_tags(bio.status, &mut tags);
    span.tags = tags.0;
    span
}

/// Returns the service and the kind of a bio's span. See [`super`].
fn side(placement: &SpanPlacement<'_>, index: &BlockIndex<'_>, bio: &BioEvent) -> (Arc<str>, SpanKind) {
    if is_served_by_device(index, bio) {
        return (names::device(&placement.trace.names.devices, bio.device), SpanKind::Server);
    }
    let write_back = page_origin::is_write_back(bio, index.origins.of_bio(bio));
    (
        if write_back { names::WRITE_BACK.clone() } else { names::BLOCK.clone() },
        if placement.trace.queued_by_root(bio) { SpanKind::Server } else { SpanKind::Local },
    )
}

/// Returns whether the device processed the bio itself, as device-mapper, md and zram do. On other
/// devices too a bio ends without a request if it is refused or has nothing to flush.
fn is_served_by_device(index: &BlockIndex<'_>, bio: &BioEvent) -> bool {
    let served = bio.status.is_ok() && bio.bytes > 0;
    bio.request.is_none() && (served || index.upper.contains_key(&bio.span))
}

/// Returns the evidence of a lower bio's parent.
fn lower_evidence(index: &BlockIndex<'_>, upper: SpanId) -> &'static str {
    match (index.bios.contains_key(&upper), index.requests.contains_key(&upper)) {
        (true, _) => "exact: the driver's own pointer from this bio to that one",
        (false, true) => "exact: it serves the kiocb in the loop device's request",
        (false, false) => "exact: it serves a kiocb whose owner's record is missing",
    }
}

/// Returns the evidence of a bio's submitter.
fn submitted_evidence(trace: &Trace) -> &'static str {
    match trace.root {
        Root::Commit(_) => "exact: the journal's thread was inside the commit",
        Root::Fault(_) => "exact: the task was inside the page fault",
        _ => "exact: the task was inside the call",
    }
}

/// Returns the link to the request that a bio was merged into, and tags a request that is missing.
fn merge_links(index: &BlockIndex<'_>, bio: &BioEvent, tags: &mut Tags) -> Vec<SpanLink> {
    let Some(request) = bio.request else {
        tags.text("blkkin.request", "none was made for it");
        return Vec::new();
    };
    match (bio.first, index.requests.get(&request)) {
        (true, Some(_)) => {}
        (true, None) => tags.owned("blkkin.missing.request", request.to_string()),
        (false, None) => tags.owned("blkkin.merged_into", request.to_string()),
        (false, Some(&trace)) => {
            tags.owned("blkkin.merged_into", request.to_string());
            return vec![SpanLink {
                trace,
                span: request,
                relation: "merged_into (exact: bio in the request's list)".into(),
            }];
        }
    }
    Vec::new()
}

fn request_span(placement: &SpanPlacement<'_>, index: &BlockIndex<'_>, request: &RequestEvent) -> Span {
    let sent_by_root = placement.trace.sent_by_root(request);
    let mut span = placement.span(SpanHeader {
        id: request.span,
        parent: if sent_by_root { Some(placement.bio_parent) } else { request.parent },
        name: request_name(request.op.name_for(request.bytes)),
        service: names::device(&placement.trace.names.devices, request.device),
        kind: SpanKind::Server,
        start: request.start,
        end: request.complete,
    });
    if request.parent.is_none() {
        span.remote_service = names::client_service(&placement.trace.names);
    }
    let wallclock = |time| placement.anchor.wallclock(time);
    let moments = [
        (request.plugged.then_some(request.start), "plugged"),
        (request.insert, "inserted"),
        (request.issue, "issued"),
        (Some(request.complete), "completed"),
    ];
    let annotation = |(time, name): (Option<_>, _)| time.map(|time| (wallclock(time), Cow::Borrowed(name)));
    span.annotations = moments.into_iter().filter_map(annotation).collect();
    let mut tags = Tags::of_block_io();
    match (request.parent, sent_by_root) {
        (_, true) => tags.text("blkkin.parent.evidence", "exact: the task sent it inside the call"),
        (Some(_), false) => tags.text("blkkin.parent.evidence", "exact: first bio of the request"),
        (None, false) => {}
    }
    let lost = request.parent.filter(|parent| match sent_by_root {
        true => matches!(placement.trace.root, Root::Missing),
        false => !index.bios.contains_key(parent),
    });
    top_tags(placement, request.parent, lost, &mut tags);
    io_tags(placement, request.device, request.sector, request.bytes, request.op, &mut tags);
    tags.number("blkkin.bios", request.bios);
    tags.maybe("blkkin.tag", request.tag);
    if request.requeued {
        tags.text("blkkin.requeued", "put back and issued again at least once");
    }
    flush_tags(request, &mut tags);
    tags.times(request.start, request.complete);
    // The issue of a request that needs a flush has another meaning: see [`crate::latency`].
    if !request.flush_sequence {
        tags.maybe("blkkin.queue.ns", phases::queue(request).map(|time| time.0));
        tags.maybe("blkkin.plug.ns", phases::plug(request).map(|time| time.0));
        tags.maybe("blkkin.scheduler.ns", phases::scheduler(request).map(|time| time.0));
        tags.maybe("blkkin.device.ns", phases::device(request).map(|time| time.0));
    }
    span.error = status_tags(request.status, &mut tags);
    span.tags = tags.0;
    span
}

fn flush_tags(request: &RequestEvent, tags: &mut Tags) {
    match (request.issue, request.flush_sequence) {
        (None, _) => tags.text("blkkin.flush", "the flush machinery served it by a request of its own"),
        (Some(_), true) => tags.text("blkkin.flush", "the device's cache was flushed for it"),
        (Some(_), false) => {}
    }
}

/// Adds the tags of a span without a parent in the trace: its process and node, and a lost parent.
fn top_tags(placement: &SpanPlacement<'_>, parent: Option<SpanId>, lost: Option<SpanId>, tags: &mut Tags) {
    if parent.is_none() {
        process_tags(placement.trace, tags);
    }
    if let Some(lost) = lost {
        tags.owned("blkkin.missing.parent", lost.to_string());
    }
    if parent.is_none() || (lost.is_some() && matches!(placement.trace.root, Root::Missing)) {
        placement.root_tags(tags);
    }
}

fn io_tags(
    placement: &SpanPlacement<'_>,
    device: DeviceId,
    sector: Sector,
    bytes: u32,
    op: BlockOp,
    tags: &mut Tags,
) {
    tags.shared("system.device", &names::device(&placement.trace.names.devices, device));
    match op.name_for(bytes) {
        "read" => tags.text("disk.io.direction", "read"),
        "write" | "zone-append" => tags.text("disk.io.direction", "write"),
        // A flush or discard moves no data in either direction.
        _ => {}
    }
    // A flush has no sector, nor has a passthrough request: the kernel fills in -1.
    if bytes != 0 && !op.is_passthrough() {
        tags.number("blkkin.sector", sector.0);
    }
    tags.number("blkkin.bytes", bytes);
    let set = [op.is_sync(), op.is_meta(), op.is_fua(), op.is_preflush(), op.is_readahead()];
    let set = set.into_iter().rev().fold(0, |all, set| all << 1 | usize::from(set));
    if set != 0 {
        tags.shared("blkkin.flags", &FLAGS[set]);
    }
}

/// Text for each set of flags. The lowest bit is the first flag.
static FLAGS: LazyLock<[Arc<str>; 32]> = LazyLock::new(|| {
    let names = ["sync", "meta", "fua", "preflush", "readahead"];
    std::array::from_fn(|set| {
        let names_of_set =
            names.iter().enumerate().filter(|(bit, _)| set >> bit & 1 == 1).map(|(_, name)| *name);
        names_of_set.collect::<Vec<_>>().join(" ").into()
    })
});

/// Returns the span name. Nearly all are one of three constants.
fn bio_name(operation: &str) -> Cow<'static, str> {
    match operation {
        "read" => "bio read".into(),
        "write" => "bio write".into(),
        "flush" => "bio flush".into(),
        other => format!("bio {other}").into(),
    }
}

fn request_name(operation: &str) -> Cow<'static, str> {
    match operation {
        "read" => "request read".into(),
        "write" => "request write".into(),
        "flush" => "request flush".into(),
        other => format!("request {other}").into(),
    }
}

fn status_tags(status: BlockStatus, tags: &mut Tags) -> Option<Cow<'static, str>> {
    if status.is_ok() {
        return None;
    }
    tags.text("error.type", status.name());
    Some(status.name().into())
}
