//! Tries each probe and says what happened: nothing is traced, nothing stays attached.

use crate::config::TracerConfig;
use crate::layout;
use crate::load::Tracer;
use crate::privilege;
use crate::probes::{PROBES, ProbeVerdict, Verdict};

/// What can be traced here.
#[derive(Clone, Debug)]
pub struct DoctorReport {
    /// A verdict a probe.
    pub probes: Vec<ProbeVerdict>,
    /// Why the probes could not be tried, if they could not.
    pub obstacle: Option<(String, String)>,
}

/// Tries every probe, each by the kinds that this kernel offers.
pub fn doctor() -> DoctorReport {
    if let Err(error) = privilege::check() {
        let remedy = error.remedy().to_owned();
        return untried(error.to_string(), remedy);
    }
    match Tracer::load(&TracerConfig::default()) {
        Ok(tracer) => DoctorReport { probes: tracer.probes().to_vec(), obstacle: None },
        Err(error) => {
            let remedy = error.remedy().to_owned();
            untried(error.to_string(), remedy)
        }
    }
}

/// Without the right to try, what the kernel's types say is still known.
fn untried(reason: String, remedy: String) -> DoctorReport {
    let layout = layout::resolve().ok();
    let probes = PROBES.iter().map(|probe| {
        let missing = layout.as_ref().map(|layout| layout::missing(layout, probe.fields)).unwrap_or_default();
        if missing.is_empty() {
            ProbeVerdict {
                probe,
                kind: None,
                verdict: Verdict::Unknown,
                reason: reason.clone(),
                remedy: remedy.clone(),
            }
        } else {
            ProbeVerdict {
                probe,
                kind: None,
                verdict: Verdict::Missing,
                reason: format!("this kernel has no {}", missing.join(", ")),
                remedy: "a newer kernel, or one with the file system built in".to_owned(),
            }
        }
    });
    DoctorReport { probes: probes.collect(), obstacle: Some((reason, remedy)) }
}
