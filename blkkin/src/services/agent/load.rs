//! Loads the tracer of an agent, and opens its other sources of events.

use blkkin_tracer::{Tracer, TracerConfig};
use blkkin_wire::ids::DeviceId;

use super::request_metrics::RequestMetrics;
use super::runtime_control::ControlSocket;
use crate::cli::AgentArgs;
use crate::cli::listen::ListenAddr;
use crate::error::CliError;
use crate::filter::{TraceFilter, context_trust, keep, sampling};
use crate::privileges::{self, Confinement, DrainThread, TracingNeeds};
use crate::sources::EventSources;
use crate::sources::lttng::{LttngMetrics, LttngSource};
use crate::sources::usdt::{UsdtMetrics, UsdtProbes};

/// A loaded tracer with the other sources.
pub(super) struct LoadedTracer {
    pub(super) tracer: Tracer,
    pub(super) sources: EventSources,
    /// Devices that the filter selects; empty for all.
    pub(super) devices: Vec<DeviceId>,
    /// Socket of `blkkin ctl`. It is bound before capabilities are dropped.
    pub(super) control_socket: Option<ControlSocket>,
    /// Totals of requests, with `--totals`.
    pub(super) totals: Option<RequestMetrics>,
}

/// Validates the options, then loads and attaches everything that needs privileges.
pub(super) fn load(args: &AgentArgs) -> Result<LoadedTracer, CliError> {
    let usdt_probes = UsdtProbes::resolve(&args.usdt)?;
    let mut filter = TraceFilter::resolve(&args.filter, keep::Disks::Any)?;
    keep::warn_without_effect(&args.filter.keep);
    let budget = args.budget.as_deref().map(sampling::budget).transpose()?;
    if budget.is_some() || args.is_controlled() {
        filter.sample_by_a_changing_ratio();
    }
    sampling::check_guests(filter.head_sampling, args.guests.is_some())?;
    sampling::check_sources(filter.head_sampling, &args.lttng, &args.usdt)?;
    let scope = filter.scope();
    let config = TracerConfig {
        nbd: args.lttng.nbd,
        machine_disks: args.port.is_some(),
        image_disks: args.guests.is_some(),
        budget,
        keep_changeable: args.is_controlled(),
        ..filter.tracer_config(scope, &args.tracer)?
    };
    let config = usdt_probes.tracer_config(config);
    // First, because a tracer's rings fill from its start on.
    let totals = request_metrics(args, &config)?;
    let mut tracer = Tracer::load(&config)?;
    if let Some((totals, capture)) = totals.as_ref().zip(tracer.capture()) {
        totals.add_to_budget(&capture);
    }
    context_trust::warn_if_limited(&config.contexts);
    filter.trace_processes(&tracer)?;
    let lttng = LttngSource::open(&args.lttng, &config.contexts)?
        .map(|source| (source, LttngMetrics::log_immediately()));
    let usdt = usdt_probes.attach(&mut tracer)?.map(|source| (source, UsdtMetrics::default()));
    let sources = EventSources { lttng, usdt, scope };
    let control_socket = ControlSocket::open(args)?;
    Ok(LoadedTracer { tracer, sources, devices: config.filter.devices, control_socket, totals })
}

/// Starts to count all requests, with `--totals`.
fn request_metrics(args: &AgentArgs, config: &TracerConfig) -> Result<Option<RequestMetrics>, CliError> {
    if args.totals && matches!(args.service.metrics, Some(ListenAddr::Off)) {
        return Err(CliError::usage(
            "--totals with --metrics off",
            "the totals are metrics, so nothing would read them",
            "--totals with --metrics 127.0.0.1:9899, or without --metrics",
        ));
    }
    Ok(args.totals.then(|| RequestMetrics::load(config)).transpose()?)
}

impl LoadedTracer {
    /// Drops the privileges that the loaded tracer does not need.
    pub(super) fn confine(&self) -> Result<(DrainThread, Confinement), CliError> {
        privileges::confine_tracing(&TracingNeeds {
            contexts: self.tracer.reads_contexts(),
            lttng: self.sources.lttng_capabilities(),
            others: privileges::NONE,
        })
    }
}
