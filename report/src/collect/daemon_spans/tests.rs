//! Trees of traces that arrive in any order, and the limits.

use blkkin_wire::event::ContextSource;
use blkkin_wire::remote_link::ClockShift;
use proptest::prelude::*;

use super::tree::Relation;
use super::*;
use crate::sample;

const CLIENT: u64 = 1;
const SERVER: u64 = 2;

fn daemon_span(span: u64, trace: u64, parent: Option<u64>, (begin, end): (u64, u64)) -> Trace {
    let trace = TraceId(trace.into());
    sample::daemon_span(DaemonSpanEvent {
        parent: parent.map(SpanId),
        name: "nbd read".into(),
        service: "one".into(),
        ..DaemonSpanEvent::bare(SpanId(span), trace, MonotonicNs(begin), MonotonicNs(end))
    })
}

fn with_server_endpoint(trace: Trace) -> Trace {
    sample::with_server_endpoint(trace, "a>b", 7)
}

fn call(span: u64, trace: u64, parent: u64, time: u64) -> Trace {
    let (id, parent) = (TraceId(trace.into()), SpanId(parent));
    sample::called_for(sample::call(span, "pread64", time), id, parent, ContextSource::DaemonSpan)
}

fn reparented(to: u64, parent: u64) -> Reparented {
    let clock = ClockShift { shift: 0, error: DurationNs(0) };
    Reparented { trace: TraceId(to.into()), parent: SpanId(parent), rule: "exact: by name".into(), clock }
}

/// Formats the spans by depth: `=` marks a server, `?` an orphan.
fn to_text(tree: &SpanTree<'_>) -> String {
    let children: Vec<String> = tree.children.iter().map(to_text).collect();
    let mark = match tree.relation {
        Relation::Server(_) => "=",
        Relation::Orphan => "?",
        _ => "",
    };
    let children = if children.is_empty() { String::new() } else { format!("({})", children.join(" ")) };
    format!("{mark}{}{children}", tree.trace.root_span.0)
}

fn trees(slowest: &SlowestDaemonSpans) -> Vec<String> {
    slowest.slowest().iter().map(to_text).collect()
}

fn one_nbd_read() -> Vec<Trace> {
    vec![
        call(30, SERVER, SERVER, 10),
        call(31, SERVER, 20, 10),
        daemon_span(20, SERVER, Some(SERVER), (130, 160)),
        with_server_endpoint(daemon_span(SERVER, SERVER, None, (120, 180))),
        daemon_span(CLIENT, CLIENT, None, (100, 200)),
    ]
}

proptest! {
    #[test]
    fn the_tree_does_not_depend_on_the_order_of_arrival(order in Just([0_usize, 1, 2, 3, 4]).prop_shuffle(), late in 0_usize..3) {
        let (traces, mut slowest) = (one_nbd_read(), SlowestDaemonSpans::new(5, DaemonSpanInput::LinkedSpans));
        let linked_at = [order.iter().position(|at| *at == 3), order.iter().position(|at| *at == 4)];
        // The linker reports a link after both endpoints have arrived.
        let linked_at = (linked_at.into_iter().flatten().max().unwrap_or(4) + late).min(4);
        for (position, at) in order.iter().enumerate() {
            slowest.add(&traces[*at]);
            if position == linked_at {
                slowest.reparent(TraceId(SERVER.into()), &reparented(CLIENT, CLIENT));
            }
        }
        prop_assert_eq!(trees(&slowest), ["1(=2(30 20(31)))"]);
        prop_assert_eq!(slowest.pending_traces, 0);
    }
}

#[test]
fn a_server_without_a_recorded_client_is_a_tree_of_its_own() {
    let mut slowest = SlowestDaemonSpans::new(5, DaemonSpanInput::LinkedSpans);
    one_nbd_read().iter().take(4).for_each(|trace| slowest.add(trace));
    assert_eq!(trees(&slowest), ["2(30 20(31))"]);
    assert_eq!(slowest.pending_traces, 4, "the group is still pending");
}

#[test]
fn only_the_slowest_trees_and_their_nested_groups_are_kept() {
    let mut slowest = SlowestDaemonSpans::new(2, DaemonSpanInput::LinkedSpans);
    for n in 0..1_000_u64 {
        let (client, server) = (10 + 10 * n, 11 + 10 * n);
        slowest.add(&call(12 + 10 * n, server, server, 1));
        slowest.add(&with_server_endpoint(daemon_span(server, server, None, (n, n + n % 97))));
        slowest.add(&daemon_span(client, client, None, (n, n + n % 97)));
        slowest.reparent(TraceId(server.into()), &reparented(client, client));
    }
    // Requests 96 and 193: equal durations keep the earlier.
    assert_eq!(trees(&slowest), ["970(=971(972))", "1940(=1941(1942))"]);
    assert_eq!((slowest.groups.len(), slowest.pending_traces), (4, 0));
}

#[test]
fn a_group_that_stays_pending_is_ranked_at_the_limit() {
    let mut slowest = SlowestDaemonSpans::new(1, DaemonSpanInput::LinkedSpans);
    for n in 0..2 * PENDING_TRACES_MAX as u64 {
        slowest.add(&with_server_endpoint(daemon_span(
            n + 1,
            n + 1,
            None,
            (n, n + 2 * PENDING_TRACES_MAX as u64 - n),
        )));
    }
    assert_eq!(slowest.pending_traces, PENDING_TRACES_MAX);
    assert!(
        slowest.groups.len() <= PENDING_TRACES_MAX + 1
            && slowest.pending_order.len() <= 2 * PENDING_TRACES_MAX + 1
    );
    assert_eq!(trees(&slowest), ["1"], "the slowest was ranked first, and is kept");
    // The client arrives late.
    slowest.add(&daemon_span(99_999_999, 99_999_999, None, (0, 1 << 40)));
    slowest.reparent(TraceId(1), &reparented(99_999_999, 99_999_999));
    assert!(!trees(&slowest)[0].starts_with('1'), "{:?}", trees(&slowest));
}

#[test]
fn calls_without_their_daemon_span_are_no_tree() {
    let mut slowest = SlowestDaemonSpans::new(5, DaemonSpanInput::Spans);
    for n in 0..PENDING_TRACES_MAX as u64 + 10 {
        slowest.add(&call(n, 1_000_000 + n, 5, 1));
    }
    assert_eq!(trees(&slowest), [""; 0]);
    assert_eq!(slowest.groups.len(), PENDING_TRACES_MAX);
}

#[test]
fn a_group_keeps_its_slowest_traces_and_counts_the_others() {
    let mut slowest = SlowestDaemonSpans::new(1, DaemonSpanInput::Spans);
    let parts = GROUP_TRACES_MAX as u64 + 50;
    (0..parts).for_each(|n| slowest.add(&call(100 + n, 1, 1, n + 1)));
    slowest.add(&daemon_span(1, 1, None, (0, 10_000)));
    let [tree] = &slowest.slowest()[..] else { panic!("one") };
    assert_eq!((tree.children.len(), tree.traces_dropped), (GROUP_TRACES_MAX - 1, 51));
    assert!(tree.children.iter().all(|part| part.duration().0 > 51), "the slowest");
}

#[test]
fn orphans_and_cycles_are_children_of_the_root() {
    let mut slowest = SlowestDaemonSpans::new(5, DaemonSpanInput::Spans);
    slowest.add(&call(30, 1, 77, 1));
    slowest.add(&daemon_span(20, 1, Some(21), (10, 20)));
    slowest.add(&daemon_span(21, 1, Some(20), (10, 20)));
    slowest.add(&daemon_span(1, 1, None, (0, 100)));
    let [tree] = &trees(&slowest)[..] else { panic!("one") };
    assert_eq!(tree, "1(?30 ?20(21))");
}

#[test]
fn a_group_is_never_nested_in_itself() {
    let mut slowest = SlowestDaemonSpans::new(5, DaemonSpanInput::LinkedSpans);
    for span in [1, 2] {
        slowest.add(&with_server_endpoint(daemon_span(span, span, None, (0, 10))));
    }
    slowest.reparent(TraceId(1), &reparented(2, 2));
    slowest.reparent(TraceId(2), &reparented(1, 1));
    slowest.reparent(TraceId(2), &reparented(2, 2));
    assert_eq!(trees(&slowest), ["2(=1)"]);
}

#[test]
fn without_daemon_spans_nothing_is_kept() {
    let mut slowest = SlowestDaemonSpans::new(5, DaemonSpanInput::None);
    one_nbd_read().iter().for_each(|trace| slowest.add(trace));
    assert!(slowest.groups.is_empty());
}
