//! The worker of one destination: receive, deliver, commit.
//!
//! *In*: records of `blkkin.traces`, as a member of the destination's consumer group. *Out*: the
//! updated [`DestinationStatus`]. *Invariant*: a commit is sent only when no span is in flight. It
//! confirms that the destination or `blkkin.dead` has everything received so far.
//!
//! After any error towards the cluster, the worker joins the group again as a new member.
//! Uncommitted records are then received again, so nothing depends on the state that librdkafka was
//! in.

use std::sync::Arc;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{
    DeadLetter, DeadLetters, FENCED_TWICE_WITHIN, KafkaError, Received, RecordPosition, Settings, TRACES,
    TraceConsumer,
};
use blkkin_wire::v1::Malformed;
use blkkin_zipkin_export::RetryDecision;

use super::config::Route;
use super::deadline::StopDeadline;
use super::delivery_observer::{DeliveryAbort, InFlightBatch, Notify};
use super::pending_spans::PendingSpans;
use super::sink::{SPANS_MAX, Sink};
use super::status::DestinationStatus;

/// Time for which received fragments wait for more; shorter than a user notices.
const BATCH_WINDOW: Duration = Duration::from_millis(50);
/// Interval of checks for a stop request, without records.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of probes of an unreachable destination, without records.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Delay before the worker joins the group again.
const REJOIN_DELAY: Duration = Duration::from_secs(1);
/// Timeout of the last commit, independent of the time left.
const LAST_COMMIT_TIMEOUT: Duration = Duration::from_secs(3);

/// The control flow of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Continue,
    /// The deadline passed with spans in flight: nothing more may be committed.
    Stop,
}

/// The worker of one destination.
pub(super) struct DestinationWorker {
    settings: Settings,
    route: Route,
    sink: Sink,
    stop: StopDeadline,
    notify: Notify,
    status: Arc<DestinationStatus>,
    pending: PendingSpans,
    /// The time since which fragments are pending.
    pending_since: Option<Instant>,
    /// Pending spans with a verdict.
    settled: usize,
    /// The last reported cluster error.
    last_reported: String,
    /// The time when another member of the same name last fenced this one.
    fenced: Option<Instant>,
}

impl DestinationWorker {
    pub(super) fn new(
        settings: Settings,
        route: Route,
        sink: Sink,
        stop: StopDeadline,
        notify: Notify,
        status: Arc<DestinationStatus>,
    ) -> DestinationWorker {
        DestinationWorker {
            settings,
            route,
            sink,
            stop,
            notify,
            status,
            pending: PendingSpans::default(),
            pending_since: None,
            settled: 0,
            last_reported: String::new(),
            fenced: None,
        }
    }

    /// Runs until a stop request.
    pub(super) fn run(mut self) {
        while !self.stop.is_requested() && !self.status.stats().fenced {
            if let Err(error) = self.run_as_member() {
                self.report_cluster_error(&error);
                let until = Instant::now() + REJOIN_DELAY;
                while !self.stop.is_requested() && Instant::now() < until {
                    self.status.heartbeat.beat();
                    std::thread::sleep(POLL_INTERVAL.min(until.saturating_duration_since(Instant::now())));
                }
            }
            // Spans in flight are not committed; the next exporter receives them again.
            let unacknowledged = self.pending.spans().len().saturating_sub(self.settled);
            self.status.stats().unacknowledged = unacknowledged as u64;
            self.clear_pending();
        }
        if let Err(why) = self.sink.finish() {
            (self.notify)(why);
        }
    }

    /// Runs as a member of the group, until a stop request or a lost membership.
    fn run_as_member(&mut self) -> Result<(), KafkaError> {
        let dead = DeadLetters::new(&self.settings, &self.route.group.name)?;
        let mut consumer = TraceConsumer::join(&self.settings, &self.route.group)?;
        consumer.publish_progress(&self.status.lag.progress);
        let served = self.consume(&mut consumer, &dead);
        if served.is_err() && consumer.is_fenced() {
            let before = self.fenced.replace(Instant::now());
            self.status.stats().fenced = before.is_some_and(|before| before.elapsed() < FENCED_TWICE_WITHIN);
        }
        served
    }

    fn consume(&mut self, consumer: &mut TraceConsumer, dead: &DeadLetters) -> Result<(), KafkaError> {
        let (mut flow, mut probed) = (Flow::Continue, None::<Instant>);
        while flow == Flow::Continue && !self.stop.is_requested() {
            self.status.heartbeat.beat();
            let again = |probed: Instant| !self.status.is_up() && probed.elapsed() >= PROBE_INTERVAL;
            if self.pending_since.is_none() && probed.is_none_or(again) {
                probed = Some(Instant::now());
                let mut in_flight =
                    in_flight_batch(&self.pending, consumer, dead, &self.stop, &self.status, &self.notify);
                self.sink.probe(&mut in_flight);
            }
            flow = self.receive(consumer, dead)?;
            let age = self.pending_since.map_or(Duration::ZERO, |since| since.elapsed());
            let full = self.pending.spans().len() >= SPANS_MAX || age >= BATCH_WINDOW;
            if flow == Flow::Continue && full {
                flow = self.deliver(consumer, dead)?;
            }
        }
        if flow == Flow::Continue && self.deliver(consumer, dead)? == Flow::Continue {
            let committed = consumer.commit_within(LAST_COMMIT_TIMEOUT)?;
            self.status.stats().uncommitted = !committed;
        }
        let left = consumer.uncommitted();
        self.status.stats().records_left = left;
        Ok(())
    }

    fn receive(&mut self, consumer: &mut TraceConsumer, dead: &DeadLetters) -> Result<Flow, KafkaError> {
        let timeout =
            self.pending_since.map_or(POLL_INTERVAL, |since| BATCH_WINDOW.saturating_sub(since.elapsed()));
        match consumer.next(timeout)? {
            Received::Batch(batch, missing) => {
                let fragments = self.pending.add(*batch);
                let mut stats = self.status.stats();
                stats.fragments += fragments;
                stats.missing_fragments += missing;
                drop(stats);
                self.pending_since.get_or_insert_with(Instant::now);
            }
            Received::Duplicate => {
                self.status.stats().duplicate_records += 1;
                self.pending_since.get_or_insert_with(Instant::now);
            }
            Received::Invalid(why, bytes, position) => {
                self.pending_since.get_or_insert_with(Instant::now);
                return self.send_to_dlq(&why, bytes, position, consumer, dead);
            }
            Received::Rebalanced { revoked, .. } if !revoked.is_empty() => self.drop_revoked(consumer)?,
            Received::Rebalanced { .. } | Received::Timeout => {}
        }
        self.report_uncommitted_partitions(consumer.take_unknown());
        Ok(Flow::Continue)
    }

    fn send_to_dlq(
        &mut self,
        why: &Malformed,
        bytes: Vec<u8>,
        position: RecordPosition,
        consumer: &mut TraceConsumer,
        dead: &DeadLetters,
    ) -> Result<Flow, KafkaError> {
        let dead_letter = DeadLetter {
            headers: vec![
                ("blkkin.reason", why.to_string()),
                ("blkkin.topic", TRACES.to_owned()),
                ("blkkin.partition", position.partition.to_string()),
                ("blkkin.offset", position.offset.to_string()),
            ],
            payload: bytes,
        };
        let mut in_flight =
            in_flight_batch(&self.pending, consumer, dead, &self.stop, &self.status, &self.notify);
        let sent_to_dlq = in_flight.send_to_dlq(&dead_letter);
        let aborted = in_flight.aborted;
        if sent_to_dlq == RetryDecision::Continue {
            self.status.stats().unreadable += 1;
            let RecordPosition { partition, offset } = position;
            if let Some(suppressed) = self.status.unreadable_lines.pass() {
                (self.notify)(format!(
                    "a record of {TRACES} (partition {partition}, offset {offset}) could not be decoded: {why}; it is in blkkin.dead{suppressed}"
                ));
            }
            return Ok(Flow::Continue);
        }
        self.handle_abort(aborted, consumer)
    }

    /// Delivers the pending spans, and commits.
    fn deliver(&mut self, consumer: &mut TraceConsumer, dead: &DeadLetters) -> Result<Flow, KafkaError> {
        if self.pending_since.is_none() {
            return Ok(Flow::Continue);
        }
        if !self.pending.spans().is_empty() {
            let started = Instant::now();
            let mut in_flight =
                in_flight_batch(&self.pending, consumer, dead, &self.stop, &self.status, &self.notify);
            let after = self.sink.send(self.pending.spans(), &mut in_flight);
            let aborted = in_flight.aborted;
            self.settled = in_flight.settled;
            if after == RetryDecision::GiveUp || aborted.is_some() {
                return self.handle_abort(aborted, consumer);
            }
            self.status.stats().deliveries.observe(started.elapsed());
        }
        self.clear_pending();
        consumer.commit_soon()?;
        Ok(Flow::Continue)
    }

    /// Handles an aborted delivery: its spans have no verdict, so no commit may be sent for them.
    fn handle_abort(
        &mut self,
        aborted: Option<DeliveryAbort>,
        consumer: &mut TraceConsumer,
    ) -> Result<Flow, KafkaError> {
        match aborted {
            Some(DeliveryAbort::Lost(error)) => Err(error),
            Some(DeliveryAbort::Revoked) => self.drop_revoked(consumer).map(|()| Flow::Continue),
            Some(DeliveryAbort::Stopped) | None => Ok(Flow::Stop),
        }
    }

    /// Drops all pending spans after a revocation, since they belong to revoked and kept partitions
    /// alike. Records of kept partitions are received again.
    fn drop_revoked(&mut self, consumer: &mut TraceConsumer) -> Result<(), KafkaError> {
        self.clear_pending();
        consumer.refetch()
    }

    fn clear_pending(&mut self) {
        self.pending.clear();
        self.pending_since = None;
        self.settled = 0;
    }

    /// Reports partitions without a committed offset: their earlier records are delivered again.
    fn report_uncommitted_partitions(&self, partitions: usize) {
        if partitions > 0 {
            (self.notify)(format!(
                "{}: {partitions} partitions of {TRACES} are read from their first record on, because its group has no committed offset \
                 there: it is new, or had no exporter for longer than offsets.retention.minutes",
                self.status.name
            ));
        }
    }

    fn report_cluster_error(&mut self, error: &KafkaError) {
        let text = error.to_string();
        if text != self.last_reported {
            (self.notify)(format!("{text}; {}; joining again", error.remedy));
            self.last_reported = text;
        }
    }
}

/// Creates the batch for one delivery.
fn in_flight_batch<'a>(
    pending: &'a PendingSpans,
    consumer: &'a mut TraceConsumer,
    dead: &'a DeadLetters,
    stop: &'a StopDeadline,
    status: &'a DestinationStatus,
    notify: &'a Notify,
) -> InFlightBatch<'a> {
    InFlightBatch { pending, consumer, dead, stop, status, notify, settled: 0, aborted: None }
}
