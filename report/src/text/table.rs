//! Columns of numbers that fit a width.
//!
//! A table that is too wide first moves its columns together, then gives up columns in the order that they name,
//! then shortens its first column. Where room is left, rows may end with a bar. Nothing is ever wrapped.

use super::line::{Line, width};
use super::style::Ink;
use super::{shorten, units};

/// On which side a column's texts meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Names.
    Left,
    /// Numbers.
    Right,
}

/// One column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    title: &'static str,
    align: Align,
    drop: Option<u8>,
}

impl Column {
    /// A column of names.
    pub const fn name(title: &'static str) -> Self {
        Column { title, align: Align::Left, drop: None }
    }

    /// A column of numbers.
    pub const fn number(title: &'static str) -> Self {
        Column { title, align: Align::Right, drop: None }
    }

    /// Given up when the table is too wide, those with the lowest rank first.
    pub const fn droppable(self, rank: u8) -> Self {
        Column { drop: Some(rank), ..self }
    }
}

/// One row.
#[derive(Clone, Debug)]
pub struct Row {
    cells: Vec<String>,
    ink: Ink,
    bar: f64,
}

impl Row {
    /// A row of one ink.
    pub fn new(cells: Vec<String>, ink: Ink) -> Self {
        Row { cells, ink, bar: 0.0 }
    }

    /// A layer's colour is for its name and bar: coloured numbers are hard to compare.
    fn ink(&self, place: usize) -> Ink {
        match self.ink {
            Ink::Plain | Ink::Dim | Ink::Bold | Ink::Alarm => self.ink,
            _ if place == 0 => self.ink,
            _ => Ink::Plain,
        }
    }

    /// With a bar of `part` of `whole` at its end.
    pub fn with_bar(self, part: u64, whole: u64) -> Self {
        Row { bar: part as f64 / whole.max(1) as f64, ..self }
    }
}

/// A table.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Row>,
}

/// Between two columns where there is room.
const GAP: usize = 2;
/// The first column is not shortened below this.
const FIRST_MIN: usize = 16;
/// Shorter than this a bar tells nothing; longer than [`BAR_MAX`] it is only loud.
const BAR_MIN: usize = 8;
const BAR_MAX: usize = 20;
/// All lines of a table stand this far from the left.
pub const INDENT: usize = 2;

struct Layout {
    shown: Vec<usize>,
    widths: Vec<usize>,
    gap: usize,
    bar: usize,
}

impl Table {
    /// No rows yet.
    pub fn new(columns: Vec<Column>) -> Self {
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row, with a cell for each column.
    pub fn push(&mut self, row: Row) {
        debug_assert_eq!(row.cells.len(), self.columns.len(), "a cell for each column");
        self.rows.push(row);
    }

    /// Leaves out the columns in which no row says anything.
    pub fn without_empty(mut self, titles: &[&str]) -> Self {
        for title in titles {
            let Some(at) = self.columns.iter().position(|column| column.title == *title) else { continue };
            if self.rows.iter().all(|row| matches!(row.cells[at].as_str(), "" | "0" | units::NONE)) {
                self.columns.remove(at);
                self.rows.iter_mut().for_each(|row| drop(row.cells.remove(at)));
            }
        }
        self
    }

    /// Headings and rows, none wider than `columns`.
    pub fn lines(&self, columns: usize) -> Vec<Line> {
        let layout = self.fit(columns.saturating_sub(INDENT));
        let mut lines = Vec::with_capacity(self.rows.len() + 1);
        let titles = self.columns.iter().map(|column| column.title.to_owned()).collect();
        lines.push(self.row(&Row::new(titles, Ink::Dim), &layout));
        lines.extend(self.rows.iter().map(|row| self.row(row, &layout)));
        lines
    }

    fn natural(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| width(&row.cells[column]));
        cells.max().unwrap_or(0).max(width(self.columns[column].title))
    }

    fn fit(&self, room: usize) -> Layout {
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        loop {
            let mut widths: Vec<usize> = shown.iter().map(|&column| self.natural(column)).collect();
            let first = widths[0];
            let rest: usize = widths[1..].iter().sum();
            let least = first.min(FIRST_MIN);
            let fits = |gap: usize, first: usize| first + rest + gap * (shown.len() - 1) <= room;
            let gap = if fits(GAP, least) { GAP } else { 1 };
            let next = shown.iter().copied().filter(|&c| self.columns[c].drop.is_some());
            match next.min_by_key(|&c| self.columns[c].drop) {
                Some(column) if !fits(gap, least) => shown.retain(|&c| c != column),
                _ => {
                    let used = rest + gap * (shown.len() - 1);
                    widths[0] = first.min(room.saturating_sub(used));
                    let left = room.saturating_sub(used + widths[0] + GAP);
                    let bar = if left < BAR_MIN { 0 } else { left.min(BAR_MAX) };
                    return Layout { shown, widths, gap, bar };
                }
            }
        }
    }

    fn row(&self, row: &Row, layout: &Layout) -> Line {
        let mut line = Line::of(" ".repeat(INDENT), Ink::Plain);
        for (place, (&column, &columns)) in layout.shown.iter().zip(&layout.widths).enumerate() {
            let text = match place {
                0 => shorten::path(&row.cells[column], columns),
                _ => row.cells[column].clone(),
            };
            let blank = " ".repeat(columns.saturating_sub(width(&text)));
            if place > 0 {
                line.push(" ".repeat(layout.gap), Ink::Plain);
            }
            let ink = if text == units::NONE { Ink::Dim } else { row.ink(place) };
            match self.columns[column].align {
                Align::Left => line.append(Line::of(text, ink).with(blank, Ink::Plain)),
                Align::Right => line.append(Line::of(blank, Ink::Plain).with(text, ink)),
            }
        }
        line.push(" ".repeat(GAP), Ink::Plain);
        line.with(bar(row.bar, layout.bar), row.ink)
    }
}

/// A bar of eighths of a character: at least one eighth where there is anything.
fn bar(fraction: f64, columns: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if columns == 0 || fraction <= 0.0 {
        return String::new();
    }
    let eighths = ((fraction.min(1.0) * columns as f64 * 8.0).round() as usize).max(1);
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::style::{Alphabet, Colour, Style};

    fn painted(table: &Table, width: usize) -> Vec<String> {
        let style = Style { width: 200, alphabet: Alphabet::Unicode, colour: Colour::Never };
        table.lines(width).iter().map(|line| line.paint(&style)).collect()
    }

    fn table() -> Table {
        let mut table = Table::new(vec![
            Column::name("call"),
            Column::number("count"),
            Column::number("p50").droppable(1),
            Column::number("max"),
        ]);
        let cells = ["pread64", "1,234", "1.00 µs", "12.3 µs"].map(str::to_owned);
        table.push(Row::new(cells.to_vec(), Ink::Plain).with_bar(1, 2));
        table
    }

    #[test]
    fn numbers_meet_at_the_right_under_their_heading() {
        assert_eq!(
            painted(&table(), 36),
            ["  call     count      p50      max", "  pread64  1,234  1.00 µs  12.3 µs",]
        );
    }

    #[test]
    fn a_bar_fills_what_is_left() {
        assert_eq!(painted(&table(), 46)[1], "  pread64  1,234  1.00 µs  12.3 µs  █████");
    }

    #[test]
    fn columns_move_together_before_one_is_given_up() {
        assert_eq!(painted(&table(), 31)[1], "  pread64 1,234 1.00 µs 12.3 µs");
        assert_eq!(painted(&table(), 30)[1], "  pread64  1,234  12.3 µs");
    }

    #[test]
    fn columns_that_say_nothing_are_left_out() {
        let mut table = Table::new(vec![Column::name("call"), Column::number("errors")]);
        table.push(Row::new(vec!["read".to_owned(), "0".to_owned()], Ink::Plain));
        assert_eq!(painted(&table.without_empty(&["errors"]), 60), ["  call", "  read"]);
    }
}
