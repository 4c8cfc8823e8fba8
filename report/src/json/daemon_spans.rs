//! The slowest daemon spans, as trees.

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::daemon_span::{Annotation, AnnotationValue, DaemonSpanEvent, SpanStatus};
use blkkin_wire::event::ContextSource;
use serde_json::{Value, json};

use super::storage_operation;
use crate::collect::daemon_spans::tree::{Relation, SpanTree};
use crate::report::Report;
use crate::waterfall::daemon_span::summary;

pub(super) fn slowest(report: &Report) -> Vec<Value> {
    report.daemon_spans.slowest().iter().map(|tree| root(report, tree)).collect()
}

fn root(report: &Report, tree: &SpanTree<'_>) -> Value {
    let breakdown = summary::breakdown(tree);
    let mut value = node(report, tree);
    value["trace"] = json!(tree.trace.id.to_string());
    value["parts_not_kept"] = json!(tree.traces_dropped);
    value["device_ns"] = json!(breakdown.device.0);
    value["block_queue_ns"] = json!(breakdown.block.0);
    value["journal_ns"] = json!(breakdown.journal.0);
    value["calls_ns"] = json!(breakdown.calls.0);
    value["cpu_wait_ns"] = json!(breakdown.cpu.0);
    value["programs_ns"] = json!(breakdown.programs.0);
    value["in_transit_ns"] = json!(breakdown.in_transit.0);
    value["own_ns"] = json!(breakdown.own.0);
    value
}

fn node(report: &Report, tree: &SpanTree<'_>) -> Value {
    let Some(span) = tree.daemon_span() else {
        let mut value = storage_operation(report, tree.trace);
        value["link"] = link(tree);
        return value;
    };
    let children: Vec<Value> = tree.children.iter().map(|child| node(report, child)).collect();
    let mut value = daemon_span(span, report.config.started);
    value["link"] = link(tree);
    value["children"] = json!(children);
    value
}

fn daemon_span(span: &DaemonSpanEvent, started: MonotonicNs) -> Value {
    let annotation = |annotation: &Annotation| {
        let value = match &annotation.value {
            AnnotationValue::Event => Value::Null,
            AnnotationValue::Text(text) => json!(text),
            AnnotationValue::Number(number) => json!(number),
        };
        json!({ "key": annotation.key, "value": value, "at_ns": annotation.time.since(started).0 })
    };
    json!({
        "operation": span.name,
        "service": span.service,
        "span": span.span.to_string(),
        "pid": span.pid.0,
        "tid": span.tid.0,
        "start_ns": span.begin.since(started).0,
        "duration_ns": span.duration().0,
        "finished": span.status != SpanStatus::Unfinished,
        "errno": if let SpanStatus::Error(errno) = span.status { json!(errno) } else { Value::Null },
        "annotations": span.annotations.iter().map(annotation).collect::<Vec<_>>(),
    })
}

/// Returns the evidence of a node's relation to its parent.
fn link(tree: &SpanTree<'_>) -> Value {
    match tree.relation {
        Relation::Root => Value::Null,
        Relation::Server(rule) => json!(rule),
        Relation::Orphan => json!("the parent that it names is missing"),
        Relation::Child => match tree.trace.context().map(|context| context.source) {
            None => json!("exact: named by the program"),
            Some(ContextSource::DaemonSpan) => json!("rule: the thread's last event before"),
            Some(_) => json!("exact: the thread's own context"),
        },
    }
}
