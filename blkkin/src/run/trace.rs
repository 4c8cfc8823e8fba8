//! `blkkin trace`: traces this machine, or a filtered part of it, until Ctrl-C or a deadline.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use blkkin_report::{Report, ReportConfig};
use blkkin_tracer::{Tracer, TracerConfig};

use crate::cli::TraceArgs;
use crate::cli::units;
use crate::clock;
use crate::control::ControlReceiver;
use crate::destination;
use crate::disk_counts::DiskCounter;
use crate::error::{CliError, Status};
use crate::filter::{TraceFilter, context_trust, keep, sampling};
use crate::privileges;
use crate::run::output::{Output, Stream};
use crate::run::pipeline::{GuestPorts, RunPlan};
use crate::run::progress::{ProgressLine, TerminalOwner};
use crate::run::run_loop::{RunLoop, Step};
use crate::sources::EventSources;
use crate::sources::lttng::{self, LttngSource};
use crate::sources::usdt::UsdtProbes;

/// Traces until the first signal; the second exits at once.
pub(crate) fn trace(args: &TraceArgs) -> Result<ExitCode, CliError> {
    let duration = args.duration.as_deref().map(|time| units::std_duration("--for", time)).transpose()?;
    // Signals are received before the probes are attached: a signal meanwhile ends the trace and
    // does not kill blkkin.
    let control = ControlReceiver::open()?;
    let (tracer, plan, output) = prepare(args)?;
    let progress = ProgressLine::new(TerminalOwner::Blkkin, args.output.color);
    let mut session =
        RunLoop::start(control, tracer, plan, privileges::FILES, progress, |signal| !signal.is_child())?;
    wait_for_end(&mut session, duration);
    let ended = clock::now();
    let Some(mut outcome) = session.finish()? else { return Ok(Status::Interrupted.code()) };
    outcome.report.set_end(ended);
    let mut status = Status::Success;
    for failure in output.write_report(&outcome) {
        failure.print();
        status = Status::Failed;
    }
    outcome.source_notes.iter().for_each(|note| output.note(note));
    Ok(status.code())
}

fn prepare(args: &TraceArgs) -> Result<(Tracer, RunPlan, Output), CliError> {
    let mut filter = TraceFilter::resolve(&args.filter, keep::Disks::Present)?;
    filter.require_machines()?;
    sampling::check_sources(filter.head_sampling, &args.lttng, &args.usdt)?;
    let scope = filter.scope();
    let usdt_probes = UsdtProbes::resolve(&args.usdt)?;
    let guests = args.guests.guests.clone();
    let config = TracerConfig {
        nbd: args.lttng.nbd,
        image_disks: guests.is_some(),
        dirty_pages: true,
        ..filter.tracer_config(scope, &args.tracer)?
    };
    let config = usdt_probes.tracer_config(config);
    let sinks = destination::open_all(&args.output.to, &args.output.servers)?;
    let output = Output::open(&args.output, Stream::Stdout)?;
    let mut tracer = Tracer::load(&config)?;
    context_trust::warn_if_limited(&config.contexts);
    filter.trace_processes(&tracer)?;
    let lttng = LttngSource::open(&args.lttng, &config.contexts)?;
    let (slowest, daemon_spans) = (args.output.slowest(), lttng::daemon_span_source(&args.lttng, &args.usdt));
    let excludes_writers = !config.kernel_origin;
    let report = Report::new(ReportConfig {
        slowest,
        daemon_spans,
        excludes_writers,
        ..ReportConfig::new(clock::now())
    });
    let usdt = usdt_probes.attach(&mut tracer)?;
    let sources = EventSources::without_metrics(lttng, usdt, scope);
    let (post_filter, detail) = (filter.post, filter.detail);
    let nbd = args.lttng.nbd;
    let disk_counts = DiskCounter::start();
    let (host, machines) = (tracer.source(), args.filter.vm.clone());
    let guests = guests.map(|folder| GuestPorts { host, folder, machines });
    let host = guests.as_ref().map(|ports| ports.host.node);
    let plan = RunPlan { scope, post_filter, detail, report, sinks, sources, nbd, host, guests, disk_counts };
    Ok((tracer, plan, output))
}

fn wait_for_end(session: &mut RunLoop, duration: Option<Duration>) {
    // A duration that the clock cannot represent means no deadline.
    let deadline = duration.and_then(|time| Instant::now().checked_add(time));
    loop {
        match session.next(deadline) {
            Step::Signal(signal) if !signal.is_child() => return,
            Step::PipelineEnded | Step::DeadlineReached | Step::ExitNow => return,
            Step::Signal(_) | Step::Tick => {}
        }
    }
}
