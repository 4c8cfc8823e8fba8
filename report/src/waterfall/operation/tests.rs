//! What rows an operation has.

use blkkin_aggregator::trace::{Root, Trace};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::daemon_span::Annotation;
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::span::SpanKind;

use super::*;
use crate::collect::sample;

fn said(span: u64, (begin, end): (u64, u64), notes: Vec<Annotation>) -> Trace {
    let mut made = sample::call(span, "read", 1);
    made.root = Root::Operation(Box::new(DaemonSpanEvent {
        kind: SpanKind::Server,
        name: "read".into(),
        service: "one".into(),
        annotations: notes,
        ..DaemonSpanEvent::bare(SpanId(span), TraceId(1), MonotonicNs(begin), MonotonicNs(end))
    }));
    made
}

fn tree<'a>(trace: &'a Trace, relation: Relation<'a>, below: Vec<Tree<'a>>) -> Tree<'a> {
    Tree { trace, relation, below, more: 0 }
}

fn labels(tree: &Tree<'_>) -> Vec<String> {
    rows(tree).into_iter().map(|row| format!("{}{}", " ".repeat(row.depth), row.label)).collect()
}

#[test]
fn the_way_is_drawn_only_where_who_answered_was_heard() {
    let (asks, answers) = (said(1, (100, 200), Vec::new()), said(2, (120, 180), Vec::new()));
    let met = tree(&asks, Relation::Top, vec![tree(&answers, Relation::Answer("exact"), Vec::new())]);
    assert_eq!(labels(&met), ["one: read", " on the way", " one: read"]);
    let way = &rows(&met)[1];
    assert_eq!((way.time, way.segments.len()), (DurationNs(40), 2));
    assert_eq!(labels(&tree(&asks, Relation::Top, Vec::new())), ["one: read"]);
}

#[test]
fn time_outside_of_calls_is_nobody_elses() {
    let operation = said(1, (0, 100), Vec::new());
    let call = sample::call(2, "pread64", 30);
    let drawn = tree(&operation, Relation::Top, vec![tree(&call, Relation::Part, Vec::new())]);
    assert_eq!(labels(&drawn), ["one: read", " no call seen", " pread64", "  file system"]);
    assert_eq!(rows(&drawn)[1].time, DurationNs(70));
    assert_eq!(window(&drawn), Window { from: MonotonicNs(0), to: MonotonicNs(100) });
}

#[test]
fn of_many_calls_the_slowest_are_drawn_and_each_is_somewhere() {
    let operation = said(1, (0, 1_000), Vec::new());
    let calls: Vec<Trace> = (0..50).map(|n| sample::call(10 + n, "pread64", 1 + n * 7 % 50)).collect();
    let parts = calls.iter().map(|call| tree(call, Relation::Part, Vec::new())).collect();
    let drawn = tree(&operation, Relation::Top, parts);
    let labels = labels(&drawn);
    assert_eq!(labels.iter().filter(|label| *label == " pread64").count(), SHOWN);
    assert!(labels.contains(&" + 46 calls".to_owned()), "{labels:?}");
    let shown = rows(&drawn);
    let shown = shown.iter().filter(|row| row.label == "pread64").map(|row| row.time.0);
    assert!(shown.min() > Some(46), "the slowest");
}

#[test]
fn moments_are_where_they_were_and_take_no_time() {
    let moment =
        |at, key: &str| Annotation { time: MonotonicNs(at), key: key.into(), value: AnnotationValue::Event };
    let notes = vec![moment(5, "sr"), moment(40, "queued"), moment(90, "ss")];
    let operation = said(1, (0, 100), notes);
    let drawn = rows(&tree(&operation, Relation::Top, Vec::new()));
    let [_, row] = &drawn[..] else { panic!("{drawn:?}") };
    assert!(row.moment && row.label == "queued");
    assert_eq!(row.segments[0].from, MonotonicNs(40));
    let many = said(1, (0, 100), (0..20).map(|at| moment(at, "tick")).collect());
    let labels = labels(&tree(&many, Relation::Top, Vec::new()));
    assert_eq!((labels.len(), &*labels[5]), (6, " 16 more moments"));
}
