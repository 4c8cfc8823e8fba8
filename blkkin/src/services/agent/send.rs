//! The sender thread: takes batches, sends Kafka records.

use std::sync::Arc;
use std::time::Instant;

use blkkin_bus::Next;
use blkkin_bus::kafka::{BatcherConfig, EventBatcher, EventProducer, KafkaError, Record};
use blkkin_bus::spool::Spool;
use blkkin_tracer::{ProgressMap, StopSignal};
use blkkin_wire::ids::NodeId;
use tracing::warn;

use super::crash_recovery::CrashRecovery;
use super::event_input::EventInput;
use super::metrics::AgentMetrics;
use super::port::{self, Port};
use super::send_totals::{DRAIN_TIMEOUT, SendTotals};
use super::sender_window::SenderWindow;
use crate::error::{CliError, Status};
use crate::guests::SharedRecorder;
use crate::service::kafka::kafka_failed;

/// The target of records.
pub(super) enum EventSink {
    Cluster(Box<ClusterSink>),
    Folder(SharedRecorder),
    Host(Port),
}

/// The parts of a sender to a cluster.
pub(super) struct ClusterSink {
    pub(super) producer: EventProducer,
    /// Maximum size of a record, in bytes.
    pub(super) record_bytes: usize,
    /// The node of the events, and the key of its records.
    pub(super) node: NodeId,
    pub(super) domain: NodeId,
    pub(super) spool: Option<Spool>,
    pub(super) progress_map: Option<Arc<ProgressMap>>,
    pub(super) crash_recovery: CrashRecovery,
}

/// Sends until the tracer ends, and waits for the cluster to acknowledge.
pub(super) fn run(
    batches: EventInput,
    sink: EventSink,
    stop: &StopSignal,
    metrics: &AgentMetrics,
) -> Result<SendTotals, CliError> {
    match sink {
        EventSink::Cluster(sink) => to_cluster(batches, *sink, stop, metrics),
        EventSink::Folder(recorder) => to_folder(batches, recorder, metrics),
        EventSink::Host(port) => port::run(batches, port, stop, metrics),
    }
}

fn to_cluster(
    mut batches: EventInput,
    sink: ClusterSink,
    stop: &StopSignal,
    metrics: &AgentMetrics,
) -> Result<SendTotals, CliError> {
    let ClusterSink { producer, record_bytes, node, domain, spool, progress_map, crash_recovery } = sink;
    let mut crashed_runs = crash_recovery.crashed_runs.clone();
    let mut window =
        SenderWindow::new(producer, (node, domain), spool, progress_map, crash_recovery, metrics);
    let batching = BatcherConfig { bytes_max: record_bytes, ..BatcherConfig::default() };
    let (mut totals, mut batcher) = (SendTotals::default(), EventBatcher::new(batching, 0));
    loop {
        let batched = match batches.next(batcher.due_in(Instant::now()), metrics) {
            Next::Item(mut batch) => {
                batch.crashed_runs.append(&mut crashed_runs);
                batcher.add(batch, Instant::now())
            }
            Next::Timeout => batcher.due(Instant::now()),
            Next::Closed => break,
        };
        totals.oversize += batched.oversize;
        send_all(&mut window, &batched.records, stop, &mut totals)?;
        window.poll().map_err(kafka_failed)?;
        window.publish_status();
    }
    let last = batcher.take();
    totals.oversize += last.oversize;
    send_all(&mut window, &last.records, stop, &mut totals)?;
    let outcome = window.finish(DRAIN_TIMEOUT).map_err(kafka_failed)?;
    Ok(SendTotals {
        deliveries: outcome.deliveries,
        unanswered: outcome.unanswered,
        spooled: outcome.spooled,
        refused: outcome.refused,
        ..totals
    })
}

fn send_all(
    window: &mut SenderWindow<'_>,
    records: &[Record],
    stop: &StopSignal,
    totals: &mut SendTotals,
) -> Result<(), CliError> {
    for record in records {
        if !window.send(record, || stop.is_set()).map_err(kafka_failed)? {
            totals.left += record.events;
        }
    }
    Ok(())
}

fn to_folder(
    mut batches: EventInput,
    recorder: SharedRecorder,
    metrics: &AgentMetrics,
) -> Result<SendTotals, CliError> {
    let (mut totals, mut batcher) = (SendTotals::default(), EventBatcher::new(BatcherConfig::default(), 0));
    loop {
        let (batched, ended) = match batches.next(batcher.due_in(Instant::now()), metrics) {
            Next::Item(batch) => (batcher.add(batch, Instant::now()), false),
            Next::Timeout => (batcher.due(Instant::now()), false),
            Next::Closed => (batcher.take(), true),
        };
        totals.oversize += batched.oversize;
        for record in batched.records {
            totals.deliveries.accepted += record.events;
            match recorder.add(&record.bytes) {
                Ok(()) => totals.deliveries.delivered += record.events,
                // The next dump may find room.
                Err(error) if batches.has_flight_recorder() => {
                    if totals.deliveries.failed == 0 {
                        warn!("cannot write a dump: {error}; its events are counted as failed");
                    }
                    totals.deliveries.failed += record.events;
                    totals.refused = Some(KafkaError {
                        what: "cannot write a dump".to_owned(),
                        why: error.to_string(),
                        remedy: "free space on that disk".to_owned(),
                    });
                }
                Err(error) => {
                    let remedy = "free space on that disk; the recording so far is intact";
                    let failure = CliError::usage("cannot write the recording", error, remedy);
                    return Err(CliError { status: Status::Failed, ..failure });
                }
            }
            metrics.set_deliveries(totals.deliveries);
        }
        if ended {
            return Ok(totals);
        }
    }
}
