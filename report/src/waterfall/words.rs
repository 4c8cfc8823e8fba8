//! Where a request's time went, in a sentence.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use blkkin_aggregator::account::Breakdown;
use blkkin_aggregator::phases;
use blkkin_aggregator::trace::{Missing, Trace};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::Submitter;
use blkkin_wire::ids::{DeviceId, SpanId};

use super::block;
use crate::text::line::harmless;
use crate::text::units;

/// `91.2 % at the device loop0, 6.1 % in the file system, 2.7 % unaccounted`, and what else is known of it.
pub fn words(trace: &Trace, split: Breakdown) -> String {
    let at_device = format!("at {}", devices(trace));
    let in_queue = match waited_in(trace) {
        Some(device) => format!("in the block queue of {}", harmless(&device)),
        None => "in the block queue".to_owned(),
    };
    let mut parts = [
        (split.device, at_device.as_str()),
        (split.block, in_queue.as_str()),
        (split.journal, "in the journal"),
        (split.file_system, "in the file system"),
        (split.cpu, "waiting for a CPU"),
        (split.unaccounted, "unaccounted"),
    ];
    // Stable: of equals in the order from the device upwards.
    parts.sort_by_key(|(time, _)| Reverse(*time));
    let whole = trace.duration().0;
    let said = parts.iter().filter(|(time, _)| time.0 > 0);
    let said: Vec<String> =
        said.map(|(time, place)| format!("{} {place}", units::share(time.0, whole))).collect();
    let mut sentence = said.join(", ");
    for remark in remarks(trace) {
        sentence.push_str(if sentence.is_empty() { "" } else { "; " });
        sentence.push_str(&remark);
    }
    sentence
}

/// By name while they are few.
fn devices(trace: &Trace) -> String {
    let names: Vec<String> = block::devices(trace).into_iter().map(|name| harmless(&name)).collect();
    match names.as_slice() {
        [] => "the device".to_owned(),
        [one] => format!("the device {one}"),
        [one, two] => format!("the devices {one} and {two}"),
        many => format!("{} devices", many.len()),
    }
}

/// Where devices lie on one another: the device whose bios waited longest with nothing of theirs at a device, nor on its way
/// to one below.
fn waited_in(trace: &Trace) -> Option<String> {
    let all = || std::iter::once(trace).chain(trace.causes.iter().map(|cause| &*cause.trace));
    if all().all(|of| of.bios.iter().all(|bio| of.queued_by_root(bio))) {
        return None;
    }
    let mut waited: BTreeMap<DeviceId, u64> = BTreeMap::new();
    for of in all() {
        let mut busy: BTreeMap<SpanId, Vec<(MonotonicNs, MonotonicNs)>> = BTreeMap::new();
        for request in &of.requests {
            let parent = request.parent.unwrap_or(request.span);
            busy.entry(parent).or_default().push((phases::at_device(request), request.complete));
        }
        for bio in &of.bios {
            if let Submitter::Span(above) = bio.submitter {
                busy.entry(above).or_default().push((bio.queue, bio.end));
            }
        }
        for bio in &of.bios {
            let parts = busy.remove(&bio.span).unwrap_or_default();
            *waited.entry(bio.device).or_default() += uncovered(bio.queue, bio.end, parts);
        }
    }
    let (device, _) = waited.into_iter().max_by_key(|(_, time)| *time)?;
    Some(block::device_name(trace, trace, device))
}

/// How much of a stretch of time none of these covers.
fn uncovered(from: MonotonicNs, to: MonotonicNs, mut parts: Vec<(MonotonicNs, MonotonicNs)>) -> u64 {
    parts.sort_unstable();
    let (mut free_from, mut uncovered) = (from, 0);
    for (begin, end) in parts {
        uncovered += begin.min(to).since(free_from).0;
        free_from = free_from.max(end);
    }
    uncovered + to.since(free_from).0
}

fn remarks(trace: &Trace) -> Vec<String> {
    let mut remarks = Vec::new();
    let Some(call) = trace.call() else { return remarks };
    let asked = !trace.bios.is_empty() || !trace.requests.is_empty() || !trace.causes.is_empty();
    if !asked && trace.missing.nothing() {
        remarks.push("nothing went to a device".to_owned());
    }
    if call.sleeps == 0 {
        remarks.push("it never slept".to_owned());
    }
    if trace.last_end() > call.exit {
        let after = units::duration(trace.last_end().since(call.exit));
        let what = if trace.bios.is_empty() { "command" } else { "bio" };
        remarks.push(format!("its last {what} ended {after} after it returned"));
    }
    let Missing { bios, requests, commits, .. } = trace.missing;
    let missing: Vec<String> = [(bios, "bio"), (requests, "request"), (commits, "commit")]
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, noun)| units::counted(number.into(), noun))
        .collect();
    if !missing.is_empty() {
        remarks.push(format!("incomplete: {} never arrived", missing.join(" and ")));
    }
    remarks
}
