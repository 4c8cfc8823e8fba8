//! What stands in the way of every probe on this kernel, found before anything is brought into it.
//!
//! *In*: what the kernel says of itself (its types, its release, its lockdown). *Out*: nothing, or the one error that
//! says what is missing. Asked first, because what the kernel says later is a verifier's log that ends in a helper's
//! name, or `Invalid argument` about a map.

use crate::error::TracerError;
use crate::layout::Types;
use crate::probes::{AttachKind, Need, PROBES};

/// The oldest release that the programs are tested with: from here on tracepoints have the arguments and structs the
/// meaning that they read. What an older one says might be understood, and be wrong.
pub const RELEASE_MIN: (u32, u32) = (6, 1);

const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

/// Whether `release` (`6.1.0-56-amd64`) is older than [`RELEASE_MIN`]; none where it is no number.
pub fn is_too_old(release: &str) -> Option<bool> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    let numbers = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(numbers < RELEASE_MIN)
}

/// Whether every trace's needs can be met by this kind of probe.
pub(crate) fn check(types: &Types, kind: AttachKind) -> Result<(), TracerError> {
    // Not mounted is no answer: then the verifier says it, see `is_lockdown`.
    if std::fs::read_to_string(LOCKDOWN).is_ok_and(|text| text.contains("[confidentiality]")) {
        return Err(TracerError::Lockdown);
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    let required = PROBES.iter().filter(|probe| probe.need == Need::Required);
    judge(release, &required.flat_map(|probe| types.missing(probe, kind)).collect::<Vec<_>>().join(", "))
}

fn judge(release: String, missing: &str) -> Result<(), TracerError> {
    match (is_too_old(&release), missing) {
        (Some(true), "") => Err(TracerError::TooOld { release, lacks: String::new() }),
        (Some(true), what) => Err(TracerError::TooOld { release, lacks: format!("; it has no {what}") }),
        (_, "") => Ok(()),
        (_, what) => Err(TracerError::Lacks { release, what: what.to_owned() }),
    }
}

/// Whether a refusal is that of a lockdown: the helper that reads the kernel's memory is then no helper at all
/// (bpf_tracing_func_proto, kernel/trace/bpf_trace.c), and aya takes the older helper for it, which is none either.
pub(crate) fn is_lockdown(refusal: &str) -> bool {
    refusal.contains("cannot use helper bpf_probe_read") || refusal.contains("unknown func bpf_probe_read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_compare_as_numbers() {
        for release in ["6.1.0-56-cloud-amd64", "6.18.44-fc", "10.0-rc1"] {
            assert_eq!(is_too_old(release), Some(false), "{release}");
        }
        for release in ["6.0.19", "5.15.0", "5.10.0-32-cloud-amd64"] {
            assert_eq!(is_too_old(release), Some(true), "{release}");
        }
        assert_eq!(is_too_old("unknown"), None);
    }

    #[test]
    fn what_was_never_tested_is_refused_also_where_nothing_is_missing() {
        let said =
            |release: &str, missing| judge(release.to_owned(), missing).map_err(|error| error.to_string());
        assert_eq!(said("6.1.0", ""), Ok(()));
        assert_eq!(said("unknown", ""), Ok(()));
        let old = "this kernel is too old: Linux 5.15.0, and the oldest that blkkin is tested with is 6.1";
        assert_eq!(said("5.15.0", ""), Err(old.to_owned()));
        assert_eq!(said("5.15.0", "field bio.bi_x"), Err(format!("{old}; it has no field bio.bi_x")));
        let lacks = "this kernel, Linux 6.1.0, has no field bio.bi_x, which every trace needs";
        assert_eq!(said("6.1.0", "field bio.bi_x"), Err(lacks.to_owned()));
    }

    #[test]
    fn the_words_of_the_verifier_under_lockdown_are_known() {
        assert!(is_lockdown(
            "708: (85) call bpf_probe_read#4\nprogram of this type cannot use helper bpf_probe_read#4"
        ));
        assert!(is_lockdown(
            "12: (85) call bpf_probe_read_kernel#113\nunknown func bpf_probe_read_kernel#113"
        ));
        assert!(!is_lockdown("R2 invalid mem access 'scalar'"));
    }
}
