//! Spool of batches on disk while Kafka is unreachable: first in, first out, with a size limit.
//!
//! ```text
//! FOLDER/00000007.batches   oldest file, read and acknowledged from its front
//! FOLDER/00000008.batches   newest file, written at its end
//! FOLDER/replayed           acknowledged position
//! FOLDER/lock               locked by the process that uses the spool
//! ```
//!
//! The files have the format of [`crate::recording`].
//!
//! *In*: encoded batches. *Out*: the same batches in order, those of an earlier process first; each
//! stays until it is acknowledged. *Invariant*: every appended batch is delivered, unless its
//! checksum shows damage, which is counted. The spool never exceeds its limit.
//!
//! *A killed process* loses no appended batch: the page cache belongs to the kernel. The next
//! process delivers batches again whose acknowledgement was not saved. They have the same sequence,
//! so consumers drop the duplicates.
//!
//! *A machine that goes down* loses batches that were not written back. The spool does not sync
//! while it runs: an fsync would queue behind the traced load and be traced itself. The kernel
//! writes back data older than 30 s (vm.dirty_expire_centisecs), so up to 30 s of batches are at
//! risk; [`Spool::sync`] is for an orderly shutdown. Files acknowledged within that time are
//! removed before the kernel writes them to disk.
//!
//! *Removal* is by file, once all its batches are acknowledged. The newest file is replaced after
//! `REPLACE_AGE` or `REPLACE_BYTES` when all of it is acknowledged, so a spool without backlog
//! stays small.
//!
//! *Rejected*: one circular file (its truncated end could be anywhere); an index file (a second
//! file that may be corrupt); memory first and disk when it is full (a kill would lose an unknown
//! number of batches).

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::recording::{
    ENTRY_MAX, FILE_MAX, FileEntry, HEADER, Position, decode_entry, encode_entry, file_name, file_numbers,
    progress, save_progress,
};

/// Number of files that the limit is divided into: one file's share is freed at once.
const FILES: u64 = 16;
/// Age or size at which a fully acknowledged file is replaced.
const REPLACE_AGE: Duration = Duration::from_secs(5);
const REPLACE_BYTES: u64 = 1 << 20;
/// Smallest limit: room for a few of the longest records.
pub const BYTES_MIN: u64 = 4 << 20;

/// Content of a spool, and totals since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoolStats {
    /// Size of its files in bytes.
    pub bytes: u64,
    /// Unacknowledged batches.
    pub batches: u64,
    /// Modification time of the oldest file with an unacknowledged batch.
    pub oldest: Option<SystemTime>,
    /// Batches recovered from an earlier process.
    pub recovered: u64,
    /// Batches appended.
    pub written: u64,
    /// Batches read from a file. A batch that is appended while the spool is empty is delivered
    /// from memory.
    pub read_back: u64,
    /// Batches that cannot be read: truncated, damaged, or behind such a batch in the same file.
    pub corrupt: u64,
}

/// Reason why a batch was not appended.
#[derive(Debug)]
pub enum AppendError {
    /// The spool has reached its size limit.
    Full,
    /// The disk returned an error.
    Failed(io::Error),
}

/// File of the spool.
#[derive(Debug)]
struct Segment {
    number: u64,
    /// Bytes of complete entries.
    bytes: u64,
    /// Complete entries that are not acknowledged, and those of them that were delivered.
    waiting: u64,
    delivered: u64,
    /// Creation time.
    since: SystemTime,
}

impl Segment {
    fn end(&self) -> Position {
        Position { file: self.number, offset: self.bytes }
    }
}

/// Open spool.
#[derive(Debug)]
pub struct Spool {
    folder: PathBuf,
    _lock: File,
    bytes_max: u64,
    /// Oldest first.
    segments: VecDeque<Segment>,
    /// Number of the next file.
    next_number: u64,
    /// Writer of the newest segment, if this process created it.
    writer: Option<File>,
    reader: Option<(u64, BufReader<File>)>,
    /// Position of the next read.
    next: Position,
    /// Acknowledged position, and the part of it that is saved.
    acknowledged: Position,
    saved_progress: Position,
    last: Option<Vec<u8>>,
    counts: SpoolStats,
}

impl Spool {
    /// Opens the folder, and creates it if necessary. Returns `None` if another process uses it.
    pub fn open(folder: &Path, bytes_max: u64) -> io::Result<Option<Spool>> {
        // File names and contents show which files were accessed, so only the owner may read them.
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let lock = private().write(true).create(true).truncate(false).open(folder.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let saved = progress(folder);
        let mut spool = Spool {
            folder: folder.to_owned(),
            _lock: lock,
            bytes_max: bytes_max.max(BYTES_MIN),
            segments: VecDeque::new(),
            next_number: saved.file + 1,
            writer: None,
            reader: None,
            next: saved,
            acknowledged: saved,
            saved_progress: saved,
            last: None,
            counts: SpoolStats::default(),
        };
        for number in file_numbers(folder)? {
            spool.recover_segment(number)?;
        }
        spool.counts.recovered = spool.segments.iter().map(|segment| segment.waiting).sum();
        spool.remove_acknowledged()?;
        Ok(Some(spool))
    }

    /// Returns the last complete batch of an earlier process.
    pub fn last_recovered(&self) -> Option<&[u8]> {
        self.last.as_deref()
    }

    /// Appends a batch, and returns the position behind it.
    pub fn append(&mut self, batch: &[u8]) -> Result<Position, AppendError> {
        if self.bytes() + HEADER + batch.len() as u64 > self.bytes_max {
            return Err(AppendError::Full);
        }
        let entry = encode_entry(batch);
        let full = |segment: &Segment, limit: u64| segment.bytes >= limit;
        let limit = (self.bytes_max / FILES).min(FILE_MAX);
        if self.segments.back().is_some_and(|segment| full(segment, limit)) {
            self.writer = None;
        }
        if self.writer.is_none() {
            self.begin_segment().map_err(AppendError::Failed)?;
        }
        let (Some(file), Some(segment)) = (&mut self.writer, self.segments.back_mut()) else {
            return Err(AppendError::Failed(io::ErrorKind::NotFound.into()));
        };
        if let Err(error) = file.write_all(&entry) {
            // Truncate the partial entry. If that fails, no entry follows it in this file, since a
            // reader stops there.
            if file.set_len(segment.bytes).is_err() {
                self.writer = None;
            }
            return Err(AppendError::Failed(error));
        }
        segment.bytes += entry.len() as u64;
        segment.waiting += 1;
        self.counts.written += 1;
        Ok(Position { file: segment.number, offset: segment.bytes })
    }

    /// Returns whether every batch was read.
    pub fn all_read(&self) -> bool {
        let last = self.segments.iter().rfind(|segment| segment.bytes > 0);
        last.is_none_or(|last| last.end() <= self.next)
    }

    /// Skips the batch appended last, which the caller still has in memory. Only valid if all
    /// before it were read.
    pub fn skip_to(&mut self, behind: Position) {
        (self.next, self.reader) = (behind, None);
        self.count_delivered(behind.file);
    }

    /// Reads the next batch, and returns it with the position behind it; `None` if all were read.
    pub fn read(&mut self) -> io::Result<Option<(Vec<u8>, Position)>> {
        loop {
            let Some(segment) = self.segments.iter().find(|segment| segment.number >= self.next.file) else {
                return Ok(None);
            };
            let (number, bytes) = (segment.number, segment.bytes);
            if number != self.next.file {
                self.next = Position { file: number, offset: 0 };
            }
            if self.next.offset >= bytes {
                if self.segments.back().is_some_and(|last| last.number == number) {
                    return Ok(None);
                }
                self.next = Position { file: number + 1, offset: 0 };
                continue;
            }
            match decode_entry(self.reader(number)?)? {
                FileEntry::Batch(batch) => {
                    self.next.offset += HEADER + batch.len() as u64;
                    self.counts.read_back += 1;
                    self.count_delivered(number);
                    return Ok(Some((batch, self.next)));
                }
                FileEntry::End | FileEntry::Damaged => self.abandon(number),
            }
        }
    }

    /// Reads delivered but unacknowledged batches again.
    pub fn rewind(&mut self) {
        (self.next, self.reader) = (self.acknowledged, None);
        self.segments.iter_mut().for_each(|segment| segment.delivered = 0);
    }

    /// Acknowledges all batches up to a position. Positions must be acknowledged in order.
    pub fn acknowledge(&mut self, behind: Position) -> io::Result<()> {
        self.acknowledged = behind;
        if let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == behind.file) {
            segment.waiting = segment.waiting.saturating_sub(1);
            segment.delivered = segment.delivered.saturating_sub(1);
        }
        self.remove_acknowledged()
    }

    /// Saves the acknowledged position if it has changed.
    pub fn save_progress(&mut self) -> io::Result<()> {
        if self.saved_progress != self.acknowledged {
            save_progress(&self.folder, self.acknowledged)?;
            self.saved_progress = self.acknowledged;
        }
        Ok(())
    }

    /// Saves the acknowledged position, and syncs all files to disk.
    pub fn sync(&mut self) -> io::Result<()> {
        self.save_progress()?;
        for segment in &self.segments {
            File::open(self.folder.join(file_name(segment.number)))?.sync_all()?;
        }
        File::open(&self.folder)?.sync_all()
    }

    /// Returns content and totals.
    pub fn stats(&self) -> SpoolStats {
        let waiting = |segment: &&Segment| segment.waiting > 0;
        SpoolStats {
            bytes: self.bytes(),
            batches: self.segments.iter().map(|segment| segment.waiting).sum(),
            oldest: self.segments.iter().find(waiting).map(|segment| segment.since),
            ..self.counts
        }
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Scans a file of an earlier process.
    fn recover_segment(&mut self, number: u64) -> io::Result<()> {
        self.next_number = self.next_number.max(number + 1);
        if number < self.saved_progress.file {
            // Fully acknowledged; the earlier process had no time to remove it.
            return fs::remove_file(self.folder.join(file_name(number)));
        }
        let file = File::open(self.folder.join(file_name(number)))?;
        let (metadata, mut reader) = (file.metadata()?, BufReader::new(file));
        let since = metadata.created().or_else(|_| metadata.modified())?;
        let saved = if number == self.saved_progress.file { self.saved_progress.offset } else { 0 };
        let mut segment = Segment { number, bytes: 0, waiting: 0, delivered: 0, since };
        let mut last = None;
        loop {
            let mut header = [0; HEADER as usize];
            let read = read_up_to(&mut reader, &mut header)?;
            let [a, b, c, d, ..] = header;
            let length = u32::from_le_bytes([a, b, c, d]);
            let end = segment.bytes + HEADER + u64::from(length);
            match read {
                0 => break,
                8 if length <= ENTRY_MAX && end <= metadata.len() => {}
                _ => {
                    self.counts.corrupt += 1;
                    break;
                }
            }
            last = Some(segment.bytes);
            reader.seek_relative(i64::from(length))?;
            segment.bytes = end;
            segment.waiting += u64::from(end > saved);
        }
        if let Some(at) = last {
            reader.seek(SeekFrom::Start(at))?;
            if let FileEntry::Batch(batch) = decode_entry(&mut reader)? {
                self.last = Some(batch);
            }
        }
        self.segments.push_back(segment);
        Ok(())
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        let number = self.next_number;
        let file = private().create_new(true).append(true).open(self.folder.join(file_name(number)))?;
        self.next_number += 1;
        self.segments.push_back(Segment {
            number,
            bytes: 0,
            waiting: 0,
            delivered: 0,
            since: SystemTime::now(),
        });
        self.writer = Some(file);
        Ok(())
    }

    fn reader(&mut self, number: u64) -> io::Result<&mut BufReader<File>> {
        if self.reader.as_ref().is_none_or(|(of, _)| *of != number) {
            let mut reader = BufReader::new(File::open(self.folder.join(file_name(number)))?);
            reader.seek(SeekFrom::Start(self.next.offset))?;
            self.reader = Some((number, reader));
        }
        match &mut self.reader {
            Some((_, reader)) => Ok(reader),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn count_delivered(&mut self, number: u64) {
        if let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == number) {
            segment.delivered += 1;
        }
    }

    /// Abandons the rest of a damaged file: the start of the next entry is unknown.
    fn abandon(&mut self, number: u64) {
        self.reader = None;
        if self.segments.back().is_some_and(|last| last.number == number) {
            self.writer = None;
        }
        if let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == number) {
            // Delivered batches still wait for their acknowledgement; the rest is dropped.
            segment.bytes = self.next.offset;
            self.counts.corrupt += segment.waiting - segment.delivered;
            segment.waiting = segment.delivered;
        }
    }

    /// Removes files without unacknowledged batches.
    fn remove_acknowledged(&mut self) -> io::Result<()> {
        while let Some(front) = self.segments.front() {
            let done = front.bytes == 0 || front.end() <= self.acknowledged;
            let is_written = self.writer.is_some() && self.segments.len() == 1;
            let is_old = || front.since.elapsed().is_ok_and(|age| age >= REPLACE_AGE);
            if !done || is_written && front.bytes < REPLACE_BYTES && !is_old() {
                return Ok(());
            }
            if is_written {
                self.writer = None;
            }
            fs::remove_file(self.folder.join(file_name(front.number)))?;
            self.segments.pop_front();
        }
        Ok(())
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

/// Reads until the buffer is full or the file ends.
fn read_up_to(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match reader.read(&mut buffer[read..]) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

#[cfg(test)]
#[path = "spool_tests.rs"]
mod tests;
