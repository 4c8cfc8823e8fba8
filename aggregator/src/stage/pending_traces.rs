//! Provisional traces that wait for their client's trace, and parts that wait for their root.
//!
//! *In*: fragments of such traces, and the log's time. *Out*: all fragments of a trace, in order,
//! when it is decided, at its timeout, or for room.
//!
//! *Invariant*: each fragment leaves once, and the waiting bytes are bounded.
//!
//! *Rejected*: decoded fragments. They take ten times the memory, and the byte limit would need an
//! estimate of their size.

use std::collections::{BTreeMap, VecDeque};

use blkkin_wire::fragment::{FragmentBatch, FragmentOrigin, Incarnation, StageId, TraceFragment};
use blkkin_wire::ids::TraceId;
use blkkin_wire::stage::LogTime;
use blkkin_wire::v1;
use serde::{Deserialize, Serialize};

/// Encoded fragments by trace. They take a tenth of their decoded size, and a snapshot has the same
/// bytes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct PendingTraces {
    traces: BTreeMap<TraceId, Vec<Vec<u8>>>,
    order: VecDeque<(LogTime, TraceId)>,
    bytes: usize,
    fragments: u64,
    /// Traces that left because the bytes exceeded their limit.
    evicted: u64,
}

impl PendingTraces {
    /// Returns the number of fragments.
    pub(super) fn fragments(&self) -> u64 {
        self.fragments
    }

    /// Returns the number of traces that left because the bytes exceeded their limit.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    pub(super) fn holds(&self, trace: TraceId) -> bool {
        self.traces.contains_key(&trace)
    }

    /// Adds a fragment.
    pub(super) fn add(&mut self, fragment: TraceFragment, now: LogTime) {
        let trace = fragment.trace;
        let origin = FragmentOrigin { stage: StageId::Assemble, partition: 0, incarnation: Incarnation(0) };
        let bytes = v1::encode_fragments(&FragmentBatch { origin, first: 0, fragments: vec![fragment] });
        (self.bytes, self.fragments) = (self.bytes + bytes.len(), self.fragments + 1);
        let fragments = self.traces.entry(trace).or_insert_with(|| {
            self.order.push_back((now, trace));
            Vec::new()
        });
        fragments.push(bytes);
    }

    /// Removes and returns all fragments of `trace`.
    pub(super) fn remove(&mut self, trace: TraceId) -> Vec<TraceFragment> {
        let fragments = self.traces.remove(&trace).unwrap_or_default();
        self.bytes -= fragments.iter().map(Vec::len).sum::<usize>();
        self.fragments -= fragments.len() as u64;
        // They were encoded here, so they decode.
        let decoded = fragments.iter().filter_map(|bytes| v1::decode_fragments(bytes).ok());
        decoded.flat_map(|batch| batch.fragments).collect()
    }

    /// Returns the trace that has waited longest, if it has waited for more than `wait` ms or more
    /// than `bytes_max` wait.
    pub(super) fn due(&mut self, now: LogTime, wait: u64, bytes_max: u64) -> Option<TraceId> {
        while let Some((since, trace)) = self.order.front().copied() {
            let expired = now.0.saturating_sub(since.0) > wait;
            let overflows = self.bytes as u64 > bytes_max;
            if self.traces.contains_key(&trace) && !expired && !overflows {
                return None;
            }
            self.order.pop_front();
            if self.traces.contains_key(&trace) {
                self.evicted += u64::from(!expired);
                return Some(trace);
            }
        }
        None
    }
}
