//! Asynchronous reads with many in flight: libaio's system calls without the library
//! (include/uapi/linux/aio_abi.h).

use std::fs::File;
use std::os::fd::AsRawFd;

use super::direct::{BLOCK, Block};

const READ: u16 = 0;

/// `struct iocb`, little endian.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Iocb {
    pub(crate) data: u64,
    pub(crate) key: u32,
    pub(crate) rw_flags: u32,
    pub(crate) opcode: u16,
    pub(crate) priority: i16,
    pub(crate) fd: u32,
    pub(crate) buffer: u64,
    pub(crate) bytes: u64,
    pub(crate) offset: i64,
    pub(crate) reserved: u64,
    pub(crate) flags: u32,
    pub(crate) result_fd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct IoEvent {
    data: u64,
    iocb: u64,
    result: i64,
    result2: i64,
}

/// A read: of this file, at this offset, of this number of bytes.
pub(crate) type Read<'a> = (&'a File, u64, usize);

/// A context for `depth` reads in flight, and the one buffer that all of them read into.
pub(crate) struct Aio {
    context: u64,
    buffer: Vec<Block>,
}

impl Aio {
    pub(crate) fn new(depth: usize) -> Aio {
        let mut context = 0u64;
        // SAFETY: the kernel writes the context's number.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut context) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        Aio { context, buffer: vec![Block([0; BLOCK])] }
    }

    /// Submits a read of `bytes` bytes at each of these offsets, in one call.
    pub(crate) fn read(&mut self, file: &File, offsets: &[u64], bytes: usize) {
        let reads: Vec<Read> = offsets.iter().map(|offset| (file, *offset, bytes)).collect();
        self.read_each(&reads);
    }

    /// Submits these reads in one call.
    pub(crate) fn read_each(&mut self, reads: &[Read]) {
        let longest = reads.iter().map(|(_, _, bytes)| bytes.div_ceil(BLOCK)).max().unwrap_or(0);
        // A longer buffer may move, which no read in flight allows.
        assert!(longest <= self.buffer.len() || self.buffer.len() == 1);
        if longest > self.buffer.len() {
            self.buffer.resize_with(longest, || Block([0; BLOCK]));
        }
        let buffer = self.buffer.as_mut_ptr() as u64;
        let iocb = |(file, offset, bytes): &Read| Iocb {
            opcode: READ,
            fd: file.as_raw_fd() as u32,
            buffer,
            bytes: *bytes as u64,
            offset: *offset as i64,
            ..Iocb::default()
        };
        let iocbs: Vec<Iocb> = reads.iter().map(iocb).collect();
        let list: Vec<*const Iocb> = iocbs.iter().map(std::ptr::from_ref).collect();
        // SAFETY: the list outlives the call, and the buffer lives as long as the context.
        let submitted =
            unsafe { libc::syscall(libc::SYS_io_submit, self.context, list.len(), list.as_ptr()) };
        assert_eq!(submitted, reads.len() as i64, "{}", std::io::Error::last_os_error());
    }

    /// Waits for `count` completions, each of which must have read `bytes` bytes.
    pub(crate) fn wait(&self, count: usize, bytes: usize) {
        self.wait_for(count, &[bytes]);
    }

    /// Waits for `count` completions, each of which must have read one of these numbers of bytes.
    pub(crate) fn wait_for(&self, count: usize, bytes: &[usize]) {
        let mut events = vec![IoEvent::default(); 1024];
        let mut left = count;
        while left > 0 {
            // SAFETY: `events` has room for the number of events, and outlives the call.
            let completed = unsafe {
                let most = left.min(events.len());
                libc::syscall(libc::SYS_io_getevents, self.context, 1, most, events.as_mut_ptr(), 0)
            };
            assert!(completed > 0, "{}", std::io::Error::last_os_error());
            let is_right = |event: &IoEvent| bytes.contains(&(event.result as usize));
            assert!(events[..completed as usize].iter().all(is_right));
            left -= completed as usize;
        }
    }
}
