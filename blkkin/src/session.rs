//! What happens while tracing, one thing at a time: a signal, the end of the pipeline, the end of the time given.
//!
//! One inbox for all of it, so that the main thread waits at one place; it alone draws, forwards signals and
//! waits for CMD.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use blkkin_tracer::Tracer;

use crate::failure::Failure;
use crate::output::say;
use crate::pipeline::{Harvest, Pipeline, Plan};
use crate::progress::{DRAW_EVERY, ProgressLine};
use crate::signals::{self, Arrival};

/// What the inbox brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Happening {
    /// A signal arrived.
    Signal(Arrival),
    /// All is traced; a server takes its time. With what to say of it.
    Waiting(String),
    /// The cluster that was looked for can be used.
    Found,
    /// The pipeline has nothing more to do: it was stopped, or broke.
    PipelineEnded,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A signal arrived.
    Signal(Arrival),
    /// The pipeline ended.
    PipelineEnded,
    /// The time given is over.
    TimeIsUp,
    /// The person asked a second time: leave at once.
    Leave,
    /// Time to look around.
    Tick,
}

/// The inbox, from before CMD starts: no signal may fall between.
pub(crate) struct Inbox {
    sender: Sender<Happening>,
    receiver: Receiver<Happening>,
}

impl Inbox {
    /// Listens to signals from now on.
    pub(crate) fn open() -> Result<Inbox, Failure> {
        let (sender, receiver) = channel();
        signals::listen(sender.clone()).map_err(|error| no_thread("cannot listen to signals", &error))?;
        Ok(Inbox { sender, receiver })
    }

    /// Waits at most `timeout` for what comes next.
    pub(crate) fn next(&mut self, timeout: Duration) -> Option<Happening> {
        self.receiver.recv_timeout(timeout).ok()
    }

    /// For who has something to say.
    pub(crate) fn sender(&self) -> Sender<Happening> {
        self.sender.clone()
    }
}

/// Tracing under way.
pub(crate) struct Session {
    inbox: Receiver<Happening>,
    pipeline: Pipeline,
    progress: ProgressLine,
    /// Which signals mean that the person wants to leave; the second does.
    means_leaving: fn(&Arrival) -> bool,
    asked_to_leave: u32,
    /// A server is waited for: who wants to leave then need not do without the report.
    waiting: bool,
    pipeline_ended: bool,
}

impl Session {
    /// Starts the pipeline.
    pub(crate) fn start(
        inbox: Inbox,
        tracer: Tracer,
        plan: Plan,
        progress: ProgressLine,
        means_leaving: fn(&Arrival) -> bool,
    ) -> Result<Session, Failure> {
        let pipeline = Pipeline::start(tracer, plan, inbox.sender)
            .map_err(|error| no_thread("cannot start tracing", &error))?;
        Ok(Session {
            inbox: inbox.receiver,
            pipeline,
            progress,
            means_leaving,
            asked_to_leave: 0,
            waiting: false,
            pipeline_ended: false,
        })
    }

    /// Waits for the next thing to do, at most until `deadline` and never longer than it takes to draw again.
    pub(crate) fn next(&mut self, deadline: Option<Instant>) -> Step {
        self.wait(deadline, None)
    }

    /// CMD is gone: the terminal is ours.
    pub(crate) fn alone_now(&mut self) {
        self.progress.alone_now();
    }

    /// Stops tracing and waits until everything that was seen is in the report and at its destinations; nothing
    /// when the person would not wait for it.
    pub(crate) fn finish(mut self) -> Result<Option<Harvest>, Failure> {
        self.pipeline.stop();
        while !self.pipeline_ended {
            if self.wait(None, Some("finishing")) == Step::Leave {
                return Ok(None);
            }
        }
        self.progress.erase();
        self.pipeline.collect().map(Some)
    }

    fn wait(&mut self, deadline: Option<Instant>, remark: Option<&str>) -> Step {
        let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        match self.inbox.recv_timeout(left.min(DRAW_EVERY)) {
            Ok(Happening::Signal(arrival)) => self.signal(arrival),
            Ok(Happening::Waiting(remark)) => {
                self.waiting = true;
                self.progress.erase();
                say(&remark);
                Step::Tick
            }
            Ok(Happening::Found) => Step::Tick,
            Ok(Happening::PipelineEnded) => {
                self.pipeline_ended = true;
                Step::PipelineEnded
            }
            Err(RecvTimeoutError::Timeout) if left <= DRAW_EVERY => Step::TimeIsUp,
            Err(RecvTimeoutError::Timeout) => {
                self.progress.draw(&self.pipeline.seen(), remark);
                Step::Tick
            }
            Err(RecvTimeoutError::Disconnected) => {
                unreachable!("invariant: the thread that listens to signals lives as long as this process")
            }
        }
    }

    fn signal(&mut self, arrival: Arrival) -> Step {
        if (self.means_leaving)(&arrival) {
            if std::mem::take(&mut self.waiting) {
                self.pipeline.break_off();
                return Step::Signal(arrival);
            }
            self.asked_to_leave += 1;
            if self.asked_to_leave > 1 {
                self.progress.erase();
                return Step::Leave;
            }
        }
        Step::Signal(arrival)
    }
}

/// A thread that the system does not give.
pub(crate) fn no_thread(what: &str, error: &io::Error) -> Failure {
    Failure::cannot_trace(what, error, "a higher limit of threads (ulimit -u, the cgroup's pids.max)")
}
