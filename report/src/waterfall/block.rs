//! Rows of the block layer: bios with their requests, of a call or of a commit.

use std::collections::{BTreeMap, BTreeSet};

use blkkin_aggregator::latency::phases;
use blkkin_aggregator::trace::Trace;
use blkkin_aggregator::trace::page_origins::OriginIndex;
use blkkin_wire::event::{BioEvent, BlockOp, BlockStatus, RequestEvent, Submitter};
use blkkin_wire::ids::{DeviceId, SpanId};

use self::selection::{BIOS_SHOWN, BioSelection, select, slowest_requests};
use super::async_io;
use super::bar::{Fill, Segment};
use super::page_origin;
use super::row::{RowGroup, WaterfallRow};
use crate::text::line::sanitize;
use crate::text::style::Ink;
use crate::text::units;

pub mod selection;

/// Returns the bios of `trace` with their requests, then the requests without a recorded bio.
/// `names_of` is the trace with the devices' names.
pub(super) fn groups(names_of: &Trace, trace: &Trace, depth: usize) -> Vec<RowGroup> {
    let lower_bios = lower_bios(trace);
    let stacked = trace.bios.iter().any(|bio| !trace.queued_by_root(bio));
    let several = stacked || devices(names_of).len() > 1;
    let name =
        |device| if several { format!(" {}", device_name(names_of, trace, device)) } else { String::new() };
    let origins = OriginIndex::of(trace);
    let selection = select(trace, |bio| !is_lower(&lower_bios, bio));
    let mut groups: Vec<RowGroup> = selection
        .shown
        .iter()
        .map(|bio| bio_group(bio, trace, (&selection.merged, &lower_bios, &origins), depth, &name))
        .collect();
    groups.extend(more_bios(&selection, trace, depth));
    groups.extend(async_io::groups(trace, depth, |io| {
        lower_bio_rows(io, trace, (&lower_bios, &origins), depth + 1, &name)
    }));
    let bios: BTreeSet<SpanId> = trace.bios.iter().map(|bio| bio.span).collect();
    let is_recorded = |span: SpanId| bios.contains(&span);
    let without_bio: Vec<&RequestEvent> =
        trace.requests.iter().filter(|request| !request.parent.is_some_and(is_recorded)).collect();
    groups.extend(requests_without_bio(&without_bio, depth, name));
    groups
}

/// Bios by the bio or request of their trace that submitted them.
type Bios<'a> = BTreeMap<SpanId, Vec<&'a BioEvent>>;

/// Returns the bios of asynchronous I/O and those on lower devices, by the submission, bio or
/// request that submitted them.
fn lower_bios(trace: &Trace) -> Bios<'_> {
    let requests = trace.requests.iter().map(|request| request.span);
    let async_ios = trace.async_ios.iter().map(|io| io.event.span);
    let parents = trace.bios.iter().map(|bio| bio.span).chain(requests).chain(async_ios);
    let parents: BTreeSet<SpanId> = parents.collect();
    let mut lower_bios = Bios::new();
    for bio in trace.bios.iter().filter(|bio| !trace.counted_by_root(bio)) {
        if let Submitter::Span(parent) = bio.submitter
            && parents.contains(&parent)
        {
            lower_bios.entry(parent).or_default().push(bio);
        }
    }
    lower_bios
}

fn is_lower(lower_bios: &Bios<'_>, bio: &BioEvent) -> bool {
    matches!(bio.submitter, Submitter::Span(parent) if lower_bios.contains_key(&parent))
}

/// Returns a bio, its requests with the bios merged into them, and the bios on lower devices.
fn bio_group(
    bio: &BioEvent,
    trace: &Trace,
    (merged, lower_bios, origins): (&Bios<'_>, &Bios<'_>, &OriginIndex<'_>),
    depth: usize,
    name: &impl Fn(DeviceId) -> String,
) -> RowGroup {
    let row = |request: &RequestEvent| request_row(request, depth + 1, &name(request.device));
    // On stacked devices, a bio and its request can be on different devices.
    let device = if lower_bios.is_empty() { String::new() } else { name(bio.device) };
    let mut rows = vec![bio_row(bio, depth, &device)];
    rows.extend(origin_row(bio, trace, origins, depth + 1));
    rows.extend(lower_bio_rows(bio.span, trace, (lower_bios, origins), depth + 1, name));
    let (own, more) =
        slowest_requests(trace.requests.iter().filter(|request| request.parent == Some(bio.span)));
    for request in own {
        rows.push(row(request));
        let bios = merged.get(&request.span);
        rows.extend(bios.and_then(|bios| {
            summed_bios(bios, depth + 2, format!("{} merged", units::count(bios.len() as u64)))
        }));
        rows.extend(lower_bio_rows(request.span, trace, (lower_bios, origins), depth + 2, name));
    }
    rows.extend(summed_requests(&more, depth + 1, "+ ", "more "));
    rows.extend(trace.merged_into.iter().filter(|carried| carried.bio == bio.span).map(|carried| {
        let row = row(&carried.request);
        WaterfallRow { label: format!("{}, of another trace", row.label), ..row }
    }));
    RowGroup { start: bio.queue, rows }
}

/// Returns the rows of the bios that a bio or request submitted to a lower device.
fn lower_bio_rows(
    parent: SpanId,
    trace: &Trace,
    (lower_bios, origins): (&Bios<'_>, &OriginIndex<'_>),
    depth: usize,
    name: &impl Fn(DeviceId) -> String,
) -> Vec<WaterfallRow> {
    let bios = lower_bios.get(&parent).map(Vec::as_slice).unwrap_or_default();
    let (shown, more) = bios.split_at(bios.len().min(BIOS_SHOWN));
    let groups =
        shown.iter().map(|bio| bio_group(bio, trace, (&Bios::new(), lower_bios, origins), depth, name));
    let rows = groups.flat_map(|group| group.rows);
    rows.chain(summed_bios(more, depth, units::counted(more.len() as u64, "more bio"))).collect()
}

/// Returns the sentence about the pages that a bio writes back.
fn origin_row(
    bio: &BioEvent,
    trace: &Trace,
    origins: &OriginIndex<'_>,
    depth: usize,
) -> Option<WaterfallRow> {
    let origin = origins.of_bio(bio).filter(|_| bio.op.is_write())?;
    Some(WaterfallRow::note(depth, page_origin::sentence(trace, origin)))
}

fn bio_row(bio: &BioEvent, depth: usize, device: &str) -> WaterfallRow {
    let merged = if !bio.first && bio.request.is_some() { ", merged" } else { "" };
    let split = if bio.split { ", split" } else { "" };
    let label = format!("bio {}{device}{merged}{split}{}", operation(bio.op, bio.bytes), failure(bio.status));
    let lifetime = Segment { from: bio.queue, to: bio.end, fill: Fill::Bio };
    WaterfallRow::new(depth, label, bio.end.since(bio.queue), vec![lifetime]).with_ink(status_ink(bio.status))
}

fn request_row(request: &RequestEvent, depth: usize, device: &str) -> WaterfallRow {
    let requeued = if request.requeued { ", requeued" } else { "" };
    let size = if request.bytes == 0 {
        request.op.name_for(0).to_owned()
    } else {
        let command =
            if request.op.is_passthrough() { format!("{} ", request.op.name()) } else { String::new() };
        format!("{command}{}", units::bytes(request.bytes.into()))
    };
    let label = format!("request {size}{device}{requeued}{}", failure(request.status));
    WaterfallRow {
        queued: phases::queue(request),
        device: phases::device(request),
        ..WaterfallRow::new(depth, label, request.complete.since(request.start), segments(request))
    }
    .with_ink(status_ink(request.status))
}

/// Returns a request's time before the scheduler, in the scheduler, and at the device. A request of
/// the flush machinery has a fill of its own at the device.
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

/// Returns one row for the bios without a row of their own and one for their requests, placed after
/// the shown bios.
fn more_bios(selection: &BioSelection<'_>, trace: &Trace, depth: usize) -> Option<RowGroup> {
    let bios = selection.shown.iter().chain(&selection.rest);
    let start = bios.map(|bio| bio.queue).max()?;
    let more = units::counted(selection.rest.len() as u64, "more bio");
    let mut rows = vec![summed_bios(&selection.rest, depth, more)?];
    let rest: BTreeSet<SpanId> = selection.rest.iter().map(|bio| bio.span).collect();
    let own = trace.requests.iter().filter(|request| request.parent.is_some_and(|bio| rest.contains(&bio)));
    let carried = trace
        .merged_into
        .iter()
        .filter(|carried| rest.contains(&carried.bio))
        .map(|carried| &carried.request);
    let requests: Vec<_> = own.chain(carried).collect();
    rows.extend(summed_requests(&requests, depth + 1, "", ""));
    Some(RowGroup { start, rows })
}

fn summed_bios(bios: &[&BioEvent], depth: usize, how_many: String) -> Option<WaterfallRow> {
    let start = bios.iter().map(|bio| bio.queue).min()?;
    let end = bios.iter().map(|bio| bio.end).max()?;
    let bytes: u64 = bios.iter().map(|bio| u64::from(bio.bytes)).sum();
    let lifetimes =
        bios.iter().map(|bio| Segment { from: bio.queue, to: bio.end, fill: Fill::Bio }).collect();
    let label = format!("+ {how_many}, {}", units::bytes(bytes));
    Some(WaterfallRow::new(depth, label, end.since(start), lifetimes).with_ink(Ink::Dim))
}

fn requests_without_bio(
    without_bio: &[&RequestEvent],
    depth: usize,
    name: impl Fn(DeviceId) -> String,
) -> Vec<RowGroup> {
    let shown = if without_bio.len() > BIOS_SHOWN + 1 { BIOS_SHOWN } else { without_bio.len() };
    let (first, rest) = without_bio.split_at(shown);
    let row = |request: &&RequestEvent| request_row(request, depth, &name(request.device));
    let mut groups: Vec<RowGroup> =
        first.iter().map(|request| RowGroup { start: request.start, rows: vec![row(request)] }).collect();
    let start = rest.iter().map(|request| request.start).min();
    let summed = summed_requests(rest, depth, "+ ", "");
    groups.extend(start.zip(summed).map(|(start, row)| RowGroup { start, rows: vec![row] }));
    groups
}

fn summed_requests(requests: &[&RequestEvent], depth: usize, sign: &str, more: &str) -> Option<WaterfallRow> {
    let start = requests.iter().map(|request| request.start).min()?;
    let end = requests.iter().map(|request| request.complete).max()?;
    let label = format!("{sign}{}", units::counted(requests.len() as u64, &format!("{more}request")));
    let segments = requests.iter().flat_map(|request| segments(request)).collect();
    Some(WaterfallRow::new(depth, label, end.since(start), segments).with_ink(Ink::Dim))
}

/// Names the devices, or counts them if there are more than two.
pub fn name_devices(names: BTreeSet<String>) -> String {
    let names: Vec<String> = names.iter().map(|name| sanitize(name)).collect();
    match names.as_slice() {
        [] => "the device".to_owned(),
        [one] => format!("the device {one}"),
        [one, two] => format!("the devices {one} and {two}"),
        many => format!("{} devices", many.len()),
    }
}

/// Returns the names of the devices of a trace's requests, with those of the commits that it waited
/// for.
pub fn devices(trace: &Trace) -> BTreeSet<String> {
    let all = std::iter::once(trace).chain(trace.waited_for.iter().map(|cause| &*cause.trace));
    all.flat_map(|part| requests(part).map(move |request| device_name(trace, part, request.device))).collect()
}

/// Returns a trace's requests, and the requests of other traces that carried its bios.
pub(super) fn requests(trace: &Trace) -> impl Iterator<Item = &RequestEvent> {
    trace.requests.iter().chain(trace.merged_into.iter().map(|carried| &carried.request))
}

/// Returns a device's name, or its numbers if the name is unknown.
pub(super) fn device_name(names_of: &Trace, trace: &Trace, device: DeviceId) -> String {
    let known = names_of.names.devices.names.get(&device).or_else(|| trace.names.devices.names.get(&device));
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
