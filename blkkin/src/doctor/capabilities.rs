//! The capabilities of this process.

use std::fs;
use std::path::Path;

use super::check::{Check, CheckStatus};

/// A capability (capabilities(7); numbers in include/uapi/linux/capability.h) and its purpose.
struct Capability {
    bit: u32,
    name: &'static str,
    purpose: &'static str,
}

const SYS_ADMIN: u32 = 21;
/// The required capabilities; CAP_SYS_ADMIN includes them all.
const NEEDED: [Capability; 2] = [
    Capability { bit: 39, name: "CAP_BPF", purpose: "to load programs" },
    Capability { bit: 38, name: "CAP_PERFMON", purpose: "to attach them and read the kernel's memory" },
];

/// Checks whether this process may trace.
pub(super) fn check(root: &Path) -> Check {
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    match effective(&status) {
        Some(set) => judge(set),
        None => Check::new(
            "privileges",
            CheckStatus::Unknown,
            "/proc/self/status does not show them: is /proc mounted?",
        )
        .remedy("mount -t proc proc /proc"),
    }
}

fn judge(set: u64) -> Check {
    let has = |bit: u32| set >> bit & 1 != 0;
    if has(SYS_ADMIN) {
        return Check::new(
            "privileges",
            CheckStatus::Ok,
            "CAP_SYS_ADMIN, which includes all required capabilities",
        );
    }
    let missing: Vec<_> = NEEDED.iter().filter(|capability| !has(capability.bit)).collect();
    if missing.is_empty() {
        let names: Vec<_> = NEEDED.iter().map(|capability| capability.name).collect();
        return Check::new("privileges", CheckStatus::Ok, names.join(", "));
    }
    let missing: Vec<_> = missing.iter().map(|c| format!("{} {}", c.name, c.purpose)).collect();
    Check::new("privileges", CheckStatus::Fails, format!("missing: {}", missing.join(", ")))
        .remedy("sudo blkkin …; doctor then tries each probe below")
}

fn effective(status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_mask_is_parsed() {
        assert_eq!(effective("Name:\tx\nCapPrm:\t0\nCapEff:\t000001ffffffffff\n"), Some(0x1ff_ffff_ffff));
        assert_eq!(effective("Name:\tx\n"), None);
    }

    #[test]
    fn missing_capabilities_are_named_with_their_purpose() {
        let check = judge(1 << 39);
        assert_eq!(check.status, CheckStatus::Fails);
        assert!(check.found.contains("CAP_PERFMON to attach"), "{}", check.found);
        assert!(!check.found.contains("CAP_BPF"), "{}", check.found);
        assert_eq!(judge(1 << 39 | 1 << 38).status, CheckStatus::Ok);
        assert_eq!(judge(1 << SYS_ADMIN).status, CheckStatus::Ok);
        assert_eq!(judge(0).status, CheckStatus::Fails);
    }
}
