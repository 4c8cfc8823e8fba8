//! Provisional traces that wait for the link stage's answer, and parts that wait for their root.
//!
//! *In*: fragments of such traces, and the log's time. *Out*: all fragments of a trace, in order,
//! when it is decided, at its timeout, or for room.
//!
//! *Invariant*: each fragment leaves once, in the order of its trace. The latest fragments stay
//! decoded, up to [`Limits::decoded`] spans; older ones are encoded. The encoded bytes are bounded,
//! with the memory that the tables need for each trace and fragment.
//!
//! Most traces leave after milliseconds. To encode and to decode a fragment of three spans takes
//! 19 µs, to keep it as it is 1.3 µs. A span takes some 1.3 kB decoded and a tenth of that encoded,
//! so what waits for longer is encoded.
//!
//! *Rejected*: all fragments decoded, or all encoded, for that memory and that time.
//! *Rejected*: a share of the bytes for each kind of wait. The trace that
//! has waited longest leaves first, and while the link stage is away that is one which waits for
//! its answer, never a part of the last seconds.

use std::collections::{BTreeMap, VecDeque};
use std::mem;

use blkkin_wire::fragment::{FragmentBatch, FragmentOrigin, Incarnation, StageId, TraceFragment};
use blkkin_wire::ids::TraceId;
use blkkin_wire::remote_link::RemoteLink;
use blkkin_wire::stage::LogTime;
use blkkin_wire::v1;
use serde::{Deserialize, Serialize};

/// Memory of a waiting trace in addition to its encoded fragments: its node in the tree, its place in the
/// order and the lists of its fragments.
const TRACE_BYTES: usize = 256;
/// Memory of a fragment in addition to its encoding: its vector and the allocator's header.
const FRAGMENT_BYTES: usize = 48;

/// Event for which a trace waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Awaited {
    /// The fragment with the root.
    Root,
    /// The answer of the link stage: a new parent, or none.
    Link,
}

/// Limits of the waiting traces: times in ms of the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) root: u64,
    pub(super) link: u64,
    /// Encoded bytes.
    pub(super) bytes: u64,
    /// Spans that stay decoded.
    pub(super) decoded: usize,
}

/// Waiting fragments by trace. A snapshot has the encoded ones.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct PendingTraces {
    traces: BTreeMap<TraceId, Waiting>,
    roots: WaitQueue,
    links: WaitQueue,
    bytes: usize,
    fragments: u64,
    #[serde(skip)]
    recent: RecentFragments,
}

#[derive(Debug, Serialize, Deserialize)]
struct Waiting {
    awaited: Awaited,
    since: LogTime,
    encoded: Vec<Vec<u8>>,
    /// Fragments that arrived after the encoded ones.
    #[serde(skip)]
    decoded: Vec<TraceFragment>,
}

/// Traces of the latest fragments with their numbers of spans, in the order of arrival, including
/// those that left. A trace has decoded fragments only while it is listed here.
#[derive(Debug, Default)]
struct RecentFragments {
    order: VecDeque<(TraceId, usize)>,
    spans: usize,
}

/// Traces with the same wait, in the order of its begin. Traces that left are skipped.
#[derive(Debug, Default, Serialize, Deserialize)]
struct WaitQueue {
    order: VecDeque<(LogTime, TraceId)>,
    /// Traces that left because the bytes exceeded their limit.
    evicted: u64,
}

impl PendingTraces {
    /// Returns the number of fragments.
    pub(super) fn fragments(&self) -> u64 {
        self.fragments
    }

    /// Returns the number of traces that left because the bytes exceeded their limit.
    pub(super) fn evicted(&self, awaited: Awaited) -> u64 {
        match awaited {
            Awaited::Root => self.roots.evicted,
            Awaited::Link => self.links.evicted,
        }
    }

    pub(super) fn holds(&self, trace: TraceId) -> bool {
        self.traces.contains_key(&trace)
    }

    /// Adds a fragment. That of the root begins the wait for the link stage.
    pub(super) fn add(&mut self, fragment: TraceFragment, now: LogTime) {
        let trace = fragment.trace;
        let awaited =
            if fragment.remote_link == RemoteLink::PendingParent { Awaited::Link } else { Awaited::Root };
        self.fragments += 1;
        self.recent.push(trace, fragment.spans.len());
        if !self.traces.contains_key(&trace) {
            self.bytes += TRACE_BYTES;
            self.roots.order.push_back((now, trace));
        }
        let new = || Waiting { awaited: Awaited::Root, since: now, encoded: Vec::new(), decoded: Vec::new() };
        let waiting = self.traces.entry(trace).or_insert_with(new);
        if awaited == Awaited::Link && waiting.awaited == Awaited::Root {
            (waiting.awaited, waiting.since) = (awaited, now);
            self.links.order.push_back((now, trace));
        }
        if waiting.decoded.is_empty() {
            // Most traces have one.
            waiting.decoded.reserve_exact(1);
        }
        waiting.decoded.push(fragment);
    }

    /// Encodes the fragments of the traces that arrived before the latest `spans` spans.
    pub(super) fn encode_all_but(&mut self, spans: usize) {
        while let Some(trace) = self.recent.pop_beyond(spans) {
            let Some(waiting) = self.traces.get_mut(&trace) else { continue };
            for fragment in mem::take(&mut waiting.decoded) {
                let bytes = encode(fragment);
                self.bytes += FRAGMENT_BYTES + bytes.len();
                waiting.encoded.push(bytes);
            }
        }
    }

    /// Removes and returns all fragments of `trace`.
    pub(super) fn remove(&mut self, trace: TraceId) -> Vec<TraceFragment> {
        let Some(Waiting { encoded, decoded, .. }) = self.traces.remove(&trace) else { return Vec::new() };
        self.bytes -= TRACE_BYTES + encoded.iter().map(|bytes| FRAGMENT_BYTES + bytes.len()).sum::<usize>();
        self.fragments -= (encoded.len() + decoded.len()) as u64;
        if encoded.is_empty() {
            return decoded;
        }
        // They were encoded here, so they decode.
        let older = encoded.iter().filter_map(|bytes| v1::decode_fragments(bytes).ok());
        older.flat_map(|batch| batch.fragments).chain(decoded).collect()
    }

    /// Returns a trace that has waited for longer than its limit, or if too many bytes wait, the
    /// trace that has waited longest.
    pub(super) fn due(&mut self, now: LogTime, limits: &Limits) -> Option<(TraceId, Awaited)> {
        self.encode_all_but(limits.decoded);
        let root = self.roots.first(&self.traces, Awaited::Root);
        let link = self.links.first(&self.traces, Awaited::Link);
        let expired = |first: Option<(LogTime, TraceId)>, limit| {
            first.filter(|(since, _)| now.0.saturating_sub(since.0) > limit)
        };
        if let Some((_, trace)) = expired(root, limits.root) {
            return Some((trace, Awaited::Root));
        }
        if let Some((_, trace)) = expired(link, limits.link) {
            return Some((trace, Awaited::Link));
        }
        if self.bytes as u64 <= limits.bytes {
            return None;
        }
        let oldest = [(root, Awaited::Root), (link, Awaited::Link)];
        let oldest = oldest.into_iter().filter_map(|(first, awaited)| Some((first?, awaited)));
        let ((_, trace), awaited) = oldest.min_by_key(|((since, _), _)| *since)?;
        match awaited {
            Awaited::Root => self.roots.evicted += 1,
            Awaited::Link => self.links.evicted += 1,
        }
        Some((trace, awaited))
    }
}

impl RecentFragments {
    fn push(&mut self, trace: TraceId, spans: usize) {
        // A fragment without spans takes memory too.
        let spans = spans.max(1);
        self.spans += spans;
        self.order.push_back((trace, spans));
    }

    /// Removes and returns the oldest, if more than `spans` spans are listed.
    fn pop_beyond(&mut self, spans: usize) -> Option<TraceId> {
        if self.spans <= spans {
            return None;
        }
        let (trace, count) = self.order.pop_front()?;
        self.spans -= count;
        Some(trace)
    }
}

fn encode(fragment: TraceFragment) -> Vec<u8> {
    let origin = FragmentOrigin { stage: StageId::Assemble, partition: 0, incarnation: Incarnation(0) };
    v1::encode_fragments(&FragmentBatch { origin, first: 0, fragments: vec![fragment] })
}

impl WaitQueue {
    /// Returns the trace that has waited longest. It stays until it is removed from `traces`.
    fn first(&mut self, traces: &BTreeMap<TraceId, Waiting>, awaited: Awaited) -> Option<(LogTime, TraceId)> {
        let waits = |(since, trace): &(LogTime, TraceId)| {
            traces.get(trace).is_some_and(|waiting| (waiting.since, waiting.awaited) == (*since, awaited))
        };
        while self.order.front().is_some_and(|first| !waits(first)) {
            self.order.pop_front();
        }
        self.order.front().copied()
    }
}

#[cfg(test)]
mod tests {
    use blkkin_wire::span::SpanKind;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures;
    use crate::spans::spans_of;

    const LIMITS: Limits = Limits { root: 10, link: 1_000, bytes: 1 << 20, decoded: 16 };

    fn fragment(trace: u128, remote_link: RemoteLink) -> TraceFragment {
        TraceFragment::link_only(TraceId(trace), remote_link)
    }

    #[test]
    fn a_part_waits_for_its_root_and_then_the_root_for_the_link_stage() {
        let mut pending = PendingTraces::default();
        pending.add(fragment(1, RemoteLink::Child), LogTime(5));
        pending.add(fragment(2, RemoteLink::Child), LogTime(6));
        pending.add(fragment(1, RemoteLink::PendingParent), LogTime(14));
        assert_eq!(pending.due(LogTime(16), &LIMITS), None);
        assert_eq!(pending.due(LogTime(17), &LIMITS), Some((TraceId(2), Awaited::Root)));
        assert_eq!(pending.remove(TraceId(2)).len(), 1);
        assert_eq!(pending.due(LogTime(1_014), &LIMITS), None);
        assert_eq!(pending.due(LogTime(1_015), &LIMITS), Some((TraceId(1), Awaited::Link)));
        assert_eq!(pending.remove(TraceId(1)).len(), 2);
        assert_eq!((pending.bytes, pending.fragments), (0, 0));
    }

    #[test]
    fn the_oldest_trace_makes_room_and_is_counted_by_what_it_waited_for() {
        let mut pending = PendingTraces::default();
        // Twice as many as there is room for, of both kinds, in turn.
        let mut room = 0;
        for n in 0..4_000 {
            let awaited = if n % 2 == 0 { RemoteLink::PendingParent } else { RemoteLink::Child };
            pending.add(fragment(n, awaited), LogTime(n as u64));
            pending.encode_all_but(0);
            room = if n == 1_999 { pending.bytes as u64 } else { room };
        }
        let limits = Limits { root: u64::MAX, link: u64::MAX, bytes: room, decoded: 0 };
        let mut left = Vec::new();
        while let Some((trace, _)) = pending.due(LogTime(4_000), &limits) {
            left.push(trace.0);
            pending.remove(trace);
        }
        assert_eq!(left, (0..2_000).collect::<Vec<u128>>());
        assert_eq!((pending.evicted(Awaited::Root), pending.evicted(Awaited::Link)), (1_000, 1_000));
    }

    proptest! {
        /// Encoding of any fragments changes nothing of what leaves: each trace leaves with its
        /// fragments in the order of arrival, and nothing stays behind.
        #[test]
        fn encoding_changes_neither_content_nor_order(
            arrivals in vec((1_u128..8, 0_u64..5), 0..60),
            decoded in 0_usize..12,
        ) {
            let mut pending = PendingTraces::default();
            let mut expected: BTreeMap<TraceId, Vec<TraceFragment>> = BTreeMap::new();
            for (n, (trace, spans)) in arrivals.into_iter().enumerate() {
                let mut fragment = fragment(trace, RemoteLink::Child);
                let daemon_span =
                    |span| spans_of(&fixtures::daemon_span_trace(span, SpanKind::Server, (n as u64, 99)));
                fragment.spans = (1..=spans).flat_map(daemon_span).collect();
                expected.entry(fragment.trace).or_default().push(fragment.clone());
                pending.add(fragment, LogTime(n as u64));
                prop_assert_eq!(pending.due(LogTime(n as u64), &Limits { root: 99, decoded, ..LIMITS }), None);
                prop_assert!(pending.recent.spans <= decoded);
                let held: usize = pending.traces.values().flat_map(|one| &one.decoded).map(|one| one.spans.len()).sum();
                prop_assert!(held <= decoded, "{} spans are decoded", held);
            }
            for (trace, fragments) in expected {
                prop_assert_eq!(pending.remove(trace), fragments);
            }
            prop_assert_eq!((pending.bytes, pending.fragments), (0, 0));
        }
    }
}
