//! JSON of the origins of a trace's bios.

use blkkin_aggregator::trace::Trace;
use blkkin_wire::page_origin::{PageOriginEvent, PageWriter, Unattributed, WritebackReason, WriterEvidence};
use serde_json::{Value, json};

use crate::collect::written_by::program;

/// Maximum number of origins of a trace, and of writers and parts of an origin. `count`,
/// `writers_count` and `parts_count` have the numbers of all.
const SHOWN_MAX: usize = 64;

pub(super) fn of(trace: &Trace) -> Value {
    let shown = trace.page_origins.iter().take(SHOWN_MAX);
    json!({
        "count": trace.page_origins.len(),
        "missing": trace.incomplete.page_origins,
        "first": shown.map(|origin| page_origin(trace, origin)).collect::<Vec<_>>(),
    })
}

fn page_origin(trace: &Trace, origin: &PageOriginEvent) -> Value {
    let writers = origin.writers.iter().take(SHOWN_MAX);
    let parts = origin.parts.iter().take(SHOWN_MAX);
    json!({
        "bio": origin.bio.to_string(),
        "kind": origin.kind.name(),
        "file": origin.file.as_ref().map(|file| trace.origin_names.path(file).to_string()),
        "offset": origin.offset,
        "bytes": origin.bytes,
        "parts": parts.map(|part| json!({"offset": part.offset, "bytes": part.bytes})).collect::<Vec<_>>(),
        "parts_count": origin.parts.len(),
        "reason": origin.reason.map(WritebackReason::name),
        "bytes_unattributed": origin.bytes_unattributed,
        "unattributed": origin.unattributed.map(unattributed_name),
        "writers_count": origin.writers.len(),
        "writers": writers.map(|writer| page_writer(trace, origin, writer)).collect::<Vec<_>>(),
    })
}

fn page_writer(trace: &Trace, origin: &PageOriginEvent, writer: &PageWriter) -> Value {
    let task = trace.origin_names.writers.get(&writer.task).map(|name| &name.task);
    json!({
        "program": program(trace, writer),
        "pid": task.map(|task| task.pid.0),
        "trace": (writer.trace.0 != 0).then(|| writer.trace.to_string()),
        "span": (writer.span.0 != 0).then(|| writer.span.to_string()),
        "bytes": writer.bytes,
        "age_ns": writer.evidence.has_age().then(|| origin.time.since(writer.dirtied).0),
        "evidence": evidence_name(writer.evidence),
    })
}

fn unattributed_name(why: Unattributed) -> &'static str {
    match why {
        Unattributed::NotRecorded => "not recorded",
        Unattributed::Evicted => "evicted",
        Unattributed::NotConsecutive => "not consecutive",
    }
}

fn evidence_name(evidence: WriterEvidence) -> &'static str {
    match evidence {
        WriterEvidence::EndedBefore => "ended before",
        WriterEvidence::UnderWay => "under way",
        WriterEvidence::DuringTransfer => "during transfer",
        WriterEvidence::UnderWayEarlier => "under way earlier",
        WriterEvidence::MappedStore => "mapped store",
        WriterEvidence::LoopDevice => "loop device",
    }
}
