//! What the topics hold: which record is in which topic, and how its parts are numbered.

use blkkin_wire::batch::EventBatch;
use blkkin_wire::ids::SpanId;
use blkkin_wire::piece::{Origin, PieceBatch, Stage};
use blkkin_wire::v1::{self, Malformed};

use super::{EVENTS, SPANS, TRACES};

/// The numbers of a record's parts: `first`, and `count` in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Whoever counts, in 64 bits.
    pub origin: u64,
    /// Of the first part.
    pub first: u64,
    /// How many parts.
    pub count: u64,
}

/// A topic of records with numbered parts.
pub trait Codec {
    /// What a record holds.
    type Record;
    /// The topic's name.
    const TOPIC: &'static str;
    /// Reads a record.
    fn decode(bytes: &[u8]) -> Result<Self::Record, Malformed>;
    /// Its numbers.
    fn numbers(record: &Self::Record) -> Numbers;
    /// Takes its first `parts` away.
    fn skip(record: &mut Self::Record, parts: u64);
}

/// The topic of events; a batch is one part.
#[derive(Clone, Copy, Debug)]
pub struct Events;

impl Codec for Events {
    type Record = EventBatch;
    const TOPIC: &'static str = EVENTS;

    fn decode(bytes: &[u8]) -> Result<EventBatch, Malformed> {
        v1::decode(bytes).map(|decoded| decoded.batch)
    }

    fn numbers(batch: &EventBatch) -> Numbers {
        // The half that the trace ids of a source begin with.
        let origin = (batch.source.trace_id(SpanId(0)).0 >> 64) as u64;
        Numbers { origin, first: batch.sequence, count: 1 }
    }

    fn skip(_: &mut EventBatch, _: u64) {}
}

macro_rules! pieces {
    ($(#[$doc:meta])* $topic:ident, $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $topic;

        impl Codec for $topic {
            type Record = PieceBatch;
            const TOPIC: &'static str = $name;

            fn decode(bytes: &[u8]) -> Result<PieceBatch, Malformed> {
                v1::decode_pieces(bytes)
            }

            fn numbers(batch: &PieceBatch) -> Numbers {
                Numbers { origin: origin(&batch.from), first: batch.first, count: batch.pieces.len() as u64 }
            }

            fn skip(batch: &mut PieceBatch, parts: u64) {
                let parts = parts.min(batch.pieces.len() as u64);
                batch.pieces.drain(..parts as usize);
                batch.first = batch.first.saturating_add(parts);
            }
        }
    };
}

pieces! {
    /// The topic of spans.
    Spans, SPANS
}
pieces! {
    /// The topic of traces.
    Traces, TRACES
}

/// The epoch is random; what else tells origins apart is mixed into it by a multiplication, which loses nothing.
fn origin(from: &Origin) -> u64 {
    let stage = match from.stage {
        Stage::Join => 0,
        Stage::Assemble => 1,
        Stage::Meet => 2,
    };
    let place = u64::from(from.partition) << 2 | stage;
    from.epoch.0 ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_wire::ids::TraceId;
    use blkkin_wire::piece::{Epoch, Part, Piece};

    #[test]
    fn origins_differ_by_each_of_their_parts() {
        let from = Origin { stage: Stage::Join, partition: 3, epoch: Epoch(99) };
        for other in [
            Origin { stage: Stage::Assemble, ..from },
            Origin { partition: 4, ..from },
            Origin { epoch: Epoch(98), ..from },
        ] {
            assert_ne!(origin(&other), origin(&from));
        }
    }

    #[test]
    fn pieces_that_were_seen_are_taken_away_and_the_rest_keeps_its_numbers() {
        let piece = |n| Piece {
            trace: TraceId(n),
            spans: Vec::new(),
            part: Part::First,
            complete: true,
            sampled: None,
            sampled_by_program: false,
            across: Default::default(),
        };
        let from = Origin { stage: Stage::Assemble, partition: 0, epoch: Epoch(1) };
        let mut batch = PieceBatch { from, first: 10, pieces: (10..15).map(piece).collect() };
        Traces::skip(&mut batch, 3);
        assert_eq!((batch.first, batch.pieces.len(), batch.pieces[0].trace), (13, 2, TraceId(13)));
        Traces::skip(&mut batch, 9);
        assert_eq!((batch.first, batch.pieces.len()), (15, 0));
    }
}
