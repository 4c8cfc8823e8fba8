//! A file that is a JSON list at every moment, and gets its final name when it is whole.
//!
//! *In*: spans with separators between them. *Out*: the file `X.partial` while it grows, `X` in its place when
//! it is published. *Invariant*: `X` is what it was before, or whole. `X.partial` is a valid list after each
//! append: each write goes over the closing bracket of the one before and ends with its own, so a process that
//! is killed leaves all spans up to the last append.
//!
//! `X.partial` is locked while it is written: two runs with one target would mix their spans, and the second is
//! told so. What a killed run left behind is not locked, and the next run with this target writes over it.
//!
//! A file can also be *resumed*: what `X` or a killed run's `X.partial` holds stays, and what comes is put behind it. A run
//! that was killed inside a write leaves a span in part: the file is cut behind the last one that is whole.
//!
//! *Rejected*: an anonymous file that is linked at the end leaves nothing of a killed run; a name with the
//! process id leaves one file for each killed run, for ever.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::batch::SEPARATOR;

const OPENING: &[u8] = b"[";
const CLOSING: &[u8] = b"\n]\n";
/// Times that another run may publish its file between our opening of it and our lock.
const OPEN_ATTEMPTS_MAX: u32 = 8;
/// Bytes that are looked at in one go for the end of what a killed run has written.
const LOOK_BACK: u64 = 64 << 10;

/// Why a file cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Something else than a file has that name.
    #[error("{0} is not a regular file; name a file to be made")]
    NotAFile(PathBuf),
    /// Another run has the same target.
    #[error("another run is writing {0}; give each run a file of its own")]
    Busy(PathBuf),
    /// Which of them goes on is not ours to say.
    #[error("{whole} and {partial} both hold spans; move one of them away")]
    Both {
        /// The file of that name.
        whole: PathBuf,
        /// What a run left that had not ended.
        partial: PathBuf,
    },
    /// The system refuses.
    #[error("cannot write {path}: {error}; name a file in a directory that exists and is yours")]
    Refused {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

pub(crate) struct PartialFile {
    file: File,
    path: PathBuf,
    target: PathBuf,
    /// Where the closing bracket stands.
    end: u64,
    new: bool,
    /// Each append waits for the disk.
    durable: bool,
}

impl PartialFile {
    pub(crate) fn open(target: &Path) -> Result<PartialFile, FileError> {
        let mut partial = PartialFile::unwritten(target)?;
        partial.begin().map_err(|error| FileError::Refused { path: partial.path.clone(), error })?;
        Ok(partial)
    }

    fn unwritten(target: &Path) -> Result<PartialFile, FileError> {
        let target = final_target(target)?;
        let mut name = target.file_name().ok_or_else(|| FileError::NotAFile(target.clone()))?.to_owned();
        name.push(".partial");
        let path = target.with_file_name(name);
        let file = open_locked(&path)?;
        Ok(PartialFile { file, path, target, end: 0, new: true, durable: false })
    }

    /// Goes on behind what a run before has written, if there was one. Each append is on the disk when it comes back.
    pub(crate) fn resume(target: &Path) -> Result<PartialFile, FileError> {
        let mut partial = PartialFile::unwritten(target)?;
        let refused = |path: &Path, error| FileError::Refused { path: path.to_owned(), error };
        let left = partial.file.metadata().map_err(|error| refused(&partial.path, error))?.len();
        if partial.target.exists() {
            if left > 0 {
                return Err(FileError::Both { whole: partial.target, partial: partial.path });
            }
            // The lock is on the empty file that is replaced here, so it is taken anew.
            fs::rename(&partial.target, &partial.path).map_err(|error| refused(&partial.target, error))?;
            partial.file = open_locked(&partial.path)?;
        }
        partial.durable = true;
        let gone_on = partial.go_on();
        gone_on.map_err(|error| refused(&partial.path, error))?;
        Ok(partial)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds `spans`: JSON objects with separators between them. After an error the file is a list of what was
    /// there before.
    pub(crate) fn append(&mut self, spans: &[u8]) -> io::Result<()> {
        let before: &[u8] = if self.new { b"\n" } else { SEPARATOR };
        let mut bytes = Vec::with_capacity(before.len() + spans.len() + CLOSING.len());
        bytes.extend_from_slice(before);
        bytes.extend_from_slice(spans);
        bytes.extend_from_slice(CLOSING);
        let written = self.file.write_all_at(&bytes, self.end);
        let kept = written.and_then(|()| if self.durable { self.file.sync_data() } else { Ok(()) });
        if let Err(error) = kept {
            self.close_again();
            return Err(error);
        }
        self.end += (before.len() + spans.len()) as u64;
        self.new = false;
        Ok(())
    }

    /// Gives the file its final name, once its bytes are on the disk: a crash of the machine leaves no empty
    /// file of that name either.
    pub(crate) fn publish(self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, &self.target)
    }

    /// For tests: another file in the place of this one.
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

    /// Finds the end of the last span that is whole: the last `}` at the end of a line, with or without a comma.
    fn go_on(&mut self) -> io::Result<()> {
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
            // What ends a span may begin before this block.
            tail = block[..block.len().min(2)].to_vec();
            until = from;
        }
        self.begin()
    }

    /// Puts the closing bracket back over what was written in part. It fits where one has been; should it fail
    /// all the same, the error of the write is the one to tell.
    fn close_again(&self) {
        let _ = self.file.write_all_at(CLOSING, self.end);
        let _ = self.file.set_len(self.end + CLOSING.len() as u64);
    }
}

/// Behind the last `}` that is followed by a line's end.
fn last_span_end(block: &[u8]) -> Option<usize> {
    let ends = |at: &usize| block[*at..].starts_with(b"}\n") || block[*at..].starts_with(b"},\n");
    (0..block.len()).rev().find(ends).map(|at| at + 1)
}

/// The file that is meant: a link is followed, so that it stays one.
fn final_target(target: &Path) -> Result<PathBuf, FileError> {
    let refused = |error| FileError::Refused { path: target.to_owned(), error };
    match fs::metadata(target) {
        Ok(metadata) if !metadata.is_file() => Err(FileError::NotAFile(target.to_owned())),
        Ok(_) => fs::canonicalize(target).map_err(refused),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(target.to_owned()),
        Err(error) => Err(refused(error)),
    }
}

fn open_locked(path: &Path) -> Result<File, FileError> {
    let refused = |error| FileError::Refused { path: path.to_owned(), error };
    for _ in 0..OPEN_ATTEMPTS_MAX {
        // Not truncated before it is ours.
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
        // The run that held the lock may have given the file its final name meanwhile.
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
#[path = "partial_tests.rs"]
mod tests;
