//! Log of the services, and notes of `run` and `trace`, on stderr.
//!
//! *In*: `tracing` events. A message is a complete sentence; its values are also fields where a
//! program can use them. *Out*: one line for each event. Text is `blkkin: MESSAGE`, with `warning:
//! ` before the message of a warning. With `--log-format json` a line is an object with `timestamp`
//! (RFC 3339, UTC), `level`, `message` and the fields.
//!
//! *Invariant*: a line reports a change of state, never one record or one span, so the log does not
//! grow with the load.
//!
//! | level | meaning |
//! |---|---|
//! | ERROR | records were lost, or an operator must act |
//! | WARN | a peer is unreachable, or a setting has a risk |
//! | INFO | everything else |
//!
//! *Rejected*: fields in the text too. Each message has its values already, and a terminal has 80
//! columns.

use std::fmt;
use std::io;
use std::sync::OnceLock;

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
