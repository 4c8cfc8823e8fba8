//! `blkkin run`: traces one command and its descendants until the command exits.
//!
//! The order matters. blkkin validates everything first (filters, CMD, destinations, privileges),
//! so that CMD never runs untraced. It listens to signals before CMD starts. The main thread forks
//! CMD inside the tracer's guard, so that CMD is traced from its exec on and no thread of blkkin
//! is. Then blkkin drops its own privileges ([`crate::privileges`]); CMD keeps those of the user.
//!
//! After the first Ctrl-C, which CMD receives from the terminal, tracing continues until CMD exits.
//! After the second, blkkin exits at once: it kills no process, and the kernel detaches its probes.

pub(crate) mod command;
pub(crate) mod output;
pub(crate) mod pipeline;
pub(crate) mod progress;
pub(crate) mod run_loop;
pub(crate) mod trace;

use std::process::{Child, ExitCode, ExitStatus};
use std::time::Duration;

use blkkin_report::{Report, ReportConfig};
use blkkin_tracer::{TraceScope, Tracer, TracerConfig};
use tracing::info;

use crate::cli::RunArgs;
use crate::cli::units;
use crate::clock;
use crate::control::ControlReceiver;
use crate::control::signals::ReceivedSignal;
use crate::destination;
use crate::disk_counts::DiskCounter;
use crate::error::{CliError, Status};
use crate::filter::{TraceFilter, keep, sampling};
use crate::privileges;
use crate::run::command::ResolvedCommand;
use crate::run::output::{Output, Stream};
use crate::run::pipeline::{GuestPorts, RunOutcome, RunPlan};
use crate::run::progress::{ProgressLine, TerminalOwner};
use crate::run::run_loop::{RunLoop, Step};
use crate::sources::EventSources;
use crate::sources::lttng::{self, LttngSource};
use crate::sources::usdt::UsdtProbes;

/// Runs and traces a command; returns its exit status.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, CliError> {
    let command = command::resolve(&args.command)?;
    let writeback = args.await_writeback.as_deref();
    let writeback = writeback.map(|time| units::std_duration("--await-writeback", time)).transpose()?;
    let (tracer, plan, output) = prepare(args, &command).map_err(CliError::before_command)?;
    let control = ControlReceiver::open()?;
    let mut child = {
        let _traced = tracer.trace_children_of_this_thread()?;
        command.start()?
    };
    let progress = ProgressLine::new(TerminalOwner::Command, args.output.color);
    let kept = privileges::FILES | privileges::SIGNALS;
    match RunLoop::start(control, tracer, plan, kept, progress, ReceivedSignal::is_interrupt) {
        Ok(session) => run_until_exit(session, &mut child, output, writeback),
        // CMD runs already, so blkkin only waits for it.
        Err(failure) => {
            failure.print();
            wait(&mut child).map(command::exit_code)
        }
    }
}

fn prepare(args: &RunArgs, command: &ResolvedCommand<'_>) -> Result<(Tracer, RunPlan, Output), CliError> {
    let mut filter = TraceFilter::resolve(&args.filter, keep::Disks::Present)?;
    filter.require_machines()?;
    sampling::check_sources(filter.head_sampling, &args.lttng, &args.usdt)?;
    let usdt_probes = UsdtProbes::resolve(&args.usdt)?;
    let config = TracerConfig {
        nbd: args.lttng.nbd,
        image_disks: args.guests.guests.is_some(),
        dirty_pages: true,
        ..filter.tracer_config(TraceScope::Marked, &args.tracer)?
    };
    let config = usdt_probes.tracer_config(config);
    let sinks = destination::open_all(&args.output.to, &args.output.servers)?;
    let output = Output::open(&args.output, Stream::Stderr)?;
    let mut tracer = Tracer::load(&config)?;
    filter.trace_processes(&tracer)?;
    // The LTTng session exists before CMD starts.
    let lttng = LttngSource::open(&args.lttng, &config.contexts)?;
    let usdt = usdt_probes.attach(&mut tracer)?;
    let sources = EventSources::without_metrics(lttng, usdt, TraceScope::Marked);
    let report = Report::new(ReportConfig {
        command: Some(command.shell_line()),
        excludes_writers: !config.kernel_origin,
        slowest: args.output.slowest(),
        daemon_spans: lttng::daemon_span_source(&args.lttng, &args.usdt),
        ..ReportConfig::new(clock::now())
    });
    let (host, machines) = (tracer.source(), args.filter.vm.clone());
    let guests = args.guests.guests.clone().map(|folder| GuestPorts { host, folder, machines });
    Ok((
        tracer,
        RunPlan {
            scope: TraceScope::Marked,
            post_filter: filter.post,
            detail: filter.detail,
            report,
            sinks,
            sources,
            nbd: args.lttng.nbd,
            host: guests.as_ref().map(|ports| ports.host.node),
            guests,
            disk_counts: DiskCounter::start(),
        },
        output,
    ))
}

fn run_until_exit(
    mut session: RunLoop,
    child: &mut Child,
    output: Output,
    writeback: Option<Duration>,
) -> Result<ExitCode, CliError> {
    let Some(status) = wait_for_command(&mut session, child)? else {
        info!("exiting; the command continues untraced as process {}", child.id());
        return Ok(Status::Interrupted.code());
    };
    let ended = clock::now();
    session.command_exited();
    if let Some(longest) = writeback {
        session.await_writeback(longest);
    }
    match session.finish() {
        Ok(None) => return Ok(Status::Interrupted.code()),
        Ok(Some(mut outcome)) => {
            outcome.report.set_end(ended);
            print_outcome(&outcome, &output, status);
        }
        // CMD has exited: its status is the exit status, even if tracing failed.
        Err(failure) => {
            failure.print();
        }
    }
    Ok(command::exit_code(status))
}

fn print_outcome(outcome: &RunOutcome, output: &Output, status: ExitStatus) {
    for failure in output.write_report(outcome) {
        failure.print();
    }
    let notes = command::killed_by_signal(status).into_iter().chain(still_running_note(outcome));
    let notes = notes.chain(dirty_note(outcome.tracer.0.dirty_bytes));
    notes.chain(outcome.source_notes.iter().cloned()).for_each(|note| output.note(&note));
}

/// Waits for CMD and forwards signals; `None` when the user leaves first.
fn wait_for_command(session: &mut RunLoop, child: &mut Child) -> Result<Option<ExitStatus>, CliError> {
    let process = libc::pid_t::try_from(child.id()).expect("invariant: process ids fit into pid_t");
    loop {
        match session.next(None) {
            Step::ExitNow => return Ok(None),
            Step::Signal(signal) if !signal.is_child() => {
                // The child has not been waited for, so the pid is still its own.
                if signal.must_forward(process) {
                    signal.forward(process);
                }
            }
            // Tracing may have failed; CMD continues, and the summary reports the error.
            Step::Signal(_) | Step::PipelineEnded | Step::Tick | Step::DeadlineReached => {}
        }
        if let Some(status) = child.try_wait().map_err(wait_error)? {
            return Ok(Some(status));
        }
    }
}

fn still_running_note(outcome: &RunOutcome) -> Option<String> {
    // A lost exit record would count as a live process.
    let known = outcome.live_processes.filter(|_| outcome.tracer.0.names.dropped == 0);
    match known {
        Some(0) | None => None,
        Some(1) => Some("1 process that the command started is still running, untraced".into()),
        Some(many) => Some(format!("{many} processes that the command started are still running, untraced")),
    }
}

fn dirty_note(dirty: u64) -> Option<String> {
    (dirty > 0).then(|| {
        let dirty = blkkin_report::text::units::bytes(dirty);
        format!(
            "{dirty} that the command wrote was not on a disk yet; --await-writeback 40s traces until it is"
        )
    })
}

fn wait(child: &mut Child) -> Result<ExitStatus, CliError> {
    child.wait().map_err(wait_error)
}

fn wait_error(error: std::io::Error) -> CliError {
    CliError::cannot_trace("cannot wait for the command", error, "ps, to see whether it runs")
}
