//! Confinement of file writes to some folders (Landlock, Linux 5.13).
//!
//! A service without capabilities that runs as root still owns root's files. *Invariant*: afterwards
//! no thread that is created later opens, creates, truncates, renames or removes a file outside of
//! the folders. Files that are open stay usable, and reading is not confined.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus,
};

/// Newest version with rights that concern writing (Linux 6.2: truncate). An older kernel confines
/// what it knows.
const VERSION: ABI = ABI::V3;

/// Confines the calling thread and those that it will create. The error is the reason why it does not.
pub(super) fn confine(folders: &[PathBuf]) -> Result<(), String> {
    match restrict(folders) {
        Ok(RulesetStatus::NotEnforced) => Err("Landlock is not available".to_owned()),
        Ok(RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn restrict(folders: &[PathBuf]) -> Result<RulesetStatus, RulesetError> {
    let writes = AccessFs::from_write(VERSION);
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(writes)?;
    // A folder that does not exist is an error of its destination.
    let rules = folders.iter().filter_map(|folder| PathFd::new(existing(folder)).ok());
    let rules = rules.map(|folder| Ok::<_, RulesetError>(PathBeneath::new(folder, writes)));
    Ok(ruleset.create()?.add_rules(rules)?.restrict_self()?.ruleset)
}

/// Returns the folder; `.` for that of a bare file name.
fn existing(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_the_named_folder_can_be_written() {
        let [inside, outside] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let own = outside.path().join("own");
        fs::write(&own, "before").unwrap();
        let (folder, mine) = (inside.path().to_owned(), own.clone());
        let confined = std::thread::spawn(move || {
            if let Err(why) = confine(std::slice::from_ref(&folder)) {
                return Some(why);
            }
            fs::write(folder.join("partial"), "x").unwrap();
            fs::rename(folder.join("partial"), folder.join("whole")).unwrap();
            assert_eq!(fs::read_to_string(&mine).unwrap(), "before");
            for denied in
                [fs::write(&mine, "after"), fs::remove_file(&mine), fs::write(mine.with_extension("new"), "")]
            {
                assert_eq!(denied.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
            }
            None
        });
        match confined.join().unwrap() {
            Some(why) => assert_eq!(why, "Landlock is not available"),
            None => assert_eq!(fs::read_to_string(&own).unwrap(), "before"),
        }
    }
}
