//! Programs that write blocks whose content names them.
//!
//! Each sector has a mark, the writer's number and the number of its write. So the disk itself states
//! which write a sector is from, whatever the block size of the file system. The operations of a
//! writer follow from its seed alone.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use blkkin_wire::event::SyscallEvent;
use blkkin_wire::ids::{Pid, SpanId};

use crate::support::direct::Block;
use crate::support::gated_process::GatedProcess;
use crate::support::recording::Recording;
use crate::support::single_process::c_path;

pub(crate) const BLOCK: usize = 4_096;
pub(crate) const SECTOR: usize = 512;
const MARK: u64 = 0x626c_6b6b_696e_7762;
/// Files that all writers share.
pub(crate) const FILES: usize = 4;
/// Blocks of a file.
const BLOCKS: u64 = 512;
/// Blocks of the largest write.
const BLOCKS_MAX: u64 = 16;

/// Write of a writer.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) file: usize,
    pub(crate) range: Range<u64>,
}

/// Step of a writer.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Write(Write),
    Sync(usize),
    Truncate(usize, u64),
    /// Another file of the same name, which may have the same inode.
    Replace(usize),
}

/// The steps of a writer.
pub(crate) fn steps(writer: u64, number: usize) -> Vec<Step> {
    let mut state = writer.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let step = |_| {
        let file = next(FILES as u64) as usize;
        match next(200) {
            0..4 => Step::Sync(file),
            4 => Step::Truncate(file, next(BLOCKS) * BLOCK as u64),
            5 if writer == 0 => Step::Replace(file),
            _ => {
                let (first, blocks) = (next(BLOCKS), 1 + next(BLOCKS_MAX));
                let range = first * BLOCK as u64..(first + blocks) * BLOCK as u64;
                Step::Write(Write { file, range })
            }
        }
    };
    (0..number).map(step).collect()
}

/// Removes the files of earlier writers: a page that is written in part has old content in the rest.
pub(crate) fn remove_files(folder: &Path) {
    for file in 0..FILES {
        let _ = std::fs::remove_file(file_path(folder, file));
    }
}

fn file_path(folder: &Path, file: usize) -> PathBuf {
    folder.join(format!("file{file}"))
}

/// Forks a process that performs the steps.
pub(crate) fn process(folder: &Path, writer: u64, number: usize) -> GatedProcess {
    let paths: Vec<_> = (0..FILES).map(|file| c_path(&file_path(folder, file))).collect();
    let steps = steps(writer, number);
    let mut buffer = vec![0u64; BLOCKS_MAX as usize * BLOCK / 8];
    GatedProcess::new(move || {
        // SAFETY: strings and buffers that outlive the calls.
        unsafe {
            let open = |file: usize| libc::open(paths[file].as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o644);
            for (index, step) in steps.iter().enumerate() {
                match step {
                    Step::Write(write) => {
                        let bytes = (write.range.end - write.range.start) as usize;
                        for sector in buffer.chunks_mut(SECTOR / 8) {
                            sector[..3].copy_from_slice(&[MARK, writer, index as u64]);
                        }
                        let fd = open(write.file);
                        let at = write.range.start as i64;
                        if libc::pwrite(fd, buffer.as_ptr().cast(), bytes, at) != bytes as isize {
                            return 1;
                        }
                        libc::close(fd);
                    }
                    Step::Sync(file) => {
                        let fd = open(*file);
                        libc::fsync(fd);
                        libc::close(fd);
                    }
                    Step::Truncate(file, length) => {
                        let fd = open(*file);
                        libc::ftruncate(fd, *length as i64);
                        libc::close(fd);
                    }
                    Step::Replace(file) => {
                        libc::unlink(paths[*file].as_ptr());
                    }
                }
            }
        }
        0
    })
}

/// Returns the numbers of a writer's steps that write.
pub(crate) fn writes(writer: u64, number: usize) -> Vec<usize> {
    let steps = steps(writer, number).into_iter().enumerate();
    steps.filter(|(_, step)| matches!(step, Step::Write(_))).map(|(index, _)| index).collect()
}

/// Finds the writer and the step of each write call: a process's nth `pwrite64` is its nth write, of those
/// that `writes` returns.
pub(crate) fn authors(
    recording: &Recording,
    pids: &[Pid],
    writes: impl Fn(u64) -> Vec<usize>,
) -> HashMap<SpanId, (u64, usize)> {
    let tasks: HashMap<_, _> = recording.tasks().map(|task| (task.task.id, task.pid)).collect();
    let mut made: HashMap<Pid, Vec<&SyscallEvent>> = HashMap::new();
    for call in recording.calls_named("pwrite64") {
        made.entry(tasks[&call.task.id]).or_default().push(call);
    }
    let mut authors = HashMap::new();
    for (writer, pid) in (0..).zip(pids) {
        let mut calls = made.remove(pid).unwrap();
        calls.sort_by_key(|call| call.enter);
        let writes = writes(writer);
        assert_eq!(calls.len(), writes.len());
        authors.extend(calls.iter().zip(writes).map(|(call, index)| (call.span, (writer, index))));
    }
    authors
}

/// Writes a block of a device with its author, past the page cache.
pub(crate) fn write_direct(device: &File, block: u64, (writer, step): (u64, usize)) -> std::io::Result<()> {
    let mut content = Block([0; BLOCK]);
    for sector in content.0.chunks_mut(SECTOR) {
        for (word, value) in sector.chunks_mut(8).zip([MARK, writer, step as u64]) {
            word.copy_from_slice(&value.to_ne_bytes());
        }
    }
    // SAFETY: the block outlives the call.
    let written = unsafe {
        libc::pwrite(device.as_raw_fd(), content.0.as_ptr().cast(), BLOCK, (block * BLOCK as u64) as i64)
    };
    if written == BLOCK as isize { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Returns the writer and its write that a sector of the disk is from.
pub(crate) fn author(sector: &[u8]) -> Option<(u64, usize)> {
    let word = |n: usize| u64::from_ne_bytes(sector[n * 8..n * 8 + 8].try_into().unwrap());
    (word(0) == MARK).then(|| (word(1), word(2) as usize))
}
