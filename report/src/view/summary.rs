//! The summary: what took the time, and in which calls.

use std::cmp::Reverse;

use blkkin_aggregator::latency;
use blkkin_aggregator::trace::Trace;

use super::{calls, devices, kernel};
use crate::collect::coverage::Cause;
use crate::collect::devices::{DeviceRow, OpRow};
use crate::collect::latency::Latency;
use crate::collect::layers::Layer;
use crate::report::Report;
use crate::text::line::{Line, sanitize, wrap};
use crate::text::style::Ink;
use crate::text::{shorten, units};
use crate::waterfall::{daemon_span, heading, summary};

/// Smallest share of the time that is named, in percent. What is below takes less than the reader can gain.
const SHARE_MIN: u64 = 1;
/// Largest number of places that are named, of all calls and of the slowest.
const PLACES_SHOWN: usize = 4;
/// Largest number of places of the slowest operation; its waterfall has the rest.
const SLOWEST_PLACES_SHOWN: usize = 2;
/// Largest width of the slowest operation's file.
const PATH_WIDTH: usize = 48;
/// Largest number of calls.
const CALLS_SHOWN: usize = 3;
/// Largest number of disks in the line of the explained bytes.
const DISKS_SHOWN: usize = 4;
/// Share of a kind of time from which one device stands for all, in percent.
const MOST: u64 = 90;

/// Returns the sentences about the time of all calls and about the slowest operations, of storage and of daemons.
pub(super) fn causes(report: &Report, columns: usize) -> Vec<Line> {
    let sentences: Vec<String> =
        places(report).into_iter().chain(slowest(report)).chain(slowest_operation(report)).collect();
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
        Layer::Calls | Layer::FileSystem => "in the file system".to_owned(),
        Layer::Journal => "in the journal".to_owned(),
        Layer::Queue => {
            format!("in the block queue{}", of_device(report, [" of", "s, most of it of"], |row| &row.queue))
        }
        Layer::Device => {
            format!("at the device{}", of_device(report, ["", "s, most of it at"], |row| &row.device))
        }
        Layer::Locks => "waiting for a lock".to_owned(),
        Layer::Throttled => "throttled for dirty pages".to_owned(),
        Layer::Cpu => "waiting for a CPU".to_owned(),
        Layer::Unaccounted => "unaccounted".to_owned(),
    }
}

/// Names the device that has nearly all or the most of a kind of time.
fn of_device(report: &Report, [of, of_several]: [&str; 2], kind: impl Fn(&OpRow) -> &Latency) -> String {
    let time = |row: &DeviceRow| row.ops.values().map(|op| kind(op).total().0).fold(0, u64::saturating_add);
    let times: Vec<(u64, &DeviceRow)> = report.devices.rows().map(|row| (time(row), row)).collect();
    let all = times.iter().fold(0_u64, |sum, (time, _)| sum.saturating_add(*time));
    let Some((most, row)) = times.into_iter().max_by_key(|(time, _)| *time).filter(|(time, _)| *time > 0)
    else {
        return String::new();
    };
    let has_most = u128::from(most) * 100 >= u128::from(all) * u128::from(MOST);
    format!("{} {}", if has_most { of } else { of_several }, sanitize(&row.name))
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
    Some(format!("slowest operation: {label}, {}", units::duration(tree.duration())))
}

/// Returns the calls that took the most, or the kernel's work if there are none, and what failed.
pub(super) fn tables(report: &Report, columns: usize) -> Vec<Line> {
    let mut lines = calls::most(report, CALLS_SHOWN, columns);
    if lines.is_empty() {
        lines = kernel::rows(report, columns);
    }
    if !lines.is_empty() {
        lines.insert(0, Line::new());
    }
    lines.extend(devices::anomalies(report));
    lines
}

/// Returns the share of each disk's bytes that has a known cause.
pub(super) fn explained(report: &Report, columns: usize) -> Vec<Line> {
    let rows = report.coverage_rows();
    if rows.is_empty() {
        return Vec::new();
    }
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
