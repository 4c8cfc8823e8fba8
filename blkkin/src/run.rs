//! `blkkin run`: one command and its descendants, until it ends.
//!
//! The order matters. What can be refused is refused first (filters, CMD, destinations, privilege), so that CMD
//! never runs untraced; signals are listened to before CMD starts; CMD is forked by the main thread inside the
//! tracer's guard, so that it is followed from its exec on and nothing of blkkin's is.
//!
//! Ctrl-C once: CMD has it from the terminal; tracing goes on until CMD ends, however it takes it. Twice: blkkin
//! leaves at once; nothing is killed, and the kernel detaches what this process had attached.

use std::process::{Child, ExitCode, ExitStatus};

use blkkin_report::{Report, ReportConfig};
use blkkin_tracer::{Follow, Tracer, TracerConfig, TracerError};

use crate::args::RunArgs;
use crate::clock;
use crate::command::{self, Resolved};
use crate::daemons::{self, Daemons};
use crate::destination;
use crate::failure::{Failure, Status};
use crate::output::{Output, Stream, say};
use crate::pipeline::{Harvest, Plan};
use crate::probes::Wanted;
use crate::progress::{Company, ProgressLine};
use crate::session::{Inbox, Session, Step};
use crate::signals::Arrival;
use crate::what::What;

/// Runs and traces a command; gives back its exit status.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let command = command::resolve(&args.command)?;
    let (tracer, plan, output) = prepare(args, &command).map_err(Failure::before_command)?;
    let inbox = Inbox::open()?;
    let mut child = {
        let _followed = tracer.follow_children_of_this_thread().map_err(cannot_trace)?;
        command.start()?
    };
    let progress = ProgressLine::new(Company::Command, args.output.color);
    match Session::start(inbox, tracer, plan, progress, Arrival::is_interrupt) {
        Ok(session) => follow(session, &mut child, output),
        // CMD runs already: all that is left to do is to stand aside.
        Err(failure) => {
            failure.print();
            wait(&mut child).map(command::exit_code)
        }
    }
}

fn prepare(args: &RunArgs, command: &Resolved<'_>) -> Result<(Tracer, Plan, Output), Failure> {
    let mut what = What::look_up(&args.what)?;
    let wanted = Wanted::look_up(&args.probes)?;
    let config = TracerConfig { nbd: args.ust.nbd, ..what.tracer_config(Follow::Marked, &args.how)? };
    let config = wanted.tracer_config(config);
    let outlets = destination::open_all(&args.output.to)?;
    let output = Output::open(&args.output, Stream::Stderr)?;
    let mut tracer = Tracer::load(&config).map_err(cannot_trace)?;
    for pid in &what.tree {
        tracer.follow_tree(*pid).map_err(cannot_trace)?;
    }
    // Programs find a session that was there before them.
    let daemons = Daemons::prepare(&args.ust, &config.contexts)?;
    let probes = wanted.listen(&mut tracer)?;
    let report = Report::new(ReportConfig {
        command: Some(command.line()),
        slowest: args.output.slowest,
        heard: daemons::heard(&args.ust, &args.probes),
        ..ReportConfig::new(clock::now())
    });
    Ok((
        tracer,
        Plan {
            follow: Follow::Marked,
            tail: what.tail,
            detail: what.detail,
            report,
            outlets,
            daemons,
            probes,
            nbd: args.ust.nbd,
        },
        output,
    ))
}

fn follow(mut session: Session, child: &mut Child, output: Output) -> Result<ExitCode, Failure> {
    let Some(status) = until_end(&mut session, child)? else {
        say(&format!("left; the command goes on untraced as process {}", child.id()));
        return Ok(Status::Interrupted.code());
    };
    let ended = clock::now();
    session.alone_now();
    match session.finish() {
        Ok(None) => return Ok(Status::Interrupted.code()),
        Ok(Some(mut harvest)) => {
            harvest.report.end(ended);
            show(&harvest, &output, status);
        }
        // CMD has ended: its status is the answer, whatever became of the trace.
        Err(failure) => {
            failure.print();
        }
    }
    Ok(command::exit_code(status))
}

fn show(harvest: &Harvest, output: &Output, status: ExitStatus) {
    for failure in output.show(harvest) {
        failure.print();
    }
    let remarks = command::remark(status).into_iter().chain(left_behind(harvest));
    remarks.chain(harvest.daemons.iter().cloned()).for_each(|remark| output.remark(&remark));
}

/// Waits for CMD and passes signals on; nothing when the person leaves before it ends.
fn until_end(session: &mut Session, child: &mut Child) -> Result<Option<ExitStatus>, Failure> {
    let process = libc::pid_t::try_from(child.id()).expect("invariant: process ids fit into pid_t");
    loop {
        match session.next(None) {
            Step::Leave => return Ok(None),
            Step::Signal(arrival) if !arrival.is_child() => {
                // The child has not been waited for: the number is still its own.
                if arrival.must_be_passed_on(process) {
                    arrival.pass_on(process);
                }
            }
            // Tracing may have broken; CMD is not to suffer for it, and the end says why.
            Step::Signal(_) | Step::PipelineEnded | Step::Tick | Step::TimeIsUp => {}
        }
        if let Some(status) = child.try_wait().map_err(lost_child)? {
            return Ok(Some(status));
        }
    }
}

fn left_behind(harvest: &Harvest) -> Option<String> {
    // An end of which the record was lost would be taken for life.
    let known = harvest.alive.filter(|_| harvest.tracer.0.names.dropped == 0);
    match known {
        Some(0) | None => None,
        Some(1) => Some("1 process that the command started was still running, and went on untraced".into()),
        Some(many) => Some(format!(
            "{many} processes that the command started were still running, and went on untraced"
        )),
    }
}

fn wait(child: &mut Child) -> Result<ExitStatus, Failure> {
    child.wait().map_err(lost_child)
}

fn lost_child(error: std::io::Error) -> Failure {
    Failure::cannot_trace("cannot wait for the command", error, "ps, to see what became of it")
}

/// The tracer's own words, for a person.
pub(crate) fn cannot_trace(error: TracerError) -> Failure {
    Failure::cannot_trace("cannot trace", &error, error.remedy())
}
