//! The terminal while `blkkin top` runs on it.
//!
//! *In*: lines, and the user's keys. *Out*: the lines from the top of a screen of its own. *Invariant*: the terminal is
//! as before when the [`Screen`] is dropped, also by an error.
//!
//! *Rejected*: ratatui. The tables, bars and colours are those of the report (`report/src/text/`), and what is left
//! is to draw lines from the top.

use std::io::{self, Write};
use std::time::Instant;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
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
    pub(super) fn wait(&mut self, until: Instant) -> Result<Action, CliError> {
        let left = until.saturating_duration_since(Instant::now());
        let wait = left.min(std::time::Duration::from_millis(WAIT_MS));
        if !event::poll(wait).map_err(|error| failed(&error))? {
            return Ok(if Instant::now() >= until { Action::Due } else { Action::Redraw });
        }
        Ok(match event::read().map_err(|error| failed(&error))? {
            Event::Key(key) if key.kind == KeyEventKind::Release => Action::Redraw,
            Event::Key(key) => match key.code {
                KeyCode::Char('q') | KeyCode::Esc | KeyCode::F(10) => Action::Quit,
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Action::Quit,
                KeyCode::Char(key) => Action::Key(key),
                _ => Action::Redraw,
            },
            _ => Action::Redraw,
        })
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
