//! Labels of attach kinds and their results.

use blkkin_tracer::AttachKind;
use blkkin_tracer::attach::attach_probe::{AttachResult, ProbeAttempts};

pub(super) fn label(tried: AttachResult) -> &'static str {
    match tried {
        AttachResult::Attached => "works",
        AttachResult::KeepsTracepoint => "keeps",
        AttachResult::Missing => "missing",
        AttachResult::Refused => "refused",
    }
}

/// Returns the terminal colour of a result.
pub(super) fn color(tried: AttachResult) -> &'static str {
    match tried {
        AttachResult::Attached => "32",
        AttachResult::KeepsTracepoint | AttachResult::Missing => "33",
        AttachResult::Refused => "31",
    }
}

/// Returns the function that replaces a probe's tracepoint, or why the tracepoint stays.
pub(super) fn note(tries: &ProbeAttempts) -> String {
    let of_functions = || tries.attempts.iter().filter(|one| one.kind.uses_functions());
    if let Some(attempt) = of_functions().find(|one| one.result == AttachResult::KeepsTracepoint) {
        return format!("keeps {}: {}", tries.probe.hook.tracepoint, attempt.detail);
    }
    let works = of_functions().find(|one| one.result == AttachResult::Attached);
    works.map(|one| one.detail.clone()).unwrap_or_default()
}

/// Returns the distinct reasons for refused kinds.
pub(super) fn refusals(tries: &[ProbeAttempts]) -> Vec<String> {
    let mut reasons = Vec::new();
    for kind in AttachKind::ALL {
        let of_kind = tries.iter().flat_map(|one| &one.attempts).filter(|one| one.kind == kind);
        for refused in of_kind.filter(|one| one.result == AttachResult::Refused) {
            let reason = format!("{kind} is refused: {}", refused.detail);
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
        }
    }
    reasons
}
