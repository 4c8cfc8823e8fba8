//! Batches for the sender: of the tracer, or of its flight recorder.
//!
//! *In*: the tracer's batches. *Out*: the batches to send, in order; their counters, for the metrics, as they arrive.
//! *Invariant*: with a flight recorder each call takes at most one batch from the tracer. So a dump never keeps the
//! rings waiting longer than the sender does.

use std::time::{Duration, Instant};

use blkkin_bus::{Next, Subscription};
use blkkin_wire::batch::EventBatch;

use super::flight_recorder::FlightRecorder;
use super::metrics::AgentMetrics;

/// Receiving end of the sender.
pub(super) struct EventInput {
    batches: Subscription<EventBatch>,
    recorder: Option<FlightRecorder>,
}

impl EventInput {
    pub(super) fn new(batches: Subscription<EventBatch>, recorder: Option<FlightRecorder>) -> EventInput {
        EventInput { batches, recorder }
    }

    /// Returns whether batches are sent only for a dump.
    pub(super) fn has_flight_recorder(&self) -> bool {
        self.recorder.is_some()
    }

    /// Waits up to `timeout` for the next batch to send.
    pub(super) fn next(&mut self, timeout: Duration, metrics: &AgentMetrics) -> Next<EventBatch> {
        let next = match &self.recorder {
            // A dump makes room.
            Some(recorder) if !recorder.has_room() => Next::Timeout,
            Some(recorder) if recorder.has_due() => self.batches.next(Duration::ZERO),
            _ => self.batches.next(timeout),
        };
        if let Next::Item(batch) = &next {
            metrics.record_batch(&batch.stats, self.batches.stats());
        }
        let Some(recorder) = &mut self.recorder else { return next };
        let now = Instant::now();
        let due = match next {
            Next::Closed => return recorder.take_at_end(now).map_or(Next::Closed, Next::Item),
            Next::Item(batch) => {
                recorder.add(batch, now);
                recorder.take_due(now)
            }
            Next::Timeout => recorder.take_due(now),
        };
        due.map_or(Next::Timeout, Next::Item)
    }
}
