//! Mapping files inside the binary: `--probes postgresql`.
//!
//! *In*: the value of `--probes`, and the programs that run. *Out*: the text of a mapping file, and for one inside the
//! binary the program that has its probes. *Invariant*: a value that is the path of a file is that file. blkkin does not
//! choose between programs: if several of one name run, the user names one.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use blkkin_qemu::processes;

/// Names and texts.
const MAPPINGS: [(&str, &str); 1] =
    [("postgresql", include_str!("../../../../configs/mappings/postgresql.toml"))];

/// Returns the text of the mapping inside the binary that `value` names; `None` for the path of a file.
pub(super) fn text(value: &Path) -> Option<&'static str> {
    let (_, text) = MAPPINGS.into_iter().find(|(name, _)| Path::new(name) == value)?;
    (!value.exists()).then_some(text)
}

/// Returns the names of the mappings inside the binary.
pub(super) fn names() -> String {
    MAPPINGS.map(|(name, _)| name).join(", ")
}

/// Returns the executables of the running processes whose executable has the file name of `program`: each file once,
/// by a path that this process can open.
pub(super) fn running(program: &Path) -> Vec<PathBuf> {
    let mut found = BTreeMap::new();
    for pid in processes(Path::new("/")).into_iter().flatten() {
        let process = Path::new("/proc").join(pid.to_string());
        let Ok(path) = fs::read_link(process.join("exe")) else { continue };
        if path.file_name() != program.file_name() {
            continue;
        }
        let Ok(file) = fs::metadata(process.join("exe")) else { continue };
        let identity = |file: &fs::Metadata| (file.dev(), file.ino());
        // A process in a container has another root.
        let here = fs::metadata(&path).is_ok_and(|here| identity(&here) == identity(&file));
        let inside = || process.join("root").join(path.strip_prefix("/").unwrap_or(&path));
        found.entry(identity(&file)).or_insert_with(|| if here { path.clone() } else { inside() });
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_running_program_is_found_once_by_its_file_name() {
        let own = fs::read_link("/proc/self/exe").unwrap();
        assert_eq!(running(&Path::new("/another/folder").join(own.file_name().unwrap())), [own]);
        assert!(running(Path::new("/usr/bin/no-such-program")).is_empty());
    }

    #[test]
    fn a_file_with_the_name_of_a_mapping_is_that_file() {
        assert!(text(Path::new("postgresql")).unwrap().contains("postgresql:statement__status"));
        assert_eq!(text(Path::new("./postgresql")), None);
        assert_eq!(text(Path::new("mysql")), None);
    }
}
