//! Files that a process has open, and which of them QEMU uses as images.
//!
//! *In*: `/proc/PID/fd` and `/proc/PID/fdinfo`. *Out*: regular files and block devices, each once.
//!
//! QEMU takes locks on an image: bytes 100 to 103 for what it does with the image, and 200 to 203 for
//! what it forbids others (RAW_LOCK_PERM_BASE and RAW_LOCK_SHARED_BASE, block/file-posix.c). They are
//! locks of the open file (F_OFD_SETLK), so its fdinfo lists them (proc(5)). A log or a socket has
//! none.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io::Read;
use std::ops::RangeInclusive;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Maximum number of descriptors of a process that are read.
const DESCRIPTORS_MAX: usize = 65_536;
/// Maximum number of bytes of a file of fdinfo that are read: some 1,000 locks.
const INFO_MAX: u64 = 64 << 10;
/// First byte of the locks that QEMU takes on an image, and the byte after the last.
const LOCK_BYTES: std::ops::Range<u64> = 100..204;
/// Byte of the right to write (BLK_PERM_WRITE).
const WRITE_BYTE: u64 = 101;

/// Identity of a file, the same by any of its paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileIdentity {
    /// Device of the file system (`st_dev`) and inode.
    Regular(u64, u64),
    /// Number of a block device (`st_rdev`): each mount namespace may have its own node for it.
    BlockDevice(u64),
}

/// A regular file or block device that a process has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// Path as /proc shows it; ` (deleted)` behind it if the file has no name any more.
    pub path: PathBuf,
    /// File system and inode, or number of the block device.
    pub identity: FileIdentity,
    /// Length of a regular file in bytes; 0 of a block device.
    pub bytes: u64,
    /// True if the process can write to it.
    pub writable: bool,
    /// True if reads and writes bypass the page cache (O_DIRECT).
    pub direct: bool,
    /// True if QEMU's locks of an image are on it.
    pub has_image_lock: bool,
    /// True if one of them is for the right to write to it.
    pub has_write_lock: bool,
    /// Link to the file below /proc.
    pub link: PathBuf,
}

impl OpenFile {
    /// Returns whether QEMU may write to it now. A backing file may be open for writing and not be written.
    pub fn is_written(&self) -> bool {
        if self.has_image_lock { self.has_write_lock } else { self.writable }
    }
}

impl FileIdentity {
    /// Returns none for what is neither a regular file nor a block device.
    pub(crate) fn of(about: &Metadata) -> Option<FileIdentity> {
        let kind = about.file_type();
        let regular = || FileIdentity::Regular(about.dev(), about.ino());
        kind.is_block_device()
            .then(|| FileIdentity::BlockDevice(about.rdev()))
            .or_else(|| kind.is_file().then(regular))
    }
}

/// Lists the open files of a process; `process` is its folder in /proc. Fails if they are not readable.
pub(crate) fn open_files(process: &Path) -> std::io::Result<Vec<OpenFile>> {
    let mut files: HashMap<FileIdentity, OpenFile> = HashMap::new();
    for entry in fs::read_dir(process.join("fd"))?.flatten().take(DESCRIPTORS_MAX) {
        // It may have been closed meanwhile.
        let Some(file) = open_file(process, &entry.path()) else { continue };
        let merge = |known: &mut OpenFile| {
            known.writable |= file.writable;
            known.direct |= file.direct;
            known.has_image_lock |= file.has_image_lock;
            known.has_write_lock |= file.has_write_lock;
        };
        files.entry(file.identity).and_modify(merge).or_insert(file);
    }
    let mut files: Vec<_> = files.into_values().collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn open_file(process: &Path, link: &Path) -> Option<OpenFile> {
    let about = fs::metadata(link).ok()?;
    let identity = FileIdentity::of(&about)?;
    let mut info = String::new();
    let file = fs::File::open(process.join("fdinfo").join(link.file_name()?)).ok()?;
    file.take(INFO_MAX).read_to_string(&mut info).ok()?;
    let flags = flags(&info)?;
    Some(OpenFile {
        path: fs::read_link(link).ok()?,
        identity,
        bytes: about.len(),
        writable: flags & libc::O_ACCMODE != libc::O_RDONLY,
        direct: flags & libc::O_DIRECT != 0,
        has_image_lock: info.lines().filter_map(image_lock).next().is_some(),
        has_write_lock: info.lines().filter_map(image_lock).any(|bytes| bytes.contains(&WRITE_BYTE)),
        link: link.to_owned(),
    })
}

/// Returns the flags of open(2) in a file of fdinfo, where they are octal.
fn flags(info: &str) -> Option<i32> {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
    i32::from_str_radix(flags.trim(), 8).ok()
}

/// Returns the bytes of one of QEMU's locks on an image, of a line of fdinfo:
/// `lock:  1: OFDLCK ADVISORY  READ -1 fe:00:10002929 100 101`.
fn image_lock(line: &str) -> Option<RangeInclusive<u64>> {
    let mut words = line.split_whitespace();
    if words.next() != Some("lock:") || words.nth(1) != Some("OFDLCK") {
        return None;
    }
    let first = words.nth(4)?.parse().ok()?;
    // To the end of the file: `EOF`.
    let last = words.next()?.parse().unwrap_or(u64::MAX);
    LOCK_BYTES.contains(&first).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn locks_of_an_image_are_recognised() {
        let lock = |bytes| image_lock(&format!("lock:\t1: OFDLCK ADVISORY  READ -1 fe:00:10002929 {bytes}"));
        assert_eq!([lock("100 101"), lock("201 201")], [Some(100..=101), Some(201..=201)]);
        assert_eq!([lock("100 EOF"), lock("100")], [Some(100..=u64::MAX), None]);
        for line in [
            "lock:\t1: POSIX  ADVISORY  WRITE 812 fe:00:10002929 100 101",
            "lock:\t1: OFDLCK ADVISORY  READ -1 fe:00:10002929 0 EOF",
            "lock:\t1: OFDLCK",
            "flags:\t02140002",
            "",
        ] {
            assert_eq!(image_lock(line), None, "{line}");
        }
    }

    #[test]
    fn a_file_is_listed_once_with_all_that_it_was_opened_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let writer = fs::File::create(&path).unwrap();
        let reader = fs::File::open(&path).unwrap();
        let files = open_files(Path::new("/proc/self")).unwrap();
        let ours: Vec<_> = files.iter().filter(|file| file.path == path).collect();
        assert_eq!((ours.len(), ours[0].writable, ours[0].direct), (1, true, false));
        assert!(!ours[0].has_image_lock && matches!(ours[0].identity, FileIdentity::Regular(..)));
        drop((writer, reader));
        assert!(open_files(Path::new("/proc/none")).is_err());
    }

    #[test]
    fn a_lock_like_qemus_makes_a_file_an_image() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // SAFETY: flock is a plain structure for which zeros are valid.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        (lock.l_type, lock.l_start, lock.l_len) = (libc::F_RDLCK as i16, 201, 1);
        // SAFETY: the descriptor is open, and the structure outlives the call.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) }, 0);
        let files = open_files(Path::new("/proc/self")).unwrap();
        assert!(files.iter().any(|open| open.path == file.path() && open.has_image_lock), "{files:?}");
    }
}
