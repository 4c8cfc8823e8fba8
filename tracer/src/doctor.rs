//! Self-test: attaches each probe and detaches it. Nothing is traced.

use crate::attach::attach_probe::ProbeAttempts;
use crate::attach::layout;
use crate::attach::probes::{AttachKind, PROBES, ProbeReport, ProbeStatus};
use crate::config::TracerConfig;
use crate::error::TracerError;
use crate::load::{AllKinds, Tracer};
use crate::privilege;

/// Results of the self-test.
#[derive(Clone, Debug)]
pub struct DoctorReport {
    /// Result of each probe.
    pub probes: Vec<ProbeReport>,
    /// Result of each probe under each attach kind; empty if none was tried.
    pub attempts: Vec<ProbeAttempts>,
    /// Results of the probes of page faults and dirty pages; empty if none was tried.
    pub faults: Vec<ProbeReport>,
    /// Results of the probes that only `--nbd` needs; empty if none was tried.
    pub nbd: Vec<ProbeReport>,
    /// Result of the probe that only `--sleeps` needs; empty if it was not tried.
    pub sleeps: Vec<ProbeReport>,
    /// Error and suggested action, if no probe could be tried.
    pub obstacle: Option<(String, String)>,
}

/// Tests every probe under every kind.
pub fn doctor() -> DoctorReport {
    if let Err(error) = privilege::check() {
        return untested(&error);
    }
    match Tracer::load(&TracerConfig { dirty_pages: true, ..TracerConfig::default() }) {
        Ok(tracer) => {
            let (probes, faults) = (tracer.probes().to_vec(), tracer.fault_probes().to_vec());
            let AllKinds { attempts, nbd, sleeps } = tracer.try_all_kinds().unwrap_or_default();
            DoctorReport { probes, attempts, faults, nbd, sleeps, obstacle: None }
        }
        Err(error) => one_by_one(&error).unwrap_or_else(|| untested(&error)),
    }
}

/// Tests the remaining probes after one of them failed.
fn one_by_one(error: &TracerError) -> Option<DoctorReport> {
    let one = matches!(
        error,
        TracerError::Probe { .. } | TracerError::TooOld { .. } | TracerError::MissingKernelTypes { .. }
    );
    let AllKinds { attempts, nbd, sleeps } =
        if one { Tracer::load_unattached().and_then(Tracer::try_all_kinds).ok()? } else { return None };
    Some(DoctorReport {
        probes: attempts.iter().map(ProbeAttempts::report).collect(),
        attempts,
        faults: Vec::new(),
        nbd,
        sleeps,
        obstacle: None,
    })
}

/// Reports what the kernel's BTF alone reveals, without the privileges to attach.
fn untested(error: &TracerError) -> DoctorReport {
    let (reason, remedy) = (error.to_string(), error.remedy().to_owned());
    let types = layout::resolve().ok();
    let probes = PROBES.iter().map(|probe| {
        let missing = types.as_ref().map(|types| types.missing(probe, AttachKind::TpBtf)).unwrap_or_default();
        if !missing.is_empty() {
            return ProbeReport::missing(probe, &missing);
        }
        let (reason, remedy) = (reason.clone(), remedy.clone());
        let (hook, at) = (probe.hook, probe.hook.tracepoint);
        ProbeReport { probe, hook, at, kind: None, status: ProbeStatus::Unknown, reason, remedy }
    });
    DoctorReport {
        probes: probes.collect(),
        attempts: Vec::new(),
        faults: Vec::new(),
        nbd: Vec::new(),
        sleeps: Vec::new(),
        obstacle: Some((reason, remedy)),
    }
}
