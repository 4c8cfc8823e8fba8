//! A line of text runs, each with its ink. Widths are measured without escape sequences.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::style::{Ink, Style};

/// A line without its newline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    runs: Vec<(String, Ink)>,
}

impl Line {
    /// Creates an empty line.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a line of one run.
    pub fn of(text: impl Into<String>, ink: Ink) -> Self {
        Self::new().with(text, ink)
    }

    /// Returns the line with one more run.
    pub fn with(mut self, text: impl Into<String>, ink: Ink) -> Self {
        self.push(text, ink);
        self
    }

    /// Appends a run.
    pub fn push(&mut self, text: impl Into<String>, ink: Ink) {
        self.runs.push((text.into(), ink));
    }

    /// Appends all runs of `other`.
    pub fn append(&mut self, other: Line) {
        self.runs.extend(other.runs);
    }

    /// Appends spaces up to `column`.
    pub fn pad_to(&mut self, column: usize) {
        let missing = column.saturating_sub(self.width());
        self.push(" ".repeat(missing), Ink::Plain);
    }

    /// Returns the width in terminal columns.
    pub fn width(&self) -> usize {
        self.runs.iter().map(|(text, _)| width(text)).sum()
    }

    /// Returns the line as written to the terminal: never wider than `style` allows, without
    /// trailing blanks.
    pub fn paint(&self, style: &Style) -> String {
        let mut fitted = self.clone();
        fitted.trim_end();
        if fitted.width() > style.columns() {
            fitted.clip(style.columns());
        }
        fitted.runs.iter().map(|(text, ink)| style.paint(text, *ink)).collect()
    }

    fn clip(&mut self, columns: usize) {
        let mut left = columns.saturating_sub(1);
        for (text, _) in &mut self.runs {
            let fitting = prefix(text, left);
            let complete = fitting.len() == text.len();
            left -= width(fitting);
            *text = fitting.to_owned();
            if !complete {
                text.push('…');
                left = 0;
            }
        }
        let cut = self.runs.iter().position(|(text, _)| text.ends_with('…'));
        self.runs.truncate(cut.map_or(self.runs.len(), |at| at + 1));
    }

    fn trim_end(&mut self) {
        while let Some((text, _)) = self.runs.last_mut() {
            text.truncate(text.trim_end().len());
            if !text.is_empty() {
                return;
            }
            self.runs.pop();
        }
    }
}

/// Returns the width of `text` in terminal columns.
pub fn width(text: &str) -> usize {
    text.width()
}

/// Returns the longest prefix of `text` of up to `columns` columns.
pub fn prefix(text: &str, columns: usize) -> &str {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += c.width().unwrap_or(0);
        if used > columns {
            return &text[..at];
        }
    }
    text
}

/// Returns the longest suffix of `text` of up to `columns` columns.
pub fn suffix(text: &str, columns: usize) -> &str {
    let mut used = 0;
    for (at, c) in text.char_indices().rev() {
        used += c.width().unwrap_or(0);
        if used > columns {
            return &text[at + c.len_utf8()..];
        }
    }
    text
}

/// Replaces control characters in names that programs chose (paths, comms): they could move a
/// terminal's cursor or change its title.
pub fn sanitize(text: &str) -> String {
    text.chars().map(|c| if c.width().is_none() || is_bidi(c) { '\u{fffd}' } else { c }).collect()
}

/// Returns whether `c` changes the order of the text around it (Unicode annex 9).
fn is_bidi(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Units; wrapping never separates one from its number.
const UNITS: &[&str] = &["%", "ns", "µs", "us", "ms", "s", "B", "KiB", "MiB", "GiB", "TiB"];

/// Splits a text into words; a number and its unit are one word.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let mut end = text.find(' ').unwrap_or(text.len());
        if text[..end].ends_with(|last: char| last.is_ascii_digit()) && end < text.len() {
            let next = text[end + 1..].find(' ').map_or(text.len(), |next| end + 1 + next);
            if UNITS.contains(&text[end + 1..next].trim_end_matches([',', ';', '.', ':', ')'])) {
                end = next;
            }
        }
        rest = text.get(end + 1..);
        Some(&text[..end])
    })
}

/// Wraps a text at word boundaries into lines of up to `columns` columns, each indented by
/// `indent`.
pub fn wrap(text: &str, indent: usize, columns: usize, ink: Ink) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut current = " ".repeat(indent);
    let mut empty = true;
    for word in words(text) {
        if !empty && width(&current) + 1 + width(word) > columns {
            lines.push(Line::of(std::mem::replace(&mut current, " ".repeat(indent)), ink));
            empty = true;
        }
        if !empty {
            current.push(' ');
        }
        current.push_str(word);
        empty = false;
    }
    lines.push(Line::of(current, ink));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::style::{Alphabet, Colour};

    fn style(width: usize) -> Style {
        Style { width, alphabet: Alphabet::Unicode, colour: Colour::Never }
    }

    #[test]
    fn a_long_line_is_cut_with_an_ellipsis() {
        let line = Line::of("a".repeat(50), Ink::Plain).with("b".repeat(50), Ink::Dim).with("c", Ink::Dim);
        let painted = line.paint(&style(60));
        assert_eq!(width(&painted), 60);
        assert!(painted.ends_with("b…"));
    }

    #[test]
    fn a_number_stays_with_its_unit() {
        let runs: Vec<_> = words("0.6 % in it, 5 ms, 12 bios; 3 KiB").collect();
        assert_eq!(runs, ["0.6 %", "in", "it,", "5 ms,", "12", "bios;", "3 KiB"]);
        assert_eq!(words("a  b 7").collect::<Vec<_>>(), ["a", "", "b", "7"]);
        assert_eq!(words("").collect::<Vec<_>>(), [""]);
    }

    #[test]
    fn a_line_of_exactly_the_width_stays() {
        let line = Line::of("a".repeat(60), Ink::Plain);
        assert_eq!(line.paint(&style(60)), "a".repeat(60));
    }

    #[test]
    fn wide_characters_count_twice() {
        assert_eq!(width("日本"), 4);
        assert_eq!(prefix("日本", 3), "日");
        assert_eq!(suffix("日本", 3), "本");
    }

    #[test]
    fn names_contain_no_control_characters() {
        assert_eq!(sanitize("a\x1b[2Jb\u{202e}c\n"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}");
    }

    #[test]
    fn wrapping_keeps_every_word_within_the_columns() {
        let lines = wrap("one two three four five", 2, 12, Ink::Plain);
        let texts: Vec<String> = lines.iter().map(|line| line.paint(&style(60))).collect();
        assert_eq!(texts, ["  one two", "  three four", "  five"]);
    }
}
