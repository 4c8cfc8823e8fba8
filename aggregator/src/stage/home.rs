//! Requests of which both ends are on this node: they meet in the process that saw both.
//!
//! *In*: finished traces and their spans, in the join's order. *Out*: spans, those of a trace that answered somebody in the trace of who
//! asked. *Invariant*: that of [`super`]; each span that comes in goes out once, changed by the stages' own `moving` alone; and what is shown
//! where is decided by the very state machines that do it between nodes ([`MeetStage`], [`AssembleStage`]), on the clock of the events.
//!
//! The log's time is here that of the latest end that was seen: a node's events come in order of time.
//!
//! *Rejected*: to give a daemon's operation the asker's trace before the join. What asks is known when it has its answer, after the
//! daemon and all that is below it; so those would have to be held there, in another shape than the one in which they are held between
//! nodes.

use blkkin_wire::fragment::{FragmentKind, Incarnation, TraceFragment};
use blkkin_wire::ids::TraceId;
use blkkin_wire::remote_link::{RemoteLink, Reparented};
use blkkin_wire::span::Span;

use super::assemble::{AssembleStage, AssembleStageConfig};
use super::meet::{MeetBooks, MeetStage, MeetStageConfig};
use super::pieces::{halves, pieces_of};
use super::rules::Rules;
use super::{LogTime, Outlet};
use crate::trace::Trace;

/// Both stages.
#[derive(Debug)]
pub struct Home {
    meet: MeetStage,
    assemble: AssembleStage,
    moves: Vec<(TraceId, Reparented)>,
}

impl Default for Home {
    fn default() -> Self {
        Home::new()
    }
}

impl Home {
    /// One that has seen nothing.
    pub fn new() -> Home {
        Home {
            meet: MeetStage::begin(Incarnation(0), MeetStageConfig::new(1)),
            assemble: AssembleStage::begin(Incarnation(0), AssembleStageConfig::new(1, Rules::default())),
            moves: Vec::new(),
        }
    }

    /// Takes a trace in, whose spans are these, and gives out what is decided by now.
    pub fn take(&mut self, trace: &Trace, spans: Vec<Span>, shown: &mut dyn FnMut(Vec<Span>)) {
        self.moves.clear();
        let mut way = Way { again: Vec::new(), shown };
        self.advance(LogTime(trace.last_end().0 / 1_000_000), &mut way);
        for piece in pieces_of(trace, spans) {
            self.assemble.take(piece, &mut way);
        }
        for half in halves(trace) {
            self.meet.take(half, &mut way);
        }
        self.go_round(way);
    }

    /// Nothing more will come: gives out what waits.
    pub fn finish(&mut self, shown: &mut dyn FnMut(Vec<Span>)) {
        self.moves.clear();
        let mut way = Way { again: Vec::new(), shown };
        self.advance(LogTime(u64::MAX), &mut way);
        self.go_round(way);
    }

    /// What the last trace that was taken in has decided: which trace is shown in which, and below what.
    pub fn moves(&self) -> &[(TraceId, Reparented)] {
        &self.moves
    }

    /// What became of the ends of requests.
    pub fn books(&self) -> &MeetBooks {
        self.meet.books()
    }

    fn advance(&mut self, at: LogTime, way: &mut Way<'_>) {
        self.meet.advance(at);
        self.assemble.advance(at, way);
    }

    /// What goes once more through the second stage: a move, and what was moved. Of one piece at the most so often as it may move.
    fn go_round(&mut self, mut way: Way<'_>) {
        while !way.again.is_empty() {
            for piece in std::mem::take(&mut way.again) {
                if let RemoteLink::Reparented(moved) = &piece.remote_link {
                    self.moves.push((piece.trace, (**moved).clone()));
                }
                self.assemble.take(piece, &mut way);
            }
        }
    }
}

/// Where both stages write.
struct Way<'a> {
    again: Vec<TraceFragment>,
    shown: &'a mut dyn FnMut(Vec<Span>),
}

impl Outlet for Way<'_> {
    fn piece(&mut self, _partition: u32, _number: u64, piece: TraceFragment) {
        match piece.remote_link {
            RemoteLink::Reparented(_) => self.again.push(piece),
            _ => (self.shown)(piece.spans),
        }
    }

    fn aside(&mut self, _partition: u32, _number: u64, piece: TraceFragment) {
        debug_assert_eq!(piece.kind, FragmentKind::Late);
        self.again.push(piece);
    }

    /// Only of bytes that cannot be read, and there are none here.
    fn dead(&mut self, _why: String) {}
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use blkkin_wire::clock::MonotonicNs;
    use blkkin_wire::daemon_span::DaemonSpanEvent;
    use blkkin_wire::event::{ContextSource, TraceContext};
    use blkkin_wire::ids::{SpanId, TraceId};
    use blkkin_wire::remote_link::{RpcEndpointEvent, RpcKey, RpcSide};
    use blkkin_wire::span::SpanKind;

    use super::*;
    use crate::join::tests::make;
    use crate::trace::Root;
    use crate::translate;

    /// An operation that was one end of request `cookie`.
    fn end(side: RpcSide, span: u64, cookie: u64, (begin, end): (u64, u64)) -> Trace {
        let mut trace = make::trace(span);
        let (begin, end) = (MonotonicNs(begin), MonotonicNs(end));
        trace.id = TraceId(span.into());
        trace.root = Root::Operation(Box::new(DaemonSpanEvent {
            kind: if side == RpcSide::Client { SpanKind::Client } else { SpanKind::Server },
            name: "nbd read".into(),
            service: "one".into(),
            ..DaemonSpanEvent::bare(SpanId(span), trace.id, begin, end)
        }));
        let key = RpcKey { protocol: "nbd".into(), connection: "a>b".into(), cookie };
        let (span, root) = (SpanId(span), SpanId(span));
        trace.meetings =
            vec![RpcEndpointEvent { span, root, side, key, unique: false, no_reply: false, begin, end }];
        trace
    }

    /// A call that was made for the operation `above`.
    fn call(span: u64, above: u64, times: (u64, u64)) -> Trace {
        let mut trace = make::trace(span);
        let mut call = make::call_with(span, times, 0);
        let (above, from) = (SpanId(above), ContextSource::DaemonSpan);
        let context = TraceContext { trace: TraceId(above.0.into()), span: above, flags: 0, source: from };
        call.context = Some(context.into());
        trace.id = context.trace;
        trace.root = Root::Call(call);
        trace
    }

    fn shown(traces: &[Trace]) -> (HashMap<u64, (TraceId, Option<SpanId>)>, MeetBooks) {
        let (mut home, mut spans) = (Home::new(), Vec::new());
        let mut out = |more: Vec<Span>| spans.extend(more);
        traces.iter().for_each(|trace| home.take(trace, translate::spans(trace), &mut out));
        home.finish(&mut out);
        let count = spans.len();
        let all: HashMap<_, _> = spans.iter().map(|one| (one.id.0, (one.trace, one.parent))).collect();
        assert_eq!(all.len(), count, "each once");
        (all, home.books().clone())
    }

    #[test]
    fn what_answered_is_shown_below_what_asked_with_all_that_was_done_for_it() {
        let (asked, answered) =
            (end(RpcSide::Client, 1, 7, (100, 500)), end(RpcSide::Server, 2, 7, (150, 400)));
        let below = call(3, 2, (200, 300));
        let (spans, books) = shown(&[below, answered, asked]);
        let trace = TraceId(1);
        assert_eq!(spans[&1], (trace, None));
        assert_eq!(spans[&2], (trace, Some(SpanId(1))));
        assert_eq!(spans[&3], (trace, Some(SpanId(2))));
        assert_eq!(books.matched, 2);
    }

    #[test]
    fn who_answered_may_say_that_it_is_done_after_who_asked_has_the_answer() {
        let (asked, answered) =
            (end(RpcSide::Client, 1, 7, (100, 500)), end(RpcSide::Server, 2, 7, (150, 510)));
        let (spans, _) = shown(&[asked, call(3, 2, (200, 300)), answered]);
        assert_eq!(spans[&2], (TraceId(1), Some(SpanId(1))));
        assert_eq!(spans[&3].0, TraceId(1));
    }

    #[test]
    fn a_cookie_that_comes_again_meets_its_own() {
        let traces = [
            end(RpcSide::Server, 2, 7, (150, 400)),
            end(RpcSide::Client, 1, 7, (100, 390)),
            end(RpcSide::Server, 4, 7, (450, 600)),
            end(RpcSide::Client, 3, 7, (420, 700)),
        ];
        let (spans, books) = shown(&traces);
        assert_eq!(spans[&2].1, Some(SpanId(1)));
        assert_eq!(spans[&4].1, Some(SpanId(3)));
        assert_eq!((books.matched, books.refused), (4, 0));
    }

    #[test]
    fn nobody_meets_another_requests_end() {
        // The first request's answering end was lost, and the second's asking end.
        let traces = [end(RpcSide::Client, 1, 7, (100, 390)), end(RpcSide::Server, 4, 7, (450, 600))];
        let (spans, books) = shown(&traces);
        assert_eq!((spans[&1], spans[&4]), ((TraceId(1), None), (TraceId(4), None)));
        assert_eq!((books.matched, books.alone), (0, 2));
    }
}
