//! May this process load programs?

use crate::error::TracerError;

/// Capabilities by bit (include/uapi/linux/capability.h).
const CAPABILITIES: &[(u32, &str)] = &[(21, "CAP_SYS_ADMIN"), (38, "CAP_PERFMON"), (39, "CAP_BPF")];

/// Says which capability is missing. CAP_SYS_ADMIN stands for the others.
pub(crate) fn check() -> Result<(), TracerError> {
    if has(21) {
        return Ok(());
    }
    let missing: Vec<&str> =
        CAPABILITIES[1..].iter().filter(|(bit, _)| !has(*bit)).map(|(_, name)| *name).collect();
    if missing.is_empty() { Ok(()) } else { Err(TracerError::Privilege { missing: missing.join(" and ") }) }
}

/// Whether this process has the capability of this number.
pub(crate) fn has(bit: u32) -> bool {
    effective() >> bit & 1 != 0
}

fn effective() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
