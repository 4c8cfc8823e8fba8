//! Check whether this process may read the memory of others, which finding contexts requires.
//!
//! *In*: the capabilities of this process, and an attempt. *Out*: [`PtraceAccess`], for messages to
//! the user.
//!
//! The kernel permits access to another process's mappings and memory if both have the same user
//! and the other has no additional capability, or with CAP_SYS_PTRACE (__ptrace_may_access,
//! kernel/ptrace.c). A security module may still refuse (Yama's ptrace_scope 3, AppArmor's profile
//! for containers). So the check tries one process after another: a single one may have a
//! protection of its own.

use std::fs;
use std::io;

use crate::privilege;
use blkkin_otel_context::ProcessMemory;

const SYS_PTRACE: u32 = 19;
/// Number of refusals after which all processes are assumed to refuse.
const REFUSALS_MAX: usize = 16;

/// Processes whose contexts can be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PtraceAccess {
    /// Every process.
    AllProcesses,
    /// Only processes of the same user without additional capabilities.
    OwnUser {
        /// Missing capability, or the refusing mechanism.
        reason: String,
    },
}

/// Checks the capability and tries other processes.
pub fn ptrace_access() -> PtraceAccess {
    evaluate(privilege::has(SYS_PTRACE), || all_refuse(other_processes()))
}

fn evaluate(has_capability: bool, all_refuse: impl FnOnce() -> bool) -> PtraceAccess {
    let reason = match has_capability {
        false => "CAP_SYS_PTRACE is missing",
        true if all_refuse() => {
            "a security module (Yama, AppArmor, SELinux) refuses what CAP_SYS_PTRACE allows"
        }
        true => return PtraceAccess::AllProcesses,
    };
    PtraceAccess::OwnUser { reason: reason.to_owned() }
}

/// Returns whether the first of these processes that have memory all refuse access.
fn all_refuse(processes: impl Iterator<Item = u32>) -> bool {
    let mut refusals = 0;
    for process in processes {
        match attempt(process) {
            Ok(true) => return false,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => refusals += 1,
            // A kernel thread, or it has exited.
            Ok(false) | Err(_) => {}
        }
        if refusals == REFUSALS_MAX {
            break;
        }
    }
    refusals > 0
}

fn other_processes() -> impl Iterator<Item = u32> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.filter(move |process| *process != own)
}

/// Reads what a scan reads. Returns false if there is no memory to read.
fn attempt(pid: u32) -> io::Result<bool> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let begin = maps.split('-').next().and_then(|begin| u64::from_str_radix(begin, 16).ok());
    begin.map_or(Ok(false), |begin| ProcessMemory(pid).check_access(begin).map(|()| true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_accessible_and_that_of_an_exited_process_is_not() {
        let own = std::process::id();
        assert!(attempt(own).unwrap());
        assert_eq!(attempt(u32::MAX).unwrap_err().kind(), io::ErrorKind::NotFound);
        // An exited process indicates nothing about access.
        assert!(!all_refuse([u32::MAX, own].into_iter()) && !all_refuse([u32::MAX].into_iter()));
        assert!(other_processes().all(|process| process != own));
    }

    #[test]
    fn missing_capability_and_refusal_are_distinguished() {
        let reason = |reach| match reach {
            PtraceAccess::OwnUser { reason } => reason,
            PtraceAccess::AllProcesses => String::new(),
        };
        assert!(reason(evaluate(false, || false)).contains("CAP_SYS_PTRACE is missing"));
        assert!(reason(evaluate(true, || true)).contains("security module"));
        assert_eq!(evaluate(true, || false), PtraceAccess::AllProcesses);
    }
}
