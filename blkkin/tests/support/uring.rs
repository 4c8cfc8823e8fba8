//! Programs that read and write by io_uring and note each submission with their own clock.
//!
//! *Out*: a log with one line for each submission: the number that the program gave it, the offset,
//! and the clock before and after it. The log is the witness for what the tracer recorded.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;

use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, opcode, types};

use super::direct::{self, BLOCK, Block};
use super::monotonic::now;

/// Method of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// In the call.
    Plain,
    /// A thread of the kernel polls the ring.
    Sqpoll,
    /// Workers execute the requests.
    Worker,
    /// Each request waits for the one before.
    Linked,
    /// Files and buffers are registered.
    Registered,
    /// The program polls the device for completions.
    Polled,
}

/// A submission, as its program saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Submission {
    pub(crate) user_data: u64,
    pub(crate) offset: u64,
    pub(crate) is_write: bool,
    pub(crate) before_ns: u64,
    pub(crate) after_ns: u64,
}

const START: u64 = 0x5eed_0000_0000_0000;

/// Writes and then reads `batches` times `depth` blocks of a device, a batch for each call, and
/// writes the log. Each block's content is its number. Returns 0, or what failed.
pub(crate) fn write_and_read(node: &Path, mode: Mode, batches: u64, depth: u64, log: &Path) -> i32 {
    let device = direct::open(node);
    let mut builder = IoUring::<Entry, io_uring::cqueue::Entry>::builder();
    match mode {
        Mode::Sqpoll => drop(builder.setup_sqpoll(1_000)),
        Mode::Polled => drop(builder.setup_iopoll()),
        _ => {}
    }
    let Ok(mut ring) = builder.build(depth as u32) else { return 1 };
    let mut blocks: Vec<Block> = (0..depth).map(|_| Block([0; BLOCK])).collect();
    if mode == Mode::Registered {
        let buffers: Vec<libc::iovec> = blocks
            .iter_mut()
            .map(|block| libc::iovec { iov_base: block.0.as_mut_ptr().cast(), iov_len: BLOCK })
            .collect();
        // SAFETY: the blocks outlive the ring's use of them.
        let registered = unsafe { ring.submitter().register_buffers(&buffers) };
        if registered.is_err() || ring.submitter().register_files(&[device.as_raw_fd()]).is_err() {
            return 2;
        }
    }
    let (mut lines, mut number) = (String::new(), 0);
    for is_write in [true, false] {
        for batch in 0..batches {
            // Not in the order of the numbers, so that a match by order would fail.
            let index = |slot: u64| (batch * depth + slot) * 7 % (batches * depth);
            // The thread that polls the ring may submit as soon as an entry is there.
            let mut before = now();
            for (slot, block) in blocks.iter_mut().enumerate() {
                let content = index(slot as u64);
                if is_write {
                    block.0[..8].copy_from_slice(&content.to_ne_bytes());
                }
                let pointer = block.0.as_mut_ptr();
                let last = slot as u64 + 1 == depth;
                let entry = entry(mode, is_write, device.as_raw_fd(), pointer, slot, content, last)
                    .user_data(START + number + slot as u64);
                // SAFETY: device and block outlive the request.
                if unsafe { ring.submission().push(&entry) }.is_err() {
                    return 3;
                }
            }
            if mode != Mode::Sqpoll {
                before = now();
            }
            let mut completions = Vec::new();
            // A call that polls the device may return with fewer completions than it waits for.
            while completions.len() < depth as usize {
                if ring.submit_and_wait(depth as usize - completions.len()).is_err() {
                    return 4;
                }
                completions.extend(ring.completion());
            }
            let after = now();
            if completions.len() as u64 != depth {
                return 6;
            }
            for completion in completions {
                let slot = completion.user_data() - START - number;
                let content = index(slot);
                let found = u64::from_ne_bytes(blocks[slot as usize].0[..8].try_into().unwrap());
                if completion.result() != BLOCK as i32 || found != content {
                    return 5;
                }
                let offset = content * BLOCK as u64;
                lines.push_str(&format!(
                    "{} {offset} {} {before} {after}\n",
                    completion.user_data(),
                    u8::from(is_write)
                ));
            }
            number += depth;
        }
    }
    i32::from(fs::write(log, lines).is_err())
}

fn entry(mode: Mode, is_write: bool, fd: i32, data: *mut u8, slot: usize, content: u64, last: bool) -> Entry {
    let (bytes, offset) = (BLOCK as u32, content * BLOCK as u64);
    match (mode, is_write) {
        (Mode::Registered, true) => {
            opcode::WriteFixed::new(types::Fixed(0), data, bytes, slot as u16).offset(offset).build()
        }
        (Mode::Registered, false) => {
            opcode::ReadFixed::new(types::Fixed(0), data, bytes, slot as u16).offset(offset).build()
        }
        (_, true) => opcode::Write::new(types::Fd(fd), data, bytes).offset(offset).build(),
        (_, false) => opcode::Read::new(types::Fd(fd), data, bytes).offset(offset).build(),
    }
    .flags(match mode {
        Mode::Worker => Flags::ASYNC,
        Mode::Linked if !last => Flags::IO_LINK,
        _ => Flags::empty(),
    })
}

/// Returns whether the device can be polled for completions.
pub(crate) fn can_poll(node: &Path) -> bool {
    let device = direct::open(node);
    let Ok(mut ring) = IoUring::<Entry, io_uring::cqueue::Entry>::builder().setup_iopoll().build(1) else {
        return false;
    };
    let mut block = Block([0; BLOCK]);
    let read = opcode::Read::new(types::Fd(device.as_raw_fd()), block.0.as_mut_ptr(), BLOCK as u32).build();
    // SAFETY: device and block outlive the request.
    let pushed = unsafe { ring.submission().push(&read) }.is_ok();
    pushed
        && ring.submit_and_wait(1).is_ok()
        && ring.completion().next().is_some_and(|completion| completion.result() == BLOCK as i32)
}

/// Reads the log.
pub(crate) fn read_log(log: &Path) -> Vec<Submission> {
    let line = |line: &str| {
        let words: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        let [user_data, offset, is_write, before_ns, after_ns] = words[..] else { panic!("{line}") };
        Submission { user_data, offset, is_write: is_write == 1, before_ns, after_ns }
    };
    fs::read_to_string(log).unwrap().lines().map(line).collect()
}

/// Reads `batches` times `depth` blocks of a device, a batch for each call, of which each waits for `awaited`
/// completions. Returns 0, or what failed.
pub(crate) fn read_in_batches(node: &Path, batches: usize, depth: usize, awaited: usize) -> i32 {
    let device = direct::open(node);
    let Ok(mut ring) = IoUring::new(depth as u32) else { return 1 };
    let mut blocks: Vec<Block> = (0..depth).map(|_| Block([0; BLOCK])).collect();
    for _ in 0..batches {
        for (slot, block) in blocks.iter_mut().enumerate() {
            let pointer = block.0.as_mut_ptr();
            let read = opcode::Read::new(types::Fd(device.as_raw_fd()), pointer, BLOCK as u32);
            // Not next to each other, so that the kernel does not merge them.
            let entry = read.offset((2 * slot * BLOCK) as u64).build();
            // SAFETY: device and block outlive the request.
            if unsafe { ring.submission().push(&entry) }.is_err() {
                return 2;
            }
        }
        if ring.submit_and_wait(awaited).is_err() {
            return 3;
        }
        let mut completed = 0;
        while completed < depth {
            completed += ring.completion().filter(|one| one.result() == BLOCK as i32).count();
            if completed < depth && ring.submit_and_wait(1).is_err() {
                return 4;
            }
        }
    }
    0
}

/// Writes `count` blocks one behind the other into a file, through the page cache, one in a call.
/// `offset`: the program names it; otherwise it is the file's own position, which the kernel moves.
/// Returns 0, or what failed.
pub(crate) fn append_buffered(file: &File, mode: Mode, count: u64, offset: bool) -> i32 {
    let mut builder = IoUring::<Entry, io_uring::cqueue::Entry>::builder();
    if mode == Mode::Sqpoll {
        builder.setup_sqpoll(1_000);
    }
    // The kernel may complete an entry before it has freed its place.
    let Ok(mut ring) = builder.build(2) else { return 1 };
    let flags = if mode == Mode::Worker { Flags::ASYNC } else { Flags::empty() };
    let block = Block([0x5a; BLOCK]);
    for number in 0..count {
        let at = if offset { number * BLOCK as u64 } else { u64::MAX };
        let write = opcode::Write::new(types::Fd(file.as_raw_fd()), block.0.as_ptr(), BLOCK as u32);
        let entry = write.offset(at).build().flags(flags).user_data(number);
        // SAFETY: file and block outlive the request.
        if unsafe { ring.submission().push(&entry) }.is_err() || ring.submit_and_wait(1).is_err() {
            return 2;
        }
        if ring.completion().next().is_none_or(|completion| completion.result() != BLOCK as i32) {
            return 3;
        }
    }
    0
}

/// Reads a cached block `count` times without a completion queue entry, each time followed by an
/// operation of another kind, for which the kernel uses the same memory. Returns 0, or what failed.
pub(crate) fn read_without_completions(file: &File, count: u64) -> i32 {
    let Ok(mut ring) = IoUring::new(2) else { return 1 };
    let Ok((_reader, writer)) = std::io::pipe() else { return 1 };
    let mut block = Block([0; BLOCK]);
    for number in 0..count {
        let read = opcode::Read::new(types::Fd(file.as_raw_fd()), block.0.as_mut_ptr(), BLOCK as u32);
        let read = read.build().flags(Flags::SKIP_SUCCESS).user_data(number);
        // SAFETY: file and block outlive the request.
        if unsafe { ring.submission().push(&read) }.is_err() || ring.submit().is_err() {
            return 2;
        }
        // A pipe without content can be written at once.
        let other = opcode::PollAdd::new(types::Fd(writer.as_raw_fd()), libc::POLLOUT as u32);
        let other = other.build().user_data(number);
        // SAFETY: the operation has no memory.
        if unsafe { ring.submission().push(&other) }.is_err() || ring.submit_and_wait(1).is_err() {
            return 3;
        }
        if ring.completion().next().is_none() {
            return 4;
        }
    }
    0
}

/// `BLOCK_URING_CMD_DISCARD`, `_IO(0x12, 0)` (include/uapi/linux/blkdev.h, Linux 6.12).
const DISCARD: u32 = 0x1200;

/// Discards `count` blocks of a device by its own command, one a call; the number of a request is
/// that of its block. Returns 0, the negative error of a command, or what failed.
pub(crate) fn discard(node: &Path, count: u64) -> i32 {
    let device = direct::open(node);
    let Ok(mut ring) = IoUring::new(1) else { return 1 };
    for block in 0..count {
        // The kernel reads the length where `addr3` is: in the first eight bytes of the command.
        let mut command = [0; 16];
        command[..8].copy_from_slice(&(BLOCK as u64).to_ne_bytes());
        let entry = opcode::UringCmd16::new(types::Fd(device.as_raw_fd()), DISCARD);
        let entry = entry.cmd(command).addr(Some(block * BLOCK as u64)).build().user_data(block);
        // SAFETY: the command has no memory.
        if unsafe { ring.submission().push(&entry) }.is_err() || ring.submit_and_wait(1).is_err() {
            return 2;
        }
        match ring.completion().next() {
            Some(completion) if completion.result() == 0 => {}
            Some(completion) => return completion.result(),
            None => return 3,
        }
    }
    0
}

/// Asks for a multishot read of a file. Returns the kernel's answer.
pub(crate) fn read_multishot(file: &File) -> i32 {
    let Ok(mut ring) = IoUring::new(1) else { return 1 };
    let mut block = Block([0; BLOCK]);
    let group = 1;
    let provide = opcode::ProvideBuffers::new(block.0.as_mut_ptr(), BLOCK as i32, 1, group, 0).build();
    let read = opcode::ReadMulti::new(types::Fd(file.as_raw_fd()), 0, group).build();
    let mut result = 2;
    for entry in [provide, read] {
        // SAFETY: file and block outlive the requests.
        if unsafe { ring.submission().push(&entry) }.is_err() || ring.submit_and_wait(1).is_err() {
            return 3;
        }
        let Some(completion) = ring.completion().next() else { return 4 };
        result = completion.result();
    }
    result
}
