//! Output at the end of a trace: the report as text or JSON, notes and errors.
//!
//! *In*: a [`RunOutcome`]. *Out*: text. CMD owns stdout, so `run` writes everything to stderr.
//! `trace` writes the report to stdout, notes and errors to stderr.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use blkkin_report::{Losses, Section};
use blkkin_wire::batch::SourceStats;
use serde_json::{Value, json};
use tracing::info;

use crate::cli::{Color, OutputArgs};
use crate::error::{CliError, Status};
use crate::run::pipeline::RunOutcome;
use crate::terminal;

/// The stream of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output; no other program writes there.
    Stdout,
    /// Standard error; CMD owns standard output.
    Stderr,
}

/// Output settings of a trace.
pub(crate) struct Output {
    stream: Stream,
    color: Color,
    text: bool,
    sections: Vec<Section>,
    json: JsonOutput,
}

enum JsonOutput {
    Off,
    ReplacesText,
    File(PathBuf, File),
}

impl Output {
    /// Opens the output files, so that an error appears before tracing starts.
    pub(crate) fn open(args: &OutputArgs, stream: Stream) -> Result<Output, CliError> {
        let json = match args.json.as_deref() {
            None => JsonOutput::Off,
            Some(path) if path == Path::new("-") => JsonOutput::ReplacesText,
            Some(path) => JsonOutput::File(path.to_owned(), create(path)?),
        };
        let text = !args.no_report && !matches!(json, JsonOutput::ReplacesText);
        Ok(Output { stream, color: args.color, text, sections: args.sections(), json })
    }

    /// Writes all output and returns the errors.
    pub(crate) fn write_report(&self, outcome: &RunOutcome) -> Vec<CliError> {
        let losses = losses(outcome);
        let mut errors = errors(outcome);
        if self.text {
            let style = match self.stream {
                Stream::Stdout => terminal::style(self.color, &io::stdout()),
                Stream::Stderr => terminal::style(self.color, &io::stderr()),
            };
            self.write(&outcome.report.render(&style, &losses, &self.sections));
        }
        notes(outcome).iter().for_each(|note| self.note(note));
        match &self.json {
            JsonOutput::Off => {}
            JsonOutput::ReplacesText => self.write(&format!("{}\n", json(outcome, &losses))),
            JsonOutput::File(path, file) => {
                let json = format!("{}\n", json(outcome, &losses));
                let written = (&*file).write_all(json.as_bytes()).inspect_err(|_| {
                    // A truncated report reads as a damaged one, so none is left. A device has no
                    // length.
                    let _ = file.set_len(0);
                });
                errors.extend(written.err().map(|error| unwritable(path, &error)));
            }
        }
        errors
    }

    /// Writes a note next to the report; none with JSON output or `--no-report`.
    pub(crate) fn note(&self, line: &str) {
        if self.text {
            info!("{line}");
        }
    }

    fn write(&self, text: &str) {
        let written = match self.stream {
            Stream::Stdout => io::stdout().lock().write_all(text.as_bytes()),
            Stream::Stderr => io::stderr().lock().write_all(text.as_bytes()),
        };
        // A reader that has gone (`| head`) needs no more.
        let _ = written;
    }
}

fn create(path: &Path) -> Result<File, CliError> {
    File::create(path).map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &io::Error) -> CliError {
    let what = format!("cannot write {}", path.display());
    let remedy = "a file in an existing, writable folder with free space";
    CliError { status: Status::Failed, ..CliError::usage(what, error, remedy) }
}

/// Builds the JSON report, and adds the statistics of USDT probes.
fn json(outcome: &RunOutcome, losses: &Losses) -> Value {
    let mut value = outcome.report.to_json(losses);
    value["usdt"] = outcome.usdt_stats.map_or(Value::Null, |stats| {
        json!({
            "events": stats.events,
            "events_lost": stats.lost,
            "events_discarded": stats.discarded,
            "events_with_unread_argument": stats.unread,
            "spans": stats.correlation.spans,
            "spans_unfinished": stats.correlation.spans_unfinished,
            "calls_correlated": stats.correlation.calls_correlated,
        })
    });
    value
}

/// Sums the losses between the kernel hooks and the reader, over the counters of every stage.
fn losses(outcome: &RunOutcome) -> Losses {
    let (stats, join) = (&outcome.tracer.0, &outcome.join);
    let kinds = [join.calls, join.bios, join.requests, join.async_ios, join.commits];
    Losses {
        batches_missed: join.batches_missed + outcome.bus.waiting().items,
        orphaned: kinds.iter().map(|kind| kind.orphaned).sum(),
        spans_dropped: outcome.deliveries.iter().map(|delivery| delivery.stats.dropped()).sum(),
        nbd_messages: outcome.nbd_lost,
        usdt_events: outcome.usdt_stats.map_or(0, |stats| stats.lost),
        in_flight: in_flight(stats),
        ..Losses::from(stats)
    }
}

/// Returns the operations that were in flight when tracing ended.
fn in_flight(stats: &SourceStats) -> u64 {
    let calls =
        stats.calls_entered.saturating_sub(stats.calls.fired + stats.calls_filtered + stats.calls_unsampled);
    let started = stats.bios_queued + stats.requests_started;
    let ended = stats.bios.fired + stats.requests.fired + stats.ends_missed;
    calls + started.saturating_sub(ended)
}

fn errors(outcome: &RunOutcome) -> Vec<CliError> {
    let tracing_error = outcome.tracer.1.as_ref().map(|error| CliError {
        status: Status::Failed,
        ..CliError::usage("tracing ended early: the report covers the time until then", error, error.remedy())
    });
    tracing_error
        .into_iter()
        .chain(outcome.deliveries.iter().filter_map(|delivery| delivery.error()))
        .collect()
}

fn notes(outcome: &RunOutcome) -> Vec<String> {
    let mut notes = Vec::new();
    if outcome.names_unknown > 0 {
        let filtered = outcome.names_unknown;
        notes.push(format!(
            "{filtered} storage operations filtered because a name that a filter needs is unknown"
        ));
    }
    match outcome.unrelated_commits {
        0 => {}
        1 => notes.push("1 journal commit filtered because no traced system call waited for it".into()),
        many => notes
            .push(format!("{many} journal commits filtered because no traced system call waited for them")),
    }
    notes.extend(outcome.deliveries.iter().filter_map(|delivery| delivery.note()));
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_wire::batch::RecordStats;

    #[test]
    fn started_but_unfinished_operations_are_in_flight() {
        let stats = SourceStats {
            calls: RecordStats { fired: 90, recorded: 90, dropped: 0 },
            calls_entered: 100,
            calls_filtered: 5,
            calls_unsampled: 3,
            bios: RecordStats { fired: 5, recorded: 4, dropped: 1 },
            bios_queued: 6,
            requests: RecordStats { fired: 5, recorded: 5, dropped: 0 },
            requests_started: 6,
            ends_missed: 1,
            ..SourceStats::default()
        };
        assert_eq!(in_flight(&stats), 3);
        assert_eq!(in_flight(&SourceStats::default()), 0);
    }
}
