//! Layout of a waterfall's rows: label, bar, times.

use std::collections::BTreeSet;

use super::bar::{Bar, Fill, Window, bar};
use super::row::WaterfallRow;
use crate::text::line::{Line, width, wrap};
use crate::text::style::Ink;
use crate::text::{shorten, units};
use blkkin_wire::clock::DurationNs;

/// Indentation of rows below their heading.
pub const MARGIN: usize = 4;
/// Additional indentation of each level.
const STEP: usize = 2;
/// Width from which gaps and margins are wide; below it the bars need the room.
const ROOMY: usize = 96;
/// Maximum share of the width for labels, in percent: readers look at the bars first.
const LABEL_PERCENT: usize = 41;
/// Gap between two entries of the legend.
const LEGEND_GAP: usize = 3;
/// Width of a time: `999 µs`, `1.23 ms`.
const TIME: usize = 7;
/// Width of a share: `100 %`, `<0.1 %`.
const SHARE: usize = 6;

/// Fills that the legend explains only where they are drawn: few operations have scheduler, lock
/// or CPU waits, and only daemon spans have the others.
const RARE: [Fill; 6] =
    [Fill::Scheduled, Fill::Waiting, Fill::Cpu, Fill::InTransit, Fill::OutsideCalls, Fill::Event];

/// Returns the legend of the bars' characters; rare fills only if they are among those `drawn`.
pub fn legend(drawn: &BTreeSet<Fill>, columns: usize) -> Vec<Line> {
    let begin = || Line::of(" ".repeat(MARGIN), Ink::Plain);
    let mut lines = Vec::new();
    let mut line = begin();
    let entries = [
        (Fill::InTransit, "in transit"),
        (Fill::OutsideCalls, "no call seen"),
        (Fill::FileSystem, "file system"),
        (Fill::Bio, "bio"),
        (Fill::Queued, "queued"),
        (Fill::Scheduled, "in the scheduler"),
        (Fill::Device, "at the device"),
        (Fill::Flush, "flush"),
        (Fill::Waiting, "its longest wait"),
        (Fill::Cpu, "waiting for a CPU"),
        (Fill::Unaccounted, "unaccounted"),
        (Fill::Event, "an event"),
    ];
    for (fill, meaning) in
        entries.into_iter().filter(|(fill, _)| !RARE.contains(fill) || drawn.contains(fill))
    {
        let (glyph, ink) = glyph(fill);
        let entry = Line::of(glyph.to_string().repeat(2), ink).with(format!(" {meaning}"), Ink::Dim);
        let between = if line.width() > MARGIN { LEGEND_GAP } else { 0 };
        if line.width() + between + entry.width() > columns {
            lines.push(std::mem::replace(&mut line, begin()));
        } else {
            line.push(" ".repeat(between), Ink::Plain);
        }
        line.append(entry);
    }
    lines.push(line);
    lines
}

/// Formats the rows of one waterfall; shares are of `total`.
pub fn lines(rows: &[WaterfallRow], window: Window, total: DurationNs, columns: usize) -> Vec<Line> {
    let (gap, margin) = if columns >= ROOMY { (2, MARGIN) } else { (1, MARGIN / 2) };
    let bars_of = rows.iter().filter(|row| !row.note);
    let widest = bars_of.map(|row| margin + STEP * row.depth + width(&row.label)).max().unwrap_or(0);
    let label = widest.min(columns * LABEL_PERCENT / 100);
    let numbers = 3 * (TIME + gap) + SHARE + gap;
    let bars = columns.saturating_sub(label + gap + numbers);
    let mut lines = vec![scale(window, label, bars, gap)];
    lines.extend(rows.iter().flat_map(|row| {
        let indent = margin + STEP * row.depth;
        if row.note {
            return wrap(&row.label, indent, columns, row.ink);
        }
        let text = format!("{}{}", " ".repeat(indent), row.label);
        let mut line = Line::of(shorten::end(&text, label), row.ink);
        line.pad_to(label + gap);
        line.append(bar_line(&bar(window, &row.segments, bars)));
        line.append(numbers_of(row, total, gap));
        vec![line]
    }));
    lines
}

fn scale(window: Window, label: usize, bars: usize, gap: usize) -> Line {
    let end = units::duration(window.to.since(window.from));
    let rule = "─".repeat(bars.saturating_sub(width(&end) + 3));
    let mut line = Line::new();
    line.pad_to(label + gap);
    line.push(format!("0 {rule} {end}"), Ink::Dim);
    line.pad_to(label + gap + bars);
    for (title, columns) in [("queued", TIME), ("device", TIME), ("time", TIME), ("share", SHARE)] {
        line.push(format!("{}{title:>columns$}", " ".repeat(gap)), Ink::Dim);
    }
    line
}

fn numbers_of(row: &WaterfallRow, total: DurationNs, gap: usize) -> Line {
    if row.instant {
        return Line::new();
    }
    let text = |time: Option<DurationNs>| time.map_or_else(String::new, units::duration);
    // A row that begins before the root or ends after it has no share.
    let share = if row.within { units::share(row.time.0, total.0) } else { units::NONE.to_owned() };
    let cells = [
        (text(row.queued), TIME, Ink::Queue),
        (text(row.device), TIME, Ink::Device),
        (text(Some(row.time)), TIME, Ink::Plain),
        (share, SHARE, Ink::Plain),
    ];
    let mut line = Line::new();
    for (text, columns, ink) in cells {
        line.push(" ".repeat(gap + columns.saturating_sub(width(&text))), Ink::Plain);
        line.push(text, ink);
    }
    line
}

/// Formats a bar; columns of equal fill share one escape sequence.
fn bar_line(bar: &Bar) -> Line {
    let mut line = Line::new();
    for run in bar.columns.chunk_by(|a, b| a == b) {
        let (glyph, ink) = run[0].map_or((' ', Ink::Plain), glyph);
        let mut text = glyph.to_string().repeat(run.len());
        if bar.cut_left && line.width() == 0 {
            text.replace_range(..glyph.len_utf8(), "‹");
        }
        line.push(text, ink);
    }
    line
}

/// Returns the character of a fill: lines for lifetimes, blocks for work.
fn glyph(fill: Fill) -> (char, Ink) {
    match fill {
        Fill::Call => ('━', Ink::Bold),
        Fill::Commit => ('━', Ink::Journal),
        Fill::Bio => ('─', Ink::Dim),
        Fill::InTransit => ('┈', Ink::Queue),
        Fill::OutsideCalls => ('╍', Ink::Plain),
        Fill::FileSystem => ('▒', Ink::FileSystem),
        Fill::Unaccounted => ('┄', Ink::Alarm),
        Fill::Waiting => ('▤', Ink::Alarm),
        Fill::Cpu => ('╌', Ink::Alarm),
        Fill::Queued => ('░', Ink::Queue),
        Fill::Scheduled => ('▚', Ink::Queue),
        Fill::Flush => ('▓', Ink::Device),
        Fill::Device => ('█', Ink::Device),
        Fill::Event => ('◆', Ink::Bold),
    }
}
