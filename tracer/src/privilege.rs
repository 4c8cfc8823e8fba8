//! Capability checks of this process.

use crate::error::TracerError;

/// Capabilities by bit (include/uapi/linux/capability.h).
const CAPABILITIES: &[(u32, &str)] = &[(21, "CAP_SYS_ADMIN"), (38, "CAP_PERFMON"), (39, "CAP_BPF")];

/// Fails with the missing capabilities. CAP_SYS_ADMIN includes the others.
pub(crate) fn check() -> Result<(), TracerError> {
    if has(21) {
        return Ok(());
    }
    let missing: Vec<&str> =
        CAPABILITIES[1..].iter().filter(|(bit, _)| !has(*bit)).map(|(_, name)| *name).collect();
    if missing.is_empty() { Ok(()) } else { Err(TracerError::Privilege { missing: missing.join(" and ") }) }
}

/// Returns whether this process has the capability with this number.
pub(crate) fn has(bit: u32) -> bool {
    effective() >> bit & 1 != 0
}

/// Reads the effective capabilities by capget(2). /proc need not be mounted in a chroot, where root
/// would then seem to lack everything.
fn effective() -> u64 {
    let mut header = Header { version: VERSION_3, pid: 0 };
    let mut sets = [Sets::default(); 2];
    // SAFETY: both arguments match capget(2) and outlive the call; version 3 has two sets.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    match result {
        0 => u64::from(sets[0].effective) | u64::from(sets[1].effective) << 32,
        _ => 0,
    }
}

/// `_LINUX_CAPABILITY_VERSION_3` (include/uapi/linux/capability.h).
const VERSION_3: u32 = 0x2008_0522;

/// `struct __user_cap_header_struct`; pid 0 is this process.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// `struct __user_cap_data_struct`: 32 bits of each set.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn capget_matches_proc_status() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        assert_eq!(effective(), u64::from_str_radix(mask.trim(), 16).unwrap());
    }
}
