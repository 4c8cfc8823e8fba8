//! Pieces taken apart into spans, so that a request holds the spans of many; each span remembers its piece.
//!
//! *Invariant*: a span's tags are a function of its piece: where a rule decided that the trace is kept, its root says which, and
//! of how many one is kept.

use std::borrow::Cow;
use std::ops::Range;

use blkkin_bus::kafka::Letter;
use blkkin_wire::ids::TraceId;
use blkkin_wire::meeting::Across;
use blkkin_wire::piece::{Origin, Part, Piece, PieceBatch, Sampled};
use blkkin_wire::span::{Span, TagValue};
use blkkin_wire::v1;

const RULE_TAG: &str = "blkkin.sampled.rule";
const ONE_IN_TAG: &str = "blkkin.sampled.one_in";

/// What a piece is besides its spans.
#[derive(Debug)]
struct Label {
    from: Origin,
    number: u64,
    trace: TraceId,
    part: Part,
    complete: bool,
    sampled: Option<Sampled>,
    /// Its spans, among all.
    spans: Range<usize>,
}

/// Spans, and of which pieces they are.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    spans: Vec<Span>,
    labels: Vec<Label>,
}

impl Gathered {
    /// Takes a record's pieces apart; how many.
    pub(super) fn add(&mut self, batch: PieceBatch) -> u64 {
        let count = batch.pieces.len() as u64;
        for (number, piece) in (0..).map(|n| batch.first.wrapping_add(n)).zip(batch.pieces) {
            let Piece { trace, mut spans, part, complete, sampled, .. } = piece;
            if let Some(sampled) = &sampled {
                tag_root(trace, part, &mut spans, sampled);
            }
            let first = self.spans.len();
            self.spans.append(&mut spans);
            let spans = first..self.spans.len();
            self.labels.push(Label { from: batch.from, number, trace, part, complete, sampled, spans });
        }
        count
    }

    /// All spans, in the order in which they came.
    pub(super) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.spans.clear();
        self.labels.clear();
    }

    /// About the span of this place, which `destination` refuses.
    pub(super) fn letter(&self, place: usize, destination: &str, why: &str) -> Option<Letter> {
        let label = self.labels.iter().find(|label| label.spans.contains(&place))?;
        let Label { from, number, trace, part, complete, .. } = *label;
        let spans = vec![self.spans.get(place)?.clone()];
        let piece = Piece {
            trace,
            spans,
            part,
            complete,
            sampled: label.sampled.clone(),
            sampled_by_program: false,
            across: Across::Nothing,
        };
        Some(Letter {
            headers: vec![
                ("blkkin.reason", format!("{destination}: {why}")),
                ("blkkin.origin", from.to_string()),
                ("blkkin.number", number.to_string()),
            ],
            payload: v1::encode_pieces(&PieceBatch { from, first: number, pieces: vec![piece] }),
        })
    }
}

/// The root is the span of this trace that has no parent; a later part has none. Of what is below an application's span none
/// has: there it is the first of the first part.
fn tag_root(trace: TraceId, part: Part, spans: &mut [Span], sampled: &Sampled) {
    let of_trace = |span: &Span| span.trace == trace;
    let top = spans.iter().position(|span| of_trace(span) && span.parent.is_none());
    let first = || spans.iter().position(of_trace).filter(|_| part == Part::First);
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
    use blkkin_wire::ids::SpanId;
    use blkkin_wire::piece::{Epoch, Stage};
    use blkkin_wire::span::SpanKind;

    fn span(id: u64, parent: Option<u64>) -> Span {
        Span {
            trace: TraceId(7),
            id: SpanId(id),
            parent: parent.map(SpanId),
            name: "fsync".into(),
            service: "db".into(),
            remote_service: None,
            kind: SpanKind::Local,
            start: WallclockNs(1),
            duration: DurationNs(1),
            annotations: Vec::new(),
            tags: Vec::new(),
            error: None,
            links: Vec::new(),
        }
    }

    fn batch() -> PieceBatch {
        let sampled = Some(Sampled { rule: "slow".into(), one_in: 10 });
        let piece = |spans, sampled| Piece {
            trace: TraceId(7),
            spans,
            part: Part::First,
            complete: true,
            sampled,
            sampled_by_program: false,
            across: Across::Nothing,
        };
        let from = Origin { stage: Stage::Assemble, partition: 3, epoch: Epoch(0xab) };
        let pieces = vec![
            piece(vec![span(1, Some(2)), span(2, None)], sampled),
            piece(vec![span(3, Some(2))], None),
            piece(vec![span(4, None)], None),
        ];
        PieceBatch { from, first: 40, pieces }
    }

    #[test]
    fn the_root_of_a_sampled_trace_says_so_and_no_other_span_does() {
        let mut gathered = Gathered::default();
        assert_eq!(gathered.add(batch()), 3);
        let tagged: Vec<_> = gathered.spans().iter().filter(|span| !span.tags.is_empty()).collect();
        assert_eq!(tagged.len(), 1);
        assert_eq!(tagged[0].id, SpanId(2));
        assert_eq!(tagged[0].tags[0], (RULE_TAG.into(), TagValue::Text("slow".into())));
        assert_eq!(tagged[0].tags[1], (ONE_IN_TAG.into(), TagValue::Number(10)));
    }

    #[test]
    fn a_letter_is_about_one_span_and_says_which_piece_it_was() {
        let mut gathered = Gathered::default();
        gathered.add(batch());
        let letter = gathered.letter(2, "zipkin=x", "no").unwrap();
        let header = |name| letter.headers.iter().find(|(key, _)| *key == name).unwrap().1.as_str();
        assert_eq!(header("blkkin.reason"), "zipkin=x: no");
        assert_eq!(header("blkkin.origin"), "assemble/3/00000000000000ab");
        assert_eq!(header("blkkin.number"), "41");
        let read = v1::decode_pieces(&letter.payload).unwrap();
        assert_eq!((read.first, read.pieces[0].spans.as_slice()), (41, &[span(3, Some(2))][..]));
        assert_eq!(gathered.letter(4, "", ""), None);
    }
}
