//! Policy for accepting thread contexts and process contexts.
//!
//! *In*: a process to be scanned. *Out*: whether it may have a TLS slot. *Invariant*: user space
//! decides before anything of the process is read. A process that is not accepted has no slot, and
//! its calls cost the same as those of a process that publishes nothing.
//!
//! The policy uses only facts that a process cannot forge. These are the real user id (a
//! set-user-ID program runs with its owner's rights and input from its starter), the cgroup, and
//! the executable file. The decision is repeated at execve, and when the tracer reports a change
//! (`TaskChange::Changed`). It is made for each process separately: a forked child may have changed
//! its user.
//!
//! *Weakness*: for some ms between a change and the scan, the previous decision holds. An
//! executable match offers no protection if others can inject code into the process (`LD_PRELOAD`):
//! it narrows the scan, while a user or a cgroup protects.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use blkkin_wire::ids::CgroupId;

/// Processes whose contexts are accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ContextPolicy {
    /// No process: contexts are not read.
    None,
    /// Every process.
    #[default]
    All,
    /// Processes that match one of these.
    Only(Vec<ProcessMatcher>),
}

/// A set of processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessMatcher {
    /// Processes with this real user id.
    User(u32),
    /// Processes in this cgroup or its descendants.
    Cgroup {
        /// Mount point of the default hierarchy.
        hierarchy: PathBuf,
        /// Id of the cgroup.
        id: CgroupId,
    },
    /// Processes that execute this file.
    Executable(PathBuf),
}

impl ContextPolicy {
    /// Returns whether any process is accepted.
    pub fn is_enabled(&self) -> bool {
        *self != ContextPolicy::None
    }

    /// Returns whether this process is accepted.
    pub(crate) fn allows(&self, pid: u32) -> bool {
        match self {
            ContextPolicy::None => false,
            ContextPolicy::All => true,
            ContextPolicy::Only(matchers) => matchers.iter().any(|matcher| matcher.matches(pid)),
        }
    }

    /// Returns whether a change of a process's credentials can change the decision.
    pub(crate) fn depends_on_process(&self) -> bool {
        matches!(self, ContextPolicy::Only(_))
    }
}

impl ProcessMatcher {
    fn matches(&self, pid: u32) -> bool {
        match self {
            ProcessMatcher::User(user) => real_user(pid) == Some(*user),
            ProcessMatcher::Cgroup { hierarchy, id } => in_cgroup(pid, hierarchy, *id),
            // The link resolves to the file itself, whatever its name in the process's mount
            // namespace.
            ProcessMatcher::Executable(path) => {
                let file = |path: &Path| Some(fs::metadata(path).ok()?).map(|file| (file.dev(), file.ino()));
                let own = file(Path::new(&format!("/proc/{pid}/exe")));
                own.is_some() && own == file(path)
            }
        }
    }
}

/// Reads `Uid:` with the real, effective, saved and file system user ids (proc_pid_status(5)).
fn real_user(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns whether a process is in a cgroup or its descendants. A cgroup's id is its directory's
/// inode number; the line `0::/path` is that of the default hierarchy (cgroups(7)).
fn in_cgroup(pid: u32, hierarchy: &Path, id: CgroupId) -> bool {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let Some(path) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else { return false };
    let folder = hierarchy.join(path);
    let ancestor = folder.ancestors().take_while(|ancestor| ancestor.starts_with(hierarchy));
    ancestor.filter_map(|folder| fs::metadata(folder).ok()).any(|folder| folder.ino() == id.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(matcher: ProcessMatcher) -> ContextPolicy {
        ContextPolicy::Only(vec![matcher])
    }

    #[test]
    fn process_matches_its_user_and_executable() {
        let own = std::process::id();
        // SAFETY: no preconditions.
        let user = unsafe { libc::getuid() };
        assert!(
            only(ProcessMatcher::User(user)).allows(own) && !only(ProcessMatcher::User(user + 1)).allows(own)
        );
        let file = std::env::current_exe().unwrap();
        assert!(only(ProcessMatcher::Executable(file.clone())).allows(own));
        // Another name of the same file.
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(only(ProcessMatcher::Executable(link.clone())).allows(own));
        fs::remove_file(&link).unwrap();
        fs::copy(&file, &link).unwrap();
        assert!(!only(ProcessMatcher::Executable(link)).allows(own), "a copy is another file");
        assert!(!only(ProcessMatcher::Executable("/nowhere".into())).allows(own));
    }

    #[test]
    fn exited_process_matches_nothing() {
        let policy =
            ContextPolicy::Only(vec![ProcessMatcher::User(0), ProcessMatcher::Executable("/nowhere".into())]);
        assert!(!policy.allows(u32::MAX));
        assert!(!ContextPolicy::None.allows(std::process::id()) && ContextPolicy::All.allows(u32::MAX));
    }

    /// Directories in place of a hierarchy: only the inode numbers matter.
    #[test]
    #[allow(clippy::print_stderr, reason = "a test that does not apply says why")]
    fn cgroup_includes_its_descendants() {
        let own = std::process::id();
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let Some(path) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else {
            return eprintln!("skipped: there is no default hierarchy of cgroups here");
        };
        let folder = tempfile::tempdir().unwrap();
        let hierarchy = folder.path().join("cgroup");
        let [inside, other] = [hierarchy.join(path), hierarchy.join("other")];
        fs::create_dir_all(&inside).unwrap();
        fs::create_dir_all(&other).unwrap();
        let of = |folder: &Path| {
            let id = CgroupId(fs::metadata(folder).unwrap().ino());
            only(ProcessMatcher::Cgroup { hierarchy: hierarchy.clone(), id }).allows(own)
        };
        assert!(of(&inside) && of(&hierarchy) && !of(&other));
        assert!(!of(folder.path()), "it contains the hierarchy");
    }
}
