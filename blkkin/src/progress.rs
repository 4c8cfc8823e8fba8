//! The line that says that something is going on, while it is.
//!
//! Only on a terminal, only in the foreground, and gone before anything else is written. It is not drawn where
//! CMD writes to the same terminal: two writers on one line make nonsense of both.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use blkkin_report::{Progress, Style};

use crate::args::Color;
use crate::terminal;

/// Often enough to look alive, seldom enough to be read.
pub(crate) const DRAW_EVERY: Duration = Duration::from_millis(250);

/// Who else writes to the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    /// Nobody.
    Alone,
    /// CMD, wherever stdout goes.
    Command,
}

/// A line on stderr.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    wanted: bool,
    drawn: bool,
    color: Color,
}

impl ProgressLine {
    pub(crate) fn new(company: Company, color: Color) -> Self {
        let disturbed = company == Company::Command && io::stdout().is_terminal();
        ProgressLine { wanted: io::stderr().is_terminal() && !disturbed, drawn: false, color }
    }

    /// CMD has ended: nobody else writes any more.
    pub(crate) fn alone_now(&mut self) {
        self.wanted = io::stderr().is_terminal();
    }

    /// Draws it anew.
    pub(crate) fn draw(&mut self, seen: &Progress, remark: Option<&str>) {
        if !self.wanted || !terminal::in_foreground(io::stderr()) {
            return;
        }
        let style = terminal::style(self.color, &io::stderr());
        self.put(&text(seen, remark, &style));
        self.drawn = true;
    }

    /// Takes it away.
    pub(crate) fn erase(&mut self) {
        if self.drawn {
            self.put(ERASE);
            self.drawn = false;
        }
    }

    fn put(&self, text: &str) {
        let mut stderr = io::stderr().lock();
        // A terminal that is gone shows nothing.
        let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.erase();
    }
}

/// To the first column, and erase to the end of the line (ECMA-48: CR, EL).
const ERASE: &str = "\r\x1b[K";

fn text(seen: &Progress, remark: Option<&str>, style: &Style) -> String {
    let remark = remark.map(|remark| format!("{remark}: ")).unwrap_or_default();
    let room = Style { width: style.width.saturating_sub(remark.chars().count()), ..*style };
    format!("{ERASE}{remark}{}", seen.line(&room))
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_report::{Alphabet, Colour};

    #[test]
    fn fits_the_terminal_with_its_remark() {
        let style = Style { width: 40, alphabet: Alphabet::Unicode, colour: Colour::Never };
        let line = text(&Progress::default(), Some("sending spans"), &style);
        let line = line.strip_prefix(ERASE).unwrap_or_default();
        assert!(line.starts_with("sending spans: "), "{line}");
        assert!(line.ends_with("lost 0"), "{line}");
        assert!(line.chars().count() < 40, "{line}");
    }
}
