//! The threads of the agent: drain, event sources, sender.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use blkkin_bus::{CAPACITY_DEFAULT, channel};
use blkkin_tracer::{StopSignal, TraceSummary, Tracer, TracerError};
use tracing::info;

use super::event_input::EventInput;
use super::flight_recorder::FlightRecorder;
use super::metrics::AgentMetrics;
use super::send::{self, EventSink};
use super::send_totals::SendTotals;
use super::shutdown;
use crate::control::{ControlReceiver, ExitNotifier};
use crate::error::{CliError, cannot_spawn, panicked};
use crate::privileges::DrainThread;
use crate::sources::{EventSources, RunningSources};

/// A running agent.
pub(super) struct AgentPipeline {
    pub(super) stop: StopSignal,
    drain: JoinHandle<Result<TraceSummary, TracerError>>,
    send: JoinHandle<Result<SendTotals, CliError>>,
    sources: RunningSources,
    /// The target of the events, for log lines.
    target: String,
}

impl AgentPipeline {
    /// Starts the threads.
    pub(super) fn start(
        (tracer, drain): (Tracer, DrainThread),
        sources: EventSources,
        (recorder, sink): (Option<FlightRecorder>, EventSink),
        target: String,
        control: &ControlReceiver,
        metrics: &Arc<AgentMetrics>,
    ) -> Result<AgentPipeline, CliError> {
        let failed = |error| cannot_spawn("cannot start the agent", &error);
        let (publisher, subscription) = channel(CAPACITY_DEFAULT);
        let (publisher, sources) = sources.start(publisher).map_err(failed)?;
        let (stop, notifier) = (StopSignal::new(), ExitNotifier(control.sender()));
        let (stop_send, metrics) = (stop.clone(), Arc::clone(metrics));
        let send = Builder::new().name("send".into()).spawn(move || {
            // Dropped last, also on a panic: the main thread must learn of the end.
            let _notifier = notifier;
            send::run(EventInput::new(subscription, recorder), sink, &stop_send, &metrics)
        });
        let send = send.map_err(failed)?;
        let stop_drain = stop.clone();
        let drain = drain.run(move || tracer.run(publisher, stop_drain));
        Ok(AgentPipeline { stop, drain, send, sources, target })
    }

    /// Stops the threads, and logs the shutdown summary.
    pub(super) fn finish(self) -> Result<ExitCode, CliError> {
        self.stop.stop();
        let ended = self.drain.join().map_err(|panic| panicked("the tracer", &*panic))?;
        let totals = self.send.join().map_err(|panic| panicked("the sender", &*panic))??;
        let outcome = self.sources.collect(ended.as_ref().ok(), None)?;
        outcome.notes.iter().for_each(|note| info!("{note}"));
        let TraceSummary { stats, .. } = ended?;
        shutdown::summary(totals, &self.target, stats.lost())
    }
}
