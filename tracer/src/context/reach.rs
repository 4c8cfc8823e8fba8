//! Whose memory this process may look at: only of those are contexts found.
//!
//! *In*: what this process may do, and an attempt. *Out*: [`Reach`], to whoever tells people.
//!
//! The kernel lets a process look at another's mappings and memory where both are of one user and the other has no capability more,
//! or with CAP_SYS_PTRACE (__ptrace_may_access, kernel/ptrace.c); and a security module may refuse either (Yama's
//! ptrace_scope 3, AppArmor's profile for containers). So it is tried, at one process after another: a single one may be
//! protected by itself.

use std::fs;
use std::io;

use super::memory::ProcessMemory;
use crate::privilege;

const SYS_PTRACE: u32 = 19;
/// Processes that may refuse before all are taken to.
const REFUSALS_MAX: usize = 16;

/// Whose contexts can be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Everybody's.
    Everybody,
    /// Those of processes of this user alone that have no right that this one has not; and why.
    OwnUser {
        /// What is missing, or what refuses.
        why: String,
    },
}

/// Looks, and tries.
pub fn reach() -> Reach {
    judge(privilege::has(SYS_PTRACE), || all_refuse(others()))
}

fn judge(may: bool, all_refuse: impl FnOnce() -> bool) -> Reach {
    let why = match may {
        false => "CAP_SYS_PTRACE is missing",
        true if all_refuse() => {
            "a security module (Yama, AppArmor, SELinux) refuses what CAP_SYS_PTRACE allows"
        }
        true => return Reach::Everybody,
    };
    Reach::OwnUser { why: why.to_owned() }
}

/// Whether of these processes the first that have memory refuse to be looked at.
fn all_refuse(processes: impl Iterator<Item = u32>) -> bool {
    let mut refusals = 0;
    for process in processes {
        match attempt(process) {
            Ok(true) => return false,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => refusals += 1,
            // A thread of the kernel; or it is gone.
            Ok(false) | Err(_) => {}
        }
        if refusals == REFUSALS_MAX {
            break;
        }
    }
    refusals > 0
}

fn others() -> impl Iterator<Item = u32> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.filter(move |process| *process != own)
}

/// Reads what a look at a process reads. False where there is nothing to read.
fn attempt(pid: u32) -> io::Result<bool> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let begin = maps.split('-').next().and_then(|begin| u64::from_str_radix(begin, 16).ok());
    begin.map_or(Ok(false), |begin| ProcessMemory(pid).may_be_read(begin).map(|()| true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_can_be_looked_at_and_that_of_nobody_cannot() {
        let own = std::process::id();
        assert!(attempt(own).unwrap());
        assert_eq!(attempt(u32::MAX).unwrap_err().kind(), io::ErrorKind::NotFound);
        // Who is gone says nothing of rights.
        assert!(!all_refuse([u32::MAX, own].into_iter()) && !all_refuse([u32::MAX].into_iter()));
        assert!(others().all(|process| process != own));
    }

    #[test]
    fn a_right_that_is_missing_is_told_from_one_that_is_refused() {
        let why = |reach| match reach {
            Reach::OwnUser { why } => why,
            Reach::Everybody => String::new(),
        };
        assert!(why(judge(false, || false)).contains("CAP_SYS_PTRACE is missing"));
        assert!(why(judge(true, || true)).contains("security module"));
        assert_eq!(judge(true, || false), Reach::Everybody);
    }
}
