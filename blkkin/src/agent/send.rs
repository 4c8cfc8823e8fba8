//! The sender's thread: batches in, records out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{EventProducer, GatherConfig, Gatherer, KafkaError, Record};
use blkkin_bus::recording::Recorder;
use blkkin_bus::spool::Spool;
use blkkin_bus::{Next, Subscription};
use blkkin_tracer::{Ledger, StopSignal};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::ids::NodeId;

use super::Totals;
use super::books::Books;
use super::inherited::Inherited;
use super::outbox::Outbox;
use crate::failure::{Failure, Status};

/// For the cluster to take what is left, after the end was asked for.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Where records go.
pub(super) enum Way {
    Cluster(Box<ToCluster>),
    Folder(Recorder),
}

/// What it takes to send to a cluster.
pub(super) struct ToCluster {
    pub(super) producer: EventProducer,
    /// Bytes of a record at the most.
    pub(super) record_bytes: usize,
    /// Whose events they are, and under whose key they lie.
    pub(super) node: NodeId,
    pub(super) domain: NodeId,
    pub(super) spool: Option<Spool>,
    pub(super) ledger: Option<Arc<Ledger>>,
    pub(super) inherited: Inherited,
}

/// Sends until the tracer has no more to say, and waits for the cluster to have it.
pub(super) fn run(
    batches: Subscription<EventBatch>,
    way: Way,
    stop: &StopSignal,
    books: &Books,
) -> Result<Totals, Failure> {
    match way {
        Way::Cluster(way) => to_cluster(batches, *way, stop, books),
        Way::Folder(recorder) => to_folder(batches, recorder, books),
    }
}

fn to_cluster(
    mut batches: Subscription<EventBatch>,
    way: ToCluster,
    stop: &StopSignal,
    books: &Books,
) -> Result<Totals, Failure> {
    let ToCluster { producer, record_bytes, node, domain, spool, ledger, inherited } = way;
    let mut killed = inherited.killed.clone();
    let mut outbox = Outbox::new(producer, (node, domain), spool, ledger, inherited, books);
    let gathering = GatherConfig { bytes_max: record_bytes, ..GatherConfig::default() };
    let (mut totals, mut gatherer) = (Totals::default(), Gatherer::new(gathering, 0));
    loop {
        let gathered = match batches.next(gatherer.patience(Instant::now())) {
            Next::Item(mut batch) => {
                batch.killed.append(&mut killed);
                books.note(&batch.accounts, batches.counts());
                gatherer.add(batch, Instant::now())
            }
            Next::Timeout => gatherer.due(Instant::now()),
            Next::Closed => break,
        };
        totals.oversize += gathered.oversize;
        give(&mut outbox, &gathered.records, stop, &mut totals)?;
        outbox.pump().map_err(no_more)?;
        outbox.tell();
    }
    let last = gatherer.take();
    totals.oversize += last.oversize;
    give(&mut outbox, &last.records, stop, &mut totals)?;
    let outcome = outbox.finish(PATIENCE).map_err(no_more)?;
    Ok(Totals {
        deliveries: outcome.deliveries,
        unanswered: outcome.unanswered,
        spooled: outcome.spooled,
        refused: outcome.refused,
        ..totals
    })
}

fn give(
    outbox: &mut Outbox<'_>,
    records: &[Record],
    stop: &StopSignal,
    totals: &mut Totals,
) -> Result<(), Failure> {
    for record in records {
        if !outbox.take(record, || stop.is_given()).map_err(no_more)? {
            totals.left += record.events;
        }
    }
    Ok(())
}

fn no_more(error: KafkaError) -> Failure {
    Failure { status: Status::Failed, ..Failure::usage(error.what, error.why, error.remedy) }
}

fn to_folder(
    mut batches: Subscription<EventBatch>,
    mut recorder: Recorder,
    books: &Books,
) -> Result<Totals, Failure> {
    let (mut totals, mut gatherer) = (Totals::default(), Gatherer::new(GatherConfig::default(), 0));
    loop {
        let (gathered, ended) = match batches.next(gatherer.patience(Instant::now())) {
            Next::Item(batch) => {
                books.note(&batch.accounts, batches.counts());
                (gatherer.add(batch, Instant::now()), false)
            }
            Next::Timeout => (gatherer.due(Instant::now()), false),
            Next::Closed => (gatherer.take(), true),
        };
        totals.oversize += gathered.oversize;
        for record in gathered.records {
            totals.deliveries.accepted += record.events;
            recorder.add(&record.bytes).map_err(|error| {
                let remedy = "room on that disk; what was recorded before is whole";
                let failure = Failure::usage("cannot write the recording", error, remedy);
                Failure { status: Status::Failed, ..failure }
            })?;
            totals.deliveries.delivered += record.events;
            books.sent(totals.deliveries);
        }
        if ended {
            return Ok(totals);
        }
    }
}
