//! Batches on their way to a cluster, in a folder: first in, first out, within a bound.
//!
//! ```text
//! FOLDER/00000007.batches   as crate::recording has them      the oldest, read and acknowledged from its front
//! FOLDER/00000008.batches   …                                 the newest, written at its end
//! FOLDER/replayed           how far all is acknowledged
//! FOLDER/lock               locked by whoever uses it
//! ```
//!
//! *In*: encoded batches, appended. *Out*: the same in their order, those that an earlier process has left first; each stays
//! until it is acknowledged. *Invariant*: what was appended is given out, unless it is damaged, which is found by its checksum and
//! counted; nothing is appended beyond the bound.
//!
//! *A process that is killed* loses nothing that was appended: the pages are the kernel's. What it had not noted as acknowledged
//! is given out again by the next, with the same sequence, and dropped by that wherever it is read.
//!
//! *A machine that goes down* loses what was not written back. Nothing is synced while it runs: an fsync would wait behind the
//! very load that is traced, and be traced. The kernel writes back what is older than 30 s (vm.dirty_expire_centisecs), so
//! this is what is at stake; [`Spool::sync`] is for an orderly end. Files that are acknowledged within that time are removed before
//! anybody writes them to a disk.
//!
//! *Removal* is by file: a file goes once all of it is acknowledged, and the newest is given up for a new one so soon
//! (`RENEW_AFTER`) that a spool in whose front everything is acknowledged at once stays small.
//!
//! *Rejected*: one file used in a circle (its torn end could be anywhere), an index beside the files (a second thing that may be
//! torn; the entries' lengths are one), memory first and the folder only when that is full (a kill then loses what was in
//! memory, and nobody can say what of it had arrived).

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::recording::{
    ENTRY_MAX, Entry, FILE_MAX, HEAD, Position, entry, framed, name, note_progress, numbers, progress,
};

/// Parts of the bound that a file is at the most: so much is free again at once.
const PARTS: u64 = 16;
/// A file in which all is acknowledged is given up once it is so old or so long.
const RENEW_AFTER: Duration = Duration::from_secs(5);
const RENEW_BYTES: u64 = 1 << 20;
/// Room for a few of the longest records.
pub const BYTES_MIN: u64 = 4 << 20;

/// What is in a spool, and what went through it since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoolCounts {
    /// Bytes of its files.
    pub bytes: u64,
    /// Batches that are not acknowledged.
    pub batches: u64,
    /// Since when the oldest file that has such a batch is there.
    pub oldest: Option<SystemTime>,
    /// Batches that an earlier process had left.
    pub found: u64,
    /// Batches appended.
    pub written: u64,
    /// Batches read from a file. What is appended while nothing waits is given out as it is, and not read.
    pub read_back: u64,
    /// Batches that cannot be read: cut short, damaged, or behind such a one in the same file.
    pub torn: u64,
}

/// Why a batch was not appended.
#[derive(Debug)]
pub enum Refused {
    /// The bound is reached.
    Full,
    /// The folder's disk does not take it.
    Failed(io::Error),
}

#[derive(Debug)]
struct Segment {
    number: u64,
    /// Of whole entries.
    bytes: u64,
    /// Whole entries that are not acknowledged, and those of them that were given out.
    waiting: u64,
    given: u64,
    since: SystemTime,
}

impl Segment {
    fn end(&self) -> Position {
        Position { file: self.number, offset: self.bytes }
    }
}

/// A spool that is open.
#[derive(Debug)]
pub struct Spool {
    folder: PathBuf,
    _lock: File,
    bytes_max: u64,
    /// Oldest first.
    segments: VecDeque<Segment>,
    /// The number of the next file.
    next_number: u64,
    /// The newest segment, if it is ours to write.
    writer: Option<File>,
    reader: Option<(u64, BufReader<File>)>,
    /// What is read next.
    next: Position,
    /// Up to here all is acknowledged, and so much of it is noted.
    acknowledged: Position,
    noted: Position,
    last: Option<Vec<u8>>,
    counts: SpoolCounts,
}

impl Spool {
    /// Opens the folder, and makes it if it has to. None where somebody else uses it.
    pub fn open(folder: &Path, bytes_max: u64) -> io::Result<Option<Spool>> {
        // Whose files were read and written is nobody's business.
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let lock = private().write(true).create(true).truncate(false).open(folder.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let noted = progress(folder);
        let mut spool = Spool {
            folder: folder.to_owned(),
            _lock: lock,
            bytes_max: bytes_max.max(BYTES_MIN),
            segments: VecDeque::new(),
            next_number: noted.file + 1,
            writer: None,
            reader: None,
            next: noted,
            acknowledged: noted,
            noted,
            last: None,
            counts: SpoolCounts::default(),
        };
        for number in numbers(folder)? {
            spool.take_over(number)?;
        }
        spool.counts.found = spool.segments.iter().map(|segment| segment.waiting).sum();
        spool.remove_acknowledged()?;
        Ok(Some(spool))
    }

    /// The last whole batch that an earlier process has left.
    pub fn last_found(&self) -> Option<&[u8]> {
        self.last.as_deref()
    }

    /// Puts a batch behind all others; the place behind it.
    pub fn append(&mut self, batch: &[u8]) -> Result<Position, Refused> {
        if self.bytes() + HEAD + batch.len() as u64 > self.bytes_max {
            return Err(Refused::Full);
        }
        let entry = framed(batch);
        let full = |segment: &Segment, most: u64| segment.bytes >= most;
        let most = (self.bytes_max / PARTS).min(FILE_MAX);
        if self.segments.back().is_some_and(|segment| full(segment, most)) {
            self.writer = None;
        }
        if self.writer.is_none() {
            self.begin_segment().map_err(Refused::Failed)?;
        }
        let (Some(file), Some(segment)) = (&mut self.writer, self.segments.back_mut()) else {
            return Err(Refused::Failed(io::ErrorKind::NotFound.into()));
        };
        if let Err(error) = file.write_all(&entry) {
            // What was written of it goes; if it does not go, nothing more is written behind it, and who reads stops before it.
            if file.set_len(segment.bytes).is_err() {
                self.writer = None;
            }
            return Err(Refused::Failed(error));
        }
        segment.bytes += entry.len() as u64;
        segment.waiting += 1;
        self.counts.written += 1;
        Ok(Position { file: segment.number, offset: segment.bytes })
    }

    /// Whether there is nothing to read.
    pub fn all_read(&self) -> bool {
        let last = self.segments.iter().rfind(|segment| segment.bytes > 0);
        last.is_none_or(|last| last.end() <= self.next)
    }

    /// What was appended last need not be read: whoever appended it has it. Only while all before it was read.
    pub fn skip_to(&mut self, behind: Position) {
        (self.next, self.reader) = (behind, None);
        self.given_out(behind.file);
    }

    /// The next batch, and the place behind it; none where all was read.
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
            match entry(self.reader(number)?)? {
                Entry::Batch(batch) => {
                    self.next.offset += HEAD + batch.len() as u64;
                    self.counts.read_back += 1;
                    self.given_out(number);
                    return Ok(Some((batch, self.next)));
                }
                Entry::End | Entry::Damaged => self.give_up(number),
            }
        }
    }

    /// What was given out and is not acknowledged is read again.
    pub fn rewind(&mut self) {
        (self.next, self.reader) = (self.acknowledged, None);
        self.segments.iter_mut().for_each(|segment| segment.given = 0);
    }

    /// Everything up to there has arrived. In order, place by place.
    pub fn acknowledge(&mut self, behind: Position) -> io::Result<()> {
        self.acknowledged = behind;
        if let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == behind.file) {
            segment.waiting = segment.waiting.saturating_sub(1);
            segment.given = segment.given.saturating_sub(1);
        }
        self.remove_acknowledged()
    }

    /// Notes how far all is acknowledged, if that has changed.
    pub fn note(&mut self) -> io::Result<()> {
        if self.noted != self.acknowledged {
            note_progress(&self.folder, self.acknowledged)?;
            self.noted = self.acknowledged;
        }
        Ok(())
    }

    /// The same, and makes what is left outlive the machine.
    pub fn sync(&mut self) -> io::Result<()> {
        self.note()?;
        for segment in &self.segments {
            File::open(self.folder.join(name(segment.number)))?.sync_all()?;
        }
        File::open(&self.folder)?.sync_all()
    }

    /// What is in it, and what went through it.
    pub fn counts(&self) -> SpoolCounts {
        let waiting = |segment: &&Segment| segment.waiting > 0;
        SpoolCounts {
            bytes: self.bytes(),
            batches: self.segments.iter().map(|segment| segment.waiting).sum(),
            oldest: self.segments.iter().find(waiting).map(|segment| segment.since),
            ..self.counts
        }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Walks through a file that somebody has left.
    fn take_over(&mut self, number: u64) -> io::Result<()> {
        self.next_number = self.next_number.max(number + 1);
        if number < self.noted.file {
            // All of it is acknowledged; whoever noted that had no time to remove it.
            return fs::remove_file(self.folder.join(name(number)));
        }
        let file = File::open(self.folder.join(name(number)))?;
        let (about, mut reader) = (file.metadata()?, BufReader::new(file));
        let since = about.created().or_else(|_| about.modified())?;
        let noted = if number == self.noted.file { self.noted.offset } else { 0 };
        let mut segment = Segment { number, bytes: 0, waiting: 0, given: 0, since };
        let mut last = None;
        loop {
            let mut head = [0; HEAD as usize];
            let read = read_up_to(&mut reader, &mut head)?;
            let [a, b, c, d, ..] = head;
            let length = u32::from_le_bytes([a, b, c, d]);
            let end = segment.bytes + HEAD + u64::from(length);
            match read {
                0 => break,
                8 if length <= ENTRY_MAX && end <= about.len() => {}
                _ => {
                    self.counts.torn += 1;
                    break;
                }
            }
            last = Some(segment.bytes);
            reader.seek_relative(i64::from(length))?;
            segment.bytes = end;
            segment.waiting += u64::from(end > noted);
        }
        if let Some(at) = last {
            reader.seek(SeekFrom::Start(at))?;
            if let Entry::Batch(batch) = entry(&mut reader)? {
                self.last = Some(batch);
            }
        }
        self.segments.push_back(segment);
        Ok(())
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        let number = self.next_number;
        let file = private().create_new(true).append(true).open(self.folder.join(name(number)))?;
        self.next_number += 1;
        self.segments.push_back(Segment { number, bytes: 0, waiting: 0, given: 0, since: SystemTime::now() });
        self.writer = Some(file);
        Ok(())
    }

    fn reader(&mut self, number: u64) -> io::Result<&mut BufReader<File>> {
        if self.reader.as_ref().is_none_or(|(of, _)| *of != number) {
            let mut reader = BufReader::new(File::open(self.folder.join(name(number)))?);
            reader.seek(SeekFrom::Start(self.next.offset))?;
            self.reader = Some((number, reader));
        }
        match &mut self.reader {
            Some((_, reader)) => Ok(reader),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn given_out(&mut self, number: u64) {
        if let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == number) {
            segment.given += 1;
        }
    }

    /// What is damaged ends its file: where the next entry begins is not known.
    fn give_up(&mut self, number: u64) {
        self.reader = None;
        if self.segments.back().is_some_and(|last| last.number == number) {
            self.writer = None;
        }
        if let Some(segment) = self.segments.iter_mut().find(|segment| segment.number == number) {
            // What was given out of it is still to be acknowledged; the rest is nothing to wait for.
            segment.bytes = self.next.offset;
            self.counts.torn += segment.waiting - segment.given;
            segment.waiting = segment.given;
        }
    }

    /// Removes files of which nothing is waited for.
    fn remove_acknowledged(&mut self) -> io::Result<()> {
        while let Some(front) = self.segments.front() {
            let done = front.bytes == 0 || front.end() <= self.acknowledged;
            let is_written = self.writer.is_some() && self.segments.len() == 1;
            let is_old = || front.since.elapsed().is_ok_and(|age| age >= RENEW_AFTER);
            if !done || is_written && front.bytes < RENEW_BYTES && !is_old() {
                return Ok(());
            }
            if is_written {
                self.writer = None;
            }
            fs::remove_file(self.folder.join(name(front.number)))?;
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

/// Fewer bytes than asked for only at the end.
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
