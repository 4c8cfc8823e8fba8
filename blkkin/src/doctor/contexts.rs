//! Checks whether blkkin can read the thread contexts of other processes (docs/contexts.md).

use blkkin_tracer::{PtraceAccess, ptrace_access};

use super::check::{Check, CheckStatus};
use crate::filter::context_trust::own_user_only;

const NAME: &str = "thread contexts";

/// Checks the access to other processes.
pub(super) fn check() -> Check {
    judge(&ptrace_access())
}

fn judge(reach: &PtraceAccess) -> Check {
    match reach {
        PtraceAccess::AllProcesses => {
            Check::new(NAME, CheckStatus::Ok, "readable in every process that publishes them")
        }
        PtraceAccess::OwnUser { reason: why } => Check::new(NAME, CheckStatus::Partial, own_user_only(why))
            .remedy("sudo blkkin …, or add CAP_SYS_PTRACE; --contexts off disables them"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_access_is_reported_with_the_reason() {
        assert_eq!(judge(&PtraceAccess::AllProcesses).status, CheckStatus::Ok);
        let check = judge(&PtraceAccess::OwnUser { reason: "CAP_SYS_PTRACE is missing".to_owned() });
        assert_eq!(check.status, CheckStatus::Partial);
        assert!(check.found.contains("CAP_SYS_PTRACE is missing") && check.found.contains("no parent span"));
    }
}
