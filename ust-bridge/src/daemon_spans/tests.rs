use std::collections::HashMap;

use proptest::prelude::*;

use blkkin_wire::daemon_span::SAMPLE_RATE_ALL;

use super::*;

const T: Thread = Thread::initial(100, 101);
const U: Thread = Thread::initial(100, 102);

/// Sink that records events and the active span of each thread.
#[derive(Debug, Default)]
struct Recorded {
    events: Vec<LayerEvent>,
    active_spans: HashMap<Thread, ActiveSpan>,
}

impl UpdateSink for Recorded {
    fn event(&mut self, _: Process, event: LayerEvent) {
        self.events.push(event);
    }
    fn span_began(&mut self, _: MonotonicNs, _: TraceId, _: SpanId) {}
    fn active_span(&mut self, _: MonotonicNs, thread: Thread, active: Option<ActiveSpan>) {
        match active {
            Some(active) => drop(self.active_spans.insert(thread, active)),
            None => drop(self.active_spans.remove(&thread)),
        }
    }
    fn unknown_active_spans(&mut self, _: MonotonicNs) {
        self.active_spans.clear();
    }
}

impl Recorded {
    fn span(&self, thread: Thread) -> Option<u64> {
        self.active_spans.get(&thread).map(|active| active.span.0)
    }

    fn spans(&self) -> Vec<&DaemonSpanEvent> {
        let of = |event: &'_ LayerEvent| matches!(event, LayerEvent::DaemonSpan(_));
        let all = self.events.iter().filter(|event| of(event));
        all.map(|event| if let LayerEvent::DaemonSpan(span) = event { &**span } else { unreachable!() })
            .collect()
    }
}

pub(crate) fn begin(span: u64, parent: Option<u64>, enter: bool) -> SpanEvent<'static> {
    SpanEvent::Begin {
        trace_hi: 7,
        trace_lo: 9,
        span,
        parent: parent.unwrap_or(0),
        kind: SpanKind::Server,
        enter,
        sample_rate: SAMPLE_RATE_ALL,
        name: "nbd read".into(),
        service: "blkkin-nbd".into(),
    }
}

pub(crate) fn at(time_ns: u64, thread: Thread) -> EventOrigin<'static> {
    EventOrigin {
        time_ns,
        vpid: thread.pid,
        vtid: thread.tid,
        pid_ns: thread.pid_ns,
        user: thread.user,
        procname: "daemon".into(),
    }
}

fn end(span: u64) -> SpanEvent<'static> {
    SpanEvent::End { span, status: 0 }
}

fn run(events: &[(u64, Thread, SpanEvent<'_>)]) -> (DaemonSpans, Recorded) {
    let (mut spans, mut sink) = (DaemonSpans::default(), Recorded::default());
    for (time, thread, event) in events {
        spans.apply(&at(*time, *thread), event, &mut sink);
    }
    (spans, sink)
}

#[test]
fn active_span_is_the_innermost_entered_span() {
    let mut events = vec![(1, T, begin(1, None, true)), (2, T, begin(2, Some(1), true))];
    assert_eq!(run(&events).1.span(T), Some(2));
    events.push((3, T, end(2)));
    assert_eq!(run(&events).1.span(T), Some(1));
    events.extend([(4, U, SpanEvent::Enter { span: 1 }), (5, T, SpanEvent::Leave { span: 1 })]);
    let sink = run(&events).1;
    assert_eq!((sink.span(T), sink.span(U)), (None, Some(1)));
    events.push((6, U, end(1)));
    let (spans, sink) = run(&events);
    assert_eq!((sink.span(U), spans.open_count()), (None, 0));
    let [child, root] = sink.spans()[..] else { panic!("{sink:?}") };
    assert_eq!((child.span, child.parent, child.parent_is_remote), (SpanId(2), Some(SpanId(1)), false));
    assert_eq!((root.begin.0, root.end.0, root.tid, root.status), (1, 6, Tid(101), SpanStatus::Ok));
}

#[test]
fn after_a_loss_earlier_active_spans_are_unknown() {
    let (mut spans, mut sink) = run(&[(1, T, begin(1, None, true)), (2, U, begin(2, None, true))]);
    spans.record_loss(3, 10, 5, &mut sink);
    assert_eq!((sink.span(T), sink.span(U), spans.stats().lost), (None, None, 5));
    // An enter during the interval with losses.
    spans.apply(&at(9, T), &SpanEvent::Enter { span: 1 }, &mut sink);
    assert_eq!(sink.span(T), None);
    spans.apply(&at(10, T), &SpanEvent::Enter { span: 1 }, &mut sink);
    assert_eq!(sink.span(T), Some(1));
    // The outer spans are unknown, because they were entered before the loss.
    spans.apply(&at(11, U), &SpanEvent::Leave { span: 2 }, &mut sink);
    assert_eq!(sink.span(U), None);
}

#[test]
fn open_spans_of_a_killed_daemon_are_emitted_unfinished() {
    let other = Thread::initial(200, 200);
    let (mut spans, mut sink) = run(&[
        (1, T, begin(1, None, true)),
        (2, U, begin(2, Some(1), true)),
        (3, other, begin(1, None, true)),
    ]);
    spans.process_exited(T.process(), 50, &mut sink);
    let all: Vec<_> = sink.spans().iter().map(|span| (span.span.0, span.end.0, span.status)).collect();
    assert_eq!(all, [(2, 50, SpanStatus::Unfinished), (1, 50, SpanStatus::Unfinished)]);
    assert_eq!((sink.span(T), sink.span(other), spans.open_count()), (None, Some(1), 1));
}

#[test]
fn rpc_endpoint_is_emitted_with_its_span() {
    let endpoint = SpanEvent::RpcEndpoint {
        span: 2,
        side: RpcSide::Server,
        unique: false,
        protocol: "nbd".into(),
        connection: "a>b".into(),
        cookie: 77,
    };
    let failed_end = SpanEvent::End { span: 2, status: 5 };
    let (_, sink) = run(&[
        (1, T, begin(1, None, false)),
        (2, T, begin(2, Some(1), false)),
        (3, T, endpoint),
        (9, U, failed_end),
    ]);
    let [LayerEvent::RpcEndpoint(endpoint), LayerEvent::DaemonSpan(span)] = &sink.events[..] else {
        panic!("{sink:?}")
    };
    assert_eq!(
        (endpoint.span, endpoint.root, endpoint.begin.0, endpoint.end.0),
        (SpanId(2), SpanId(1), 2, 9)
    );
    assert_eq!(span.status, SpanStatus::Error(5));
}

/// The server has passed its reply to the kernel, and waits for its CPU before it emits the end.
#[test]
fn server_endpoint_ends_at_the_reply_event() {
    let endpoint = |side| SpanEvent::RpcEndpoint {
        span: 1,
        side,
        unique: true,
        protocol: "nbd-stream".into(),
        connection: "a>b".into(),
        cookie: 77,
    };
    let reply_event = || SpanEvent::Event { span: 1, name: REPLY_EVENT.into() };
    let (_, sink) = run(&[
        (1, T, begin(1, None, false)),
        (1, T, endpoint(RpcSide::Server)),
        (1, T, endpoint(RpcSide::Client)),
        (5, T, reply_event()),
        // The rest of the reply, after a partial first write.
        (6, T, reply_event()),
        (9, U, end(1)),
    ]);
    let [LayerEvent::RpcEndpoint(server), LayerEvent::RpcEndpoint(client), LayerEvent::DaemonSpan(span)] =
        &sink.events[..]
    else {
        panic!("{sink:?}")
    };
    assert_eq!((server.side, server.begin.0, server.end.0), (RpcSide::Server, 1, 5));
    assert_eq!((client.side, client.end.0, span.end.0), (RpcSide::Client, 9, 9));
    assert_eq!(span.annotations.len(), 2, "both annotations are kept");
}

/// The annotations of blkin; and a span without a trace id.
#[test]
fn blkin_span_with_server_annotations_is_a_server_span() {
    let annotation = |name: &'static str| SpanEvent::Event { span: 1, name: name.into() };
    let child = SpanEvent::Begin {
        trace_hi: 0,
        trace_lo: 0,
        span: 2,
        parent: 1,
        kind: SpanKind::Local,
        enter: false,
        sample_rate: SAMPLE_RATE_ALL,
        name: "journal".into(),
        service: "".into(),
    };
    let mut root = begin(1, None, false);
    if let SpanEvent::Begin { kind, .. } = &mut root {
        *kind = SpanKind::Local;
    }
    let (_, sink) = run(&[
        (1, T, root),
        (2, T, annotation("sr")),
        (3, T, child),
        (4, T, end(2)),
        (5, T, annotation("ss")),
        (5, T, end(1)),
    ]);
    let [child, root] = sink.spans()[..] else { panic!("{sink:?}") };
    assert_eq!((child.kind, child.trace, &*child.service), (SpanKind::Local, root.trace, "daemon"));
    assert_eq!(root.kind, SpanKind::Server);
    assert_eq!(root.annotations.iter().map(|annotation| &*annotation.key).collect::<Vec<_>>(), ["sr", "ss"]);
}

/// The ids of a container's thread are another thread's ids on the host.
#[test]
fn equal_ids_in_another_pid_namespace_are_another_thread() {
    let (mut spans, mut sink) = (DaemonSpans::default(), Recorded::default());
    let namespaced = Thread { pid_ns: 4_026_532_000, ..T };
    spans.apply(&at(1, T), &begin(1, None, true), &mut sink);
    spans.apply(&at(2, namespaced), &begin(2, None, true), &mut sink);
    // The same span id in another process.
    spans.apply(&at(3, namespaced), &begin(1, None, true), &mut sink);
    assert_eq!((sink.span(T), sink.span(namespaced), spans.open_count()), (Some(1), Some(1), 3));
    spans.process_exited(namespaced.process(), 4, &mut sink);
    assert_eq!((sink.span(T), sink.span(namespaced), spans.open_count()), (Some(1), None, 1));
}

/// A daemon that never emits an end.
#[test]
fn oldest_spans_are_evicted_when_too_many_are_open() {
    let (mut spans, mut sink) = (DaemonSpans::default(), Recorded::default());
    for span in 1..=OPEN_MAX as u64 + 1 {
        spans.apply(&at(span, T), &begin(span, None, false), &mut sink);
    }
    assert_eq!(spans.stats().evicted, OPEN_MAX as u64 / 8);
    assert_eq!(spans.open_count(), OPEN_MAX - OPEN_MAX / 8 + 1);
    assert!(sink.spans().iter().all(|span| span.span.0 <= OPEN_MAX as u64 / 8));
}

/// Action of a daemon with a few threads; each action emits an event, which may be lost.
#[derive(Clone, Copy, Debug)]
enum Step {
    Begin,
    Enter(usize),
    Leave,
    End,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// With any losses, as long as they are reported, a thread's active span is the true one or
    /// unknown. Without losses it is always the true one.
    #[test]
    fn active_span_is_true_or_unknown(
        steps in prop::collection::vec((0..3_u32, prop_oneof![
            Just(Step::Begin), (0..8_usize).prop_map(Step::Enter), Just(Step::Leave), Just(Step::End),
        ], prop::bool::weighted(0.1)), 1..120),
    ) {
        let (mut spans, mut sink) = (DaemonSpans::default(), Recorded::default());
        let mut entered: HashMap<u32, Vec<u64>> = HashMap::new();
        let (mut open, mut next, mut loss_since, mut any_loss) = (Vec::new(), 1, None, false);
        for (n, &(tid, step, lost)) in steps.iter().enumerate() {
            let (time, thread) = (10 + n as u64 * 10, Thread::initial(1, tid));
            let stack = entered.entry(tid).or_default();
            let event = match step {
                Step::Begin => {
                    next += 1;
                    open.push(next);
                    stack.push(next);
                    begin(next, None, true)
                }
                Step::Enter(which) => {
                    let Some(&span) = open.get(which % open.len().max(1)) else { continue };
                    stack.push(span);
                    SpanEvent::Enter { span }
                }
                Step::Leave => {
                    let Some(span) = stack.pop() else { continue };
                    SpanEvent::Leave { span }
                }
                Step::End => {
                    // The thread that ends the span has it innermost; other threads in the span
                    // stay.
                    let Some(span) = stack.pop() else { continue };
                    open.retain(|other| *other != span);
                    end(span)
                }
            };
            if lost {
                loss_since.get_or_insert(time - 1);
                any_loss = true;
                continue;
            }
            // A loss is reported before the events after it.
            if let Some(from) = loss_since.take() {
                spans.record_loss(from, time, 1, &mut sink);
            }
            spans.apply(&at(time, thread), &event, &mut sink);
            for (tid, stack) in &entered {
                let reported = sink.span(Thread::initial(1, *tid));
                let expected = stack.last().copied();
                prop_assert!(reported.is_none() || reported == expected, "{tid}: {reported:?}, not {expected:?}");
                prop_assert!(any_loss || reported == expected, "{tid}: {reported:?}, not {expected:?}, and nothing was lost");
            }
        }
        let stats = *spans.stats();
        prop_assert_eq!(stats.begun, stats.ended + stats.unfinished + spans.open_count() as u64);
        spans.finish(u64::MAX, &mut sink);
        prop_assert_eq!(spans.open_count(), 0);
        prop_assert_eq!(sink.spans().len() as u64, spans.stats().ended + spans.stats().unfinished);
    }
}
