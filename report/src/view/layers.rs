//! Section: time by layer.

use super::{note, size, time, title};
use crate::collect::layers::{Layer, LayerRow};
use crate::report::Report;
use crate::text::line::Line;
use crate::text::style::Ink;
use crate::text::table::{Column, Row, Table};
use crate::text::units;

const UNACCOUNTED: &str = "unaccounted: slept for what its trace does not show (a lock of flock or fcntl, another's I/O, a lost record)";

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    if report.layers.row(Layer::Calls).times.count() == 0 {
        return Vec::new();
    }
    let mut table = Table::new(vec![
        Column::name("layer"),
        Column::number("calls"),
        Column::number("bytes"),
        Column::number("p50"),
        Column::number("p90").droppable(2),
        Column::number("p99"),
        Column::number("max"),
        Column::number("total").droppable(1),
        Column::number("share"),
    ]);
    let total_time = report.layers.total_time().0;
    for layer in Layer::ALL {
        let row = report.layers.row(layer);
        let bar = if layer == Layer::Calls { 0 } else { row.times.total().0 };
        table.push(Row::new(cells(layer, row, total_time), ink(layer)).with_bar(bar, total_time));
    }
    let mut lines =
        title("layers", "the calls that reached each one, and its own part of their time", columns);
    lines.extend(table.lines(columns));
    lines.extend(note(UNACCOUNTED, columns));
    lines
}

fn cells(layer: Layer, row: &LayerRow, total_time: u64) -> Vec<String> {
    let indent = if layer == Layer::Calls { "" } else { "  " };
    let times = &row.times;
    vec![
        format!("{indent}{}", layer.name()),
        units::count(times.count()),
        size(row.bytes.unwrap_or(0)),
        time(times.quantile(0.5)),
        time(times.quantile(0.9)),
        time(times.quantile(0.99)),
        time(times.max()),
        units::duration(times.total()),
        units::share(times.total().0, total_time),
    ]
}

fn ink(layer: Layer) -> Ink {
    match layer {
        Layer::Calls => Ink::Bold,
        Layer::FileSystem => Ink::FileSystem,
        Layer::Journal => Ink::Journal,
        Layer::Queue => Ink::Queue,
        Layer::Device => Ink::Device,
        Layer::Locks | Layer::Throttled | Layer::Cpu => Ink::Plain,
        Layer::Unaccounted => Ink::Plain,
    }
}
