//! Which device took the time, and for what.
//!
//! Each operation has a line for its time in the queue, one for its time at the device, and where a scheduler had it, which
//! is when a reader asks what its queue consists of, one for each part of the queue. Side by side two of these
//! would fill 80 columns, and which a reader could do without depends on what is wrong with the device.

use super::{remark, size, time, title};
use crate::collect::devices::{Operation, OperationRow};
use crate::collect::latency::Latency;
use crate::report::Report;
use crate::text::line::{Line, harmless};
use crate::text::style::Ink;
use crate::text::table::{Column, Row, Table};
use crate::text::units::{self, count};

const UNISSUED: &str = "asked nothing of the device: flushes of a cache that it does not have";

/// Cells that say what the times are of.
const ABOUT: usize = 6;

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
    let (mut unissued, mut odd) = (0, Vec::new());
    for device in report.devices.rows() {
        for (place, (operation, row)) in device.operations.iter().enumerate() {
            unissued += row.unissued;
            let marks = [("failed", row.errors), ("issued again by the driver", row.requeued)];
            odd.extend(marks.into_iter().filter(|(_, number)| *number > 0).map(|(what, number)| {
                format!("{what}: {} {} on {}", count(number), operation.name(), device.name)
            }));
            let name = if place == 0 { harmless(&device.name) } else { String::new() };
            table.push(Row::new(
                [about(name, *operation, row), times("queue", &row.queue)].concat(),
                Ink::Plain,
            ));
            for (place, of) in below(row).into_iter().filter(|(_, of)| of.count() > 0) {
                let nothing = vec![String::new(); ABOUT];
                table.push(Row::new([nothing, times(place, of)].concat(), Ink::Plain));
            }
        }
    }
    let mut lines = title("devices", "", columns);
    lines.extend(table.without_empty(&["merged"]).lines(columns));
    lines.extend(odd.iter().map(|text| Line::of(format!("  {}", harmless(text)), Ink::Alarm)));
    if unissued > 0 {
        lines.extend(remark(&format!("{} {UNISSUED}", units::counted(unissued, "request")), columns));
    }
    lines
}

fn about(name: String, operation: Operation, row: &OperationRow) -> Vec<String> {
    let blank_if_none = |number: u64| if number == 0 { units::NONE.to_owned() } else { count(number) };
    vec![
        name,
        operation.name().to_owned(),
        count(row.requests),
        blank_if_none(row.merged),
        size(row.bytes),
        size(row.bytes / row.requests.max(1)),
    ]
}

/// What follows the queue's line.
fn below(row: &OperationRow) -> Vec<(&'static str, &Latency)> {
    let parts = [("  plug", &row.plug), ("  scheduler", &row.scheduler)];
    let sorted = row.scheduler.count() > 0;
    parts.into_iter().filter(|_| sorted).chain([("device", &row.device)]).collect()
}

fn times(place: &str, times: &Latency) -> Vec<String> {
    vec![
        place.to_owned(),
        time(times.quantile(0.5)),
        time(times.quantile(0.9)),
        time(times.quantile(0.99)),
        time(times.max()),
    ]
}
