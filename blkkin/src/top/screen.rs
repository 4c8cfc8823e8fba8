//! The terminal while `blkkin top` runs on it.
//!
//! *In*: lines, and the user's keys. *Out*: the lines from the top of a screen of its own. *Invariant*: the terminal is
//! as before when the [`Screen`] is dropped, also by an error.
//!
//! *Rejected*: crossterm's events. When the terminal is gone they were seen to wait for ever, with a whole CPU, and
//! neither a signal nor the time ended it. Keys are single bytes here. Also ratatui: the tables, bars and colours are those of the report (`report/src/text/`), and what is left
//! is to draw lines from the top.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::terminal::{
    self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use crossterm::{execute, queue};

use crate::error::{CliError, Status};

/// Rows of a terminal that does not know its size.
const ROWS_DEFAULT: usize = 24;
/// Longest wait for a key: a signal is noticed after it.
const WAIT_MS: u64 = 200;

pub(super) struct Screen(());

/// Reason for the end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The user wants to leave.
    Quit,
    Key(char),
    /// The terminal has another size, or nothing happened.
    Redraw,
    /// The time is over.
    Due,
}

impl Screen {
    pub(super) fn open() -> Result<Screen, CliError> {
        enable_raw_mode().map_err(|error| failed(&error))?;
        let screen = Screen(());
        execute!(io::stdout(), EnterAlternateScreen, Hide).map_err(|error| failed(&error))?;
        Ok(screen)
    }

    /// Returns the number of rows.
    #[allow(clippy::unused_self, reason = "there are rows only while a screen is open")]
    pub(super) fn rows(&self) -> usize {
        match terminal::size() {
            Ok((_, rows)) if rows > 0 => rows.into(),
            _ => ROWS_DEFAULT,
        }
    }

    /// Draws lines from the top.
    pub(super) fn draw(&mut self, lines: &[String]) -> Result<(), CliError> {
        let rows = self.rows();
        let mut out = io::stdout().lock();
        let mut draw = || {
            for (row, line) in lines.iter().take(rows).enumerate() {
                queue!(out, MoveTo(0, row as u16))?;
                write!(out, "{line}")?;
                queue!(out, Clear(ClearType::UntilNewLine))?;
            }
            if lines.len() < rows {
                queue!(out, MoveTo(0, lines.len() as u16), Clear(ClearType::FromCursorDown))?;
            }
            out.flush()
        };
        draw().map_err(|error| failed(&error))
    }

    /// Waits for a key, at most until `until`.
    #[allow(clippy::unused_self, reason = "there are keys only while a screen is open")]
    pub(super) fn wait(&mut self, until: Instant) -> Result<Action, CliError> {
        let left = until.saturating_duration_since(Instant::now());
        if !has_input(left.min(Duration::from_millis(WAIT_MS))).map_err(|error| failed(&error))? {
            return Ok(if Instant::now() >= until { Action::Due } else { Action::Redraw });
        }
        let mut bytes = [0; 64];
        let read = io::stdin().lock().read(&mut bytes);
        // No bytes, or an error: the terminal is gone.
        Ok(read.map_or(Action::Quit, |count| action_of(&bytes[..count])))
    }
}

/// Waits up to this time for a key, or for the end of the terminal. A signal ends the wait too.
fn has_input(time: Duration) -> io::Result<bool> {
    let mut wanted = libc::pollfd { fd: io::stdin().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which lives until the call returns.
    match unsafe { libc::poll(&raw mut wanted, 1, time.as_millis() as libc::c_int) } {
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
        ready => Ok(ready > 0),
    }
}

/// Returns the action of a read of the terminal: one key, or the sequence of one.
fn action_of(bytes: &[u8]) -> Action {
    const CTRL_C: u8 = 3;
    const ESCAPE: u8 = 27;
    match bytes {
        [] | [b'q' | CTRL_C, ..] | [ESCAPE] => Action::Quit,
        [key, ..] if key.is_ascii_graphic() || *key == b' ' => Action::Key((*key).into()),
        _ => Action::Redraw,
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

fn failed(error: &io::Error) -> CliError {
    let remedy = "blkkin top --count 10 prints text, and --json objects";
    CliError { status: Status::Failed, ..CliError::usage("cannot use the terminal", error, remedy) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_bytes_and_an_end_is_a_reason_to_quit() {
        for bytes in [&b""[..], b"q", b"\x03", b"\x1b"] {
            assert_eq!(action_of(bytes), Action::Quit, "{bytes:?}");
        }
        assert_eq!((action_of(b"c"), action_of(b" ")), (Action::Key('c'), Action::Key(' ')));
        // An arrow, and a letter that is not ASCII.
        assert_eq!((action_of(b"\x1b[A"), action_of("é".as_bytes())), (Action::Redraw, Action::Redraw));
    }
}
