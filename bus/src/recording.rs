//! Recording of event batches in a folder, for a later replay.
//!
//! ```text
//! FOLDER/00000001.batches:  length u32 | CRC-32 u32 | batch, as in blkkin.events   …
//! FOLDER/00000002.batches:  …
//! ```
//!
//! Integers are little-endian.
//!
//! *In*: encoded batches. *Out*: the same batches in order, from any position on. *Invariant*: a
//! batch that is read equals the one written. A truncated entry (its writer was killed) or a
//! damaged one ends its file and is counted.
//!
//! `FOLDER/replayed` stores the replay's progress: a file and an offset in it. A
//! [`spool`](crate::spool) is such a folder.
//!
//! *Rejected*: one file per batch (an hour of one agent has 48,000); a database (every reader would
//! need it).

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// File size at which the next file starts: few files for a day of a busy node, small enough to
/// delete the oldest.
pub(crate) const FILE_MAX: u64 = 64 << 20;
/// Longest entry, above any record of Kafka's default; a greater length is damage.
pub(crate) const ENTRY_MAX: u32 = 16 << 20;
/// Bytes of an entry's header: length and checksum.
pub(crate) const HEADER: u64 = 8;
const SUFFIX: &str = "batches";
const PROGRESS: &str = "replayed";

/// Writer of a recording; appends to existing files.
#[derive(Debug)]
pub struct Recorder {
    folder: PathBuf,
    number: u64,
    file: Option<(File, u64)>,
}

impl Recorder {
    /// Opens the folder, and creates it if necessary.
    pub fn open(folder: &Path) -> io::Result<Recorder> {
        fs::create_dir_all(folder)?;
        let number = file_numbers(folder)?.last().copied().unwrap_or(0);
        Ok(Recorder { folder: folder.to_owned(), number, file: None })
    }

    /// Adds a batch.
    pub fn add(&mut self, batch: &[u8]) -> io::Result<()> {
        let (mut file, length) = match self.file.take().filter(|(_, length)| *length < FILE_MAX) {
            Some(open) => open,
            None => {
                // Never an existing file: its end may be truncated.
                self.number += 1;
                let path = self.folder.join(file_name(self.number));
                (OpenOptions::new().create_new(true).append(true).open(path)?, 0)
            }
        };
        let entry = encode_entry(batch);
        file.write_all(&entry)?;
        self.file = Some((file, length + entry.len() as u64));
        Ok(())
    }
}

/// Position in a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Number of the file.
    pub file: u64,
    /// Byte offset in the file.
    pub offset: u64,
}

/// Reader of a recording.
#[derive(Debug)]
pub struct Recording {
    folder: PathBuf,
    files: Vec<u64>,
    at: Position,
    open: Option<BufReader<File>>,
    /// Files that end in a truncated or damaged entry.
    pub damaged: u64,
}

impl Recording {
    /// Opens a folder at position `at`.
    pub fn open(folder: &Path, at: Position) -> io::Result<Recording> {
        let files = file_numbers(folder)?;
        Ok(Recording { folder: folder.to_owned(), files, at, open: None, damaged: 0 })
    }

    /// Reads the next batch, and returns it with the position behind it; `None` at the end.
    pub fn read(&mut self) -> io::Result<Option<(Vec<u8>, Position)>> {
        loop {
            let Some(file) = self.files.iter().copied().find(|file| *file >= self.at.file) else {
                return Ok(None);
            };
            if file != self.at.file {
                (self.at, self.open) = (Position { file, offset: 0 }, None);
            }
            let mut reader = match self.open.take() {
                Some(reader) => reader,
                None => {
                    let mut reader = BufReader::new(File::open(self.folder.join(file_name(file)))?);
                    reader.seek(SeekFrom::Start(self.at.offset))?;
                    reader
                }
            };
            match decode_entry(&mut reader)? {
                FileEntry::Batch(batch) => {
                    self.at.offset += 8 + batch.len() as u64;
                    self.open = Some(reader);
                    return Ok(Some((batch, self.at)));
                }
                FileEntry::End => {}
                FileEntry::Damaged => self.damaged += 1,
            }
            self.at = Position { file: file + 1, offset: 0 };
        }
    }
}

/// Reads the saved progress; returns the beginning if it is missing or does not parse.
pub fn progress(folder: &Path) -> Position {
    let text = fs::read_to_string(folder.join(PROGRESS)).unwrap_or_default();
    let mut words = text.split_whitespace().map(str::parse::<u64>);
    match (words.next(), words.next()) {
        (Some(Ok(file)), Some(Ok(offset))) => Position { file, offset },
        _ => Position::default(),
    }
}

/// Saves the progress atomically: written to a temporary file, then renamed.
pub fn save_progress(folder: &Path, position: Position) -> io::Result<()> {
    let next = folder.join(format!("{PROGRESS}.next"));
    fs::write(&next, format!("{} {}\n", position.file, position.offset))?;
    fs::rename(next, folder.join(PROGRESS))
}

/// Encodes a batch as a file entry.
pub(crate) fn encode_entry(batch: &[u8]) -> Vec<u8> {
    let mut entry = Vec::with_capacity(HEADER as usize + batch.len());
    entry.extend((batch.len() as u32).to_le_bytes());
    entry.extend(crc32fast::hash(batch).to_le_bytes());
    entry.extend(batch);
    entry
}

pub(crate) enum FileEntry {
    Batch(Vec<u8>),
    End,
    Damaged,
}

pub(crate) fn decode_entry(reader: &mut impl Read) -> io::Result<FileEntry> {
    let mut header = Vec::new();
    reader.by_ref().take(8).read_to_end(&mut header)?;
    if header.is_empty() {
        return Ok(FileEntry::End);
    }
    let Some((length, checksum)) =
        header.first_chunk::<4>().zip(header.last_chunk::<4>()).filter(|_| header.len() == 8)
    else {
        return Ok(FileEntry::Damaged);
    };
    let (length, checksum) = (u32::from_le_bytes(*length), u32::from_le_bytes(*checksum));
    if length > ENTRY_MAX {
        return Ok(FileEntry::Damaged);
    }
    let mut batch = Vec::new();
    reader.take(length.into()).read_to_end(&mut batch)?;
    let whole = batch.len() == length as usize && crc32fast::hash(&batch) == checksum;
    Ok(if whole { FileEntry::Batch(batch) } else { FileEntry::Damaged })
}

pub(crate) fn file_name(number: u64) -> String {
    format!("{number:08}.{SUFFIX}")
}

pub(crate) fn file_numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = PathBuf::from(entry?.file_name());
        let is_recording = path.extension().is_some_and(|suffix| suffix == SUFFIX);
        numbers.extend(
            path.file_stem().filter(|_| is_recording).and_then(|stem| stem.to_str()?.parse::<u64>().ok()),
        );
    }
    numbers.sort_unstable();
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(folder: &Path, at: Position) -> (Vec<(Vec<u8>, Position)>, u64) {
        let mut recording = Recording::open(folder, at).unwrap();
        let mut all = Vec::new();
        while let Some(read) = recording.read().unwrap() {
            all.push(read);
        }
        (all, recording.damaged)
    }

    #[test]
    fn batches_are_read_from_any_position_and_a_truncated_end_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        for file in 0..3_u8 {
            let mut recorder = Recorder::open(folder.path()).unwrap();
            (0..5).for_each(|n| recorder.add(&[file * 5 + n; 100]).unwrap());
        }
        let (whole, damaged) = all(folder.path(), Position::default());
        assert_eq!((whole.len(), damaged), (15, 0));
        assert!(whole.iter().zip(0..).all(|((batch, _), n)| *batch == vec![n; 100]));
        for (n, (_, behind)) in whole.iter().enumerate() {
            assert_eq!(all(folder.path(), *behind).0, whole[n + 1..]);
        }
        let second = folder.path().join(file_name(2));
        let bytes = fs::read(&second).unwrap();
        fs::write(&second, &bytes[..bytes.len() - 1]).unwrap();
        let (rest, damaged) = all(folder.path(), Position::default());
        assert_eq!((rest.len(), damaged), (14, 1));
        fs::write(&second, [bytes[..8].to_vec(), vec![0xee; 500]].concat()).unwrap();
        assert_eq!(all(folder.path(), Position::default()).1, 1);
    }
}
