//! The diagnosis as JSON.

use blkkin_tracer::ProbeReport;
use blkkin_tracer::attach::attach_probe::{AttachResult, ProbeAttempts};
use blkkin_tracer::attach::probes::Need;
use serde_json::{Value, json};

use super::Diagnosis;
use super::check::Check;
use super::kinds;
use super::table::verdict_label;
use super::virtual_machines;

pub(super) fn value(diagnosis: &Diagnosis) -> Value {
    json!({
        "works": diagnosis.works(),
        "checks": diagnosis.checks.iter().map(check).collect::<Vec<_>>(),
        "virtual_machines": diagnosis.machines.iter().map(virtual_machines::value).collect::<Vec<_>>(),
        "probes": diagnosis.probes.probes.iter().map(probe).collect::<Vec<_>>(),
        "fault_probes": diagnosis.probes.faults.iter().map(probe).collect::<Vec<_>>(),
        "nbd_probes": diagnosis.probes.nbd.iter().map(probe).collect::<Vec<_>>(),
        "sleep_probes": diagnosis.probes.sleeps.iter().map(probe).collect::<Vec<_>>(),
        "kinds": diagnosis.probes.attempts.iter().map(tries).collect::<Vec<_>>(),
        "remarks": diagnosis.remarks,
    })
}

fn check(check: &Check) -> Value {
    json!({
        "name": check.name,
        "status": check.status.label(),
        "found": check.found,
        "remedy": some(&check.remedy),
    })
}

fn probe(verdict: &ProbeReport) -> Value {
    json!({
        "name": verdict.probe.name,
        "layer": verdict.probe.layer,
        "tracepoint": verdict.hook.tracepoint,
        "at": verdict.at,
        "required": matches!(verdict.probe.need, Need::Required),
        "shows": verdict.probe.observes,
        "verdict": verdict_label(verdict.status),
        "attach": verdict.kind.map(|kind| kind.name()),
        "reason": some(&verdict.reason),
        "remedy": some(&verdict.remedy),
    })
}

/// Returns the result of each attach kind for a probe: where it works, or why not.
fn tries(tries: &ProbeAttempts) -> Value {
    let kinds = tries.attempts.iter().map(|one| {
        let key = if one.result == AttachResult::Attached { "at" } else { "reason" };
        (one.kind.name().to_owned(), json!({ "result": kinds::label(one.result), key: one.detail }))
    });
    json!({ "name": tries.probe.name, "kinds": kinds.collect::<serde_json::Map<_, _>>() })
}

fn some(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
