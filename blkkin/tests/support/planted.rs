//! Recordings with a planted wrong parent, which a test's own checks must find.
//!
//! *In*: a recording, and two calls of it. *Out*: the recording that a tracer would make which takes
//! each of the two for the other at its block I/O. *Invariant*: only parents differ, so no count
//! and no missing span gives the fault away.

use blkkin_aggregator::join::{JoinConfig, Joiner};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{BioEvent, LayerEvent, RequestEvent, Submitter};
use blkkin_wire::ids::{BootId, NodeId, Source, SpanId, StartEpoch};

use super::recording::Recording;

const SOURCE: Source = Source { node: NodeId(1), boot: BootId(1), epoch: StartEpoch(1) };

/// Exchanges the bios and requests of two calls in the events, and joins them again.
pub(crate) fn exchange_children(recording: &Recording, calls: [SpanId; 2]) -> Recording {
    let mut events = recording.events.clone();
    for event in &mut events {
        match event {
            LayerEvent::Bio(bio) => exchange_bio(bio, calls),
            LayerEvent::Request(request) => exchange_request(request, calls),
            LayerEvent::Pair(pair) => {
                exchange_bio(&mut pair.bio, calls);
                exchange_request(&mut pair.request, calls);
            }
            _ => {}
        }
    }
    let (mut joiner, mut traces) = (Joiner::new(JoinConfig::default()), Vec::new());
    let watermark = MonotonicNs(u64::MAX);
    joiner.apply(
        EventBatch { source: SOURCE, events: events.clone(), watermark, ..EventBatch::tick() },
        &mut traces,
    );
    joiner.finish(&mut traces);
    let join = joiner.stats().clone();
    let (stats, final_state) = (recording.stats.clone(), recording.final_state.clone());
    Recording { events, traces, stats, join, final_state, nbd: recording.nbd }
}

fn exchange_bio(bio: &mut BioEvent, calls: [SpanId; 2]) {
    bio.root = other(bio.root, calls);
    if let Submitter::Span(span) = bio.submitter {
        bio.submitter = Submitter::Span(other(span, calls));
    }
}

fn exchange_request(request: &mut RequestEvent, calls: [SpanId; 2]) {
    request.root = other(request.root, calls);
}

fn other(span: SpanId, [one, two]: [SpanId; 2]) -> SpanId {
    if span == one {
        two
    } else if span == two {
        one
    } else {
        span
    }
}
