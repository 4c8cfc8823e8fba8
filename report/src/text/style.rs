//! How to write: width, alphabet, colour.

/// How the reader's terminal wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Columns. No line is longer; below [`Style::WIDTH_MIN`] it is taken to be that.
    pub width: usize,
    /// Which characters it can show.
    pub alphabet: Alphabet,
    /// Whether it shows colours.
    pub colour: Colour,
}

impl Style {
    /// Narrower than this a waterfall has no room for its bars.
    pub const WIDTH_MIN: usize = 60;

    /// Columns that are used.
    pub fn columns(&self) -> usize {
        self.width.max(Self::WIDTH_MIN)
    }
}

/// Characters that a terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// Box drawing, block elements, `µ`.
    Unicode,
    /// Nothing above 0x7e.
    Ascii,
}

/// Whether to write escape sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Colours of the terminal's own palette of 16.
    Ansi,
    /// No escape sequence at all.
    Never,
}

/// What a piece of text is, which says how it is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ink {
    /// Like most.
    #[default]
    Plain,
    /// Rules, headings of columns, remarks.
    Dim,
    /// What the eye should find first.
    Bold,
    /// The file system's own time.
    FileSystem,
    /// The journal.
    Journal,
    /// Waiting in the block layer.
    Queue,
    /// At the device.
    Device,
    /// Losses and errors.
    Alarm,
}

impl Ink {
    /// The parameter of the escape sequence SGR (ECMA-48).
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
    /// `text` as it goes to the terminal.
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

/// The nearest that ASCII has, one character for one.
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
    fn escapes_are_written_only_when_asked_for() {
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
