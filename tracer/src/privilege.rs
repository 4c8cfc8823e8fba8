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

/// Asked of the kernel, and not read in /proc, which need not be mounted in a root of one's own: who is root there would be said to lack
/// everything.
fn effective() -> u64 {
    let mut header = Header { version: VERSION_3, pid: 0 };
    let mut sets = [Sets::default(); 2];
    // SAFETY: both are as capget(2) has them, and outlive the call; version 3 has two sets.
    let said = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) };
    match said {
        0 => u64::from(sets[0].effective) | u64::from(sets[1].effective) << 32,
        _ => 0,
    }
}

/// `_LINUX_CAPABILITY_VERSION_3` (include/uapi/linux/capability.h).
const VERSION_3: u32 = 0x2008_0522;

/// `struct __user_cap_header_struct`; 0 is this process.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// `struct __user_cap_data_struct`: 32 of each.
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
    fn what_the_kernel_says_is_what_proc_says() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        assert_eq!(effective(), u64::from_str_radix(mask.trim(), 16).unwrap());
    }
}
