//! A rename by io_uring, from raw system calls: no system call of its own shows it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

/// IORING_OP_RENAMEAT and IORING_ENTER_GETEVENTS (include/uapi/linux/io_uring.h).
const RENAMEAT: u8 = 35;
const GET_EVENTS: u32 = 1;
/// Offsets at which the queues are mapped.
const SUBMISSIONS: i64 = 0;
const ENTRIES: i64 = 0x1000_0000;

/// struct io_uring_params: words of the submission ring's offsets begin at 10 (head, tail, mask,
/// entries, flags, dropped, array), those of the completion ring at 20 (head, tail, mask, entries,
/// overflow, cqes).
type Params = [u32; 30];

/// Renames a file or directory; returns the error of io_uring, or its result.
pub(crate) fn rename(from: &CStr, to: &CStr) -> Result<(), String> {
    let mut params: Params = [0; 30];
    // SAFETY: the parameters outlive the call; the mappings are as large as the kernel's for one
    // entry, and the kernel fills them; the names outlive the request.
    unsafe {
        let ring = libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) as i32;
        if ring < 0 {
            return Err(format!("no io_uring: {}", std::io::Error::last_os_error()));
        }
        let map = |at: i64| {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let mapped = libc::mmap(null_mut(), 4096, access, libc::MAP_SHARED, ring, at);
            assert_ne!(mapped, libc::MAP_FAILED);
            mapped.cast::<u8>()
        };
        let (queue, entry) = (map(SUBMISSIONS), map(ENTRIES));
        let here = libc::AT_FDCWD;
        entry.cast::<u8>().write(RENAMEAT);
        entry.add(4).cast::<i32>().write(here);
        entry.add(8).cast::<u64>().write(to.as_ptr() as u64);
        entry.add(16).cast::<u64>().write(from.as_ptr() as u64);
        entry.add(24).cast::<i32>().write(here);
        queue.add(params[16] as usize).cast::<u32>().write(0);
        let tail = &*queue.add(params[11] as usize).cast::<AtomicU32>();
        tail.fetch_add(1, Ordering::Release);
        let done = libc::syscall(libc::SYS_io_uring_enter, ring, 1, 1, GET_EVENTS, null_mut::<u8>(), 0);
        assert_eq!(done, 1, "{}", std::io::Error::last_os_error());
        let completion = queue.add(params[25] as usize);
        let result = completion.add(8).cast::<i32>().read();
        libc::close(ring);
        if result == 0 {
            Ok(())
        } else {
            Err(format!("rename: {}", std::io::Error::from_raw_os_error(-result)))
        }
    }
}
