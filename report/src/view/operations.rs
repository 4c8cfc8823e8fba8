//! What the slowest operations looked like, from who asked down to the device.

use super::title;
use crate::report::Report;
use crate::text::line::{Line, wrapped};
use crate::text::style::Ink;
use crate::waterfall::draw;
use crate::waterfall::operation::{heading, rows, window, words};

pub(super) fn lines(report: &Report, columns: usize) -> Vec<Line> {
    let trees = report.operations.slowest();
    if trees.is_empty() {
        return Vec::new();
    }
    let mut lines = title(&heading_of(trees.len()), "as programs told of them", columns);
    let drawn: Vec<_> = trees.iter().map(|tree| (tree, rows(tree))).collect();
    let fills = drawn.iter().flat_map(|(_, rows)| rows).flat_map(|row| &row.segments).map(|part| part.fill);
    lines.extend(draw::legend(&fills.collect(), columns));
    for (place, (tree, rows)) in drawn.iter().enumerate() {
        lines.push(Line::new());
        lines.extend(heading::lines(place + 1, tree, report.config.started, columns));
        lines.extend(draw::lines(rows, window(tree), tree.duration(), columns));
        let sentence = words::words(tree, words::breakdown(tree));
        lines.extend(wrapped(&sentence, draw::MARGIN, columns, Ink::Bold));
        let links = words::links(tree);
        if !links.is_empty() {
            let links = format!("links: {}", links.join("; "));
            lines.extend(wrapped(&links, draw::MARGIN, columns, Ink::Dim));
        }
    }
    lines
}

fn heading_of(shown: usize) -> String {
    if shown == 1 { "the slowest operation".to_owned() } else { format!("the {shown} slowest operations") }
}
