//! Tables of numbers that fit a width.
//!
//! A table that is too wide first narrows the gaps between columns, then drops columns by their
//! rank, then shortens its first column. If room is left, rows can end with a bar. Cells are never
//! wrapped.

use super::line::{Line, width};
use super::style::Ink;
use super::{shorten, units};

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// For names.
    Left,
    /// For numbers.
    Right,
}

/// Definition of a column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    title: &'static str,
    align: Align,
    drop: Option<u8>,
}

impl Column {
    /// Creates a left-aligned column.
    pub const fn name(title: &'static str) -> Self {
        Column { title, align: Align::Left, drop: None }
    }

    /// Creates a right-aligned column.
    pub const fn number(title: &'static str) -> Self {
        Column { title, align: Align::Right, drop: None }
    }

    /// Allows to drop the column when the table is too wide; the lowest rank is dropped first.
    pub const fn droppable(self, rank: u8) -> Self {
        Column { drop: Some(rank), ..self }
    }
}

/// Cells of a row, with their ink and bar.
#[derive(Clone, Debug)]
pub struct Row {
    cells: Vec<String>,
    ink: Ink,
    bar: f64,
}

impl Row {
    /// Creates a row with one ink.
    pub fn new(cells: Vec<String>, ink: Ink) -> Self {
        Row { cells, ink, bar: 0.0 }
    }

    /// Returns the ink of a cell. A layer's colour applies to its name and bar only, because
    /// coloured numbers are hard to compare.
    fn ink(&self, index: usize) -> Ink {
        match self.ink {
            Ink::Plain | Ink::Dim | Ink::Bold | Ink::Alarm => self.ink,
            _ if index == 0 => self.ink,
            _ => Ink::Plain,
        }
    }

    /// Returns the row with a bar of length `part / whole`.
    pub fn with_bar(self, part: u64, whole: u64) -> Self {
        Row { bar: part as f64 / whole.max(1) as f64, ..self }
    }
}

/// Columns and rows of a table.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Row>,
}

/// Preferred gap between two columns.
const GAP: usize = 2;
/// Minimum width of the first column.
const FIRST_COLUMN_MIN: usize = 16;
/// Minimum length of a bar; a shorter one is not readable.
const BAR_MIN: usize = 8;
/// Maximum length of a bar.
const BAR_MAX: usize = 20;
/// Indentation of all lines of a table.
pub const INDENT: usize = 2;

struct Layout {
    shown: Vec<usize>,
    widths: Vec<usize>,
    gap: usize,
    bar: usize,
}

impl Table {
    /// Creates a table without rows.
    pub fn new(columns: Vec<Column>) -> Self {
        Table { columns, rows: Vec::new() }
    }

    /// Appends a row, which has one cell for each column.
    pub fn push(&mut self, row: Row) {
        debug_assert_eq!(row.cells.len(), self.columns.len(), "one cell for each column");
        self.rows.push(row);
    }

    /// Removes those of the named columns that are empty or zero in every row.
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

    /// Returns the heading and the rows, none wider than `columns`.
    pub fn lines(&self, columns: usize) -> Vec<Line> {
        let layout = self.fit(columns.saturating_sub(INDENT));
        let mut lines = Vec::with_capacity(self.rows.len() + 1);
        let titles = self.columns.iter().map(|column| column.title.to_owned()).collect();
        lines.push(self.row(&Row::new(titles, Ink::Dim), &layout));
        lines.extend(self.rows.iter().map(|row| self.row(row, &layout)));
        lines
    }

    fn natural_width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| width(&row.cells[column]));
        cells.max().unwrap_or(0).max(width(self.columns[column].title))
    }

    fn fit(&self, room: usize) -> Layout {
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        loop {
            let mut widths: Vec<usize> = shown.iter().map(|&column| self.natural_width(column)).collect();
            let first = widths[0];
            let rest: usize = widths[1..].iter().sum();
            let least = first.min(FIRST_COLUMN_MIN);
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
        for (index, (&column, &columns)) in layout.shown.iter().zip(&layout.widths).enumerate() {
            let text = match index {
                0 => shorten::path(&row.cells[column], columns),
                _ => row.cells[column].clone(),
            };
            let blank = " ".repeat(columns.saturating_sub(width(&text)));
            if index > 0 {
                line.push(" ".repeat(layout.gap), Ink::Plain);
            }
            let ink = if text == units::NONE { Ink::Dim } else { row.ink(index) };
            match self.columns[column].align {
                Align::Left => line.append(Line::of(text, ink).with(blank, Ink::Plain)),
                Align::Right => line.append(Line::of(blank, Ink::Plain).with(text, ink)),
            }
        }
        line.push(" ".repeat(GAP), Ink::Plain);
        line.with(bar(row.bar, layout.bar), row.ink)
    }
}

/// Formats a bar in eighths of a character; a nonzero fraction has at least one eighth.
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
    fn numbers_are_right_aligned_with_their_heading() {
        assert_eq!(
            painted(&table(), 36),
            ["  call     count      p50      max", "  pread64  1,234  1.00 µs  12.3 µs",]
        );
    }

    #[test]
    fn a_bar_fills_the_remaining_width() {
        assert_eq!(painted(&table(), 46)[1], "  pread64  1,234  1.00 µs  12.3 µs  █████");
    }

    #[test]
    fn gaps_narrow_before_a_column_is_dropped() {
        assert_eq!(painted(&table(), 31)[1], "  pread64 1,234 1.00 µs 12.3 µs");
        assert_eq!(painted(&table(), 30)[1], "  pread64  1,234  12.3 µs");
    }

    #[test]
    fn empty_columns_are_removed() {
        let mut table = Table::new(vec![Column::name("call"), Column::number("errors")]);
        table.push(Row::new(vec!["read".to_owned(), "0".to_owned()], Ink::Plain));
        assert_eq!(painted(&table.without_empty(&["errors"]), 60), ["  call", "  read"]);
    }
}
