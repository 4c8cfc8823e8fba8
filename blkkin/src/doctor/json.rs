//! The diagnosis for machines.

use blkkin_tracer::ProbeVerdict;
use blkkin_tracer::probes::Need;
use blkkin_tracer::tries::{Tried, Tries};
use serde_json::{Value, json};

use super::Diagnosis;
use super::check::Check;
use super::kinds;
use super::table::word;

pub(super) fn value(diagnosis: &Diagnosis) -> Value {
    json!({
        "works": diagnosis.works(),
        "checks": diagnosis.checks.iter().map(check).collect::<Vec<_>>(),
        "probes": diagnosis.probes.probes.iter().map(probe).collect::<Vec<_>>(),
        "nbd_probes": diagnosis.probes.nbd.iter().map(probe).collect::<Vec<_>>(),
        "kinds": diagnosis.probes.tries.iter().map(tries).collect::<Vec<_>>(),
        "remarks": diagnosis.remarks,
    })
}

fn check(check: &Check) -> Value {
    json!({
        "name": check.name,
        "standing": check.standing.word(),
        "found": check.found,
        "remedy": some(&check.remedy),
    })
}

fn probe(verdict: &ProbeVerdict) -> Value {
    json!({
        "name": verdict.probe.name,
        "layer": verdict.probe.layer,
        "tracepoint": verdict.hook.tracepoint,
        "at": verdict.at,
        "required": matches!(verdict.probe.need, Need::Required),
        "shows": verdict.probe.shows,
        "verdict": word(verdict.verdict),
        "attach": verdict.kind.map(|kind| kind.name()),
        "reason": some(&verdict.reason),
        "remedy": some(&verdict.remedy),
    })
}

/// A probe by each kind: where it works, or why not.
fn tries(tries: &Tries) -> Value {
    let kinds = tries.tries.iter().map(|one| {
        let place = if one.tried == Tried::Works { "at" } else { "reason" };
        (one.kind.name().to_owned(), json!({ "tried": kinds::word(one.tried), place: one.said }))
    });
    json!({ "name": tries.probe.name, "kinds": kinds.collect::<serde_json::Map<_, _>>() })
}

fn some(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
