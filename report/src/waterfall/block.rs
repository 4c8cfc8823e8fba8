//! The block layer's rows: bios with their requests, of a call or of a commit.

use std::collections::{BTreeMap, BTreeSet};

use blkkin_aggregator::phases;
use blkkin_aggregator::trace::Trace;
use blkkin_wire::event::{BioEvent, BlockOp, BlockStatus, RequestEvent, Submitter};
use blkkin_wire::ids::{DeviceId, SpanId};

use self::choice::{BIOS_SHOWN, Choice, choose};
use super::bar::{Fill, Segment};
use super::tree::{Group, Row};
use crate::text::style::Ink;
use crate::text::units;

pub mod choice;

/// The bios of `of` with their requests, then requests without a bio here. `named` has the devices' names.
pub(super) fn groups(named: &Trace, of: &Trace, depth: usize) -> Vec<Group> {
    let below = below(of);
    let several = !below.is_empty() || devices(named).len() > 1;
    let name = |device| if several { format!(" {}", device_name(named, of, device)) } else { String::new() };
    let choice = choose(of, |bio| !is_below(&below, bio));
    let mut groups: Vec<Group> =
        choice.shown.iter().map(|bio| bio_group(bio, of, (&choice.merged, &below), depth, &name)).collect();
    groups.extend(more_bios(&choice, of, depth));
    let here: BTreeSet<SpanId> = of.bios.iter().map(|bio| bio.span).collect();
    let is_here = |span: SpanId| here.contains(&span);
    let alone: Vec<&RequestEvent> =
        of.requests.iter().filter(|request| !request.parent.is_some_and(is_here)).collect();
    groups.extend(requests_alone(&alone, depth, name));
    groups
}

/// Bios by a request or a bio of their trace.
type Bios<'a> = BTreeMap<SpanId, Vec<&'a BioEvent>>;

/// The bios that do the work of a request or a bio of this trace, by it.
fn below(of: &Trace) -> Bios<'_> {
    let requests = of.requests.iter().map(|request| request.span);
    let here: BTreeSet<SpanId> = of.bios.iter().map(|bio| bio.span).chain(requests).collect();
    let mut below = Bios::new();
    for bio in of.bios.iter().filter(|bio| !of.queued_by_root(bio)) {
        if let Submitter::Span(above) = bio.submitter
            && here.contains(&above)
        {
            below.entry(above).or_default().push(bio);
        }
    }
    below
}

fn is_below(below: &Bios<'_>, bio: &BioEvent) -> bool {
    matches!(bio.submitter, Submitter::Span(above) if below.contains_key(&above))
}

/// A bio, its requests, below each in a row what was merged into it, and what did its work on a device below.
fn bio_group(
    bio: &BioEvent,
    of: &Trace,
    (merged, below): (&Bios<'_>, &Bios<'_>),
    depth: usize,
    name: &impl Fn(DeviceId) -> String,
) -> Group {
    let row = |request: &RequestEvent| request_row(request, depth + 1, &name(request.device));
    // Where devices lie on one another a bio's is not its request's.
    let device = if below.is_empty() { String::new() } else { name(bio.device) };
    let mut rows = vec![bio_row(bio, depth, &device)];
    rows.extend(under(bio.span, of, below, depth + 1, name));
    for request in of.requests.iter().filter(|request| request.parent == Some(bio.span)) {
        rows.push(row(request));
        let bios = merged.get(&request.span);
        rows.extend(bios.and_then(|bios| {
            many_bios(bios, depth + 2, format!("{} merged", units::count(bios.len() as u64)))
        }));
        rows.extend(under(request.span, of, below, depth + 2, name));
    }
    rows.extend(of.carried.iter().filter(|carried| carried.bio == bio.span).map(|carried| {
        let row = row(&carried.request);
        Row { label: format!("{}, another's", row.label), ..row }
    }));
    Group { at: bio.queue, rows }
}

/// What did the work of a bio or a request on a device below.
fn under(
    above: SpanId,
    of: &Trace,
    below: &Bios<'_>,
    depth: usize,
    name: &impl Fn(DeviceId) -> String,
) -> Vec<Row> {
    let bios = below.get(&above).map(Vec::as_slice).unwrap_or_default();
    let (shown, more) = bios.split_at(bios.len().min(BIOS_SHOWN));
    let groups = shown.iter().map(|bio| bio_group(bio, of, (&Bios::new(), below), depth, name));
    let rows = groups.flat_map(|group| group.rows);
    rows.chain(many_bios(more, depth, units::counted(more.len() as u64, "more bio"))).collect()
}

fn bio_row(bio: &BioEvent, depth: usize, device: &str) -> Row {
    let merged = if !bio.first && bio.request.is_some() { ", merged" } else { "" };
    let split = if bio.split { ", split" } else { "" };
    let label = format!("bio {}{device}{merged}{split}{}", operation(bio.op, bio.bytes), failure(bio.status));
    let life = Segment { from: bio.queue, to: bio.end, fill: Fill::Bio };
    Row::new(depth, label, bio.end.since(bio.queue), vec![life]).inked(status_ink(bio.status))
}

fn request_row(request: &RequestEvent, depth: usize, device: &str) -> Row {
    let requeued = if request.requeued { ", requeued" } else { "" };
    let size = if request.bytes == 0 {
        request.op.name_for(0).to_owned()
    } else {
        let command =
            if request.op.is_passthrough() { format!("{} ", request.op.name()) } else { String::new() };
        format!("{command}{}", units::bytes(request.bytes.into()))
    };
    let label = format!("request {size}{device}{requeued}{}", failure(request.status));
    Row {
        queued: phases::queue(request),
        device: phases::device(request),
        ..Row::new(depth, label, request.complete.since(request.start), segments(request))
    }
    .inked(status_ink(request.status))
}

/// A request's time before it was in a scheduler, in it, and at the device; there a cache flush of its own or before its data is told apart.
pub fn segments(request: &RequestEvent) -> Vec<Segment> {
    let part = |from, to, fill| Segment { from, to, fill };
    let device = if request.flush_sequence { Fill::Flush } else { Fill::Device };
    match request.issue {
        Some(issue) => {
            let inserted = request.insert.unwrap_or(issue).min(issue);
            let scheduled = (inserted < issue).then(|| part(inserted, issue, Fill::Scheduled));
            let queued = part(request.start, inserted, Fill::Queued);
            let device = part(issue, request.complete.max(issue), device);
            [Some(queued), scheduled, Some(device)].into_iter().flatten().collect()
        }
        None => vec![part(request.start, request.complete, Fill::Queued)],
    }
}

/// The bios that are not shown one by one, and their requests, in a row each. After those shown, of which they are more.
fn more_bios(choice: &Choice<'_>, of: &Trace, depth: usize) -> Option<Group> {
    let bios = choice.shown.iter().chain(&choice.rest);
    let at = bios.map(|bio| bio.queue).max()?;
    let more = units::counted(choice.rest.len() as u64, "more bio");
    let mut rows = vec![many_bios(&choice.rest, depth, more)?];
    let rest: BTreeSet<SpanId> = choice.rest.iter().map(|bio| bio.span).collect();
    let own = of.requests.iter().filter(|request| request.parent.is_some_and(|bio| rest.contains(&bio)));
    let carried =
        of.carried.iter().filter(|carried| rest.contains(&carried.bio)).map(|carried| &carried.request);
    let requests: Vec<_> = own.chain(carried).collect();
    rows.extend(many_requests(&requests, depth + 1, ""));
    Some(Group { at, rows })
}

fn many_bios(bios: &[&BioEvent], depth: usize, how_many: String) -> Option<Row> {
    let start = bios.iter().map(|bio| bio.queue).min()?;
    let end = bios.iter().map(|bio| bio.end).max()?;
    let bytes: u64 = bios.iter().map(|bio| u64::from(bio.bytes)).sum();
    let lives = bios.iter().map(|bio| Segment { from: bio.queue, to: bio.end, fill: Fill::Bio }).collect();
    let label = format!("+ {how_many}, {}", units::bytes(bytes));
    Some(Row::new(depth, label, end.since(start), lives).inked(Ink::Dim))
}

fn requests_alone(alone: &[&RequestEvent], depth: usize, name: impl Fn(DeviceId) -> String) -> Vec<Group> {
    let shown = if alone.len() > BIOS_SHOWN + 1 { BIOS_SHOWN } else { alone.len() };
    let (first, rest) = alone.split_at(shown);
    let row = |request: &&RequestEvent| request_row(request, depth, &name(request.device));
    let mut groups: Vec<Group> =
        first.iter().map(|request| Group { at: request.start, rows: vec![row(request)] }).collect();
    let at = rest.iter().map(|request| request.start).min();
    groups.extend(at.zip(many_requests(rest, depth, "+ ")).map(|(at, row)| Group { at, rows: vec![row] }));
    groups
}

fn many_requests(requests: &[&RequestEvent], depth: usize, more: &str) -> Option<Row> {
    let start = requests.iter().map(|request| request.start).min()?;
    let end = requests.iter().map(|request| request.complete).max()?;
    let label = format!("{more}{}", units::counted(requests.len() as u64, "request"));
    let segments = requests.iter().flat_map(|request| segments(request)).collect();
    Some(Row::new(depth, label, end.since(start), segments).inked(Ink::Dim))
}

/// The names of the devices that its requests went to, those of the commits that it waited for too.
pub fn devices(trace: &Trace) -> BTreeSet<String> {
    let all = std::iter::once(trace).chain(trace.causes.iter().map(|cause| &*cause.trace));
    all.flat_map(|of| requests(of).map(move |request| device_name(trace, of, request.device))).collect()
}

/// Its requests, and those of others that carried its bios.
pub(super) fn requests(of: &Trace) -> impl Iterator<Item = &RequestEvent> {
    of.requests.iter().chain(of.carried.iter().map(|carried| &carried.request))
}

/// A device's name; its numbers where that is not known.
pub(super) fn device_name(named: &Trace, of: &Trace, device: DeviceId) -> String {
    let known = named.names.devices.0.get(&device).or_else(|| of.names.devices.0.get(&device));
    known.map_or_else(|| device.to_string(), |name| name.to_string())
}

fn operation(op: BlockOp, bytes: u32) -> String {
    let size = if bytes == 0 { String::new() } else { format!(" {}", units::bytes(bytes.into())) };
    let flags = match (op.is_preflush() && bytes > 0, op.is_fua()) {
        (true, true) => " flush+FUA",
        (true, false) => " flush",
        (false, true) => " FUA",
        (false, false) => "",
    };
    format!("{}{size}{flags}", op.name_for(bytes))
}

fn failure(status: BlockStatus) -> String {
    if status.is_ok() { String::new() } else { format!(": {}", status.name()) }
}

fn status_ink(status: BlockStatus) -> Ink {
    if status.is_ok() { Ink::Plain } else { Ink::Alarm }
}
