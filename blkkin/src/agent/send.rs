//! The sender's thread: batches in, records out.

use std::time::{Duration, Instant};

use blkkin_bus::kafka::{EventProducer, GatherConfig, Gathered, Gatherer, Sent};
use blkkin_bus::{Next, Subscription};
use blkkin_tracer::StopSignal;
use blkkin_wire::batch::EventBatch;

use super::books::Books;
use crate::failure::{Failure, Status};

/// For the cluster to take what is left, after the end was asked for.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Sends until the tracer has no more to say. How many events no record can hold, and how many were left when the end was
/// asked for while the queue was full.
pub(super) fn send(
    mut batches: Subscription<EventBatch>,
    producer: &EventProducer,
    stop: &StopSignal,
    books: &Books,
) -> Result<(u64, u64), Failure> {
    let mut gatherer = Gatherer::new(GatherConfig::default(), 0);
    let (mut oversize, mut left) = (0, 0);
    let mut hand_over = |gathered: Gathered| -> Result<(), Failure> {
        oversize += gathered.oversize;
        for record in gathered.records {
            let events = record.events;
            // To wait for the cluster is what is meant to happen while it is away.
            let waiting = || {
                books.pulse.beat();
                stop.is_given()
            };
            match producer.send(record, waiting) {
                Ok(Sent::Queued) => {}
                Ok(Sent::Full(_)) => left += events,
                Err(error) => {
                    let failure = Failure::usage(error.what, error.why, error.remedy);
                    return Err(Failure { status: Status::Failed, ..failure });
                }
            }
        }
        Ok(())
    };
    loop {
        let now = Instant::now();
        match batches.next(gatherer.patience(now)) {
            Next::Item(batch) => {
                books.note(&batch.accounts, producer.deliveries(), batches.counts());
                hand_over(gatherer.add(batch, Instant::now()))?;
            }
            Next::Timeout => hand_over(gatherer.due(Instant::now()))?,
            Next::Closed => {
                hand_over(gatherer.take())?;
                return Ok((oversize, left));
            }
        }
    }
}
