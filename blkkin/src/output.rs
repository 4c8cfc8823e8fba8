//! What is written at the end: the report, as text or JSON, and what else there is to say.
//!
//! *In*: a [`Harvest`]. *Out*: bytes. CMD owns stdout, so with `run` everything is on stderr; with `trace` the
//! report is on stdout, remarks and errors on stderr.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use blkkin_report::Losses;
use blkkin_wire::batch::Accounts;
use serde_json::{Value, json};

use crate::args::{Color, OutputArgs};
use crate::failure::{Failure, Status};
use crate::pipeline::Harvest;
use crate::terminal;

/// Where the report goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Nobody else writes there.
    Stdout,
    /// CMD owns stdout.
    Stderr,
}

/// How to show what was traced.
pub(crate) struct Output {
    stream: Stream,
    color: Color,
    text: bool,
    json: Json,
}

enum Json {
    No,
    InPlaceOfText,
    ToFile(PathBuf, File),
}

impl Output {
    /// Opens what must be written later, so that it fails before anything is traced.
    pub(crate) fn open(args: &OutputArgs, stream: Stream) -> Result<Output, Failure> {
        let json = match args.json.as_deref() {
            None => Json::No,
            Some(path) if path == Path::new("-") => Json::InPlaceOfText,
            Some(path) => Json::ToFile(path.to_owned(), create(path)?),
        };
        let text = !args.no_report && !matches!(json, Json::InPlaceOfText);
        Ok(Output { stream, color: args.color, text, json })
    }

    /// Writes everything; gives back what did not go well.
    pub(crate) fn show(&self, harvest: &Harvest) -> Vec<Failure> {
        let losses = losses(harvest);
        let mut failures = failures(harvest);
        if self.text {
            let page = match self.stream {
                Stream::Stdout => harvest.report.render(&terminal::style(self.color, &io::stdout()), &losses),
                Stream::Stderr => harvest.report.render(&terminal::style(self.color, &io::stderr()), &losses),
            };
            self.write(&page);
        }
        remarks(harvest).iter().for_each(|remark| self.remark(remark));
        match &self.json {
            Json::No => {}
            Json::InPlaceOfText => self.write(&format!("{}\n", json(harvest, &losses))),
            Json::ToFile(path, file) => {
                let json = format!("{}\n", json(harvest, &losses));
                let written = (&*file).write_all(json.as_bytes()).inspect_err(|_| {
                    // Half of a report reads as a whole one that is broken: rather none. A device has no length.
                    let _ = file.set_len(0);
                });
                failures.extend(written.err().map(|error| unwritable(path, &error)));
            }
        }
        failures
    }

    /// A line beside the report, for a person: none where a machine reads, or where silence was asked for.
    pub(crate) fn remark(&self, line: &str) {
        if self.text {
            say(line);
        }
    }

    fn write(&self, text: &str) {
        let written = match self.stream {
            Stream::Stdout => io::stdout().lock().write_all(text.as_bytes()),
            Stream::Stderr => io::stderr().lock().write_all(text.as_bytes()),
        };
        // A reader that has gone (`| head`) has read what it wanted.
        let _ = written;
    }
}

/// A line for the person, on stderr.
pub(crate) fn say(line: &str) {
    // Nobody to tell when stderr is closed.
    let _ = writeln!(io::stderr().lock(), "blkkin: {line}");
}

fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    let what = format!("cannot write {}", path.display());
    let remedy = "a file in a folder that exists, is yours and has room";
    Failure { status: Status::Failed, ..Failure::usage(what, error, remedy) }
}

/// The report, with what is none of its business: what probes said.
fn json(harvest: &Harvest, losses: &Losses) -> Value {
    let mut value = harvest.report.to_json(losses);
    value["probes"] = harvest.probes.map_or(Value::Null, |told| {
        json!({
            "hits": told.hits,
            "hits_lost": told.lost,
            "hits_unbelieved": told.unbelieved,
            "hits_with_an_argument_unread": told.unread,
            "operations": told.woven.operations,
            "operations_unfinished": told.woven.operations_unfinished,
            "calls_linked": told.woven.calls_linked,
        })
    });
    value
}

/// Everything between a hook and the reader, from the books of every stage.
fn losses(harvest: &Harvest) -> Losses {
    let (accounts, join) = (&harvest.tracer.0, &harvest.join);
    let kinds = [join.calls, join.bios, join.requests, join.commits];
    Losses {
        batches_missed: join.batches_missed + harvest.bus.waiting().items,
        orphaned: kinds.iter().map(|kind| kind.orphaned).sum(),
        spans_dropped: harvest.deliveries.iter().map(|delivery| delivery.accounts.dropped()).sum(),
        in_flight: in_flight(accounts),
        ..Losses::from(accounts)
    }
}

/// What had begun and not ended when tracing did.
fn in_flight(accounts: &Accounts) -> u64 {
    let calls = accounts.calls_entered.saturating_sub(accounts.calls.fired + accounts.calls_filtered);
    let begun = accounts.bios_queued + accounts.requests_started;
    let ended = accounts.bios.fired + accounts.requests.fired + accounts.ends_missed;
    calls + begun.saturating_sub(ended)
}

fn failures(harvest: &Harvest) -> Vec<Failure> {
    let broken = harvest.tracer.1.as_ref().map(|error| Failure {
        status: Status::Failed,
        ..Failure::usage(
            "tracing ended early: the report has what was seen until then",
            error,
            error.remedy(),
        )
    });
    broken.into_iter().chain(harvest.deliveries.iter().filter_map(|delivery| delivery.failure())).collect()
}

fn remarks(harvest: &Harvest) -> Vec<String> {
    let mut remarks = Vec::new();
    if harvest.names_unknown > 0 {
        let left_out = harvest.names_unknown;
        remarks
            .push(format!("{left_out} requests left out, as the name that a filter asks for is not known"));
    }
    match harvest.commits_of_others {
        0 => {}
        1 => remarks.push(
            "1 journal commit left out, as no call of this trace is known to have waited for it".into(),
        ),
        many => remarks.push(format!(
            "{many} journal commits left out, as no call of this trace is known to have waited for them"
        )),
    }
    remarks.extend(harvest.deliveries.iter().filter_map(|delivery| delivery.remark()));
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_wire::batch::Account;

    #[test]
    fn what_began_and_did_not_end_is_in_flight() {
        let accounts = Accounts {
            calls: Account { fired: 90, recorded: 90, dropped: 0 },
            calls_entered: 100,
            calls_filtered: 8,
            bios: Account { fired: 5, recorded: 4, dropped: 1 },
            bios_queued: 6,
            requests: Account { fired: 5, recorded: 5, dropped: 0 },
            requests_started: 6,
            ends_missed: 1,
            ..Accounts::default()
        };
        assert_eq!(in_flight(&accounts), 3);
        assert_eq!(in_flight(&Accounts::default()), 0);
    }
}
