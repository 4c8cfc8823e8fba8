//! `blkkin`: follows storage requests through every layer of one machine.
//!
//! *In*: a command line. *Out*: a report for a person, spans for a tracing system, and an exit status. This crate
//! composes the libraries and knows what belongs to a command line only: words for filters and destinations,
//! the traced command as a child process, signals, the terminal. In the order in which a run passes them:
//! [`args`] → [`what`] and [`destination`] → [`command`] → [`pipeline`] (tracer → bus → join → report and
//! exporters) → [`output`]; [`run`] and [`trace`] hold them together; [`agent`] sends events instead of joining them,
//! [`aggregator`] joins those of many machines, [`exporter`] brings traces to where they are looked at; all three are a
//! [`service`]. [`doctor`] stands alone.
//!
//! *Invariant*: nothing is traced before everything that can be refused was refused, and CMD's own output and
//! exit status are left alone.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod agent;
mod aggregator;
mod args;
mod clock;
mod command;
mod daemons;
mod destination;
mod doctor;
mod exporter;
mod failure;
mod nearest;
mod output;
mod pipeline;
mod probes;
mod progress;
mod resolver;
mod run;
mod service;
mod session;
mod signals;
mod tail;
mod terminal;
mod trace;
mod what;

use std::io::Write;
use std::process::ExitCode;

use crate::args::Task;

fn main() {
    resolver::hold_to_files_and_dns();
    leave(match args::parse(std::env::args_os()) {
        Ok(task) => work(task),
        Err(refusal) => refusal.print(),
    })
}

fn work(task: Task) -> ExitCode {
    let outcome = match task {
        Task::Run(args) => run::run(&args),
        Task::Trace(args) => trace::trace(&args),
        Task::Agent(args) => agent::agent(&args),
        Task::Aggregator(args) => aggregator::aggregator(&args),
        Task::Exporter(args) => exporter::exporter(&args),
        Task::Doctor(args) => doctor::doctor(&args),
    };
    outcome.unwrap_or_else(|failure| failure.print())
}

/// Ends without the handlers that libraries have for the end: OpenSSL's takes away what a thread stands on that still asks a
/// cluster for something. Nobody waits for such a thread, as an answer takes 10 s where there is none.
fn leave(code: ExitCode) -> ! {
    let status = (0..=u8::MAX).find(|status| ExitCode::from(*status) == code).unwrap_or(1);
    // A closed stdout leaves nobody to tell.
    let _ = std::io::stdout().flush();
    // SAFETY: it takes a number and does not return; what this process holds the kernel takes back.
    unsafe { libc::_exit(status.into()) }
}
