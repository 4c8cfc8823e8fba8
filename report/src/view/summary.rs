//! The summary: what took the time, and in which calls.

use std::cmp::Reverse;

use blkkin_aggregator::latency;
use blkkin_aggregator::trace::Trace;
use blkkin_wire::clock::DurationNs;

use super::{calls, guests, kernel};
use crate::collect::coverage::Cause;
use crate::collect::layers::{DeviceTime, Layer};
use crate::report::Report;
use crate::text::line::{Line, sanitize, wrap};
use crate::text::style::Ink;
use crate::text::{shorten, units};
use crate::waterfall::{daemon_span, heading, summary};

/// Smallest share of the time that is named, in percent. What is below takes less than the reader can gain.
const SHARE_MIN: u64 = 1;
/// Largest number of places that are named.
const PLACES_SHOWN: usize = 4;
/// Largest number of places of the slowest operation; its waterfall has the rest.
const SLOWEST_PLACES_SHOWN: usize = 2;
/// Largest width of the slowest operation's file.
const PATH_WIDTH: usize = 48;
/// Largest number of calls.
const CALLS_SHOWN: usize = 3;
/// Largest number of programs of guests, in place of the calls.
const GUESTS_SHOWN: usize = 2;
/// Largest number of disks in the line of the explained bytes.
const DISKS_SHOWN: usize = 4;
/// Share of a kind of time from which one device stands for all, in percent.
const MOST: u128 = 90;
/// Share from which it has most of it.
const HALF: u128 = 51;
/// Largest number of kinds of the kernel's work.
const KERNEL_WORK_SHOWN: usize = 3;
const MORE: &str = "more: --full, or --show layers,calls,devices,files,slowest";
const MORE_WITH_GUESTS: &str = "more: --full, or --show guests,layers,calls,devices,files,slowest";

/// Returns the sentences about the time of all calls and about the slowest operations, of storage and of daemons.
pub(super) fn causes(report: &Report, columns: usize) -> Vec<Line> {
    let mut sentences = guests::sentences(report);
    // With guests, QEMU's own calls are of less interest than theirs.
    let has_guests = report.guests.operations().0 > 0;
    sentences.extend(places(report));
    if !has_guests {
        sentences.extend(slowest(report).into_iter().chain(slowest_operation(report)));
    }
    if sentences.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![Line::new()];
    lines.extend(sentences.iter().flat_map(|sentence| wrap(sentence, 0, columns, Ink::Bold)));
    lines
}

/// Formats where the time of the calls went: `time: 12.3 ms in system calls, 94.1 % at the device loop0`.
fn places(report: &Report) -> Option<String> {
    let total = report.layers.total_time().0;
    let mut parts: Vec<(u64, String)> = Layer::ALL
        .into_iter()
        .filter(|layer| *layer != Layer::Calls)
        .map(|layer| (report.layers.row(layer).times.total().0, place(report, layer)))
        .filter(|(time, _)| u128::from(*time) * 100 >= u128::from(total) * u128::from(SHARE_MIN) && *time > 0)
        .collect();
    // Stable: equal times stay in the order of the layers.
    parts.sort_by_key(|(time, _)| Reverse(*time));
    parts.truncate(PLACES_SHOWN);
    let shares: Vec<String> =
        parts.iter().map(|(time, place)| format!("{} {place}", units::share(*time, total))).collect();
    let time = units::duration(report.layers.total_time());
    (!shares.is_empty()).then(|| format!("time: {} in system calls, {}", time, shares.join(", ")))
}

fn place(report: &Report, layer: Layer) -> String {
    match layer {
        Layer::Queue => of_device(report, layer.place(), "of", |time| time.queue),
        Layer::Device => of_device(report, layer.place(), "at", |time| time.device),
        _ => layer.place().to_owned(),
    }
}

/// Names the device that has nearly all of a kind of time, or more than half of it.
fn of_device(report: &Report, place: &str, of: &str, kind: impl Fn(&DeviceTime) -> DurationNs) -> String {
    let times = report.layers.devices();
    let all = times.iter().fold(0_u64, |sum, (_, time)| sum.saturating_add(kind(time).0));
    let most = times.iter().max_by_key(|(_, time)| kind(time));
    let percent = |time: DurationNs| u128::from(time.0) * 100 / u128::from(all.max(1));
    match most.map(|(device, time)| (sanitize(&report.devices.name(*device)), percent(kind(time)))) {
        Some((name, MOST..)) if of == "of" => format!("{place} {of} {name}"),
        Some((name, MOST..)) => format!("{place} {name}"),
        Some((name, HALF..)) => format!("{place}s, most of it {of} {name}"),
        _ => format!("{place}s"),
    }
}

/// Formats the slowest operation: its call and file, and where its time went.
fn slowest(report: &Report) -> Option<String> {
    let trace: &Trace = report.slowest.traces().first()?;
    let mut shares = summary::shares(trace, latency::breakdown(trace));
    shares.truncate(SLOWEST_PLACES_SHOWN);
    let (what, path) = heading::name(trace);
    let path =
        path.map(|path| format!(" of {}", shorten::path(&sanitize(&path), PATH_WIDTH))).unwrap_or_default();
    let places = if shares.is_empty() { String::new() } else { format!(": {}", shares.join(", ")) };
    Some(format!("slowest: {what}{path}, {}{places}", units::duration(trace.duration())))
}

/// Formats the slowest operation that a daemon reported.
fn slowest_operation(report: &Report) -> Option<String> {
    let tree = report.daemon_spans.slowest().into_iter().next()?;
    let label = daemon_span::label(tree.daemon_span()?);
    Some(format!("slowest daemon operation: {label}, {}", units::duration(tree.duration())))
}

/// Returns the calls that took the most, or the kernel's work if there are none.
pub(super) fn tables(report: &Report, columns: usize) -> Vec<Line> {
    let has_guests = report.guests.operations().0 > 0;
    let mut lines = if has_guests {
        guests::table(report, GUESTS_SHOWN, columns)
    } else {
        calls::most(report, CALLS_SHOWN, columns)
    };
    if lines.is_empty() {
        lines = kernel::most(report, KERNEL_WORK_SHOWN, columns);
    }
    if !lines.is_empty() {
        lines.insert(0, Line::new());
    }
    lines
}

/// Returns the line that names the options of the other sections.
pub(super) fn more(report: &Report, columns: usize) -> Vec<Line> {
    let text = if report.guests.rows().is_empty() { MORE } else { MORE_WITH_GUESTS };
    wrap(text, 0, columns, Ink::Plain)
}

/// Returns what is missing in the figures about guests.
pub(super) fn missing(report: &Report, columns: usize) -> Vec<Line> {
    let texts = guests::left_out(report);
    if texts.is_empty() { Vec::new() } else { wrap(&texts.join("; "), 0, columns, Ink::Plain) }
}

/// Returns the share of each disk's bytes that has a known cause.
pub(super) fn explained(report: &Report, columns: usize) -> Vec<Line> {
    let mut rows = report.coverage_rows();
    if rows.is_empty() {
        return Vec::new();
    }
    // Stable: equal disks stay in the order of their numbers.
    rows.sort_by_key(|row| Reverse(row.counted));
    let known = |recorded: &[u64]| {
        let all = recorded.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        all.saturating_sub(recorded[Cause::Unknown as usize])
    };
    let mut disks: Vec<String> = rows
        .iter()
        .take(DISKS_SHOWN)
        .map(|row| format!("{} of {}", units::share(known(&row.recorded), row.counted), sanitize(&row.name)))
        .collect();
    if rows.len() > DISKS_SHOWN {
        disks.push(format!("{} more disks", rows.len() - DISKS_SHOWN));
    }
    wrap(&format!("explained: {}", disks.join(", ")), 0, columns, Ink::Plain)
}
