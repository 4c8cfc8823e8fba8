//! The threads of the agent: drain, event sources, sender.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use blkkin_bus::kafka::{DeliveryStats, KafkaError};
use blkkin_bus::{CAPACITY_DEFAULT, channel};
use blkkin_tracer::{StopSignal, TraceScope, TraceSummary, Tracer, TracerError};
use tracing::info;

use super::metrics::AgentMetrics;
use super::send::{self, EventSink};
use super::shutdown;
use crate::control::{ControlReceiver, ExitNotifier};
use crate::error::{CliError, cannot_spawn, panicked};
use crate::sources::lttng::{LttngMetrics, LttngSource, RunningLttng};
use crate::sources::nbd;
use crate::sources::usdt::{self, UsdtSource};

/// The event sources, each with its metrics.
pub(super) struct EventSources {
    pub(super) lttng: Option<(LttngSource, LttngMetrics)>,
    pub(super) usdt: Option<(UsdtSource, usdt::UsdtMetrics)>,
    pub(super) scope: TraceScope,
}

/// A running agent.
pub(super) struct AgentPipeline {
    pub(super) stop: StopSignal,
    drain: JoinHandle<Result<TraceSummary, TracerError>>,
    send: JoinHandle<Result<SendTotals, CliError>>,
    lttng: Option<RunningLttng>,
    usdt: Option<usdt::RunningUsdt>,
    /// The target of the events, for log lines.
    target: String,
}

/// Totals of the sender.
#[derive(Clone, Debug, Default)]
pub(super) struct SendTotals {
    pub(super) deliveries: DeliveryStats,
    /// Events that are too large for a record.
    pub(super) oversize: u64,
    /// Events that were not queued at shutdown because the queue was full.
    pub(super) left: u64,
    /// Events in flight without an acknowledgement and without a copy in the spool.
    pub(super) unanswered: u64,
    /// Batches left in the spool, and the spool's folder.
    pub(super) spooled: Option<(u64, PathBuf)>,
    /// The cluster's reason for refused records.
    pub(super) refused: Option<KafkaError>,
}

impl AgentPipeline {
    /// Starts the threads.
    pub(super) fn start(
        tracer: Tracer,
        sources: EventSources,
        sink: EventSink,
        target: String,
        control: &ControlReceiver,
        metrics: &Arc<AgentMetrics>,
    ) -> Result<AgentPipeline, CliError> {
        let failed = |error| cannot_spawn("cannot start the agent", &error);
        let EventSources { lttng, usdt, scope } = sources;
        let (mut publisher, subscription) = channel(CAPACITY_DEFAULT);
        let mut running_lttng = None;
        if let Some((source, metrics)) = lttng {
            let (first, batches) = channel(CAPACITY_DEFAULT);
            let out = std::mem::replace(&mut publisher, first);
            running_lttng = Some(source.start(batches, out, scope, &metrics).map_err(failed)?);
        }
        // Upstream of LTTng, as USDT correlation waits for nothing.
        let mut running_usdt = None;
        if let Some((source, metrics)) = usdt {
            let (first, batches) = channel(CAPACITY_DEFAULT);
            let out = std::mem::replace(&mut publisher, first);
            running_usdt = Some(source.start(batches, out, &metrics).map_err(failed)?);
        }
        let (stop, notifier) = (StopSignal::new(), ExitNotifier(control.sender()));
        let (stop_send, metrics) = (stop.clone(), Arc::clone(metrics));
        let send = Builder::new().name("send".into()).spawn(move || {
            // Dropped last, also on a panic: the main thread must learn of the end.
            let _notifier = notifier;
            send::run(subscription, sink, &stop_send, &metrics)
        });
        let send = send.map_err(failed)?;
        let stop_drain = stop.clone();
        let drain = Builder::new().name("drain".into()).spawn(move || tracer.run(publisher, stop_drain));
        let drain = drain.map_err(failed)?;
        Ok(AgentPipeline { stop, drain, send, lttng: running_lttng, usdt: running_usdt, target })
    }

    /// Stops the threads, and logs the shutdown summary.
    pub(super) fn finish(self) -> Result<ExitCode, CliError> {
        self.stop.stop();
        let ended = self.drain.join().map_err(|panic| panicked("the tracer", &*panic))?;
        let totals = self.send.join().map_err(|panic| panicked("the sender", &*panic))??;
        let remarks = self.lttng.map(RunningLttng::collect).transpose()?.unwrap_or_default();
        remarks.iter().for_each(|remark| info!("{remark}"));
        let usdt_events = ended.as_ref().ok().and_then(|ended| ended.usdt);
        if let Some(usdt) = self.usdt {
            let (remarks, _) = usdt.collect(usdt_events)?;
            remarks.iter().for_each(|remark| info!("{remark}"));
        }
        let TraceSummary { accounts, nbd, .. } = ended?;
        nbd.iter().flat_map(|nbd| nbd::remarks(nbd, None)).for_each(|remark| info!("{remark}"));
        shutdown::summary(totals, &self.target, accounts.lost())
    }
}
