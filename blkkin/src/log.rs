//! Log of the services, and notes of `run` and `trace`, on stderr.
//!
//! *In*: `tracing` events. A message is a complete sentence; its values are also fields where a
//! program can use them. *Out*: one line for each event. Text is `blkkin: MESSAGE`, with `warning:
//! ` before the message of a warning. With `--log-format json` a line is an object with `timestamp`
//! (RFC 3339, UTC), `level`, `message` and the fields.
//!
//! *Invariant*: a line reports a change of state, never one record or one span, so the log does not
//! grow with the load. Where records, requests or connections can fail again and again, a
//! [`Limiter`] permits one line in 10 s for each destination or guest. The next line has the number
//! of those that were suppressed.
//!
//! | level | meaning |
//! |---|---|
//! | ERROR | records were lost, or an operator must act |
//! | WARN | a peer is unreachable, or a setting has a risk |
//! | INFO | everything else |
//!
//! *Rejected*: fields in the text too. Each message has its values already, and a terminal has 80
//! columns. One limit for all lines of a call site: a guest that fails would hide another one.

use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, Subscriber as Formatter};
use tracing_subscriber::registry::LookupSpan;

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Starts the log. Events before it are not written.
pub(crate) fn init(format: LogFormat) {
    if FORMAT.set(format).is_err() {
        return;
    }
    let builder = Formatter::builder().with_max_level(Level::INFO).with_writer(io::stderr);
    // Fails only if there is a log already.
    let _ = match format {
        LogFormat::Text => tracing::subscriber::set_global_default(builder.event_format(Text).finish()),
        LogFormat::Json => tracing::subscriber::set_global_default(
            builder.json().flatten_event(true).with_target(false).finish(),
        ),
    };
}

/// Returns whether lines are JSON objects.
pub(crate) fn is_json() -> bool {
    FORMAT.get() == Some(&LogFormat::Json)
}

/// Minimum time between two lines of one [`Limiter`].
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Limit of lines from one call site about one destination or guest: one in [`LINE_INTERVAL`].
#[derive(Debug)]
pub(crate) struct Limiter {
    /// Subject of a line, in the plural: `records`.
    unit: &'static str,
    state: Mutex<LimiterState>,
}

#[derive(Debug, Default)]
struct LimiterState {
    /// Time of the last line.
    last: Option<Instant>,
    /// Number of suppressed lines since then.
    suppressed: u64,
}

impl Limiter {
    pub(crate) fn new(unit: &'static str) -> Limiter {
        Limiter { unit, state: Mutex::default() }
    }

    /// Returns the end of a line if one may be written now: empty, or the number of lines that were
    /// suppressed before it. Otherwise counts this line as suppressed.
    pub(crate) fn pass(&self) -> Option<String> {
        let end = self.pass_if_due();
        if end.is_none() {
            self.suppress();
        }
        end
    }

    /// Does the same as [`pass`](Self::pass), but counts nothing: for a line that can wait.
    pub(crate) fn pass_if_due(&self) -> Option<String> {
        self.pass_at(Instant::now())
    }

    /// Counts a line that is not written.
    pub(crate) fn suppress(&self) {
        self.state().suppressed += 1;
    }

    fn pass_at(&self, now: Instant) -> Option<String> {
        let mut state = self.state();
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < LINE_INTERVAL) {
            return None;
        }
        state.last = Some(now);
        Some(match std::mem::take(&mut state.suppressed) {
            0 => String::new(),
            suppressed => format!(" ({suppressed} more {} since the last such line)", self.unit),
        })
    }

    fn state(&self) -> MutexGuard<'_, LimiterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Format of a line for a person.
struct Text;

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut line: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let warning = if *event.metadata().level() == Level::WARN { "warning: " } else { "" };
        let mut message = Message::default();
        event.record(&mut message);
        writeln!(line, "blkkin: {warning}{}", message.0)
    }
}

/// Message of an event, without its fields.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_an_interval_counts_the_suppressed_ones() {
        let (limiter, start) = (Limiter::new("records"), Instant::now());
        assert_eq!(limiter.pass().as_deref(), Some(""));
        assert_eq!([limiter.pass(), limiter.pass(), limiter.pass_if_due()], [None, None, None]);
        let due = |intervals| limiter.pass_at(start + intervals * LINE_INTERVAL + Duration::from_secs(5));
        assert_eq!(due(0), None);
        assert_eq!(due(1).as_deref(), Some(" (2 more records since the last such line)"));
        limiter.suppress();
        assert_eq!(due(2).as_deref(), Some(" (1 more records since the last such line)"));
        assert_eq!(due(3).as_deref(), Some(""), "each is counted once");
    }
}
