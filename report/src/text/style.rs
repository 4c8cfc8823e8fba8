//! Output style: width, alphabet, colour.

/// Capabilities of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Maximum width in columns; smaller values count as [`Style::WIDTH_MIN`].
    pub width: usize,
    /// Characters that the terminal can display.
    pub alphabet: Alphabet,
    /// Use of colours.
    pub colour: Colour,
}

impl Style {
    /// Minimum width: a narrower waterfall has no room for its bars.
    pub const WIDTH_MIN: usize = 60;

    /// Returns the width that the layout uses.
    pub fn columns(&self) -> usize {
        self.width.max(Self::WIDTH_MIN)
    }
}

/// Characters that a terminal can display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// Box drawing, block elements, `µ`.
    Unicode,
    /// Characters up to 0x7e.
    Ascii,
}

/// Use of escape sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// The 16 colours of the terminal's palette.
    Ansi,
    /// No escape sequences.
    Never,
}

/// Role of a text run, which determines its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ink {
    /// Ordinary text.
    #[default]
    Plain,
    /// Rules, column headings, notes.
    Dim,
    /// Emphasised text.
    Bold,
    /// Time in the file system.
    FileSystem,
    /// Time in the journal.
    Journal,
    /// Time in the block queue.
    Queue,
    /// Time at the device.
    Device,
    /// Losses and errors.
    Alarm,
}

impl Ink {
    /// Returns the parameter of the SGR escape sequence (ECMA-48).
    fn sgr(self) -> Option<&'static str> {
        match self {
            Ink::Plain => None,
            Ink::Dim => Some("2"),
            Ink::Bold => Some("1"),
            Ink::FileSystem => Some("32"),
            Ink::Journal => Some("35"),
            Ink::Queue => Some("33"),
            Ink::Device => Some("36"),
            Ink::Alarm => Some("31"),
        }
    }
}

impl Style {
    /// Returns `text` as written to the terminal.
    pub fn paint(&self, text: &str, ink: Ink) -> String {
        let text = match self.alphabet {
            Alphabet::Unicode => text.to_owned(),
            Alphabet::Ascii => text.chars().map(ascii).collect(),
        };
        match (self.colour, ink.sgr()) {
            (Colour::Ansi, Some(sgr)) if !text.trim().is_empty() => format!("\x1b[{sgr}m{text}\x1b[0m"),
            _ => text,
        }
    }
}

/// Returns the closest ASCII character, always one for one.
fn ascii(c: char) -> char {
    match c {
        ' '..='~' => c,
        'µ' => 'u',
        '·' => ';',
        '–' | '─' | '▏' | '▎' | '▍' | '▌' => '-',
        '…' => '~',
        '━' => '=',
        '░' => '.',
        '▒' => ':',
        '▓' => '+',
        '█' | '▉' | '▊' | '▋' => '#',
        '├' | '│' => '|',
        '└' => '`',
        '┈' => ',',
        '╍' => '*',
        '◆' => '@',
        '▤' => '%',
        '→' => '>',
        '┄' => '?',
        '‹' => '<',
        '×' => 'x',
        _ => '?',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_written_only_with_colour() {
        let plain = Style { width: 80, alphabet: Alphabet::Unicode, colour: Colour::Never };
        assert_eq!(plain.paint("12 µs", Ink::Device), "12 µs");
        let coloured = Style { colour: Colour::Ansi, ..plain };
        assert_eq!(coloured.paint("12 µs", Ink::Device), "\x1b[36m12 µs\x1b[0m");
        assert_eq!(coloured.paint("   ", Ink::Device), "   ");
    }

    #[test]
    fn ascii_keeps_the_number_of_characters() {
        let style = Style { width: 80, alphabet: Alphabet::Ascii, colour: Colour::Never };
        let text = "└ request ░░██ 12 µs · …/naïve";
        let painted = style.paint(text, Ink::Plain);
        assert!(painted.is_ascii());
        assert_eq!(painted.chars().count(), text.chars().count());
    }
}
