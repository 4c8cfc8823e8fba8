//! Which device took the time, and for what.

use super::{remark, size, time, title};
use crate::collect::devices::{DeviceRow, Operation, OperationRow};
use crate::report::Report;
use crate::text::line::{Line, harmless};
use crate::text::style::Ink;
use crate::text::table::{Column, Row, Table};
use crate::text::units::{self, count};

const UNISSUED: &str = "asked nothing of the device: flushes of a cache that it does not have";

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    if report.totals.requests == 0 {
        return Vec::new();
    }
    let mut table = Table::new(vec![
        Column::name("device"),
        Column::name(""),
        Column::number("count"),
        Column::number("merged"),
        Column::number("bytes"),
        Column::number("mean").droppable(2),
        Column::number("p50").under("in the queue").droppable(1),
        Column::number("p99").under("in the queue"),
        Column::number("max").under("in the queue").droppable(3),
        Column::number("p50").under("at the device"),
        Column::number("p99").under("at the device"),
        Column::number("max").under("at the device"),
    ]);
    let (mut unissued, mut failed) = (0, Vec::new());
    for device in report.devices.rows() {
        for (place, (operation, row)) in device.operations.iter().enumerate() {
            unissued += row.unissued;
            if row.errors > 0 {
                failed.push(format!("failed: {} {} on {}", count(row.errors), operation.name(), device.name));
            }
            table.push(Row::new(cells(device, place, *operation, row), Ink::Plain));
        }
    }
    let mut lines = title("devices", "", columns);
    lines.extend(table.without_empty(&["merged"]).lines(columns));
    lines.extend(failed.iter().map(|text| Line::of(format!("  {}", harmless(text)), Ink::Alarm)));
    if unissued > 0 {
        lines.extend(remark(&format!("{} {UNISSUED}", units::counted(unissued, "request")), columns));
    }
    lines
}

fn cells(device: &DeviceRow, place: usize, operation: Operation, row: &OperationRow) -> Vec<String> {
    let blank_if_none = |number: u64| if number == 0 { units::NONE.to_owned() } else { count(number) };
    vec![
        if place == 0 { harmless(&device.name) } else { String::new() },
        operation.name().to_owned(),
        count(row.requests),
        blank_if_none(row.merged),
        size(row.bytes),
        size(row.bytes / row.requests.max(1)),
        time(row.queue.quantile(0.5)),
        time(row.queue.quantile(0.99)),
        time(row.queue.max()),
        time(row.device.quantile(0.5)),
        time(row.device.quantile(0.99)),
        time(row.device.max()),
    ]
}
