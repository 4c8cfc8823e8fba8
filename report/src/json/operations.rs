//! The slowest operations, as trees.

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::daemon_span::{AnnotationValue, DaemonSpanEvent, SpanStatus};
use serde_json::{Value, json};

use super::slow;
use crate::collect::operations::tree::{Relation, Tree};
use crate::report::Report;
use crate::waterfall::operation::words;

pub(super) fn operations(report: &Report) -> Vec<Value> {
    report.operations.slowest().iter().map(|tree| top(report, tree)).collect()
}

fn top(report: &Report, tree: &Tree<'_>) -> Value {
    let split = words::breakdown(tree);
    let mut value = node(report, tree);
    value["trace"] = json!(tree.trace.id.to_string());
    value["parts_not_kept"] = json!(tree.more);
    value["device_ns"] = json!(split.device.0);
    value["block_queue_ns"] = json!(split.block.0);
    value["journal_ns"] = json!(split.journal.0);
    value["calls_ns"] = json!(split.calls.0);
    value["cpu_wait_ns"] = json!(split.cpu.0);
    value["programs_ns"] = json!(split.programs.0);
    value["way_ns"] = json!(split.way.0);
    value["own_ns"] = json!(split.own.0);
    value
}

fn node(report: &Report, tree: &Tree<'_>) -> Value {
    let Some(operation) = tree.operation() else {
        let mut value = slow(report, tree.trace);
        value["link"] = link(tree);
        return value;
    };
    let below: Vec<Value> = tree.below.iter().map(|below| node(report, below)).collect();
    let mut value = said(operation, report.config.started);
    value["link"] = link(tree);
    value["below"] = json!(below);
    value
}

fn said(operation: &DaemonSpanEvent, started: MonotonicNs) -> Value {
    let note = |note: &blkkin_wire::daemon_span::Annotation| {
        let value = match &note.value {
            AnnotationValue::Event => Value::Null,
            AnnotationValue::Text(text) => json!(text),
            AnnotationValue::Number(number) => json!(number),
        };
        json!({ "key": note.key, "value": value, "at_ns": note.time.since(started).0 })
    };
    json!({
        "operation": operation.name,
        "service": operation.service,
        "span": operation.span.to_string(),
        "pid": operation.pid.0,
        "tid": operation.tid.0,
        "start_ns": operation.begin.since(started).0,
        "duration_ns": operation.duration().0,
        "finished": operation.status != SpanStatus::Unfinished,
        "errno": if let SpanStatus::Error(errno) = operation.status { json!(errno) } else { Value::Null },
        "notes": operation.annotations.iter().map(note).collect::<Vec<_>>(),
    })
}

/// How it hangs below what it stands in.
fn link(tree: &Tree<'_>) -> Value {
    match tree.relation {
        Relation::Top => Value::Null,
        Relation::Answer(rule) => json!(rule),
        Relation::Stray => json!("what it names above it is not here"),
        Relation::Part => match tree.trace.context().map(|context| context.source) {
            None => json!("exact: named by the program"),
            Some(blkkin_wire::event::ContextSource::DaemonSpan) => {
                json!("rule: the thread's last event before")
            }
            Some(_) => json!("exact: the thread's own context"),
        },
    }
}
