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

/// Maximum number of waiting bytes of one partition: 64 MiB, about 400,000 spans.
const BYTES_MAX: usize = 64 << 20;

/// Encoded fragments by trace. They take a tenth of their decoded size, and a snapshot has the same
/// bytes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct PendingTraces {
    traces: BTreeMap<TraceId, Vec<Vec<u8>>>,
    order: VecDeque<(LogTime, TraceId)>,
    bytes: usize,
    fragments: u64,
}

impl PendingTraces {
    /// Returns the number of fragments.
    pub(super) fn fragments(&self) -> u64 {
        self.fragments
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

    /// Returns the trace that has waited longest, if it has waited for more than `wait` ms or the
    /// limit is exceeded.
    pub(super) fn due(&mut self, now: LogTime, wait: u64) -> Option<TraceId> {
        while let Some((since, trace)) = self.order.front().copied() {
            let expired = now.0.saturating_sub(since.0) > wait || self.bytes > BYTES_MAX;
            if self.traces.contains_key(&trace) && !expired {
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
