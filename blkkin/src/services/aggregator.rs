//! `blkkin aggregator`: joins the events of many machines into traces, from Kafka to Kafka, as a
//! member of a consumer group.
//!
//! ```text
//! thread "join"                                    thread "assemble"
//! blkkin.events → JoinStage → blkkin.spans   ...   blkkin.spans → AssembleStage → blkkin.traces
//!                     └ blkkin.links → LinkStage ───────┘     thread "link"
//! ```
//!
//! *In*: a cluster that may not be reachable yet. *Out*: traces, and a summary of every event and
//! fragment at shutdown. *Invariant*: all state is in the cluster, so the next member continues
//! where this one stopped or crashed. The crate `aggregator` decides and counts, without I/O; the
//! crate `bus` stores state and offsets ([`blkkin_bus::kafka::stage`]).

mod clock_offsets;
mod config;
mod contested_nodes;
mod metrics;
mod pipeline;
mod shutdown;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blkkin_aggregator::stage::Observer;
use blkkin_aggregator::stage::assemble::AssembleStageConfig;
use blkkin_aggregator::stage::join::JoinStageConfig;
use blkkin_aggregator::stage::link::LinkStageConfig;
use blkkin_bus::kafka::{DeadLetters, EVENTS, LINKS, SPANS, TRACES};
use blkkin_tracer::StopSignal;
use tracing::info;

use crate::cli::{AggregatorArgs, StageChoice};
use crate::control::ControlReceiver;
use crate::error::{CliError, Status};
use crate::privileges;
use crate::service::{Endpoint, LagGauge, Port, Systemd, kafka, next_event};
use config::AggregatorConfig;
use metrics::AggregatorMetrics;
use pipeline::{RunningStages, Topics, millis, start, start_cluster_wait};

/// Time to save the final state: two round trips to the cluster.
const FINAL_SAVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Runs until a signal.
pub(crate) fn aggregator(args: &AggregatorArgs) -> Result<ExitCode, CliError> {
    let confinement = privileges::confine_service(Vec::new())?;
    let mut control = ControlReceiver::open()?;
    let settings = kafka::settings(&args.brokers, &args.set)?;
    let parsed = AggregatorConfig::parse(args)?;
    // Creating a client validates the settings; it does not connect.
    DeadLetters::new(&settings, "").map_err(kafka::kafka_failed)?;
    info!("{confinement}");
    let systemd = Systemd::from_env();
    let stop = StopSignal::new();
    let topics = Topics::default();
    let cluster_wait = start_cluster_wait(&settings, args.partitions, &topics, &stop, &control)?;
    let metrics = AggregatorMetrics::new(args.stage, cluster_wait.clone(), systemd.stall_timeout());
    let _metrics = Endpoint::start(
        args.service.metrics,
        args.service.metrics_token.as_deref(),
        Port::Aggregator,
        Arc::new(metrics.clone()),
    )?;
    if !cluster_wait.wait(&mut control, &systemd, || metrics.beat()) {
        info!("stopped before the cluster was reachable");
        return Ok(Status::Success.code());
    }
    let gauges = metrics.stages().iter().map(|stage| (stage.input, stage.lag.clone()));
    LagGauge::watch(&settings, gauges.collect())?;
    let mut stages = RunningStages::default();
    let runs = |stage| args.stage == StageChoice::All || args.stage == stage;
    if runs(StageChoice::Join) {
        let (metrics_of_traces, metrics_of_nodes) = (metrics.clone(), metrics.clone());
        let config = JoinStageConfig {
            links: topics.partitions(LINKS),
            idle_after: millis(parsed.idle_after),
            on_node_claim: Observer::new(move |(source, claim)| {
                metrics_of_nodes.contested_nodes().record(source, *claim, Instant::now());
            }),
            on_trace: Observer::new(move |trace| metrics_of_traces.live().record(trace)),
            ..JoinStageConfig::new(topics.partitions(SPANS))
        };
        let config = (parsed.runner([EVENTS, SPANS, LINKS], "blkkin-join"), config);
        stages.join = Some(start("join", &settings, config, &stop, &control, &metrics)?);
    }
    if runs(StageChoice::Link) {
        let metrics_of_clocks = metrics.clone();
        let config = LinkStageConfig {
            wait_for: millis(parsed.await_client),
            on_clock_bound: Observer::new(move |bound| metrics_of_clocks.clock_offsets().record(bound)),
            ..LinkStageConfig::new(topics.partitions(SPANS))
        };
        let config = (parsed.runner([LINKS, SPANS, SPANS], "blkkin-link"), config);
        stages.link = Some(start("link", &settings, config, &stop, &control, &metrics)?);
    }
    if runs(StageChoice::Assemble) {
        let rules = AssembleStageConfig::new(topics.partitions(TRACES), parsed.rules.clone());
        let (input, await_for) = (topics.partitions(SPANS), millis(parsed.await_client));
        let await_link = millis(parsed.await_link);
        let config = AssembleStageConfig { input, await_for, await_link, ..rules };
        let config = (parsed.runner([SPANS, TRACES, SPANS], "blkkin-assemble"), config);
        stages.assemble = Some(start("assemble", &settings, config, &stop, &control, &metrics)?);
    }
    let status = format!("aggregating; events from {EVENTS}, traces to {TRACES} at {}", settings.brokers);
    info!("{status}");
    systemd.ready(&status);
    next_event(&mut control, &systemd, || metrics.since_last());
    systemd.stopping(FINAL_SAVE_TIMEOUT);
    stop.stop();
    stages.finish()
}
