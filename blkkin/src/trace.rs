//! `blkkin trace`: this machine, or the part of it that was asked for, until Ctrl-C or for a time.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use blkkin_report::{Report, ReportConfig};
use blkkin_tracer::{Tracer, TracerConfig};

use crate::args::TraceArgs;
use crate::clock;
use crate::daemons::{self, Daemons};
use crate::destination;
use crate::failure::{Failure, Status};
use crate::output::{Output, Stream};
use crate::pipeline::Plan;
use crate::probes::Wanted;
use crate::progress::{Company, ProgressLine};
use crate::run::cannot_trace;
use crate::session::{Inbox, Session, Step};
use crate::what::{What, believed, units, whom};

/// Traces until told to end; the first signal ends the trace, the second leaves at once.
pub(crate) fn trace(args: &TraceArgs) -> Result<ExitCode, Failure> {
    let duration = args.duration.as_deref().map(|time| units::timespan("--for", time)).transpose()?;
    // Open before anything is attached: a signal meanwhile ends the trace, and does not kill it.
    let inbox = Inbox::open()?;
    let (tracer, plan, output) = prepare(args)?;
    let progress = ProgressLine::new(Company::Alone, args.output.color);
    let mut session = Session::start(inbox, tracer, plan, progress, |arrival| !arrival.is_child())?;
    until_end(&mut session, duration);
    let ended = clock::now();
    let Some(mut harvest) = session.finish()? else { return Ok(Status::Interrupted.code()) };
    harvest.report.end(ended);
    let mut status = Status::Success;
    for failure in output.show(&harvest) {
        failure.print();
        status = Status::Failed;
    }
    harvest.daemons.iter().for_each(|remark| output.remark(remark));
    Ok(status.code())
}

fn prepare(args: &TraceArgs) -> Result<(Tracer, Plan, Output), Failure> {
    let mut what = What::look_up(&args.what)?;
    let follow = whom(&what.tree);
    let wanted = Wanted::look_up(&args.probes)?;
    let config = TracerConfig { nbd: args.ust.nbd, ..what.tracer_config(follow, &args.how)? };
    let config = wanted.tracer_config(config);
    let outlets = destination::open_all(&args.output.to)?;
    let output = Output::open(&args.output, Stream::Stdout)?;
    let mut tracer = Tracer::load(&config).map_err(cannot_trace)?;
    believed::say_reach(&config.contexts);
    for pid in &what.tree {
        tracer.follow_tree(*pid).map_err(cannot_trace)?;
    }
    let daemons = Daemons::prepare(&args.ust, &config.contexts)?;
    let (slowest, heard) = (args.output.slowest, daemons::heard(&args.ust, &args.probes));
    let report = Report::new(ReportConfig { slowest, heard, ..ReportConfig::new(clock::now()) });
    let probes = wanted.listen(&mut tracer)?;
    let (tail, detail) = (what.tail, what.detail);
    let nbd = args.ust.nbd;
    Ok((tracer, Plan { follow, tail, detail, report, outlets, daemons, probes, nbd }, output))
}

fn until_end(session: &mut Session, duration: Option<Duration>) {
    // A time that the clock cannot hold is as good as none.
    let deadline = duration.and_then(|time| Instant::now().checked_add(time));
    loop {
        match session.next(deadline) {
            Step::Signal(arrival) if !arrival.is_child() => return,
            Step::PipelineEnded | Step::TimeIsUp | Step::Leave => return,
            Step::Signal(_) | Step::Tick => {}
        }
    }
}
