//! File that is a JSON list at every moment, and gets its final name when it is complete.
//!
//! *In*: spans with separators between them. *Out*: the file `X.partial` while it grows, renamed to
//! `X` when it is published. *Invariant*: `X` is unchanged or complete. `X.partial` is a valid list
//! after each append: each write overwrites the previous closing bracket and ends with its own. A
//! killed process leaves all spans up to its last append.
//!
//! `X.partial` is locked while it is written. Two runs with one target would mix their spans, so
//! the second one gets an error. The leftover of a killed run is not locked, and the next run with
//! this target overwrites it.
//!
//! A file can also be *resumed*: the content of `X`, or of a killed run's `X.partial`, stays, and
//! new spans are appended. A run that was killed inside a write leaves a partial span: the file is
//! truncated after the last complete span.
//!
//! *Rejected*: an anonymous file that is linked at the end (a killed run leaves nothing); a name
//! with the process id (each killed run leaves a file for ever).

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::batch::SEPARATOR;

const OPENING: &[u8] = b"[";
const CLOSING: &[u8] = b"\n]\n";
/// Maximum number of times that another run publishes its file between open and lock.
const OPEN_ATTEMPTS_MAX: u32 = 8;
/// Bytes read at a time when searching for the end of a killed run's output.
const LOOK_BACK: u64 = 64 << 10;

/// Reason why a file cannot be opened for spans.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The path is not a regular file.
    #[error("{0} is not a regular file; name a file to create")]
    NotAFile(PathBuf),
    /// Another run has the same target.
    #[error("another run is writing {0}; give each run a file of its own")]
    Busy(PathBuf),
    /// Two files hold spans, and the caller has to choose.
    #[error("{whole} and {partial} both hold spans; move one of them away")]
    Conflict {
        /// Complete file.
        whole: PathBuf,
        /// Partial file of a run that did not end.
        partial: PathBuf,
    },
    /// The operating system reports an error.
    #[error("cannot write {path}: {error}; name a file in a directory that exists and is yours")]
    Io {
        /// File.
        path: PathBuf,
        /// Error.
        error: io::Error,
    },
}

pub(crate) struct AtomicJsonFile {
    file: File,
    path: PathBuf,
    target: PathBuf,
    /// Offset of the closing bracket.
    end: u64,
    new: bool,
    /// Sync after each append.
    durable: bool,
}

impl AtomicJsonFile {
    pub(crate) fn open(target: &Path) -> Result<AtomicJsonFile, FileError> {
        let mut partial = AtomicJsonFile::locked(target)?;
        partial.begin().map_err(|error| FileError::Io { path: partial.path.clone(), error })?;
        Ok(partial)
    }

    fn locked(target: &Path) -> Result<AtomicJsonFile, FileError> {
        let target = final_target(target)?;
        let mut name = target.file_name().ok_or_else(|| FileError::NotAFile(target.clone()))?.to_owned();
        name.push(".partial");
        let path = target.with_file_name(name);
        let file = open_locked(&path)?;
        Ok(AtomicJsonFile { file, path, target, end: 0, new: true, durable: false })
    }

    /// Continues the file of an earlier run, if there is one. Each append is on disk when it
    /// returns.
    pub(crate) fn resume(target: &Path) -> Result<AtomicJsonFile, FileError> {
        let mut partial = AtomicJsonFile::locked(target)?;
        let refused = |path: &Path, error| FileError::Io { path: path.to_owned(), error };
        let length = partial.file.metadata().map_err(|error| refused(&partial.path, error))?.len();
        if partial.target.exists() {
            if length > 0 {
                return Err(FileError::Conflict { whole: partial.target, partial: partial.path });
            }
            // The lock is on the empty file that is replaced here, so it is acquired again.
            fs::rename(&partial.target, &partial.path).map_err(|error| refused(&partial.target, error))?;
            partial.file = open_locked(&partial.path)?;
        }
        partial.durable = true;
        let found = partial.find_end();
        found.map_err(|error| refused(&partial.path, error))?;
        Ok(partial)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends `spans`: JSON objects with separators between them. After an error the file is the
    /// list that it was before.
    pub(crate) fn append(&mut self, spans: &[u8]) -> io::Result<()> {
        let before: &[u8] = if self.new { b"\n" } else { SEPARATOR };
        let mut bytes = Vec::with_capacity(before.len() + spans.len() + CLOSING.len());
        bytes.extend_from_slice(before);
        bytes.extend_from_slice(spans);
        bytes.extend_from_slice(CLOSING);
        let written = self.file.write_all_at(&bytes, self.end);
        let synced = written.and_then(|()| if self.durable { self.file.sync_data() } else { Ok(()) });
        if let Err(error) = synced {
            self.close_again();
            return Err(error);
        }
        self.end += (before.len() + spans.len()) as u64;
        self.new = false;
        Ok(())
    }

    /// Gives the file its final name once its bytes are on disk, so a machine crash does not leave
    /// an empty file of that name.
    pub(crate) fn publish(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, &self.target)
    }

    /// Replaces the file, for tests.
    #[cfg(test)]
    pub(crate) fn replace_file(&mut self, file: File) {
        self.file = file;
    }

    fn begin(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.write_all_at(&[OPENING, CLOSING].concat(), 0)?;
        self.end = OPENING.len() as u64;
        Ok(())
    }

    /// Finds the end of the last complete span: the last `}` at the end of a line, with or without
    /// a comma.
    fn find_end(&mut self) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        let (mut until, mut tail) = (length, Vec::new());
        while until > 0 {
            let from = until.saturating_sub(LOOK_BACK);
            let mut block = vec![0; (until - from) as usize];
            self.file.read_exact_at(&mut block, from)?;
            block.extend_from_slice(&tail);
            if let Some(end) = last_span_end(&block) {
                (self.end, self.new) = (from + end as u64, false);
                self.close_again();
                return Ok(());
            }
            // The end of a span can begin before this block.
            tail = block[..block.len().min(2)].to_vec();
            until = from;
        }
        self.begin()
    }

    /// Restores the closing bracket over a partial write. It fits where one has been. If this fails
    /// too, the error of the write is the one to report.
    fn close_again(&self) {
        let _ = self.file.write_all_at(CLOSING, self.end);
        let _ = self.file.set_len(self.end + CLOSING.len() as u64);
    }
}

/// Returns the offset after the last `}` that is followed by a newline.
fn last_span_end(block: &[u8]) -> Option<usize> {
    let is_end = |at: &usize| block[*at..].starts_with(b"}\n") || block[*at..].starts_with(b"},\n");
    (0..block.len()).rev().find(is_end).map(|at| at + 1)
}

/// Returns the target file. Follows a symbolic link, so that the link is preserved.
fn final_target(target: &Path) -> Result<PathBuf, FileError> {
    let refused = |error| FileError::Io { path: target.to_owned(), error };
    match fs::metadata(target) {
        Ok(metadata) if !metadata.is_file() => Err(FileError::NotAFile(target.to_owned())),
        Ok(_) => fs::canonicalize(target).map_err(refused),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(target.to_owned()),
        Err(error) => Err(refused(error)),
    }
}

fn open_locked(path: &Path) -> Result<File, FileError> {
    let refused = |error| FileError::Io { path: path.to_owned(), error };
    for _ in 0..OPEN_ATTEMPTS_MAX {
        // Do not truncate before the lock is held.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(refused)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FileError::Busy(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(refused(error)),
        }
        // The previous holder of the lock may have renamed the file to its final name.
        if is_still_at(&file, path).map_err(refused)? {
            return Ok(file);
        }
    }
    Err(FileError::Busy(path.to_owned()))
}

fn is_still_at(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[path = "atomic_json_file_tests.rs"]
mod tests;
