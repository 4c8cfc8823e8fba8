//! What became of each probe by each kind of attaching: what the doctor says where a trace would take the first that works.

use crate::probes::{AttachKind, Probe, ProbeVerdict, Verdict, remedy};

/// What became of a probe by one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// Attached.
    Works,
    /// No function says what its tracepoint says: with this kind it keeps the tracepoint.
    Kept,
    /// This kernel has no such hook or field.
    Missing,
    /// The kernel has it and refuses.
    Refused,
}

/// A probe tried by one kind.
#[derive(Clone, Debug)]
pub struct Try {
    /// Which.
    pub kind: AttachKind,
    /// What became of it.
    pub tried: Tried,
    /// Where it works; else why not.
    pub said: String,
}

/// A probe by each kind.
#[derive(Clone, Debug)]
pub struct Tries {
    /// Which.
    pub probe: &'static Probe,
    /// In the order of [`AttachKind::ALL`].
    pub tries: Vec<Try>,
}

impl Tries {
    /// What becomes of the probe if it gets the best kind.
    pub(crate) fn verdict(&self) -> ProbeVerdict {
        let probe = self.probe;
        let reasons = |of: Tried| self.tries.iter().filter(move |one| one.tried == of);
        let refused = reasons(Tried::Refused).map(|one| format!("{}: {}", one.kind, one.said));
        let missing = reasons(Tried::Missing).next();
        let (verdict, reason) = match (self.tries.iter().find(|one| one.tried == Tried::Works), missing) {
            (Some(_), _) => (Verdict::Works, String::new()),
            (None, Some(missing)) => (Verdict::Missing, missing.said.clone()),
            (None, None) => (Verdict::Refused, refused.collect::<Vec<_>>().join("; ")),
        };
        let kind = self.tries.iter().find(|one| one.tried == Tried::Works).map(|one| one.kind);
        ProbeVerdict {
            probe,
            hook: probe.hook,
            at: probe.hook.tracepoint,
            kind,
            verdict,
            reason,
            remedy: remedy(verdict),
        }
    }
}
