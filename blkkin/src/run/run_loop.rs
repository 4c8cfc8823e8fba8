//! The main loop of a local trace: signals, the end of the pipeline, the deadline.
//!
//! *In*: control events. *Out*: one [`Step`] at a time. One channel carries all events, so that the
//! main thread waits in one place. Only the main thread draws, forwards signals and waits for CMD.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use blkkin_tracer::Tracer;
use rustix::thread::CapabilitySet;
use tracing::info;

use crate::control::signals::ReceivedSignal;
use crate::control::{ControlEvent, ControlReceiver};
use crate::error::CliError;
use crate::privileges::{self, TracingNeeds};
use crate::run::pipeline::{Pipeline, RunOutcome, RunPlan};
use crate::run::progress::{ProgressLine, REDRAW_INTERVAL};

/// Maximum age of the progress: a poll of the rings, the age of the counters in a batch, and the
/// join of the batch.
const PROGRESS_AGE_MAX: Duration = Duration::from_millis(500);

/// The next step of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A signal arrived.
    Signal(ReceivedSignal),
    /// The pipeline ended.
    PipelineEnded,
    /// The deadline has passed.
    DeadlineReached,
    /// The user asked a second time: exit at once.
    ExitNow,
    /// A regular wake-up.
    Tick,
}

/// A running trace.
pub(crate) struct RunLoop {
    events: Receiver<ControlEvent>,
    pipeline: Pipeline,
    progress: ProgressLine,
    /// Returns whether a signal asks to exit; the second one exits at once.
    is_exit_request: fn(&ReceivedSignal) -> bool,
    exit_requests: u32,
    /// The pipeline waits for a server: an exit request then ends that wait, and the report is
    /// kept.
    waiting: bool,
    pipeline_ended: bool,
}

impl RunLoop {
    /// Drops privileges and starts the pipeline. Its threads, and the calling one, keep `kept`.
    pub(crate) fn start(
        control: ControlReceiver,
        tracer: Tracer,
        plan: RunPlan,
        kept: CapabilitySet,
        progress: ProgressLine,
        means_leaving: fn(&ReceivedSignal) -> bool,
    ) -> Result<RunLoop, CliError> {
        let (sender, events) = control.into_parts();
        let contexts = tracer.reads_contexts();
        let needs = TracingNeeds { contexts, lttng: plan.sources.lttng_capabilities(), others: kept };
        let (drain, _) = privileges::confine_tracing(&needs)?;
        let pipeline = Pipeline::start(tracer, drain, plan, sender)?;
        Ok(RunLoop {
            events,
            pipeline,
            progress,
            is_exit_request: means_leaving,
            exit_requests: 0,
            waiting: false,
            pipeline_ended: false,
        })
    }

    /// Waits for the next step, up to `deadline` and no longer than the redraw interval.
    pub(crate) fn next(&mut self, deadline: Option<Instant>) -> Step {
        self.wait(deadline, None)
    }

    /// Takes over the terminal after CMD has exited.
    pub(crate) fn command_exited(&mut self) {
        self.progress.command_exited();
    }

    /// Traces on until everything that recorded calls wrote is on the disks, for up to `longest`, or
    /// until the user asks to exit.
    pub(crate) fn await_writeback(&mut self, longest: Duration) {
        let start = Instant::now();
        let deadline = start.checked_add(longest);
        loop {
            match self.wait(deadline, Some("waiting for write-back")) {
                Step::PipelineEnded | Step::DeadlineReached | Step::ExitNow => return,
                Step::Signal(signal) if !signal.is_child() => return,
                Step::Signal(_) | Step::Tick => {}
            }
            if start.elapsed() > PROGRESS_AGE_MAX && self.pipeline.progress().dirty_bytes == 0 {
                return;
            }
        }
    }

    /// Stops tracing and waits until the report and the destinations have every event; `None` when
    /// the user does not wait.
    pub(crate) fn finish(mut self) -> Result<Option<RunOutcome>, CliError> {
        self.pipeline.stop();
        while !self.pipeline_ended {
            if self.wait(None, Some("finishing")) == Step::ExitNow {
                return Ok(None);
            }
        }
        self.progress.erase();
        self.pipeline.collect().map(Some)
    }

    fn wait(&mut self, deadline: Option<Instant>, phase: Option<&str>) -> Step {
        let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        match self.events.recv_timeout(left.min(REDRAW_INTERVAL)) {
            Ok(ControlEvent::Signal(signal)) => self.signal(signal),
            Ok(ControlEvent::Status(status)) => {
                self.waiting = true;
                self.progress.erase();
                info!("{status}");
                Step::Tick
            }
            Ok(ControlEvent::ClusterReady) => Step::Tick,
            Ok(ControlEvent::PipelineEnded) => {
                self.pipeline_ended = true;
                Step::PipelineEnded
            }
            Err(RecvTimeoutError::Timeout) if left <= REDRAW_INTERVAL => Step::DeadlineReached,
            Err(RecvTimeoutError::Timeout) => {
                self.progress.draw(&self.pipeline.progress(), phase);
                Step::Tick
            }
            Err(RecvTimeoutError::Disconnected) => {
                unreachable!("invariant: the thread that listens to signals lives as long as this process")
            }
        }
    }

    fn signal(&mut self, signal: ReceivedSignal) -> Step {
        if (self.is_exit_request)(&signal) {
            if std::mem::take(&mut self.waiting) {
                self.pipeline.abort_servers();
                return Step::Signal(signal);
            }
            self.exit_requests += 1;
            if self.exit_requests > 1 {
                self.progress.erase();
                return Step::ExitNow;
            }
        }
        Step::Signal(signal)
    }
}
