//! The thread that correlates USDT events with batches.
//!
//! *In*: each batch, and the USDT events before its watermark. *Out*: the correlated batch.
//! *Invariant*: a lost event may belong to any thread. So from the last complete moment until the
//! loss is known, no thread has a span. Open spans are emitted there without an end, because their
//! end may be lost. Events in this interval are discarded, because their counterparts may be lost.

use std::collections::VecDeque;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use blkkin_bus::{Next, Publisher, Subscription};
use blkkin_tracer::enrich::usdt::events::{LostEvents, UsdtBatch};
use blkkin_ust_bridge::correlate::{Correlator, Update};
use blkkin_ust_bridge::daemon_spans::{DaemonSpanStats, DaemonSpans, Thread};
use blkkin_ust_bridge::mapping::usdt_mapping::UsdtMapping;
use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{LayerEvent, TaskChange};

use super::metrics::{UsdtMetrics, UsdtSourceStats};
use crate::clock;

/// Poll interval without batches.
const WAIT: Duration = Duration::from_millis(20);

/// The outcome of the thread.
#[derive(Debug)]
pub(super) struct UsdtOutcome {
    pub(super) daemon_spans: DaemonSpanStats,
    pub(super) stats: UsdtSourceStats,
}

pub(super) struct UsdtCorrelation {
    mapping: UsdtMapping,
    events: Receiver<UsdtBatch>,
    daemon_spans: DaemonSpans,
    correlator: Correlator,
    /// Exited threads, until their events are complete.
    exits: VecDeque<(Thread, MonotonicNs)>,
    /// Events before this time are discarded.
    discard_until: MonotonicNs,
    stats: UsdtSourceStats,
    metrics: UsdtMetrics,
}

impl UsdtCorrelation {
    pub(super) fn new(
        mapping: UsdtMapping,
        events: Receiver<UsdtBatch>,
        metrics: UsdtMetrics,
    ) -> UsdtCorrelation {
        UsdtCorrelation {
            mapping,
            events,
            daemon_spans: DaemonSpans::default(),
            correlator: Correlator::default(),
            exits: VecDeque::new(),
            discard_until: MonotonicNs(0),
            stats: UsdtSourceStats::default(),
            metrics,
        }
    }

    /// Runs until `batches` ends.
    pub(super) fn run(
        mut self,
        mut batches: Subscription<EventBatch>,
        out: Publisher<EventBatch>,
    ) -> UsdtOutcome {
        let started = Instant::now();
        let now = || u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        loop {
            match batches.next(WAIT) {
                Next::Item(batch) => {
                    // Sent before the batch.
                    let events = self.events.try_recv().unwrap_or_default();
                    let updates = self.map_batch(&batch, events);
                    self.correlator.add_updates(updates, batch.watermark);
                    self.correlator.add_batch(batch, now());
                    while let Some(batch) = self.correlator.next_batch(now()) {
                        // The joiner is gone only when blkkin itself fails.
                        let _ = out.publish(batch);
                    }
                    // `apply_exits` has already used them.
                    self.correlator.take_exits().for_each(drop);
                    self.publish();
                }
                Next::Timeout => {}
                Next::Closed => break,
            }
        }
        let mut updates = Vec::new();
        self.daemon_spans.finish(clock::now().0, &mut updates);
        self.correlator.add_updates(updates, MonotonicNs(u64::MAX));
        for batch in self.correlator.finish() {
            let _ = out.publish(batch);
        }
        self.publish();
        UsdtOutcome { daemon_spans: *self.daemon_spans.stats(), stats: self.stats }
    }

    fn publish(&mut self) {
        (self.stats.correlation, self.stats.unread) = (*self.correlator.stats(), self.mapping.unreadable);
        self.metrics.publish(self.stats);
    }

    /// Maps a batch's USDT events, in order with thread exits.
    fn map_batch(&mut self, batch: &EventBatch, events: UsdtBatch) -> Vec<Update> {
        let mut updates = Vec::new();
        if let Some(lost) = events.lost {
            self.stats.lost += lost.count;
            self.record_loss(lost, &mut updates);
        }
        self.stats.events += events.events.len() as u64;
        self.exits.extend(batch.events.iter().filter_map(|event| match event {
            LayerEvent::Task(task) if task.change == TaskChange::Exited => {
                Some((Thread::initial(task.pid.0, task.tid.0), task.time))
            }
            // After an exec another program runs in the first thread; its predecessor's spans end.
            LayerEvent::Task(task) if task.change == TaskChange::Execed => {
                Some((Thread::initial(task.pid.0, task.pid.0), task.time))
            }
            _ => None,
        }));
        for event in events.events {
            self.apply_exits(event.time, &mut updates);
            if event.time < self.discard_until {
                self.stats.discarded += 1;
                continue;
            }
            let (mapping, daemon_spans) = (&mut self.mapping, &mut self.daemon_spans);
            if !mapping.map(&event, &mut |at, span_event| daemon_spans.apply(at, &span_event, &mut updates)) {
                let until = MonotonicNs(event.time.0 + 1);
                self.record_loss(LostEvents { from: event.time, until, count: 1 }, &mut updates);
            }
        }
        self.apply_exits(batch.watermark, &mut updates);
        updates
    }

    fn record_loss(&mut self, lost: LostEvents, updates: &mut Vec<Update>) {
        self.daemon_spans.abandon_open(lost.from.0, updates);
        self.daemon_spans.record_loss(lost.from.0, lost.until.0, lost.count, updates);
        self.mapping.forget_open_spans();
        self.discard_until = self.discard_until.max(lost.until);
    }

    /// Applies the exits up to `until`; the first thread's exit ends its process.
    fn apply_exits(&mut self, until: MonotonicNs, updates: &mut Vec<Update>) {
        while let Some((thread, at)) = self.exits.pop_front_if(|(_, at)| *at <= until) {
            self.mapping.thread_exited(thread.pid, thread.tid);
            if thread.pid == thread.tid {
                self.daemon_spans.process_exited(thread.process(), at.0, updates);
            } else {
                self.daemon_spans.thread_exited(thread, at.0, updates);
            }
        }
    }
}
