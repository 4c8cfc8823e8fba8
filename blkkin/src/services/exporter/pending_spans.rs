//! Received fragments, split into spans, so that one request carries the spans of many fragments.
//! Each span keeps a reference to its fragment.
//!
//! *Invariant*: a span's tags are a function of its fragment. If a sampling rule kept the trace,
//! the root span names the rule and its rate.

use std::borrow::Cow;
use std::ops::Range;

use blkkin_bus::kafka::DeadLetter;
use blkkin_wire::fragment::{FragmentBatch, FragmentKind, FragmentOrigin, Sampled, TraceFragment};
use blkkin_wire::ids::TraceId;
use blkkin_wire::remote_link::RemoteLink;
use blkkin_wire::span::{Span, TagValue};
use blkkin_wire::v1;

const RULE_TAG: &str = "blkkin.sampled.rule";
const ONE_IN_TAG: &str = "blkkin.sampled.one_in";

/// The metadata of a fragment.
#[derive(Debug)]
struct FragmentInfo {
    from: FragmentOrigin,
    number: u64,
    trace: TraceId,
    part: FragmentKind,
    complete: bool,
    sampled: Option<Sampled>,
    /// The range of its spans.
    spans: Range<usize>,
}

/// Spans that wait for delivery, with their fragments.
#[derive(Debug, Default)]
pub(super) struct PendingSpans {
    spans: Vec<Span>,
    fragments: Vec<FragmentInfo>,
}

impl PendingSpans {
    /// Adds the spans of a record's fragments; returns the number of fragments.
    pub(super) fn add(&mut self, batch: FragmentBatch) -> u64 {
        let count = batch.fragments.len() as u64;
        for (number, fragment) in (0..).map(|n| batch.first.wrapping_add(n)).zip(batch.fragments) {
            let TraceFragment { trace, mut spans, kind: part, complete, sampled, .. } = fragment;
            if let Some(sampled) = &sampled {
                tag_root(trace, part, &mut spans, sampled);
            }
            let first = self.spans.len();
            self.spans.append(&mut spans);
            let spans = first..self.spans.len();
            self.fragments.push(FragmentInfo {
                from: batch.origin,
                number,
                trace,
                part,
                complete,
                sampled,
                spans,
            });
        }
        count
    }

    /// Returns all spans, in order of arrival.
    pub(super) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Removes all spans.
    pub(super) fn clear(&mut self) {
        self.spans.clear();
        self.fragments.clear();
    }

    /// Builds a dead letter for the span at `index`, which `destination` refused for the reason
    /// `why`.
    pub(super) fn dead_letter(&self, index: usize, destination: &str, why: &str) -> Option<DeadLetter> {
        let fragment = self.fragments.iter().find(|fragment| fragment.spans.contains(&index))?;
        let FragmentInfo { from, number, trace, part, complete, .. } = *fragment;
        let spans = vec![self.spans.get(index)?.clone()];
        let fragment = TraceFragment {
            trace,
            spans,
            kind: part,
            complete,
            sampled: fragment.sampled.clone(),
            sampled_by_application: false,
            remote_link: RemoteLink::None,
        };
        Some(DeadLetter {
            headers: vec![
                ("blkkin.reason", format!("{destination}: {why}")),
                ("blkkin.origin", from.to_string()),
                ("blkkin.number", number.to_string()),
            ],
            payload: v1::encode_fragments(&FragmentBatch {
                origin: from,
                first: number,
                fragments: vec![fragment],
            }),
        })
    }
}

/// Tags the root span of the trace: the one without a parent, which a later fragment lacks. In a
/// trace below an application's span each span has a parent; there it is the first span of the
/// first fragment.
fn tag_root(trace: TraceId, part: FragmentKind, spans: &mut [Span], sampled: &Sampled) {
    let of_trace = |span: &Span| span.trace == trace;
    let top = spans.iter().position(|span| of_trace(span) && span.parent.is_none());
    let first = || spans.iter().position(of_trace).filter(|_| part == FragmentKind::First);
    if let Some(root) = top.or_else(first).and_then(|root| spans.get_mut(root)) {
        let rule = match &sampled.rule {
            Cow::Borrowed(rule) => TagValue::Text((*rule).into()),
            Cow::Owned(rule) => TagValue::Text(rule.clone().into()),
        };
        root.tags.push((RULE_TAG.into(), rule));
        root.tags.push((ONE_IN_TAG.into(), TagValue::Number(sampled.one_in.into())));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use blkkin_wire::clock::{DurationNs, WallclockNs};
    use blkkin_wire::fragment::{Incarnation, StageId};
    use blkkin_wire::ids::SpanId;

    fn span(id: u64, parent: Option<u64>) -> Span {
        Span {
            parent: parent.map(SpanId),
            name: "fsync".into(),
            service: "db".into(),
            start: WallclockNs(1),
            duration: DurationNs(1),
            ..Span::bare(TraceId(7), SpanId(id))
        }
    }

    fn batch() -> FragmentBatch {
        let sampled = Some(Sampled { rule: "slow".into(), one_in: 10 });
        let fragment = |spans, sampled| TraceFragment { sampled, ..TraceFragment::whole(TraceId(7), spans) };
        let from = FragmentOrigin { stage: StageId::Assemble, partition: 3, incarnation: Incarnation(0xab) };
        let fragments = vec![
            fragment(vec![span(1, Some(2)), span(2, None)], sampled),
            fragment(vec![span(3, Some(2))], None),
            fragment(vec![span(4, None)], None),
        ];
        FragmentBatch { origin: from, first: 40, fragments }
    }

    #[test]
    fn only_the_root_of_a_sampled_trace_is_tagged() {
        let mut pending = PendingSpans::default();
        assert_eq!(pending.add(batch()), 3);
        let tagged: Vec<_> = pending.spans().iter().filter(|span| !span.tags.is_empty()).collect();
        assert_eq!(tagged.len(), 1);
        assert_eq!(tagged[0].id, SpanId(2));
        assert_eq!(tagged[0].tags[0], (RULE_TAG.into(), TagValue::Text("slow".into())));
        assert_eq!(tagged[0].tags[1], (ONE_IN_TAG.into(), TagValue::Number(10)));
    }

    #[test]
    fn dead_letter_has_one_span_and_names_its_fragment() {
        let mut pending = PendingSpans::default();
        pending.add(batch());
        let dead_letter = pending.dead_letter(2, "zipkin=x", "no").unwrap();
        let header = |name| dead_letter.headers.iter().find(|(key, _)| *key == name).unwrap().1.as_str();
        assert_eq!(header("blkkin.reason"), "zipkin=x: no");
        assert_eq!(header("blkkin.origin"), "assemble/3/00000000000000ab");
        assert_eq!(header("blkkin.number"), "41");
        let read = v1::decode_fragments(&dead_letter.payload).unwrap();
        assert_eq!((read.first, read.fragments[0].spans.as_slice()), (41, &[span(3, Some(2))][..]));
        assert_eq!(pending.dead_letter(4, "", ""), None);
    }
}
