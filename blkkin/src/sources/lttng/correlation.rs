//! The thread that correlates batches with the session's events.

use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use blkkin_bus::{Next, Publisher, Subscription};
use blkkin_tracer::{StopSignal, TraceScope};
use blkkin_ust_bridge::correlate::{CorrelationStats, Correlator, ThreadExit, Update};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::MonotonicNs;

use super::metrics::LttngMetrics;

/// Poll interval: the tracer's own.
const WAIT: Duration = Duration::from_millis(2);

/// Updates, and the time up to which they are complete.
pub(super) type UpdateBatch = (Vec<Update>, MonotonicNs);

/// Runs until `batches` ends, then stops the reader and takes its remaining updates.
pub(super) fn run(
    mut batches: Subscription<EventBatch>,
    out: Publisher<EventBatch>,
    updates_received: Receiver<UpdateBatch>,
    ended: Sender<ThreadExit>,
    stop: &StopSignal,
    scope: TraceScope,
    metrics: &LttngMetrics,
) -> CorrelationStats {
    let mut correlator =
        if scope == TraceScope::Marked { Correlator::for_traced_processes() } else { Correlator::default() };
    let started = Instant::now();
    let now = || u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    loop {
        updates_received.try_iter().for_each(|(updates, until)| correlator.add_updates(updates, until));
        while let Some(batch) = correlator.next_batch(now()) {
            // The joiner is gone only when blkkin itself fails.
            let _ = out.publish(batch);
        }
        metrics.set_correlation_stats(correlator.stats());
        report_foreign_users(&mut correlator, metrics);
        for exit in correlator.take_exits() {
            // As above.
            let _ = ended.send(exit);
        }
        match batches.next(WAIT) {
            Next::Item(batch) => correlator.add_batch(batch, now()),
            Next::Timeout => {}
            Next::Closed => break,
        }
    }
    stop.stop();
    updates_received.iter().for_each(|(updates, until)| correlator.add_updates(updates, until));
    for batch in correlator.finish() {
        let _ = out.publish(batch);
    }
    metrics.set_correlation_stats(correlator.stats());
    report_foreign_users(&mut correlator, metrics);
    *correlator.stats()
}

/// Logs each user once: a user's streams are those of one trace.
fn report_foreign_users(correlator: &mut Correlator, metrics: &LttngMetrics) {
    for user in correlator.take_foreign_users() {
        metrics.log_problem(&format!("events of user {user} named threads of other users, and were refused"));
    }
}
