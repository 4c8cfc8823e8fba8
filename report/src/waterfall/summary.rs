//! Sentence with the shares of a storage operation's time.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use blkkin_aggregator::latency::Breakdown;
use blkkin_aggregator::latency::phases;
use blkkin_aggregator::trace::page_cache::CachedRead;
use blkkin_aggregator::trace::{Incomplete, Trace};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::Submitter;
use blkkin_wire::ids::{DeviceId, SpanId};

use super::block;
use crate::collect::layers::Layer;
use crate::text::line::sanitize;
use crate::text::units;

/// Formats the shares and notes:
/// `91.2 % at the device loop0, 6.1 % in the file system, 2.7 % unaccounted`.
pub fn summary(trace: &Trace, breakdown: Breakdown) -> String {
    let mut sentence = shares(trace, breakdown).join(", ");
    for note in notes(trace) {
        sentence.push_str(if sentence.is_empty() { "" } else { "; " });
        sentence.push_str(&note);
    }
    sentence
}

/// Formats the shares of the time, the largest first.
pub fn shares(trace: &Trace, breakdown: Breakdown) -> Vec<String> {
    let at_device = format!("at {}", block::name_devices(block::devices(trace)));
    let in_queue = match longest_queue(trace) {
        Some(device) => format!("{} of {}", Layer::Queue.place(), sanitize(&device)),
        None => Layer::Queue.place().to_owned(),
    };
    let mut parts = [
        (breakdown.device, at_device.as_str()),
        (breakdown.block, in_queue.as_str()),
        (breakdown.journal, Layer::Journal.place()),
        (breakdown.file_system, Layer::FileSystem.place()),
        (breakdown.locks, Layer::Locks.place()),
        (breakdown.throttled, Layer::Throttled.place()),
        (breakdown.cpu, Layer::Cpu.place()),
        (breakdown.unaccounted, Layer::Unaccounted.place()),
    ];
    // The sort is stable: equal times stay in the order from the device upwards.
    parts.sort_by_key(|(time, _)| Reverse(*time));
    let total = trace.duration().0;
    let shares = parts.iter().filter(|(time, _)| time.0 > 0);
    shares.map(|(time, place)| format!("{} {place}", units::share(time.0, total))).collect()
}

/// Returns, for stacked devices, the device whose bios waited longest without a request at a device
/// and without a bio in flight to a lower device.
fn longest_queue(trace: &Trace) -> Option<String> {
    let all = || std::iter::once(trace).chain(trace.waited_for.iter().map(|cause| &*cause.trace));
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
            if let Submitter::Span(parent) = bio.submitter {
                busy.entry(parent).or_default().push((bio.queue, bio.end));
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

/// Returns how much of a time range none of `parts` covers.
fn uncovered(from: MonotonicNs, to: MonotonicNs, mut parts: Vec<(MonotonicNs, MonotonicNs)>) -> u64 {
    parts.sort_unstable();
    let (mut uncovered_from, mut uncovered) = (from, 0);
    for (begin, end) in parts {
        uncovered += begin.min(to).since(uncovered_from).0;
        uncovered_from = uncovered_from.max(end);
    }
    uncovered + to.since(uncovered_from).0
}

/// Returns what a read fetched of its own range and beyond, if that is not just its range.
fn page_cache(trace: &Trace) -> Option<String> {
    let CachedRead { bytes, fetched, read_ahead } = CachedRead::of(trace)?;
    let own = match fetched {
        0 => Some("fetched nothing of its own range".to_owned()),
        _ => (fetched < bytes)
            .then(|| format!("fetched {} of its {}", units::bytes(fetched), units::bytes(bytes))),
    };
    let ahead = (read_ahead > 0).then(|| format!("read {} ahead", units::bytes(read_ahead)));
    let parts: Vec<String> = own.into_iter().chain(ahead).collect();
    (!parts.is_empty()).then(|| format!("it {}", parts.join(" and ")))
}

fn notes(trace: &Trace) -> Vec<String> {
    let mut notes = Vec::new();
    let Some(call) = trace.call() else { return notes };
    let submitted_io = !trace.bios.is_empty() || !trace.requests.is_empty() || !trace.waited_for.is_empty();
    if !submitted_io && trace.incomplete.is_empty() {
        notes.push("nothing went to a device".to_owned());
    }
    notes.extend(page_cache(trace).filter(|_| submitted_io));
    if call.sleeps == 0 {
        notes.push("it never slept".to_owned());
    }
    if trace.last_end() > call.exit {
        let after = units::duration(trace.last_end().since(call.exit));
        let what = if trace.bios.is_empty() { "command" } else { "bio" };
        notes.push(format!("its last {what} ended {after} after it returned"));
    }
    let Incomplete { bios, requests, commits, page_origins, root: _ } = trace.incomplete;
    let missing: Vec<String> =
        [(bios, "bio"), (requests, "request"), (commits, "commit"), (page_origins, "page origin")]
            .into_iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, noun)| units::counted(number.into(), noun))
            .collect();
    if !missing.is_empty() {
        notes.push(format!("incomplete: {} never arrived", missing.join(" and ")));
    }
    notes
}
