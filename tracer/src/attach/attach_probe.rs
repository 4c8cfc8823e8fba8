//! Results of attaching each probe by each kind, for `blkkin doctor`. A trace takes the first kind
//! that works instead.

use crate::attach::probes::{AttachKind, Probe, ProbeReport, ProbeStatus, remedy};

/// Result of attaching a probe by one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachResult {
    /// Attached.
    Attached,
    /// Uses the tracepoint: it has no equivalent function for this kind.
    KeepsTracepoint,
    /// The kernel has no such hook or field.
    Missing,
    /// The kernel rejects the program or the attachment.
    Refused,
}

/// Attempt to attach a probe.
#[derive(Clone, Debug)]
pub struct AttachAttempt {
    /// Attach kind.
    pub kind: AttachKind,
    /// Result.
    pub result: AttachResult,
    /// Attach point if it works, else the reason.
    pub detail: String,
}

/// Attempts to attach one probe by every kind.
#[derive(Clone, Debug)]
pub struct ProbeAttempts {
    /// The probe.
    pub probe: &'static Probe,
    /// Attempts in the order of [`AttachKind::ALL`].
    pub attempts: Vec<AttachAttempt>,
}

impl ProbeAttempts {
    /// Summarizes the attempts: the probe gets the best kind that works.
    pub(crate) fn report(&self) -> ProbeReport {
        let probe = self.probe;
        let reasons = |of: AttachResult| self.attempts.iter().filter(move |attempt| attempt.result == of);
        let refused =
            reasons(AttachResult::Refused).map(|attempt| format!("{}: {}", attempt.kind, attempt.detail));
        let missing = reasons(AttachResult::Missing).next();
        let (status, reason) =
            match (self.attempts.iter().find(|attempt| attempt.result == AttachResult::Attached), missing) {
                (Some(_), _) => (ProbeStatus::Works, String::new()),
                (None, Some(missing)) => (ProbeStatus::Missing, missing.detail.clone()),
                (None, None) => (ProbeStatus::Refused, refused.collect::<Vec<_>>().join("; ")),
            };
        let kind = self
            .attempts
            .iter()
            .find(|attempt| attempt.result == AttachResult::Attached)
            .map(|attempt| attempt.kind);
        ProbeReport {
            probe,
            hook: probe.hook,
            at: probe.hook.tracepoint,
            kind,
            status,
            reason,
            remedy: remedy(status),
        }
    }
}
