//! Bios and requests.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use blkkin_wire::event::{BioEvent, BlockOp, BlockStatus, RequestEvent, Submitter};
use blkkin_wire::ids::{DeviceId, Sector, SpanId, TraceId};
use blkkin_wire::span::{Span, SpanKind, SpanLink};

use super::call::process_tags;
use super::names;
use super::place::{Outline, Place};
use super::tags::Tags;
use crate::join::hash::SpanMap;
use crate::phases;
use crate::trace::{Root, Trace};

/// Adds the spans of a trace's bios and requests.
pub(super) fn add(place: &Place<'_>, spans: &mut Vec<Span>) {
    if place.trace.bios.is_empty() && place.trace.requests.is_empty() {
        return;
    }
    let present = Present::of(place);
    spans.extend(place.trace.bios.iter().map(|bio| bio_span(place, &present, bio)));
    spans.extend(place.trace.requests.iter().map(|request| request_span(place, &present, request)));
}

/// What of the block layer is in this trace, by span; a big `sync` has tens of thousands.
struct Present {
    bios: SpanMap<()>,
    /// What has bios of a device below: requests, and bios of devices that make no requests.
    above: SpanMap<()>,
    /// Requests by the trace that shows them: this one, or one whose request carried a bio of this.
    requests: SpanMap<TraceId>,
}

impl Present {
    fn of(place: &Place<'_>) -> Self {
        let Trace { bios, requests, carried, .. } = place.trace;
        let carriers = carried.iter().filter_map(|carried| Some((carried.request.span, carried.trace?)));
        let below = bios.iter().filter_map(|bio| match bio.submitter {
            Submitter::Span(above) if above != place.trace.root_span => Some((above, ())),
            Submitter::Span(_) | Submitter::Kernel => None,
        });
        Present {
            bios: bios.iter().map(|bio| (bio.span, ())).collect(),
            above: below.collect(),
            requests: carriers.chain(requests.iter().map(|request| (request.span, place.id))).collect(),
        }
    }
}

fn bio_span(place: &Place<'_>, present: &Present, bio: &BioEvent) -> Span {
    let (parent, link) = match bio.submitter {
        Submitter::Kernel => (None, None),
        Submitter::Span(span) if span == place.trace.root_span => (Some(span), Some(submitted(place.trace))),
        Submitter::Span(above) => (Some(above), Some(below(present, above))),
    };
    let below_root = parent == Some(place.trace.root_span);
    let (service, kind) = side(place, present, bio);
    let mut span = place.span(Outline {
        id: bio.span,
        parent: if below_root { Some(place.bios_below) } else { parent },
        name: bio_name(bio.op.name_for(bio.bytes)),
        service,
        kind,
        start: bio.queue,
        end: bio.end,
    });
    if parent.is_none() {
        span.remote_service = names::asker(&place.trace.names);
    }
    let mut tags = Tags::of_block_io();
    if let Some(link) = link {
        tags.text("blkkin.link", link);
    }
    let lost = parent.filter(|parent| match below_root {
        true => matches!(place.trace.root, Root::Missing),
        false => !present.requests.contains_key(parent) && !present.bios.contains_key(parent),
    });
    top_tags(place, parent, lost, &mut tags);
    io_tags(place, bio.device, bio.sector, bio.bytes, bio.op, &mut tags);
    if bio.split {
        tags.text("blkkin.split", "more than one request carried it");
    }
    span.links = carried_by(present, bio, &mut tags);
    tags.times(bio.queue, bio.end);
    span.error = status_tags(bio.status, &mut tags);
    span.tags = tags.0;
    span
}

/// Who serves a bio, and on which side of a conversation that is: see [`super`].
fn side(place: &Place<'_>, present: &Present, bio: &BioEvent) -> (Arc<str>, SpanKind) {
    if serves_itself(present, bio) {
        return (names::device(&place.trace.names.devices, bio.device), SpanKind::Server);
    }
    (names::BLOCK.clone(), if place.trace.queued_by_root(bio) { SpanKind::Server } else { SpanKind::Local })
}

/// Whether the device took the bio as it is, as the device-mapper, md and zram do. On other devices too a bio ends without a
/// request: where it is refused, or has nothing to flush.
fn serves_itself(present: &Present, bio: &BioEvent) -> bool {
    let served = bio.status.is_ok() && bio.bytes > 0;
    bio.request.is_none() && (served || present.above.contains_key(&bio.span))
}

/// Why a bio is below something of a device above.
fn below(present: &Present, above: SpanId) -> &'static str {
    match present.bios.contains_key(&above) {
        true => "exact: the driver's own pointer from this bio to that one",
        false => "exact: it serves the kiocb that lies in the loop device's request",
    }
}

/// Why a bio is below its submitter.
fn submitted(trace: &Trace) -> &'static str {
    match trace.root {
        Root::Commit(_) => "exact: the journal's thread was inside the commit",
        _ => "exact: the task was inside the call",
    }
}

/// The link to the request that a merged bio travelled in; and whether its own is missing.
fn carried_by(present: &Present, bio: &BioEvent, tags: &mut Tags) -> Vec<SpanLink> {
    let Some(request) = bio.request else {
        tags.text("blkkin.request", "none was made for it");
        return Vec::new();
    };
    match (bio.first, present.requests.get(&request)) {
        (true, Some(_)) => {}
        (true, None) => tags.owned("blkkin.missing.request", request.to_string()),
        (false, None) => tags.owned("blkkin.carried_by", request.to_string()),
        (false, Some(&trace)) => {
            tags.owned("blkkin.carried_by", request.to_string());
            return vec![SpanLink {
                trace,
                span: request,
                relation: "carried by (exact: bio in the request's list)".into(),
            }];
        }
    }
    Vec::new()
}

fn request_span(place: &Place<'_>, present: &Present, request: &RequestEvent) -> Span {
    let sent = place.trace.sent_by_root(request);
    let mut span = place.span(Outline {
        id: request.span,
        parent: if sent { Some(place.bios_below) } else { request.parent },
        name: request_name(request.op.name_for(request.bytes)),
        service: names::device(&place.trace.names.devices, request.device),
        kind: SpanKind::Server,
        start: request.start,
        end: request.complete,
    });
    if request.parent.is_none() {
        span.remote_service = names::asker(&place.trace.names);
    }
    let wallclock = |time| place.anchor.wallclock(time);
    let moments = [
        (request.plugged.then_some(request.start), "plugged"),
        (request.insert, "inserted"),
        (request.issue, "issued"),
        (Some(request.complete), "completed"),
    ];
    let said = |(time, word): (Option<_>, _)| time.map(|time| (wallclock(time), Cow::Borrowed(word)));
    span.annotations = moments.into_iter().filter_map(said).collect();
    let mut tags = Tags::of_block_io();
    match (request.parent, sent) {
        (_, true) => tags.text("blkkin.link", "exact: the task sent it inside the call"),
        (Some(_), false) => tags.text("blkkin.link", "exact: first bio of the request"),
        (None, false) => {}
    }
    let lost = request.parent.filter(|parent| match sent {
        true => matches!(place.trace.root, Root::Missing),
        false => !present.bios.contains_key(parent),
    });
    top_tags(place, request.parent, lost, &mut tags);
    io_tags(place, request.device, request.sector, request.bytes, request.op, &mut tags);
    tags.number("blkkin.bios", request.bios);
    tags.maybe("blkkin.tag", request.tag);
    if request.requeued {
        tags.text("blkkin.requeued", "put back and issued again at least once");
    }
    flush_tags(request, &mut tags);
    tags.times(request.start, request.complete);
    // Of a request that needs a flush the issue divides something else: see `account`.
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

/// For a span that is at the top of what is there: who and where; and if it has a parent, that this is lost.
fn top_tags(place: &Place<'_>, parent: Option<SpanId>, lost: Option<SpanId>, tags: &mut Tags) {
    if parent.is_none() {
        process_tags(place.trace, tags);
    }
    if let Some(lost) = lost {
        tags.owned("blkkin.missing.parent", lost.to_string());
    }
    if parent.is_none() || (lost.is_some() && matches!(place.trace.root, Root::Missing)) {
        place.root_tags(tags);
    }
}

fn io_tags(place: &Place<'_>, device: DeviceId, sector: Sector, bytes: u32, op: BlockOp, tags: &mut Tags) {
    tags.shared("system.device", &names::device(&place.trace.names.devices, device));
    match op.name_for(bytes) {
        "read" => tags.text("disk.io.direction", "read"),
        "write" | "zone-append" => tags.text("disk.io.direction", "write"),
        // A flush or discard moves no data in either direction.
        _ => {}
    }
    // A flush has none, nor has a driver's command: the kernel fills in -1.
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

/// What the flags of each set of them are called, the first by the lowest bit.
static FLAGS: LazyLock<[Arc<str>; 32]> = LazyLock::new(|| {
    let names = ["sync", "meta", "fua", "preflush", "readahead"];
    std::array::from_fn(|set| {
        let said = names.iter().enumerate().filter(|(bit, _)| set >> bit & 1 == 1).map(|(_, name)| *name);
        said.collect::<Vec<_>>().join(" ").into()
    })
});

/// Nearly all are one of three.
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
