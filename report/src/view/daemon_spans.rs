//! Section: waterfalls of the slowest daemon spans, from the client to the device.

use super::title;
use crate::report::Report;
use crate::text::line::{Line, wrap};
use crate::text::style::Ink;
use crate::waterfall::daemon_span::{heading, rows, summary, window};
use crate::waterfall::draw;

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    let trees = report.daemon_spans.slowest();
    if trees.is_empty() {
        return Vec::new();
    }
    let mut lines = title(&heading_of(trees.len()), "as daemons reported them", columns);
    let waterfalls: Vec<_> = trees.iter().map(|tree| (tree, rows(tree))).collect();
    let fills =
        waterfalls.iter().flat_map(|(_, rows)| rows).flat_map(|row| &row.segments).map(|part| part.fill);
    lines.extend(draw::legend(&fills.collect(), columns));
    for (index, (tree, rows)) in waterfalls.iter().enumerate() {
        lines.push(Line::new());
        lines.extend(heading::lines(index + 1, tree, report.config.started, columns));
        lines.extend(draw::lines(rows, window(tree), tree.duration(), columns));
        let sentence = summary::summary(tree, summary::breakdown(tree));
        lines.extend(wrap(&sentence, draw::MARGIN, columns, Ink::Bold));
        let links = summary::links(tree);
        if !links.is_empty() {
            let links = format!("links: {}", links.join("; "));
            lines.extend(wrap(&links, draw::MARGIN, columns, Ink::Dim));
        }
    }
    lines
}

fn heading_of(shown: usize) -> String {
    if shown == 1 { "the slowest operation".to_owned() } else { format!("the {shown} slowest operations") }
}
