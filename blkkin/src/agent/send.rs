//! The sender's thread: batches in, records out.

use std::time::{Duration, Instant};

use blkkin_bus::kafka::{GatherConfig, Gathered, Gatherer, Record, Sent};
use blkkin_bus::{Next, Subscription};
use blkkin_tracer::StopSignal;
use blkkin_wire::batch::EventBatch;

use super::books::Books;
use super::{Totals, Way};
use crate::failure::{Failure, Status};
use crate::output::say;

/// For the cluster to take what is left, after the end was asked for.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Sends until the tracer has no more to say, and waits for the cluster to have it.
pub(super) fn run(
    batches: Subscription<EventBatch>,
    way: Way,
    stop: &StopSignal,
    books: &Books,
) -> Result<Totals, Failure> {
    let mut totals = Totals::default();
    match way {
        Way::Cluster(producer, settings) => {
            let mut told = None;
            let gathering = GatherConfig { bytes_max: settings.record_bytes(), ..GatherConfig::default() };
            let oversize = each(batches, gathering, books, |record| {
                let events = record.events;
                // To wait for the cluster is what is meant to happen while it is away.
                let waiting = || {
                    books.pulse.beat();
                    books.sent(producer.deliveries());
                    stop.is_given()
                };
                let sent = producer.send(record, waiting);
                books.sent(producer.deliveries());
                if let Some(error) = producer.refused().filter(|error| told.as_ref() != Some(error)) {
                    say(&format!("{error}; {}; events that it refuses are lost", error.remedy));
                    told = Some(error);
                }
                match sent {
                    Ok(Sent::Queued) => {}
                    Ok(Sent::Full(_)) => totals.left += events,
                    Err(error) => {
                        let failure = Failure::usage(error.what, error.why, error.remedy);
                        return Err(Failure { status: Status::Failed, ..failure });
                    }
                }
                Ok(())
            })?;
            let deliveries = producer.settle(PATIENCE);
            Ok(Totals { deliveries, oversize, refused: producer.refused(), ..totals })
        }
        Way::Folder(mut recorder) => {
            let oversize = each(batches, GatherConfig::default(), books, |record| {
                totals.deliveries.accepted += record.events;
                recorder.add(&record.bytes).map_err(|error| {
                    let remedy = "room on that disk; what was recorded before is whole";
                    let failure = Failure::usage("cannot write the recording", error, remedy);
                    Failure { status: Status::Failed, ..failure }
                })?;
                totals.deliveries.delivered += record.events;
                books.sent(totals.deliveries);
                Ok(())
            })?;
            Ok(Totals { oversize, ..totals })
        }
    }
}

/// Gives each record to `take`. How many events no record can hold.
fn each(
    mut batches: Subscription<EventBatch>,
    gathering: GatherConfig,
    books: &Books,
    mut take: impl FnMut(Record) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let mut gatherer = Gatherer::new(gathering, 0);
    let mut oversize = 0;
    let mut hand_over = |gathered: Gathered| {
        oversize += gathered.oversize;
        gathered.records.into_iter().try_for_each(&mut take)
    };
    loop {
        let now = Instant::now();
        match batches.next(gatherer.patience(now)) {
            Next::Item(batch) => {
                books.note(&batch.accounts, batches.counts());
                hand_over(gatherer.add(batch, Instant::now()))?;
            }
            Next::Timeout => hand_over(gatherer.due(Instant::now()))?,
            Next::Closed => {
                hand_over(gatherer.take())?;
                return Ok(oversize);
            }
        }
    }
}
