//! The stages of the aggregator, one thread each, and their topics.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use blkkin_aggregator::stage::assemble::AssembleStage;
use blkkin_aggregator::stage::join::JoinStage;
use blkkin_aggregator::stage::link::LinkStage;
use blkkin_bus::kafka::stage::{RunnerConfig, StageOutcome, StageRunner};
use blkkin_bus::kafka::{DEAD, EVENTS, KafkaError, LINKS, SPANS, STATE, Settings, TRACES};
use blkkin_tracer::StopSignal;
use blkkin_wire::stage::Stage;
use tracing::{info, warn};

use super::metrics::AggregatorMetrics;
use super::shutdown;
use crate::control::{ControlEvent, ControlReceiver, ExitNotifier};
use crate::error::{CliError, Status, cannot_spawn, panicked};
use crate::service::kafka::kafka_failed;
use crate::service::{ClusterWait, kafka};

/// Time until all brokers know a new topic.
const TOPIC_VISIBLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time to join the groups once the cluster has answered, and the pause between two attempts.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);
const JOIN_PAUSE: Duration = Duration::from_millis(500);
/// Keeps the last version of each chunk. Segments are small, since the newest is never compacted.
const STATE_TOPIC_CONFIG: &[(&str, &str)] = &[("cleanup.policy", "compact"), ("segment.bytes", "67108864")];

/// The partition counts of the topics that the stages write to.
#[derive(Clone, Debug, Default)]
pub(super) struct Topics(Arc<Mutex<BTreeMap<&'static str, u32>>>);

impl Topics {
    /// Waits until the topic's partition count is known: brokers learn of a new topic with a delay.
    fn wait_until_visible(&self, settings: &Settings, topic: &'static str) -> Result<(), KafkaError> {
        let started = Instant::now();
        loop {
            match settings.partitions(topic) {
                Ok(count) => {
                    let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                    found.insert(topic, u32::try_from(count).unwrap_or(u32::MAX));
                    return Ok(());
                }
                Err(error) if started.elapsed() > TOPIC_VISIBLE_TIMEOUT => return Err(error),
                Err(_) => std::thread::sleep(TOPIC_VISIBLE_TIMEOUT / 50),
            }
        }
    }

    /// Returns a partition count. All topics must have been found.
    pub(super) fn partitions(&self, topic: &str) -> u32 {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *found.get(topic).expect("invariant: nothing begins before all topics are found")
    }
}

/// Starts to create or find the topics.
pub(super) fn start_cluster_wait(
    settings: &Settings,
    partitions: u32,
    topics: &Topics,
    stop: &StopSignal,
    control: &ControlReceiver,
) -> Result<ClusterWait, CliError> {
    let wanted: [(&'static str, &[(&str, &str)]); 6] = [
        (EVENTS, kafka::TIMED_BY_BROKER),
        (SPANS, kafka::TIMED_BY_BROKER),
        (LINKS, kafka::TIMED_BY_BROKER),
        (TRACES, &[]),
        (DEAD, &[]),
        (STATE, STATE_TOPIC_CONFIG),
    ];
    let (settings, topics) = (settings.clone(), topics.clone());
    ClusterWait::start("the cluster answers", control, stop, move || {
        wanted.iter().try_for_each(|(topic, of)| settings.ensure_topic(topic, partitions, of))?;
        wanted.iter().try_for_each(|(topic, _)| topics.wait_until_visible(&settings, topic))
    })
}

/// Converts to milliseconds, saturating.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The thread of a stage.
type Running<S> = JoinHandle<Result<StageOutcome<S>, KafkaError>>;

/// The running stages of this member.
#[derive(Default)]
pub(super) struct RunningStages {
    pub(super) join: Option<Running<JoinStage>>,
    pub(super) link: Option<Running<LinkStage>>,
    pub(super) assemble: Option<Running<AssembleStage>>,
}

impl RunningStages {
    /// Waits for all stages, logs their summaries, and returns the first error.
    pub(super) fn finish(self) -> Result<ExitCode, CliError> {
        let join = self.join.map(|running| wait("the join stage", running));
        let link = self.link.map(|running| wait("the link stage", running));
        let assemble = self.assemble.map(|running| wait("the assemble stage", running));
        let report_unsaved = |stage: &str, saved: bool| {
            if !saved {
                warn!(
                    stage,
                    "{stage}: the final state could not be saved: the records since the last snapshot are read again"
                );
            }
        };
        if let Some(Ok(join)) = &join {
            info!(stage = "join", "{}", shutdown::join(join));
            report_unsaved("join", join.saved);
        }
        if let Some(Ok(link)) = &link {
            // Most clusters have no requests between nodes.
            if link.stages.values().any(|stage| stage.stats().records > 0) {
                info!(stage = "link", "{}", shutdown::link(link));
            }
            report_unsaved("link", link.saved);
        }
        if let Some(Ok(assemble)) = &assemble {
            info!(stage = "assemble", "{}", shutdown::assemble(assemble));
            report_unsaved("assemble", assemble.saved);
        }
        join.transpose()?;
        link.transpose()?;
        assemble.transpose()?;
        Ok(Status::Success.code())
    }
}

/// Starts the thread of a stage.
pub(super) fn start<S>(
    name: &str,
    settings: &Settings,
    (config, stage_config): (RunnerConfig, S::Config),
    stop: &StopSignal,
    control: &ControlReceiver,
    metrics: &AggregatorMetrics,
) -> Result<Running<S>, CliError>
where
    S: Stage + Send + 'static,
    S::Config: Send,
{
    let (settings, stop) = (settings.clone(), stop.clone());
    let (notifier, events, stage) = (ExitNotifier(control.sender()), control.sender(), name.to_owned());
    let gauge = metrics.stages().iter().find(|stage| stage.name == name).cloned();
    let run = move || {
        // Dropped last, also on a panic: the main thread must learn of the end.
        let _notifier = notifier;
        // The receiver is gone at shutdown.
        let notify = |status| drop(events.send(ControlEvent::Status(format!("{stage}: {status}"))));
        let is_stopped = || {
            gauge.iter().for_each(|gauge| gauge.heartbeat.beat());
            stop.is_set()
        };
        let started = Instant::now();
        let mut runner = loop {
            match StageRunner::join(&settings, config.clone(), stage_config.clone()) {
                Ok(runner) => break runner,
                Err(error) if started.elapsed() > JOIN_TIMEOUT || is_stopped() => return Err(error),
                // The broker that answered a moment ago may have been killed since.
                Err(error) => notify(format!("{error}; trying again")),
            }
            std::thread::sleep(JOIN_PAUSE);
        };
        if let Some(gauge) = &gauge {
            runner = runner.with_progress(&gauge.lag.progress).with_overflows(&gauge.overflows);
        }
        runner.run(is_stopped, notify)
    };
    Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(|error| cannot_spawn("cannot start the aggregator", &error))
}

fn wait<S>(stage: &str, running: Running<S>) -> Result<StageOutcome<S>, CliError> {
    running.join().map_err(|panic| panicked(stage, &*panic))?.map_err(kafka_failed)
}
