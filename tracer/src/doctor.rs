//! Tries each probe and says what happened: nothing is traced, nothing stays attached.

use crate::config::TracerConfig;
use crate::error::TracerError;
use crate::layout;
use crate::load::Tracer;
use crate::privilege;
use crate::probes::{AttachKind, PROBES, ProbeVerdict, Verdict};
use crate::tries::Tries;

/// What can be traced here.
#[derive(Clone, Debug)]
pub struct DoctorReport {
    /// A verdict a probe.
    pub probes: Vec<ProbeVerdict>,
    /// Each probe by each kind; empty where none was tried.
    pub tries: Vec<Tries>,
    /// A verdict each for those that `--nbd` adds; empty where none was tried. Nothing else needs them.
    pub nbd: Vec<ProbeVerdict>,
    /// Why the probes could not be tried, if they could not.
    pub obstacle: Option<(String, String)>,
}

/// Tries every probe, each by every kind.
pub fn doctor() -> DoctorReport {
    if let Err(error) = privilege::check() {
        return untried(&error);
    }
    match Tracer::load(&TracerConfig::default()) {
        Ok(tracer) => {
            let probes = tracer.probes().to_vec();
            let (tries, nbd) = tracer.try_each().unwrap_or_default();
            DoctorReport { probes, tries, nbd, obstacle: None }
        }
        Err(error) => one_by_one(&error).unwrap_or_else(|| untried(&error)),
    }
}

/// Where one probe is in the way, the others are tried all the same.
fn one_by_one(error: &TracerError) -> Option<DoctorReport> {
    let one =
        matches!(error, TracerError::Probe { .. } | TracerError::TooOld { .. } | TracerError::Lacks { .. });
    let (tries, nbd) = if one { Tracer::idle().and_then(Tracer::try_each).ok()? } else { return None };
    Some(DoctorReport { probes: tries.iter().map(Tries::verdict).collect(), tries, nbd, obstacle: None })
}

/// Without the right to try, what the kernel's types say is still known.
fn untried(error: &TracerError) -> DoctorReport {
    let (reason, remedy) = (error.to_string(), error.remedy().to_owned());
    let types = layout::resolve().ok();
    let probes = PROBES.iter().map(|probe| {
        let missing = types.as_ref().map(|types| types.missing(probe, AttachKind::TpBtf)).unwrap_or_default();
        if !missing.is_empty() {
            return ProbeVerdict::missing(probe, &missing);
        }
        let (reason, remedy) = (reason.clone(), remedy.clone());
        let (hook, at) = (probe.hook, probe.hook.tracepoint);
        ProbeVerdict { probe, hook, at, kind: None, verdict: Verdict::Unknown, reason, remedy }
    });
    DoctorReport {
        probes: probes.collect(),
        tries: Vec::new(),
        nbd: Vec::new(),
        obstacle: Some((reason, remedy)),
    }
}
