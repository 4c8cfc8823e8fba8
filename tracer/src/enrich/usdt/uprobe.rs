//! Uprobe attachment of the USDT program.
//!
//! *In*: a location in a file, and the loaded program. *Out*: a `PerfLink`. While it lives, every
//! thread that reaches the location runs the program, and the probe's semaphore is incremented in
//! all processes of that file. *Invariant*: as everywhere, nothing outlives the descriptors.
//!
//! A uprobe is a perf event of the kernel's `uprobe` PMU (kernel/events/core.c, `perf_uprobe`), for
//! every process. A BPF link ties the program to the event, with the row as its cookie (Linux 5.15:
//! 82e6b1eee6a8).

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aya_obj::generated::perf_event_attr;

use crate::attach::perf_link::{self, PerfLink};

/// Type of the PMU, and bit offset of the semaphore's file offset in `config` (`config:32-63`, its
/// `format`).
const UPROBE_TYPE: &str = "/sys/bus/event_source/devices/uprobe/type";
const SEMAPHORE_SHIFT: u32 = 32;

/// Reads the type of the PMU.
fn uprobe_type() -> io::Result<u32> {
    let text = fs::read_to_string(UPROBE_TYPE)?;
    text.trim().parse().map_err(io::Error::other)
}

/// Attaches `program` at a location of `file`; the program gets `row` as its cookie.
pub(crate) fn attach(
    program: BorrowedFd<'_>,
    file: &Path,
    (offset, semaphore): (u64, u64),
    row: u64,
) -> io::Result<PerfLink> {
    let name = CString::new(file.as_os_str().as_bytes())?;
    // SAFETY: integers, for which every bit pattern is valid.
    let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
    attr.type_ = uprobe_type()?;
    attr.config = semaphore << SEMAPHORE_SHIFT;
    attr.__bindgen_anon_3.config1 = name.as_ptr() as u64;
    attr.__bindgen_anon_4.config2 = offset;
    // A uprobe is not bound to a CPU, but the call requires one.
    perf_link::attach(program, &mut attr, 0, row)
}
