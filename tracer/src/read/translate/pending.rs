//! Records that precede a system call's record in its ring, until that record is read.
//!
//! *In*: waits and sleeps of a call, by its span. *Out*: each to the call with that span, once. *Invariant*: what no
//! call takes is forgotten: its call's record was dropped.

use std::collections::HashMap;

use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::ids::SpanId;

/// Event time after which a call's record is not awaited any longer. A program writes it right after the others; an
/// operation that was deferred has old times.
const AWAITED: DurationNs = DurationNs(100_000_000);

/// Parts of system calls that have not been read, by span.
#[derive(Debug)]
pub(crate) struct PendingByCall<T> {
    /// With the time from which on it is awaited.
    parts: HashMap<SpanId, (MonotonicNs, T)>,
    /// Records of these parts.
    pub(crate) recorded: u64,
}

impl<T> Default for PendingByCall<T> {
    fn default() -> Self {
        PendingByCall { parts: HashMap::new(), recorded: 0 }
    }
}

impl<T> PendingByCall<T> {
    /// Counts a record, and adds the part of a call that it has, if any. `at`: its time or, if all events before a later
    /// one have been read, that one.
    #[cold]
    pub(crate) fn insert(&mut self, span: SpanId, at: MonotonicNs, part: Option<T>) {
        self.recorded += 1;
        self.parts.extend(part.map(|part| (span, (at, part))));
    }

    /// Takes the part of a call.
    #[cold]
    pub(crate) fn take(&mut self, span: SpanId) -> Option<T> {
        self.parts.remove(&span).map(|(_, part)| part)
    }

    /// Forgets the parts that no call has taken in time.
    pub(crate) fn expire(&mut self, watermark: MonotonicNs) {
        if !self.parts.is_empty() {
            let oldest = watermark.0.saturating_sub(AWAITED.0);
            self.parts.retain(|_, (read, _)| read.0 >= oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_takes_its_part_once_or_in_time_no_more() {
        let mut pending = PendingByCall::default();
        for span in [7, 8] {
            pending.insert(SpanId(span), MonotonicNs(900), Some(span));
        }
        pending.insert(SpanId(9), MonotonicNs(900), None);
        assert_eq!(pending.recorded, 3);
        assert_eq!([9, 7, 7].map(|span| pending.take(SpanId(span))), [None, Some(7), None]);
        pending.expire(MonotonicNs(900 + AWAITED.0));
        assert_eq!(pending.parts.len(), 1);
        pending.expire(MonotonicNs(901 + AWAITED.0));
        assert_eq!(pending.parts.len(), 0);
    }
}
