//! Reads of which many are in flight at once: libaio's system calls, without the library (include/uapi/linux/aio_abi.h).

use std::fs::File;
use std::os::fd::AsRawFd;

use super::direct::Block;

const READ: u16 = 0;

/// `struct iocb`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
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

/// A context for so many at once, and the one place that all of them read into.
pub(crate) struct Aio {
    context: u64,
    into: Box<Block>,
}

impl Aio {
    pub(crate) fn new(depth: usize) -> Aio {
        let mut context = 0u64;
        // SAFETY: the kernel writes the context's number.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut context) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        Aio { context, into: Box::new(Block([0; super::direct::BLOCK])) }
    }

    /// Asks for so many bytes from each of these places, in one call.
    pub(crate) fn read(&mut self, file: &File, offsets: &[u64], bytes: usize) {
        let buffer = self.into.0.as_mut_ptr() as u64;
        let one = |offset: &u64| Iocb {
            opcode: READ,
            fd: file.as_raw_fd() as u32,
            buffer,
            bytes: bytes as u64,
            offset: *offset as i64,
            ..Iocb::default()
        };
        let iocbs: Vec<Iocb> = offsets.iter().map(one).collect();
        let list: Vec<*const Iocb> = iocbs.iter().map(std::ptr::from_ref).collect();
        // SAFETY: a list of so many, which outlives the call; what they read into lives as long as the context.
        let taken = unsafe { libc::syscall(libc::SYS_io_submit, self.context, list.len(), list.as_ptr()) };
        assert_eq!(taken, offsets.len() as i64, "{}", std::io::Error::last_os_error());
    }

    /// Waits for so many; each must have read so many bytes.
    pub(crate) fn wait(&self, count: usize, bytes: usize) {
        let mut events = vec![IoEvent::default(); 1024];
        let mut left = count;
        while left > 0 {
            // SAFETY: room for so many events, which outlives the call.
            let came = unsafe {
                let most = left.min(events.len());
                libc::syscall(libc::SYS_io_getevents, self.context, 1, most, events.as_mut_ptr(), 0)
            };
            assert!(came > 0, "{}", std::io::Error::last_os_error());
            assert!(events[..came as usize].iter().all(|event| event.result == bytes as i64));
            left -= came as usize;
        }
    }
}
