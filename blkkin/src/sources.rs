//! Event sources in addition to the kernel's block layer: LTTng-UST, USDT probes and NBD sockets.
//!
//! ```text
//! Tracer ── bus ── USDT correlation ── bus ── LTTng correlation ── bus ── joiner or sender
//! ```
//!
//! *In*: the tracer's batches. *Out*: the same batches with daemon spans, and with the parents of
//! system calls. *Invariant*: this is the only place that states the order. USDT is first, because
//! its correlation does not delay a batch. A source whose option is off adds no thread and no bus.
//! The tracer itself makes the spans of NBD clients; [`nbd`] has only the lines about them in the
//! shutdown summary.

pub(crate) mod lttng;
pub(crate) mod nbd;
pub(crate) mod usdt;

use std::io;

use blkkin_aggregator::stage::link::LinkStats;
use blkkin_bus::{CAPACITY_DEFAULT, Publisher, Subscription, channel};
use blkkin_tracer::enrich::nbd::NbdStats;
use blkkin_tracer::{TraceScope, TraceSummary};
use blkkin_wire::batch::EventBatch;
use rustix::thread::CapabilitySet;

use crate::error::CliError;
use lttng::{LttngMetrics, LttngSource, RunningLttng};
use usdt::{RunningUsdt, UsdtMetrics, UsdtSource, UsdtSourceStats};

/// Sources of a pipeline, each with its metrics.
#[derive(Default)]
pub(crate) struct EventSources {
    pub(crate) lttng: Option<(LttngSource, LttngMetrics)>,
    pub(crate) usdt: Option<(UsdtSource, UsdtMetrics)>,
    /// Scope of tracing, which also selects the daemon spans.
    pub(crate) scope: TraceScope,
}

/// The threads of the started sources.
pub(crate) struct RunningSources {
    lttng: Option<RunningLttng>,
    usdt: Option<RunningUsdt>,
}

/// Results of the sources, after their threads have ended.
pub(crate) struct SourcesOutcome {
    /// Lines of the shutdown summary.
    pub(crate) notes: Vec<String>,
    /// Statistics of USDT events, with `--probes`.
    pub(crate) usdt: Option<UsdtSourceStats>,
    /// NBD messages that are known to be missing, with `--nbd`.
    pub(crate) nbd_lost: u64,
}

impl EventSources {
    /// Combines the sources of `run` and `trace`, whose metrics are not served.
    pub(crate) fn without_metrics(
        lttng: Option<LttngSource>,
        usdt: Option<UsdtSource>,
        scope: TraceScope,
    ) -> EventSources {
        EventSources {
            lttng: lttng.map(|source| (source, LttngMetrics::default())),
            usdt: usdt.map(|source| (source, UsdtMetrics::default())),
            scope,
        }
    }

    /// Returns the capabilities of the thread that owns an LTTng session; none without a session.
    pub(crate) fn lttng_capabilities(&self) -> Option<CapabilitySet> {
        self.lttng.as_ref().map(|(source, _)| source.kept())
    }

    /// Starts the sources upstream of `out`. Returns the publisher for the tracer.
    pub(crate) fn start(
        self,
        out: Publisher<EventBatch>,
    ) -> io::Result<(Publisher<EventBatch>, RunningSources)> {
        let EventSources { lttng, usdt, scope } = self;
        let mut chain = Chain { input: out };
        let lttng = lttng
            .map(|(source, metrics)| {
                chain.prepend(|batches, out| source.start(batches, out, scope, &metrics))
            })
            .transpose()?;
        let usdt = usdt
            .map(|(source, metrics)| chain.prepend(|batches, out| source.start(batches, out, &metrics)))
            .transpose()?;
        Ok((chain.input, RunningSources { lttng, usdt }))
    }
}

/// Elements of the flow, assembled from the last one to the first.
struct Chain {
    /// Input of the first element.
    input: Publisher<EventBatch>,
}

impl Chain {
    /// Starts an element in front of the others.
    fn prepend<T>(
        &mut self,
        start: impl FnOnce(Subscription<EventBatch>, Publisher<EventBatch>) -> io::Result<T>,
    ) -> io::Result<T> {
        let (publisher, batches) = channel(CAPACITY_DEFAULT);
        start(batches, std::mem::replace(&mut self.input, publisher))
    }
}

impl RunningSources {
    /// Waits for the sources. `trace` is the tracer's summary, if it did not fail; `links` has the
    /// counters of a linker in this process.
    pub(crate) fn collect(
        self,
        trace: Option<&TraceSummary>,
        links: Option<&LinkStats>,
    ) -> Result<SourcesOutcome, CliError> {
        let mut notes = self.lttng.map(RunningLttng::collect).transpose()?.unwrap_or_default();
        let mut stats = None;
        if let Some(usdt) = self.usdt {
            let (usdt_notes, usdt_stats) = usdt.collect(trace.and_then(|trace| trace.usdt))?;
            notes.extend(usdt_notes);
            stats = Some(usdt_stats);
        }
        let nbd = trace.and_then(|trace| trace.nbd.as_ref());
        notes.extend(nbd.into_iter().flat_map(|nbd| nbd::notes(nbd, links)));
        Ok(SourcesOutcome { notes, usdt: stats, nbd_lost: nbd.map_or(0, NbdStats::lost) })
    }
}
