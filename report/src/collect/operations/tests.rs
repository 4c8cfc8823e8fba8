//! Trees of traces that come in any order, and what is not kept.

use blkkin_wire::event::{ContextSource, TraceContext};
use blkkin_wire::remote_link::{ClockShift, RpcEndpointEvent, RpcKey, RpcSide};
use proptest::prelude::*;

use super::tree::Relation;
use super::*;
use crate::collect::sample;

const ASKER: u64 = 1;
const SERVER: u64 = 2;

fn said(span: u64, trace: u64, parent: Option<u64>, (begin, end): (u64, u64)) -> Trace {
    let mut made = sample::call(span, "read", 1);
    made.id = TraceId(trace.into());
    made.root = Root::Operation(Box::new(DaemonSpanEvent {
        parent: parent.map(SpanId),
        name: "nbd read".into(),
        service: "one".into(),
        ..DaemonSpanEvent::bare(SpanId(span), made.id, MonotonicNs(begin), MonotonicNs(end))
    }));
    made
}

/// With an end of a request.
fn answers(mut trace: Trace) -> Trace {
    let key = RpcKey { protocol: "nbd".into(), connection: "a>b".into(), cookie: 7 };
    let (span, side) = (trace.root_span, RpcSide::Server);
    let (begin, end) = (trace.start(), trace.end());
    trace.meetings =
        vec![RpcEndpointEvent { span, root: span, side, key, unique: false, no_reply: false, begin, end }];
    trace
}

fn call(span: u64, trace: u64, above: u64, time: u64) -> Trace {
    let mut made = sample::call(span, "pread64", time);
    let context = TraceContext {
        trace: TraceId(trace.into()),
        span: SpanId(above),
        flags: 0,
        source: ContextSource::DaemonSpan,
    };
    made.id = context.trace;
    if let Root::Call(call) = &mut made.root {
        call.context = Some(context.into());
    }
    made
}

fn moved(to: u64, parent: u64) -> Reparented {
    let clock = ClockShift { shift: 0, error: DurationNs(0) };
    Reparented { trace: TraceId(to.into()), parent: SpanId(parent), rule: "exact: by name".into(), clock }
}

/// Spans by depth, as they stand.
fn drawn(tree: &Tree<'_>) -> String {
    let below: Vec<String> = tree.below.iter().map(drawn).collect();
    let mark = match tree.relation {
        Relation::Answer(_) => "=",
        Relation::Stray => "?",
        _ => "",
    };
    let below = if below.is_empty() { String::new() } else { format!("({})", below.join(" ")) };
    format!("{mark}{}{below}", tree.trace.root_span.0)
}

fn all(operations: &Operations) -> Vec<String> {
    operations.slowest().iter().map(drawn).collect()
}

fn one_request() -> Vec<Trace> {
    vec![
        call(30, SERVER, SERVER, 10),
        call(31, SERVER, 20, 10),
        said(20, SERVER, Some(SERVER), (130, 160)),
        answers(said(SERVER, SERVER, None, (120, 180))),
        said(ASKER, ASKER, None, (100, 200)),
    ]
}

proptest! {
    #[test]
    fn one_tree_in_whatever_order_it_comes(order in Just([0_usize, 1, 2, 3, 4]).prop_shuffle(), late in 0_usize..3) {
        let (traces, mut operations) = (one_request(), Operations::new(5, Heard::Meetings));
        let met = [order.iter().position(|at| *at == 3), order.iter().position(|at| *at == 4)];
        // Both ends have to have come before anybody says that they met.
        let met = (met.into_iter().flatten().max().unwrap_or(4) + late).min(4);
        for (place, at) in order.iter().enumerate() {
            operations.add(&traces[*at]);
            if place == met {
                operations.moved(TraceId(SERVER.into()), &moved(ASKER, ASKER));
            }
        }
        prop_assert_eq!(all(&operations), ["1(=2(30 20(31)))"]);
        prop_assert_eq!(operations.held, 0);
    }
}

#[test]
fn who_answered_somebody_that_nobody_hears_is_a_tree_of_its_own() {
    let mut operations = Operations::new(5, Heard::Meetings);
    one_request().iter().take(4).for_each(|trace| operations.add(trace));
    assert_eq!(all(&operations), ["2(30 20(31))"]);
    assert_eq!(operations.held, 4, "it waits all the same");
}

#[test]
fn of_many_the_slowest_are_kept_with_what_is_below_them_and_nothing_else() {
    let mut operations = Operations::new(2, Heard::Meetings);
    for n in 0..1_000_u64 {
        let (asker, server) = (10 + 10 * n, 11 + 10 * n);
        operations.add(&call(12 + 10 * n, server, server, 1));
        operations.add(&answers(said(server, server, None, (n, n + n % 97))));
        operations.add(&said(asker, asker, None, (n, n + n % 97)));
        operations.moved(TraceId(server.into()), &moved(asker, asker));
    }
    // 96 and 193: of equals the earlier.
    assert_eq!(all(&operations), ["970(=971(972))", "1940(=1941(1942))"]);
    assert_eq!((operations.families.len(), operations.held), (4, 0));
}

#[test]
fn what_waits_for_ever_is_given_up_and_then_stands_for_itself() {
    let mut operations = Operations::new(1, Heard::Meetings);
    for n in 0..2 * HELD_MAX as u64 {
        operations.add(&answers(said(n + 1, n + 1, None, (n, n + 2 * HELD_MAX as u64 - n))));
    }
    assert_eq!(operations.held, HELD_MAX);
    assert!(operations.families.len() <= HELD_MAX + 1 && operations.order.len() <= 2 * HELD_MAX + 1);
    assert_eq!(all(&operations), ["1"], "the slowest was given up first, and is known all the same");
    // Its asker is heard after all.
    operations.add(&said(99_999_999, 99_999_999, None, (0, 1 << 40)));
    operations.moved(TraceId(1), &moved(99_999_999, 99_999_999));
    assert!(!all(&operations)[0].starts_with('1'), "{:?}", all(&operations));
}

#[test]
fn calls_without_their_operation_are_no_tree() {
    let mut operations = Operations::new(5, Heard::Operations);
    for n in 0..HELD_MAX as u64 + 10 {
        operations.add(&call(n, 1_000_000 + n, 5, 1));
    }
    assert_eq!(all(&operations), [""; 0]);
    assert_eq!(operations.families.len(), HELD_MAX);
}

#[test]
fn the_slowest_parts_of_many_are_kept_and_the_others_counted() {
    let mut operations = Operations::new(1, Heard::Operations);
    let parts = PARTS_MAX as u64 + 50;
    (0..parts).for_each(|n| operations.add(&call(100 + n, 1, 1, n + 1)));
    operations.add(&said(1, 1, None, (0, 10_000)));
    let [tree] = &operations.slowest()[..] else { panic!("one") };
    assert_eq!((tree.below.len(), tree.more), (PARTS_MAX - 1, 51));
    assert!(tree.below.iter().all(|part| part.duration().0 > 51), "the slowest");
}

#[test]
fn what_names_nobody_or_itself_hangs_below_the_top_and_says_so() {
    let mut operations = Operations::new(5, Heard::Operations);
    operations.add(&call(30, 1, 77, 1));
    operations.add(&said(20, 1, Some(21), (10, 20)));
    operations.add(&said(21, 1, Some(20), (10, 20)));
    operations.add(&said(1, 1, None, (0, 100)));
    let [tree] = &all(&operations)[..] else { panic!("one") };
    assert_eq!(tree, "1(?30 ?20(21))");
}

#[test]
fn nobody_is_shown_in_itself() {
    let mut operations = Operations::new(5, Heard::Meetings);
    for span in [1, 2] {
        operations.add(&answers(said(span, span, None, (0, 10))));
    }
    operations.moved(TraceId(1), &moved(2, 2));
    operations.moved(TraceId(2), &moved(1, 1));
    operations.moved(TraceId(2), &moved(2, 2));
    assert_eq!(all(&operations), ["2(=1)"]);
}

#[test]
fn nothing_is_kept_where_nobody_listens() {
    let mut operations = Operations::new(5, Heard::Nothing);
    one_request().iter().for_each(|trace| operations.add(trace));
    assert!(operations.families.is_empty());
}
