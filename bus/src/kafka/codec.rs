//! Codecs of the topics.
//!
//! *In*: a record's bytes. *Out*: the decoded record, and the sequence numbers of its parts.
//! *Invariant*: for one incarnation, each stage and partition has a different origin id.

use blkkin_wire::batch::EventBatch;
use blkkin_wire::fragment::{FragmentBatch, FragmentOrigin, StageId};
use blkkin_wire::ids::SpanId;
use blkkin_wire::v1::{self, Malformed};

use super::{EVENTS, SPANS, TRACES};

/// Sequence numbers of a record's parts: `count` consecutive ones from `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Id of the counter, 64 bits.
    pub origin: u64,
    /// Number of the first part.
    pub first: u64,
    /// Number of parts.
    pub count: u64,
}

/// Topic of records with numbered parts.
pub trait Codec {
    /// Type of a decoded record.
    type Record;
    /// The topic's name.
    const TOPIC: &'static str;
    /// Decodes a record.
    fn decode(bytes: &[u8]) -> Result<Self::Record, Malformed>;
    /// Returns its sequence numbers.
    fn numbers(record: &Self::Record) -> Numbers;
    /// Removes its first `parts`.
    fn skip(record: &mut Self::Record, parts: u64);
}

/// Topic of events; a batch is one part.
#[derive(Clone, Copy, Debug)]
pub struct Events;

impl Codec for Events {
    type Record = EventBatch;
    const TOPIC: &'static str = EVENTS;

    fn decode(bytes: &[u8]) -> Result<EventBatch, Malformed> {
        v1::decode(bytes).map(|decoded| decoded.batch)
    }

    fn numbers(batch: &EventBatch) -> Numbers {
        // Upper half of the source's trace ids.
        let origin = (batch.source.trace_id(SpanId(0)).0 >> 64) as u64;
        Numbers { origin, first: batch.sequence, count: 1 }
    }

    fn skip(_: &mut EventBatch, _: u64) {}
}

macro_rules! fragment_topic {
    ($(#[$doc:meta])* $topic:ident, $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $topic;

        impl Codec for $topic {
            type Record = FragmentBatch;
            const TOPIC: &'static str = $name;

            fn decode(bytes: &[u8]) -> Result<FragmentBatch, Malformed> {
                v1::decode_fragments(bytes)
            }

            fn numbers(batch: &FragmentBatch) -> Numbers {
                Numbers { origin: origin(&batch.origin), first: batch.first, count: batch.fragments.len() as u64 }
            }

            fn skip(batch: &mut FragmentBatch, parts: u64) {
                let parts = parts.min(batch.fragments.len() as u64);
                batch.fragments.drain(..parts as usize);
                batch.first = batch.first.saturating_add(parts);
            }
        }
    };
}

fragment_topic! {
    /// Topic of spans.
    Spans, SPANS
}
fragment_topic! {
    /// Topic of traces.
    Traces, TRACES
}

/// Mixes stage and partition into the random epoch by a multiplication that is a bijection.
fn origin(from: &FragmentOrigin) -> u64 {
    let stage = match from.stage {
        StageId::Join => 0,
        StageId::Assemble => 1,
        StageId::Link => 2,
    };
    let stream = u64::from(from.partition) << 2 | stage;
    from.incarnation.0 ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_wire::fragment::{Incarnation, TraceFragment};
    use blkkin_wire::ids::TraceId;

    #[test]
    fn origins_differ_in_stage_partition_and_incarnation() {
        let from = FragmentOrigin { stage: StageId::Join, partition: 3, incarnation: Incarnation(99) };
        for other in [
            FragmentOrigin { stage: StageId::Assemble, ..from },
            FragmentOrigin { partition: 4, ..from },
            FragmentOrigin { incarnation: Incarnation(98), ..from },
        ] {
            assert_ne!(origin(&other), origin(&from));
        }
    }

    #[test]
    fn skipped_fragments_are_removed_and_the_rest_keeps_its_numbers() {
        let fragment = |n| TraceFragment::whole(TraceId(n), Vec::new());
        let from = FragmentOrigin { stage: StageId::Assemble, partition: 0, incarnation: Incarnation(1) };
        let mut batch =
            FragmentBatch { origin: from, first: 10, fragments: (10..15).map(fragment).collect() };
        Traces::skip(&mut batch, 3);
        assert_eq!((batch.first, batch.fragments.len(), batch.fragments[0].trace), (13, 2, TraceId(13)));
        Traces::skip(&mut batch, 9);
        assert_eq!((batch.first, batch.fragments.len()), (15, 0));
    }
}
