//! Puts the kernel's program at places of probes, and takes it away again.
//!
//! *In*: probes, and the program that was loaded. *Out*: descriptors: while they are open every thread that comes by runs the program,
//! and the semaphores of all processes of that file are counted up. *Invariant*: as everywhere, nothing outlives them.
//!
//! A place is a perf event of the kernel's `uprobe` unit (kernel/events/core.c, `perf_uprobe`), for every process, and a link that
//! ties program and event together with a number, the row (Linux 5.15: 82e6b1eee6a8).

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aya_obj::generated::{PERF_FLAG_FD_CLOEXEC, bpf_attach_type, bpf_attr, bpf_cmd, perf_event_attr};

/// The kernel's numbers of the unit, and of where an event's settings hold the semaphore's place (`config:32-63`, its `format`).
const UNIT: &str = "/sys/bus/event_source/devices/uprobe/type";
const SEMAPHORE_SHIFT: u32 = 32;

/// A place with the program at it.
#[derive(Debug)]
pub(crate) struct Placed {
    /// Before the event, which it is tied to.
    _link: OwnedFd,
    _event: OwnedFd,
}

/// The number of the unit.
fn unit() -> io::Result<u32> {
    let text = fs::read_to_string(UNIT)?;
    text.trim().parse().map_err(io::Error::other)
}

/// Puts `program` at a place of `file`; it is told `row` there.
pub(crate) fn put(
    program: BorrowedFd<'_>,
    file: &Path,
    (offset, semaphore): (u64, u64),
    row: u64,
) -> io::Result<Placed> {
    let event = open(file, offset, semaphore)?;
    let link = tie(program, event.as_fd(), row)?;
    Ok(Placed { _link: link, _event: event })
}

fn open(file: &Path, offset: u64, semaphore: u64) -> io::Result<OwnedFd> {
    let name = CString::new(file.as_os_str().as_bytes())?;
    // SAFETY: integers, of which every pattern is a value.
    let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
    attr.type_ = unit()?;
    attr.size = size_of::<perf_event_attr>() as u32;
    attr.config = semaphore << SEMAPHORE_SHIFT;
    attr.__bindgen_anon_3.config1 = name.as_ptr() as u64;
    attr.__bindgen_anon_4.config2 = offset;
    // Everybody; a uprobe is no CPU's, and one has to be named.
    let (process, cpu, group) = (-1, 0, -1);
    let flags = PERF_FLAG_FD_CLOEXEC;
    // SAFETY: the kernel reads the settings and the name, which live until it returns.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, process, cpu, group, flags) };
    owned(fd)
}

fn tie(program: BorrowedFd<'_>, event: BorrowedFd<'_>, row: u64) -> io::Result<OwnedFd> {
    // SAFETY: as above.
    let mut attr: bpf_attr = unsafe { std::mem::zeroed() };
    let link = &raw mut attr;
    // SAFETY: the words of a link's making; the rest stays zero.
    unsafe {
        (*link).link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd().cast_unsigned();
        (*link).link_create.__bindgen_anon_2.target_fd = event.as_raw_fd().cast_unsigned();
        (*link).link_create.attach_type = bpf_attach_type::BPF_PERF_EVENT as u32;
        (*link).link_create.__bindgen_anon_3.perf_event.bpf_cookie = row;
    }
    let size = size_of::<bpf_attr>();
    // SAFETY: the kernel reads the words, which live until it returns.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, bpf_cmd::BPF_LINK_CREATE as u32, link, size) };
    owned(fd)
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = libc::c_int::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened it for us, with nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
