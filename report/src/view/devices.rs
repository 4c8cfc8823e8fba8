//! Section: devices by op and phase.
//!
//! Each op has one row for its time in the queue and one for its time at the device. If requests
//! were in a scheduler, each part of the queue also has a row. Two phases next to each other would
//! need more than 80 columns, and which phase matters depends on the problem.

use super::{note, size, time, title};
use crate::collect::devices::{DeviceOp, OpRow};
use crate::collect::latency::Latency;
use crate::report::Report;
use crate::text::line::{Line, sanitize};
use crate::text::style::Ink;
use crate::text::table::{Column, Row, Table};
use crate::text::units::{self, count};

const UNISSUED: &str = "not issued: flushes of a cache that the device does not have";

/// Number of cells in front of the phase.
const OP_CELLS: usize = 6;

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    if report.totals.requests == 0 {
        return Vec::new();
    }
    let mut table = Table::new(vec![
        Column::name("device"),
        Column::name(""),
        Column::number("count"),
        Column::number("merged").droppable(2),
        Column::number("bytes"),
        Column::number("mean").droppable(1),
        Column::name("time in"),
        Column::number("p50"),
        Column::number("p90"),
        Column::number("p99"),
        Column::number("max"),
    ]);
    let mut unissued = 0;
    for device in report.devices.rows() {
        for (index, (op, row)) in device.ops.iter().enumerate() {
            unissued += row.unissued;
            let name = if index == 0 { sanitize(&device.name) } else { String::new() };
            table.push(Row::new([op_cells(name, *op, row), times("queue", &row.queue)].concat(), Ink::Plain));
            for (phase, latency) in phase_rows(row).into_iter().filter(|(_, latency)| latency.count() > 0) {
                let blank = vec![String::new(); OP_CELLS];
                table.push(Row::new([blank, times(phase, latency)].concat(), Ink::Plain));
            }
        }
    }
    let mut lines = title("devices", "", columns);
    lines.extend(table.without_empty(&["merged"]).lines(columns));
    lines.extend(anomalies(report));
    if unissued > 0 {
        lines.extend(note(&format!("{} {UNISSUED}", units::counted(unissued, "request")), columns));
    }
    lines
}

/// Returns the failed requests, and those that a driver issued again.
pub(super) fn anomalies(report: &Report) -> Vec<Line> {
    let mut lines = Vec::new();
    for device in report.devices.rows() {
        for (op, row) in &device.ops {
            let marks = [("failed", row.errors), ("issued again by the driver", row.requeued)];
            lines.extend(marks.into_iter().filter(|(_, number)| *number > 0).map(|(what, number)| {
                let text = format!("  {what}: {} {} on {}", count(number), op.name(), device.name);
                Line::of(sanitize(&text), Ink::Alarm)
            }));
        }
    }
    lines
}

fn op_cells(name: String, op: DeviceOp, row: &OpRow) -> Vec<String> {
    let blank_if_none = |number: u64| if number == 0 { units::NONE.to_owned() } else { count(number) };
    vec![
        name,
        op.name().to_owned(),
        count(row.requests),
        blank_if_none(row.merged),
        size(row.bytes),
        size(row.bytes / row.requests.max(1)),
    ]
}

/// Returns the phases after the queue.
fn phase_rows(row: &OpRow) -> Vec<(&'static str, &Latency)> {
    let parts = [("  plug", &row.plug), ("  scheduler", &row.scheduler)];
    let sorted = row.scheduler.count() > 0;
    parts.into_iter().filter(|_| sorted).chain([("device", &row.device)]).collect()
}

fn times(phase: &str, times: &Latency) -> Vec<String> {
    vec![
        phase.to_owned(),
        time(times.quantile(0.5)),
        time(times.quantile(0.9)),
        time(times.quantile(0.99)),
        time(times.max()),
    ]
}
