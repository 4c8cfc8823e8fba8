//! Whose word is taken for what its threads publish.
//!
//! *In*: a process that is to be looked at. *Out*: whether it may have a place. *Invariant*: it is decided here, in user space and
//! before anything of the process is read: of one that is not believed there is no place, and its calls cost what those of a
//! process that publishes nothing cost.
//!
//! What is asked of a process is what it cannot say of itself: the user who started it (the real one: a program with the set-user-ID
//! bit runs with its owner's rights and what its starter gave it), the cgroup that it was put into, the file that it executes. It
//! is asked again when the tracer says that one of them changed (`TaskChange::Changed`), at execve, and of each process by
//! itself: a child that was forked may have become another user.
//!
//! *Weakness*: between a process's change and our look, some ms, it is believed as before. And what a file holds is no protection
//! where others can make it load theirs (`LD_PRELOAD`): an executable narrows what is looked at, a user or a cgroup protects.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use blkkin_wire::ids::CgroupId;

/// Who is believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Believed {
    /// Nobody: contexts are not read.
    Nobody,
    /// Whoever publishes one.
    #[default]
    Everybody,
    /// Who is one of these.
    These(Vec<Who>),
}

/// Some processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// Those that this user started.
    User(u32),
    /// Those in this cgroup, or in one below it.
    Cgroup {
        /// Where the default hierarchy is mounted.
        hierarchy: PathBuf,
        /// Its id.
        id: CgroupId,
    },
    /// Those that execute this file.
    Executable(PathBuf),
}

impl Believed {
    /// Whether anybody is.
    pub fn anybody(&self) -> bool {
        *self != Believed::Nobody
    }

    /// Whether this process is.
    pub(crate) fn believes(&self, pid: u32) -> bool {
        match self {
            Believed::Nobody => false,
            Believed::Everybody => true,
            Believed::These(these) => these.iter().any(|who| who.has(pid)),
        }
    }

    /// Whether what a process changes of itself may change the answer.
    pub(crate) fn depends(&self) -> bool {
        matches!(self, Believed::These(_))
    }
}

impl Who {
    fn has(&self, pid: u32) -> bool {
        match self {
            Who::User(user) => real_user(pid) == Some(*user),
            Who::Cgroup { hierarchy, id } => in_cgroup(pid, hierarchy, *id),
            // The link leads to the file itself, whatever name it has where the process lives.
            Who::Executable(path) => {
                let file = |path: &Path| Some(fs::metadata(path).ok()?).map(|file| (file.dev(), file.ino()));
                let own = file(Path::new(&format!("/proc/{pid}/exe")));
                own.is_some() && own == file(path)
            }
        }
    }
}

/// `Uid:` and the real, effective, saved and file system's user ids (proc_pid_status(5)).
fn real_user(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().next()?.parse().ok()
}

/// A cgroup's id is the number of its folder's inode; `0::/path` is the default hierarchy's (cgroups(7)).
fn in_cgroup(pid: u32, hierarchy: &Path, id: CgroupId) -> bool {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let Some(path) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else { return false };
    let folder = hierarchy.join(path);
    let above = folder.ancestors().take_while(|above| above.starts_with(hierarchy));
    above.filter_map(|folder| fs::metadata(folder).ok()).any(|folder| folder.ino() == id.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn these(who: Who) -> Believed {
        Believed::These(vec![who])
    }

    #[test]
    fn a_process_is_whose_it_is() {
        let own = std::process::id();
        // SAFETY: no preconditions.
        let user = unsafe { libc::getuid() };
        assert!(these(Who::User(user)).believes(own) && !these(Who::User(user + 1)).believes(own));
        let file = std::env::current_exe().unwrap();
        assert!(these(Who::Executable(file.clone())).believes(own));
        // Another name of the same file.
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(these(Who::Executable(link.clone())).believes(own));
        fs::remove_file(&link).unwrap();
        fs::copy(&file, &link).unwrap();
        assert!(!these(Who::Executable(link)).believes(own), "a copy is another file");
        assert!(!these(Who::Executable("/nowhere".into())).believes(own));
    }

    #[test]
    fn who_is_gone_is_nobody() {
        let believed = Believed::These(vec![Who::User(0), Who::Executable("/nowhere".into())]);
        assert!(!believed.believes(u32::MAX));
        assert!(!Believed::Nobody.believes(std::process::id()) && Believed::Everybody.believes(u32::MAX));
    }

    /// Folders that stand for a hierarchy: what counts is which folder has the number.
    #[test]
    #[allow(clippy::print_stderr, reason = "a test that does not apply says why")]
    fn a_cgroup_has_what_is_below_it() {
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
            these(Who::Cgroup { hierarchy: hierarchy.clone(), id }).believes(own)
        };
        assert!(of(&inside) && of(&hierarchy) && !of(&other));
        assert!(!of(folder.path()), "it is above the hierarchy");
    }
}
