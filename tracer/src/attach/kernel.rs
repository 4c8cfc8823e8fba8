//! Checks that apply to every probe, before anything is loaded.
//!
//! *In*: the kernel's BTF, release and lockdown state. *Out*: nothing, or the error that names what
//! is missing. *Why first*: otherwise the kernel answers with a verifier log that ends in a
//! helper's name, or with `Invalid argument` for a map.

use aya::Btf;

use crate::attach::layout::KernelTypes;
use crate::attach::probes::{AttachKind, Need, PROBES};
use crate::aya_error::error_chain;
use crate::error::TracerError;

/// Oldest tested release. From here on tracepoints have the arguments, and structs the meaning,
/// that the programs assume. Data of an older kernel might be decoded without error and be wrong.
pub const RELEASE_MIN: (u32, u32) = (6, 1);

const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

/// Returns whether `release` (`6.1.0-56-amd64`) is older than [`RELEASE_MIN`]; none if it is not a
/// version.
pub fn is_too_old(release: &str) -> Option<bool> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    let numbers = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(numbers < RELEASE_MIN)
}

/// Checks whether the required probes can work under this kind.
pub(crate) fn check(types: &KernelTypes, kind: AttachKind) -> Result<(), TracerError> {
    // If securityfs is not mounted, the verifier reports a lockdown later: see `is_lockdown`.
    if std::fs::read_to_string(LOCKDOWN).is_ok_and(|text| text.contains("[confidentiality]")) {
        return Err(TracerError::Lockdown);
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    let required = PROBES.iter().filter(|probe| probe.need == Need::Required);
    evaluate(release, &required.flat_map(|probe| types.missing(probe, kind)).collect::<Vec<_>>().join(", "))
}

/// Reads the kernel's types.
pub(crate) fn btf() -> Result<Btf, TracerError> {
    Btf::from_sys_fs().map_err(|error| TracerError::NoBtf { reason: error_chain(&error) })
}

fn too_old(release: String, lacks: String) -> TracerError {
    TracerError::TooOld { release, oldest: RELEASE_MIN, lacks }
}

fn evaluate(release: String, missing: &str) -> Result<(), TracerError> {
    match (is_too_old(&release), missing) {
        (Some(true), "") => Err(too_old(release, String::new())),
        (Some(true), what) => Err(too_old(release, format!("; it has no {what}"))),
        (_, "") => Ok(()),
        (_, what) => Err(TracerError::MissingKernelTypes { release, what: what.to_owned() }),
    }
}

/// Returns whether a rejection is due to lockdown: the helper that reads kernel memory is then
/// unavailable (bpf_tracing_func_proto, kernel/trace/bpf_trace.c). aya falls back to the older
/// helper, which is unavailable as well.
pub(crate) fn is_lockdown(refusal: &str) -> bool {
    refusal.contains("cannot use helper bpf_probe_read") || refusal.contains("unknown func bpf_probe_read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_numerically() {
        for release in ["6.1.0-56-cloud-amd64", "6.18.44-fc", "10.0-rc1"] {
            assert_eq!(is_too_old(release), Some(false), "{release}");
        }
        for release in ["6.0.19", "5.15.0", "5.10.0-32-cloud-amd64"] {
            assert_eq!(is_too_old(release), Some(true), "{release}");
        }
        assert_eq!(is_too_old("unknown"), None);
    }

    #[test]
    fn untested_release_is_rejected_even_with_all_types() {
        let text =
            |release: &str, missing| evaluate(release.to_owned(), missing).map_err(|error| error.to_string());
        assert_eq!(text("6.1.0", ""), Ok(()));
        assert_eq!(text("unknown", ""), Ok(()));
        let old = "this kernel is too old: Linux 5.15.0, and the oldest that blkkin is tested with is 6.1";
        assert_eq!(text("5.15.0", ""), Err(old.to_owned()));
        assert_eq!(text("5.15.0", "field bio.bi_x"), Err(format!("{old}; it has no field bio.bi_x")));
        let lacks = "this kernel, Linux 6.1.0, has no field bio.bi_x, which every trace needs";
        assert_eq!(text("6.1.0", "field bio.bi_x"), Err(lacks.to_owned()));
    }

    #[test]
    fn verifier_errors_under_lockdown_are_recognized() {
        assert!(is_lockdown(
            "708: (85) call bpf_probe_read#4\nprogram of this type cannot use helper bpf_probe_read#4"
        ));
        assert!(is_lockdown(
            "12: (85) call bpf_probe_read_kernel#113\nunknown func bpf_probe_read_kernel#113"
        ));
        assert!(!is_lockdown("R2 invalid mem access 'scalar'"));
    }
}
