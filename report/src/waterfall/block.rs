//! The block layer's rows: bios with their requests, of a call or of a commit.

use std::collections::BTreeSet;

use blkkin_aggregator::trace::Trace;
use blkkin_wire::event::{BioEvent, BlockOp, BlockStatus, RequestEvent};
use blkkin_wire::ids::{DeviceId, SpanId};

use super::bar::{Fill, Segment};
use super::tree::{Group, Row};
use crate::collect::devices::{at_the_device, queued};
use crate::text::style::Ink;
use crate::text::units;

/// A parent's bios that are shown one by one; more are summed in one row. Three show whether they went out
/// together or one after the other.
pub const BIOS_SHOWN: usize = 3;

/// The bios of `of` with their requests, then requests without a bio here. `named` has the devices' names.
pub(super) fn groups(named: &Trace, of: &Trace, depth: usize) -> Vec<Group> {
    let several = devices(named).len() > 1;
    let name = |device| if several { format!(" {}", device_name(named, of, device)) } else { String::new() };
    let shown = if of.bios.len() > BIOS_SHOWN + 1 { BIOS_SHOWN } else { of.bios.len() };
    let (first, rest) = of.bios.split_at(shown);
    let mut groups: Vec<Group> = first
        .iter()
        .map(|bio| {
            let row = |request: &RequestEvent| request_row(request, depth + 1, &name(request.device));
            let mut rows = vec![bio_row(bio, depth)];
            rows.extend(of.requests.iter().filter(|request| request.parent == Some(bio.span)).map(row));
            rows.extend(of.carried.iter().filter(|carried| carried.bio == bio.span).map(|carried| {
                let row = row(&carried.request);
                Row { label: format!("{}, another's", row.label), ..row }
            }));
            Group { at: bio.queue, rows }
        })
        .collect();
    groups.extend(more_bios(rest, of, depth));
    let is_here = |span: SpanId| of.bios.iter().any(|bio| bio.span == span);
    let alone: Vec<&RequestEvent> =
        of.requests.iter().filter(|request| !request.parent.is_some_and(is_here)).collect();
    groups.extend(requests_alone(&alone, depth, name));
    groups
}

fn bio_row(bio: &BioEvent, depth: usize) -> Row {
    let merged = if !bio.first && bio.request.is_some() { ", merged" } else { "" };
    let split = if bio.split { ", split" } else { "" };
    let label = format!("bio {}{merged}{split}{}", operation(bio.op, bio.bytes), failure(bio.status));
    let life = Segment { from: bio.queue, to: bio.end, fill: Fill::Bio };
    Row::new(depth, label, bio.end.since(bio.queue), vec![life]).inked(status_ink(bio.status))
}

fn request_row(request: &RequestEvent, depth: usize, device: &str) -> Row {
    let requeued = if request.requeued { ", requeued" } else { "" };
    let size = if request.bytes == 0 {
        request.op.name_for(0).to_owned()
    } else {
        units::bytes(request.bytes.into())
    };
    let label = format!("request {size}{device}{requeued}{}", failure(request.status));
    Row {
        queued: queued(request),
        device: at_the_device(request),
        ..Row::new(depth, label, request.complete.since(request.start), phases(request))
    }
    .inked(status_ink(request.status))
}

/// A request's time before and at the device; there a cache flush of its own or before its data is told apart.
pub fn phases(request: &RequestEvent) -> Vec<Segment> {
    let part = |from, to, fill| Segment { from, to, fill };
    let device = if request.flush_sequence { Fill::Flush } else { Fill::Device };
    match request.issue {
        Some(issue) => {
            vec![part(request.start, issue, Fill::Queued), part(issue, request.complete.max(issue), device)]
        }
        None => vec![part(request.start, request.complete, Fill::Queued)],
    }
}

/// The bios that are not shown one by one, and their requests, in a row each.
fn more_bios(rest: &[BioEvent], of: &Trace, depth: usize) -> Option<Group> {
    let at = rest.iter().map(|bio| bio.queue).min()?;
    let end = rest.iter().map(|bio| bio.end).max()?;
    let bytes: u64 = rest.iter().map(|bio| u64::from(bio.bytes)).sum();
    let label = format!("+ {} more bios, {}", units::count(rest.len() as u64), units::bytes(bytes));
    let lives = rest.iter().map(|bio| Segment { from: bio.queue, to: bio.end, fill: Fill::Bio }).collect();
    let mut rows = vec![Row::new(depth, label, end.since(at), lives).inked(Ink::Dim)];
    let is_rest = |span: SpanId| rest.iter().any(|bio| bio.span == span);
    let own = of.requests.iter().filter(|request| request.parent.is_some_and(is_rest));
    let carried = of.carried.iter().filter(|carried| is_rest(carried.bio)).map(|carried| &carried.request);
    let requests: Vec<_> = own.chain(carried).collect();
    rows.extend(many_requests(&requests, depth + 1, ""));
    Some(Group { at, rows })
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
    let segments = requests.iter().flat_map(|request| phases(request)).collect();
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
fn device_name(named: &Trace, of: &Trace, device: DeviceId) -> String {
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
