//! Provisional traces that wait to hear where they are shown.
//!
//! *In*: pieces of such traces, and the log's time. *Out*: all pieces of one, in their order, when it is known or its time or its
//! room is up. *Invariant*: each piece comes out once; what is held is bounded in bytes.

use std::collections::{BTreeMap, VecDeque};

use blkkin_wire::fragment::{FragmentBatch, FragmentOrigin, Incarnation, Stage, TraceFragment};
use blkkin_wire::ids::TraceId;
use blkkin_wire::v1;
use serde::{Deserialize, Serialize};

use super::LogTime;

/// Bytes held of one partition: 64 MiB, some 400,000 spans.
const BYTES_MAX: usize = 64 << 20;

/// Pieces by trace. As bytes: they are a tenth of what they are in memory, and lie in the saved state like that.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Held {
    traces: BTreeMap<TraceId, Vec<Vec<u8>>>,
    order: VecDeque<(LogTime, TraceId)>,
    bytes: usize,
    pieces: u64,
}

impl Held {
    /// Pieces in it.
    pub(super) fn pieces(&self) -> u64 {
        self.pieces
    }

    pub(super) fn holds(&self, trace: TraceId) -> bool {
        self.traces.contains_key(&trace)
    }

    /// Takes a piece in.
    pub(super) fn put(&mut self, piece: TraceFragment, now: LogTime) {
        let trace = piece.trace;
        let from = FragmentOrigin { stage: Stage::Assemble, partition: 0, incarnation: Incarnation(0) };
        let bytes = v1::encode_fragments(&FragmentBatch { origin: from, first: 0, fragments: vec![piece] });
        (self.bytes, self.pieces) = (self.bytes + bytes.len(), self.pieces + 1);
        let held = self.traces.entry(trace).or_insert_with(|| {
            self.order.push_back((now, trace));
            Vec::new()
        });
        held.push(bytes);
    }

    /// All pieces of `trace`.
    pub(super) fn take(&mut self, trace: TraceId) -> Vec<TraceFragment> {
        let held = self.traces.remove(&trace).unwrap_or_default();
        self.bytes -= held.iter().map(Vec::len).sum::<usize>();
        self.pieces -= held.len() as u64;
        // They are what was written here, so they read.
        let read = held.iter().filter_map(|bytes| v1::decode_fragments(bytes).ok());
        read.flat_map(|batch| batch.fragments).collect()
    }

    /// The trace that has waited longest, if it has for longer than `wait` ms or there is no room for it.
    pub(super) fn due(&mut self, now: LogTime, wait: u64) -> Option<TraceId> {
        while let Some((since, trace)) = self.order.front().copied() {
            let over = now.0.saturating_sub(since.0) > wait || self.bytes > BYTES_MAX;
            if self.traces.contains_key(&trace) && !over {
                return None;
            }
            self.order.pop_front();
            if self.traces.contains_key(&trace) {
                return Some(trace);
            }
        }
        None
    }
}
