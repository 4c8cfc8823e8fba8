//! The sender window: records between this process and the cluster.
//!
//! ```text
//!            ┌ spool: appended, stays until acknowledged ┐
//! send ──────┤                                           ├─ window: in flight, not acknowledged ── Kafka
//!            └ directly, without a spool                 ┘
//! ```
//!
//! *In*: records in sequence order. *Out*: the same records to the producer, in that order, after
//! those that an earlier start left in the spool. *Invariant*: no record overtakes another, because
//! consumers drop records older than the newest one seen. A record bypasses the spool's reader only
//! if nothing waits in the spool. A spooled record leaves the spool, in order, once the cluster has
//! it.
//!
//! *With a spool*, every record is written to it before it is sent, also while the cluster is
//! reachable. So a crash loses no record that came this far, and the loss before this point is
//! known exactly. The cost is a write of some KiB every 75 ms, into files that are removed before
//! they reach the disk; the spool is read only after an outage.
//!
//! *Refused records* (missing rights, a cluster that rejects): with a spool, the window rewinds to
//! the first refused record and retries every [`REFUSED_RETRY_INTERVAL`]. Some of these records may
//! have arrived; consumers drop them by sequence number. Without a spool, refused records are lost
//! and counted. So are records that the topic never accepts because they are too large.
//!
//! *Bounds*: [`WINDOW_BYTES`] in the producer, the rest in the spool. When the spool is full,
//! [`SenderWindow::send`] waits; then the bus fills, then the rings, and the kernel counts the
//! drops. A failure of the spool's disk is logged once and counted. Until the disk works again,
//! records are sent as without a spool.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{Ack, DeliveryHandle, DeliveryStats, EVENTS, EventProducer, KafkaError, Record};
use blkkin_bus::recording::Position;
use blkkin_bus::spool::{AppendError, Spool};
use blkkin_tracer::ProgressMap;
use blkkin_wire::crash_report::RecordCounts;
use blkkin_wire::ids::NodeId;
use blkkin_wire::v1::{self, Peeked};
use tracing::{error, info, warn};

use super::crash_recovery::CrashRecovery;
use super::metrics::AgentMetrics;
use crate::service::Outage;

/// Bytes in flight with a spool: at a round trip of 0.1 s it allows 80 MB/s.
const WINDOW_BYTES: usize = 8 << 20;
/// Interval of checks for room.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Interval of spool checkpoints: after a crash, records acknowledged since the last one are sent
/// again.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of attempts to use a failed disk.
const DISK_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of retries of refused records.
const REFUSED_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Time without an acknowledgement after which the cluster counts as unreachable. It is then
/// reported, and shutdown does not wait for spooled records.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(2);

/// The outcome of sending.
#[derive(Clone, Debug, Default)]
pub(super) struct SendOutcome {
    pub(super) deliveries: DeliveryStats,
    /// Events in flight without an acknowledgement and without a copy in the spool.
    pub(super) unanswered: u64,
    /// Batches left for the next start, and the spool's folder.
    pub(super) spooled: Option<(u64, PathBuf)>,
    /// The cluster's reason for refused records.
    pub(super) refused: Option<KafkaError>,
}

struct InFlightRecord {
    handle: DeliveryHandle,
    bytes: usize,
    events: u64,
    counts: RecordCounts,
    /// The position after the record in the spool.
    spool_end: Option<Position>,
    answer: Option<Ack>,
}

/// The stage between the batcher and the cluster.
pub(super) struct SenderWindow<'a> {
    producer: EventProducer,
    node: NodeId,
    /// The key of this node's records.
    domain: NodeId,
    spool: Option<Spool>,
    /// A record read from the spool for which the producer had no room.
    pending: Option<(Vec<u8>, Position)>,
    window: VecDeque<InFlightRecord>,
    window_bytes: usize,
    next_handle: u64,
    progress_map: Option<Arc<ProgressMap>>,
    spooled_counts: RecordCounts,
    sent_counts: RecordCounts,
    acked_counts: RecordCounts,
    crash_recovery: Option<CrashRecovery>,
    /// The time of the next attempt to use the failed disk.
    disk_retry_at: Option<Instant>,
    checkpoint: Instant,
    last_ack: Instant,
    /// The refusal that was logged last.
    reported_refusal: Option<KafkaError>,
    /// The end of the pause after a refusal.
    refused_until: Option<Instant>,
    /// The outage: records wait, and no acknowledgement arrives.
    outage: Option<Outage>,
    /// The outage was logged.
    outage_logged: bool,
    metrics: &'a AgentMetrics,
}

impl<'a> SenderWindow<'a> {
    pub(super) fn new(
        producer: EventProducer,
        (node, domain): (NodeId, NodeId),
        spool: Option<Spool>,
        progress_map: Option<Arc<ProgressMap>>,
        crash_recovery: CrashRecovery,
        metrics: &'a AgentMetrics,
    ) -> SenderWindow<'a> {
        let now = Instant::now();
        SenderWindow {
            producer,
            node,
            domain,
            spool,
            pending: None,
            window: VecDeque::new(),
            window_bytes: 0,
            next_handle: 0,
            progress_map,
            spooled_counts: RecordCounts::default(),
            sent_counts: RecordCounts::default(),
            acked_counts: RecordCounts::default(),
            crash_recovery: Some(crash_recovery),
            disk_retry_at: None,
            checkpoint: now,
            last_ack: now,
            reported_refusal: None,
            refused_until: None,
            outage: None,
            outage_logged: false,
            metrics,
        }
    }

    /// Sends a record, and waits while there is no room; false if `stop` returns true meanwhile.
    pub(super) fn send(&mut self, record: &Record, stop: impl Fn() -> bool) -> Result<bool, KafkaError> {
        let peeked = v1::peek(&record.bytes).ok();
        loop {
            self.poll()?;
            if self.try_send(&record.bytes, record.events, peeked.as_ref())? {
                return Ok(true);
            }
            // Waiting for an unreachable cluster is healthy.
            self.metrics.heartbeat.beat();
            self.on_waiting();
            self.publish_status();
            if stop() {
                return Ok(false);
            }
            std::thread::sleep(POLL_INTERVAL);
            self.producer.add_wait(POLL_INTERVAL);
        }
    }

    /// Handles acknowledgements, and sends waiting records.
    pub(super) fn poll(&mut self) -> Result<(), KafkaError> {
        self.handle_acks()?;
        while let Some((bytes, spool_end)) = self.next_spooled() {
            let peeked = v1::peek(&bytes).ok();
            let events = peeked.map_or(0, |peeked| peeked.events);
            if !self.produce(&bytes, events, peeked.as_ref(), Some(spool_end))? {
                // After a rewind it is read again.
                self.pending = self.refused_until.is_none().then_some((bytes, spool_end));
                break;
            }
        }
        if !self.window.is_empty() || self.pending.is_some() || self.refused_until.is_some() {
            self.on_waiting();
        }
        if self.checkpoint.elapsed() >= CHECKPOINT_INTERVAL {
            self.checkpoint = Instant::now();
            let checkpoint = self.spool.as_mut().map(Spool::save_progress);
            self.on_disk_result(checkpoint.unwrap_or(Ok(())));
        }
        Ok(())
    }

    /// Updates the metrics, and logs outages and refusals.
    pub(super) fn publish_status(&mut self) {
        if let Some(error) =
            self.producer.last_rejection().filter(|error| self.reported_refusal.as_ref() != Some(error))
        {
            // The cluster may refuse this client before it refuses a record.
            let then = match &self.spool {
                Some(_) => "refused events stay in the spool",
                None => "refused events are lost",
            };
            error!(topic = EVENTS, "{error}; {}; {then}", error.remedy);
            self.reported_refusal = Some(error);
        }
        self.metrics.set_deliveries(self.producer.stats());
        if let Some(outage) = &mut self.outage
            && outage.elapsed() >= UNREACHABLE_AFTER
        {
            let obstacle = self.producer.current_error();
            outage.reason =
                obstacle.map_or_else(|| "it does not answer".to_owned(), |error| error.to_string());
            self.metrics.set_outage(Some(outage.clone()));
            // The cluster wait logs its own obstacles.
            if !self.outage_logged && !self.metrics.is_waiting_for_cluster() {
                self.outage_logged = true;
                let then = match (&self.spool, self.producer.is_rejecting()) {
                    (Some(_), _) => "events are buffered in the spool",
                    (None, true) => "refused events are lost",
                    (None, false) => "events are buffered in memory",
                };
                warn!(
                    topic = EVENTS,
                    reason = outage.reason,
                    "{EVENTS} is unreachable: {}; {then}",
                    outage.reason
                );
            }
        }
        if let Some(spool) = &self.spool {
            self.metrics.set_spool(spool.stats());
        }
    }

    /// Waits until the cluster has every record, up to `timeout`.
    pub(super) fn finish(mut self, timeout: Duration) -> Result<SendOutcome, KafkaError> {
        let started = Instant::now();
        self.last_ack = started;
        loop {
            self.poll()?;
            let all_is_out = self.pending.is_none() && self.spool.as_ref().is_none_or(Spool::all_read);
            if all_is_out && self.window.is_empty() {
                break;
            }
            let can_stay = self.window.iter().all(|in_flight| in_flight.spool_end.is_some());
            let is_unreachable = self.last_ack.elapsed() >= UNREACHABLE_AFTER;
            if started.elapsed() >= timeout || can_stay && is_unreachable {
                break;
            }
            self.metrics.heartbeat.beat();
            std::thread::sleep(POLL_INTERVAL);
        }
        self.publish_status();
        let unanswered = self.window.iter().filter(|in_flight| in_flight.spool_end.is_none());
        let unanswered = unanswered.map(|in_flight| in_flight.events).sum();
        let synced = self.spool.as_mut().map(Spool::sync);
        self.on_disk_result(synced.unwrap_or(Ok(())));
        let spooled = self.spool.as_ref().map(|spool| (spool.stats().batches, spool.folder().to_owned()));
        let deliveries = self.producer.stats();
        let spooled = spooled.filter(|(batches, _)| *batches > 0);
        Ok(SendOutcome { deliveries, unanswered, spooled, refused: self.producer.last_rejection() })
    }

    /// Tries to spool or send a new record.
    fn try_send(&mut self, bytes: &[u8], events: u64, peeked: Option<&Peeked>) -> Result<bool, KafkaError> {
        let Some(spool) = &mut self.spool else { return self.produce(bytes, events, peeked, None) };
        let nothing_waits = spool.all_read() && self.pending.is_none();
        if self.disk_retry_at.is_some_and(|again| Instant::now() < again) {
            return Ok(nothing_waits && self.produce(bytes, events, peeked, None)?);
        }
        let spooled_counts =
            peeked.map_or(self.spooled_counts, |peeked| self.spooled_counts.saturating_add(&peeked.counts));
        if let (Some(progress_map), Some(peeked)) = (&self.progress_map, peeked) {
            progress_map.prepare(peeked.sequence, &spooled_counts);
        }
        match spool.append(bytes) {
            Ok(spool_end) => {
                self.spooled_counts = spooled_counts;
                if let (Some(progress_map), Some(_)) = (&self.progress_map, peeked) {
                    progress_map.commit();
                }
                self.on_disk_recovered();
                self.on_persisted();
                // A record that is sent at once need not be read from the spool.
                if nothing_waits
                    && self.has_room()
                    && self.produce(bytes, events, peeked, Some(spool_end))?
                    && let Some(spool) = &mut self.spool
                {
                    spool.skip_to(spool_end);
                }
                Ok(true)
            }
            Err(AppendError::Full) => Ok(false),
            Err(AppendError::Failed(error)) => {
                self.on_disk_result(Err(error));
                Ok(nothing_waits && self.produce(bytes, events, peeked, None)?)
            }
        }
    }

    fn has_room(&self) -> bool {
        self.spool.is_none() || self.window_bytes < WINDOW_BYTES && self.refused_until.is_none()
    }

    /// Rewinds the spool to the first record without an acknowledgement.
    fn rewind_to_spool(&mut self) -> Result<(), KafkaError> {
        let Some(spool) = &mut self.spool else { return Ok(()) };
        spool.rewind();
        self.refused_until = Some(Instant::now() + REFUSED_RETRY_INTERVAL);
        self.publish_status();
        self.pending = None;
        self.window.clear();
        self.window_bytes = 0;
        self.producer.recreate()
    }

    /// Hands a record to the producer; false if there is no room.
    fn produce(
        &mut self,
        bytes: &[u8],
        events: u64,
        peeked: Option<&Peeked>,
        spool_end: Option<Position>,
    ) -> Result<bool, KafkaError> {
        if !self.has_room() {
            return Ok(false);
        }
        if self.spool.is_some() && self.producer.has_fatal_error() {
            return self.rewind_to_spool().map(|()| false);
        }
        let handle = DeliveryHandle(self.next_handle);
        let counts = peeked.map_or_else(RecordCounts::default, |peeked| peeked.counts);
        if spool_end.is_none() {
            self.sent_counts = self.sent_counts.saturating_add(&counts);
            self.update_progress();
        }
        // A spool may hold records of another machine whose disk was moved here.
        let node = peeked.map_or(self.node, |peeked| peeked.source.node);
        let domain = if node == self.node { self.domain } else { node };
        if !self.producer.try_send(domain, bytes, events, handle)? {
            if spool_end.is_none() {
                self.sent_counts = self.sent_counts.saturating_sub(&counts);
                self.update_progress();
            }
            return Ok(false);
        }
        self.next_handle += 1;
        self.window_bytes += bytes.len();
        self.window.push_back(InFlightRecord {
            handle,
            bytes: bytes.len(),
            events,
            counts,
            spool_end,
            answer: None,
        });
        Ok(true)
    }

    fn next_spooled(&mut self) -> Option<(Vec<u8>, Position)> {
        if !self.has_room() {
            return None;
        }
        if self.pending.is_some() {
            return self.pending.take();
        }
        match self.spool.as_mut()?.read() {
            Ok(next) => next,
            Err(error) => {
                self.on_disk_result(Err(error));
                None
            }
        }
    }

    /// Removes acknowledged records from the front of the window.
    fn handle_acks(&mut self) -> Result<(), KafkaError> {
        if self.refused_until.is_some_and(|until| Instant::now() >= until) {
            self.refused_until = None;
        }
        let answers = self.producer.take_acks();
        let Some(InFlightRecord { handle: DeliveryHandle(first), .. }) = self.window.front() else {
            return Ok(());
        };
        let first = *first;
        for (DeliveryHandle(handle), answer) in answers {
            self.last_ack = Instant::now();
            // A rewound record is no longer in the window.
            let target = handle.checked_sub(first).map(|target| target as usize);
            if let Some(in_flight) = target.and_then(|target| self.window.get_mut(target)) {
                in_flight.answer = Some(answer);
            }
        }
        let mut acknowledged = Ok(());
        while let Some(InFlightRecord { bytes, events, counts, spool_end, answer: Some(answer), .. }) =
            self.window.front()
        {
            let (answer, events, counts, spool_end) = (*answer, *events, *counts, *spool_end);
            if spool_end.is_some() && answer == Ack::Retriable {
                self.on_disk_result(acknowledged);
                return self.rewind_to_spool();
            }
            self.window_bytes -= bytes;
            self.window.pop_front();
            let arrived = answer == Ack::Delivered;
            if arrived {
                self.on_reachable();
            } else {
                self.producer.count_lost(events);
            }
            match spool_end {
                Some(spool_end) => {
                    if let Some(spool) = &mut self.spool {
                        acknowledged = acknowledged.and(spool.acknowledge(spool_end));
                    }
                    continue;
                }
                None if arrived => self.acked_counts = self.acked_counts.saturating_add(&counts),
                // Refused for good: the record is not in doubt.
                None => self.sent_counts = self.sent_counts.saturating_sub(&counts),
            }
            self.update_progress();
            if arrived {
                self.on_persisted();
            }
        }
        self.on_disk_result(acknowledged);
        Ok(())
    }

    fn on_reachable(&mut self) {
        let outage = self.outage.take();
        self.metrics.set_outage(None);
        if let (Some(outage), true) = (outage, std::mem::take(&mut self.outage_logged)) {
            let seconds = outage.elapsed().as_secs();
            info!(topic = EVENTS, seconds, "{EVENTS} is reachable again after {seconds} s");
        }
    }

    fn on_waiting(&mut self) {
        self.outage.get_or_insert_with(|| Outage::new(String::new()));
    }

    fn update_progress(&self) {
        if let Some(progress_map) = &self.progress_map {
            progress_map.set_sent(&self.sent_counts);
            progress_map.set_acknowledged(&self.acked_counts);
        }
    }

    /// Handles the safe storage of the first record of this run, which carries the reports of
    /// crashed runs.
    fn on_persisted(&mut self) {
        if let Some(crash_recovery) = self.crash_recovery.take() {
            crash_recovery.acknowledge();
        }
    }

    fn on_disk_result(&mut self, result: std::io::Result<()>) {
        let (Err(error), Some(spool)) = (result, &self.spool) else { return };
        self.metrics.spool_failed();
        if self.disk_retry_at.replace(Instant::now() + DISK_RETRY_INTERVAL).is_none() {
            let folder = spool.folder().display();
            error!(%folder, %error, "the spool in {folder} failed: {error}; continuing without it, and retrying");
        }
    }

    /// Handles a successful write to the spool, perhaps after a failure.
    fn on_disk_recovered(&mut self) {
        if let (Some(_), Some(spool)) = (self.disk_retry_at.take(), &self.spool) {
            let folder = spool.folder().display();
            info!(%folder, "the spool in {folder} works again");
        }
    }
}
