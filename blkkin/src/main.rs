//! `blkkin`: the command-line program that traces storage operations through every layer of one
//! machine.
//!
//! *In*: a command line. *Out*: a report, spans for a tracing backend, and an exit status. This
//! crate composes the libraries and owns what only a command line has: filters and destinations as
//! arguments, the traced command as a child process, signals, the terminal.
//!
//! - [`cli`] parses the command line, [`filter`] resolves its filters, [`destination`] opens its
//!   destinations.
//! - [`run`] traces a command or this machine: tracer → bus → joiner → report and span sinks.
//! - [`sources`] adds daemon spans from LTTng-UST, USDT probes and NBD sockets.
//! - [`services`] holds the agent (sends events to Kafka), the aggregator (joins the events of many
//!   machines) and the exporter (delivers traces); all three use [`service`].
//! - [`privileges`] drops capabilities and confines the process once it traces or serves.
//! - [`top`] shows which programs use the disks, from totals that the kernel counts.
//! - [`doctor`] reports what can be traced here.
//!
//! Modules form layers: no module uses one that uses it.
//!
//! *Invariant*: blkkin validates everything that it can refuse before it traces anything. It
//! changes neither the output nor the exit status of CMD.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod cli;
mod clock;
mod control;
mod ctl;
mod destination;
mod disk_counts;
mod doctor;
mod dump;
mod error;
mod filter;
mod guests;
mod log;
mod privileges;
mod report;
mod resolver;
mod run;
mod service;
mod services;
mod sources;
mod suggest;
mod terminal;
mod top;

use std::io::Write;
use std::process::ExitCode;

use crate::cli::CliCommand;

fn main() {
    let_kernel_log_faults();
    resolver::restrict_nss_to_files_and_dns();
    exit(match cli::parse(std::env::args_os()) {
        Ok(command) => dispatch(command),
        Err(failure) => failure.print(),
    })
}

fn dispatch(command: CliCommand) -> ExitCode {
    log::init(command.log_format());
    let outcome = match command {
        CliCommand::Run(args) => run::run(&args),
        CliCommand::Trace(args) => run::trace::trace(&args),
        CliCommand::Top(args) => top::top(&args),
        CliCommand::Agent(args) => services::agent::agent(&args),
        CliCommand::Dump(args) => dump::dump(&args),
        CliCommand::Ctl(args) => ctl::ctl(&args),
        CliCommand::Report(args) => report::report(&args),
        CliCommand::Aggregator(args) => services::aggregator::aggregator(&args),
        CliCommand::Exporter(args) => services::exporter::exporter(&args),
        CliCommand::Doctor(args) => doctor::doctor(&args),
        CliCommand::Help(args) => cli::topics::help(&args, cli::definition()),
        CliCommand::Completions(args) => cli::shell_files::completions(&args, cli::definition()),
        CliCommand::ManualPages(args) => cli::shell_files::manual_pages(&args, cli::definition()),
    };
    outcome.unwrap_or_else(|error| error.print())
}

/// Lets the kernel log a fatal SIGSEGV, with the thread's name and the instruction's address, as it does on
/// x86 by default. It logs none in a thread that blocks signals, as librdkafka's threads do, if the signal has
/// a handler; Rust's runtime installs one, which only reports stack overflows.
fn let_kernel_log_faults() {
    // SAFETY: the default action runs no code of this process.
    unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
}

/// Ends the process without the exit handlers of libraries. OpenSSL's handler frees state that a
/// thread still uses while it waits for a Kafka cluster. Such a thread is not joined, as an answer
/// can take 10 s when there is no cluster.
fn exit(code: ExitCode) -> ! {
    let status = (0..=u8::MAX).find(|status| ExitCode::from(*status) == code).unwrap_or(1);
    // A closed stdout has no reader.
    let _ = std::io::stdout().flush();
    // SAFETY: `_exit` takes a number and does not return; the kernel releases the process's
    // resources.
    unsafe { libc::_exit(status.into()) }
}
