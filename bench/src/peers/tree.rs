//! Copy of a tree of small files, until it is on the disk.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::workload::{LoadResult, Workload};
use crate::disk::DiskTarget;

/// Size of a file: less than a block, like most files of a source tree.
const FILE_BYTES: usize = 1024;
/// Number of files per folder.
const FOLDER_FILES: usize = 100;
/// Script that copies and syncs, and measures the time.
const SCRIPT: &str =
    r#"begin=$(date +%s%N); cp -r "$1" "$2"; sync -f "$2"; end=$(date +%s%N); echo $((end - begin)) > "$3""#;

pub(crate) struct Tree {
    place: DiskTarget,
    files: usize,
}

impl Tree {
    /// Prepares the workload; the tree is made on first use.
    pub(crate) fn new(place: DiskTarget, files: usize) -> Tree {
        Tree { place, files }
    }

    fn copy(&self) -> PathBuf {
        self.place.target.with_extension("copy")
    }

    fn make(&self) -> Result<()> {
        for file in 0..self.files {
            let folder = self.place.target.join((file / FOLDER_FILES).to_string());
            if file % FOLDER_FILES == 0 {
                fs::create_dir_all(&folder)?;
            }
            fs::write(folder.join(file.to_string()), [b'x'; FILE_BYTES])?;
        }
        Ok(())
    }
}

impl Workload for Tree {
    fn name(&self) -> String {
        format!("copy of {} files and sync, {}", self.files, self.place.name)
    }

    fn short(&self) -> String {
        "cp -r".to_owned()
    }

    fn unit(&self) -> &'static str {
        "files/s"
    }

    fn place(&self) -> &DiskTarget {
        &self.place
    }

    fn comm(&self) -> &'static str {
        "cp"
    }

    fn prepare(&mut self) -> Result<()> {
        if !self.place.target.exists() {
            self.make().context("cannot make a tree of files")?;
        }
        if self.copy().exists() {
            fs::remove_dir_all(self.copy()).context("cannot remove the last copy")?;
        }
        // Pending writes do not belong to this run.
        // SAFETY: no memory is passed.
        unsafe { libc::sync() };
        Ok(())
    }

    fn command(&self, output: &Path) -> Vec<String> {
        let words = ["sh".to_owned(), "-c".to_owned(), SCRIPT.to_owned(), "copy".to_owned()];
        let paths = [&self.place.target, &self.copy(), output].map(|path| path.display().to_string());
        words.into_iter().chain(paths).collect()
    }

    fn result(&mut self, output: &Path) -> Result<LoadResult> {
        let text = fs::read_to_string(output).context("the copy wrote no time")?;
        let ns: f64 = text.trim().parse().context("the copy wrote no time")?;
        Ok(LoadResult { ops: self.files as f64 / ns * 1e9, p99: f64::NAN })
    }
}
