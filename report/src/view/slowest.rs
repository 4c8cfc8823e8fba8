//! What the slowest requests looked like.

use super::title;
use blkkin_aggregator::account;

use crate::report::Report;
use crate::text::line::{Line, wrapped};
use crate::text::style::Ink;
use crate::waterfall::{draw, heading, tree, words};

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    let traces = report.slowest.traces();
    if traces.is_empty() {
        return Vec::new();
    }
    let mut lines = title(&heading_of(traces.len()), "", columns);
    let drawn: Vec<_> = traces
        .iter()
        .map(|trace| {
            let split = account::breakdown(trace);
            (trace, split, tree::rows(trace, split))
        })
        .collect();
    let fills = drawn.iter().flat_map(|(.., rows)| rows).flat_map(|row| &row.segments).map(|part| part.fill);
    lines.extend(draw::legend(&fills.collect(), columns));
    let config = &report.config;
    for (place, (trace, split, rows)) in drawn.iter().enumerate() {
        lines.push(Line::new());
        lines.extend(heading::lines(place + 1, trace, config.arch, config.started, columns));
        lines.extend(draw::lines(rows, tree::window(trace), trace.duration(), columns));
        lines.extend(wrapped(&words::words(trace, *split), draw::MARGIN, columns, Ink::Bold));
    }
    lines
}

fn heading_of(shown: usize) -> String {
    if shown == 1 { "the slowest request".to_owned() } else { format!("the {shown} slowest requests") }
}
