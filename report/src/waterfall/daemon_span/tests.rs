//! Rows of a daemon span.

use blkkin_aggregator::trace::Trace;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::daemon_span::Annotation;
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::span::SpanKind;

use super::*;
use crate::sample;

fn daemon_span(span: u64, (begin, end): (u64, u64), annotations: Vec<Annotation>) -> Trace {
    sample::daemon_span(DaemonSpanEvent {
        kind: SpanKind::Server,
        name: "read".into(),
        service: "one".into(),
        annotations,
        ..DaemonSpanEvent::bare(SpanId(span), TraceId(1), MonotonicNs(begin), MonotonicNs(end))
    })
}

fn tree<'a>(trace: &'a Trace, relation: Relation<'a>, children: Vec<SpanTree<'a>>) -> SpanTree<'a> {
    SpanTree { trace, relation, children, traces_dropped: 0 }
}

fn labels(tree: &SpanTree<'_>) -> Vec<String> {
    rows(tree).into_iter().map(|row| format!("{}{}", " ".repeat(row.depth), row.label)).collect()
}

#[test]
fn transit_is_drawn_only_with_a_recorded_server() {
    let (client, server) = (daemon_span(1, (100, 200), Vec::new()), daemon_span(2, (120, 180), Vec::new()));
    let linked = tree(&client, Relation::Root, vec![tree(&server, Relation::Server("exact"), Vec::new())]);
    assert_eq!(labels(&linked), ["one: read", " in transit", " one: read"]);
    let transit = &rows(&linked)[1];
    assert_eq!((transit.time, transit.segments.len()), (DurationNs(40), 2));
    assert_eq!(labels(&tree(&client, Relation::Root, Vec::new())), ["one: read"]);
}

#[test]
fn time_outside_calls_is_a_row() {
    let operation = daemon_span(1, (0, 100), Vec::new());
    let call = sample::call(2, "pread64", 30);
    let waterfall = tree(&operation, Relation::Root, vec![tree(&call, Relation::Child, Vec::new())]);
    assert_eq!(labels(&waterfall), ["one: read", " no call seen", " pread64", "  file system"]);
    assert_eq!(rows(&waterfall)[1].time, DurationNs(70));
    assert_eq!(window(&waterfall), Window { from: MonotonicNs(0), to: MonotonicNs(100) });
}

#[test]
fn the_slowest_calls_have_rows_and_the_others_are_summed() {
    let operation = daemon_span(1, (0, 1_000), Vec::new());
    let calls: Vec<Trace> = (0..50).map(|n| sample::call(10 + n, "pread64", 1 + n * 7 % 50)).collect();
    let parts = calls.iter().map(|call| tree(call, Relation::Child, Vec::new())).collect();
    let waterfall = tree(&operation, Relation::Root, parts);
    let labels = labels(&waterfall);
    assert_eq!(labels.iter().filter(|label| *label == " pread64").count(), CHILDREN_SHOWN);
    assert!(labels.contains(&" + 46 calls".to_owned()), "{labels:?}");
    let shown = rows(&waterfall);
    let shown = shown.iter().filter(|row| row.label == "pread64").map(|row| row.time.0);
    assert!(shown.min() > Some(46), "the slowest");
}

#[test]
fn events_are_drawn_at_their_time_without_a_duration() {
    let event =
        |at, key: &str| Annotation { time: MonotonicNs(at), key: key.into(), value: AnnotationValue::Event };
    let annotations = vec![event(5, "sr"), event(40, "queued"), event(90, "ss")];
    let operation = daemon_span(1, (0, 100), annotations);
    let waterfall = rows(&tree(&operation, Relation::Root, Vec::new()));
    let [_, row] = &waterfall[..] else { panic!("{waterfall:?}") };
    assert!(row.instant && row.label == "queued");
    assert_eq!(row.segments[0].from, MonotonicNs(40));
    let many = daemon_span(1, (0, 100), (0..20).map(|at| event(at, "tick")).collect());
    let labels = labels(&tree(&many, Relation::Root, Vec::new()));
    assert_eq!((labels.len(), &*labels[5]), (6, " 16 more events"));
}
