//! Section: waterfalls of the slowest storage operations.

use blkkin_aggregator::latency;

use super::title;
use crate::report::Report;
use crate::text::line::{Line, wrap};
use crate::text::style::Ink;
use crate::waterfall::{draw, heading, summary, tree};

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    let traces = report.slowest.traces();
    if traces.is_empty() {
        return Vec::new();
    }
    let mut lines = title(&heading_of(traces.len()), "", columns);
    let waterfalls: Vec<_> = traces
        .iter()
        .map(|trace| {
            let breakdown = latency::breakdown(trace);
            (trace, breakdown, tree::rows(trace, breakdown))
        })
        .collect();
    let fills =
        waterfalls.iter().flat_map(|(.., rows)| rows).flat_map(|row| &row.segments).map(|part| part.fill);
    lines.extend(draw::legend(&fills.collect(), columns));
    let config = &report.config;
    for (index, (trace, breakdown, rows)) in waterfalls.iter().enumerate() {
        lines.push(Line::new());
        lines.extend(heading::lines(index + 1, trace, config.arch, config.started, columns));
        lines.extend(draw::lines(rows, tree::window(trace), trace.duration(), columns));
        lines.extend(wrap(&summary::summary(trace, *breakdown), draw::MARGIN, columns, Ink::Bold));
    }
    lines
}

fn heading_of(shown: usize) -> String {
    if shown == 1 {
        "the slowest storage operation".to_owned()
    } else {
        format!("the {shown} slowest storage operations")
    }
}
