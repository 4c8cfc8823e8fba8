//! The progress line: counters on the terminal while tracing runs.
//!
//! It is drawn only on a terminal, only in the foreground, and erased before anything else is
//! written. It is not drawn where CMD writes to the same terminal: two writers would corrupt one
//! line.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use blkkin_report::{Progress, Style};

use crate::cli::Color;
use crate::terminal;

/// Redraw interval: short enough to look live, long enough to read.
pub(crate) const REDRAW_INTERVAL: Duration = Duration::from_millis(250);

/// The program that writes to the terminal now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TerminalOwner {
    /// blkkin alone.
    Blkkin,
    /// CMD, wherever its stdout goes.
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
    pub(crate) fn new(company: TerminalOwner, color: Color) -> Self {
        let disturbed = company == TerminalOwner::Command && io::stdout().is_terminal();
        ProgressLine { wanted: io::stderr().is_terminal() && !disturbed, drawn: false, color }
    }

    /// Takes over the terminal after CMD has exited.
    pub(crate) fn command_exited(&mut self) {
        self.wanted = io::stderr().is_terminal();
    }

    /// Redraws the line.
    pub(crate) fn draw(&mut self, progress: &Progress, phase: Option<&str>) {
        if !self.wanted || !terminal::in_foreground(io::stderr()) {
            return;
        }
        let style = terminal::style(self.color, &io::stderr());
        self.write(&render_line(progress, phase, &style));
        self.drawn = true;
    }

    /// Erases the line.
    pub(crate) fn erase(&mut self) {
        if self.drawn {
            self.write(ERASE);
            self.drawn = false;
        }
    }

    fn write(&self, text: &str) {
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

/// Carriage return and erase to the end of the line (ECMA-48: CR, EL).
const ERASE: &str = "\r\x1b[K";

fn render_line(progress: &Progress, phase: Option<&str>, style: &Style) -> String {
    let phase = phase.map(|phase| format!("{phase}: ")).unwrap_or_default();
    let room = Style { width: style.width.saturating_sub(phase.chars().count()), ..*style };
    format!("{ERASE}{phase}{}", progress.line(&room))
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_report::{Alphabet, Colour};

    #[test]
    fn line_with_phase_fits_the_terminal() {
        let style = Style { width: 40, alphabet: Alphabet::Unicode, colour: Colour::Never };
        let line = render_line(&Progress::default(), Some("sending spans"), &style);
        let line = line.strip_prefix(ERASE).unwrap_or_default();
        assert!(line.starts_with("sending spans: "), "{line}");
        assert!(line.ends_with("lost 0"), "{line}");
        assert!(line.chars().count() < 40, "{line}");
    }
}
