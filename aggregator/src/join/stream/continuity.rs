//! Evidence that two agents send batches as one source: a machine was cloned while its agent ran.
//!
//! *In*: the batches of a source. *Out*: whether each is the next one, a repeated one, or one of a
//! second agent.
//!
//! *Invariant*: an agent gives a sequence number to one batch. So a second batch of a number with
//! other content is of another agent, and from then on no batch of the source can be attributed.
//! Span ids of both come from one counter, so a join over two batches could pair a call of one
//! machine with a bio of the other.
//!
//! *Rejected*: to attribute batches by their content, such as counters that only grow. It would be
//! a guess. *Rejected*: to drop all batches. Events in one batch are of one agent, so each batch is
//! joined alone ([`super::super::Joiner`]).

use std::collections::VecDeque;

use blkkin_wire::batch::EventBatch;
use serde::{Deserialize, Serialize};

/// Number of batches whose content is known: 1 KiB. Two agents that continue from one moment reach
/// the same numbers within seconds of each other, and a busy one sends 20 batches a second.
const RECENT_MAX: usize = 64;

/// Relation of a batch to the earlier ones of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::join) enum Arrival {
    /// Next batch, after this number of missing ones.
    Next(u64),
    /// Number and content are those of an earlier one.
    Repeated,
    /// Batch of one of two agents that send as this source.
    Contested,
}

/// Numbers and contents of a source's batches.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Continuity {
    next: Option<u64>,
    /// Sequence number and fingerprint of the last batches.
    recent: VecDeque<(u64, u64)>,
    contested: bool,
}

impl Continuity {
    /// Classifies a batch, and remembers it.
    pub(super) fn receive(&mut self, batch: &EventBatch) -> Arrival {
        let fingerprint = fingerprint(batch);
        if self.recent.contains(&(batch.sequence, fingerprint)) {
            return Arrival::Repeated;
        }
        self.contested |= self.recent.iter().any(|(sequence, _)| *sequence == batch.sequence);
        let expected = self.next.unwrap_or(batch.sequence);
        // A number before all known ones: sent again from a spool.
        if batch.sequence < expected && !self.contested {
            return Arrival::Repeated;
        }
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((batch.sequence, fingerprint));
        if self.contested {
            return Arrival::Contested;
        }
        self.next = Some(batch.sequence.saturating_add(1));
        Arrival::Next(batch.sequence - expected)
    }

    /// Marks the source as claimed by two agents.
    pub(super) fn contest(&mut self) {
        self.contested = true;
    }
}

/// Returns a hash (FNV-1a) of what distinguishes two batches of one number: times and totals. It is
/// part of the state, so it must not depend on the standard library's release.
pub(in crate::join) fn fingerprint(batch: &EventBatch) -> u64 {
    let (anchor, stats) = (&batch.anchor, &batch.stats);
    let time = |event: Option<&blkkin_wire::event::LayerEvent>| event.map_or(0, |event| event.time().0);
    let words = [
        batch.sequence,
        batch.watermark.0,
        anchor.monotonic.0,
        anchor.wallclock.0,
        batch.events.len() as u64,
        time(batch.events.first()),
        time(batch.events.last()),
        stats.calls.fired,
        stats.bios.fired,
        stats.requests.fired,
        stats.calls_entered,
    ];
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
