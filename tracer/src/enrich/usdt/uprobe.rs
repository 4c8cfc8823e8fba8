//! Uprobe attachment of the USDT program.
//!
//! *In*: a location in a file, and the loaded program. *Out*: a `UsdtLink`. While it lives, every
//! thread that reaches the location runs the program, and the probe's semaphore is incremented in
//! all processes of that file. *Invariant*: as everywhere, nothing outlives the descriptors.
//!
//! A uprobe is a perf event of the kernel's `uprobe` PMU (kernel/events/core.c, `perf_uprobe`), for
//! every process. A BPF link ties the program to the event, with the row as its cookie (Linux 5.15:
//! 82e6b1eee6a8).

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aya_obj::generated::{PERF_FLAG_FD_CLOEXEC, bpf_attach_type, bpf_attr, bpf_cmd, perf_event_attr};

/// Type of the PMU, and bit offset of the semaphore's file offset in `config` (`config:32-63`, its
/// `format`).
const UPROBE_TYPE: &str = "/sys/bus/event_source/devices/uprobe/type";
const SEMAPHORE_SHIFT: u32 = 32;

/// An attached uprobe.
#[derive(Debug)]
pub(crate) struct UsdtLink {
    /// Before the event, to which the link refers.
    _link: OwnedFd,
    _event: OwnedFd,
}

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
) -> io::Result<UsdtLink> {
    let event = open(file, offset, semaphore)?;
    let link = link_program(program, event.as_fd(), row)?;
    Ok(UsdtLink { _link: link, _event: event })
}

fn open(file: &Path, offset: u64, semaphore: u64) -> io::Result<OwnedFd> {
    let name = CString::new(file.as_os_str().as_bytes())?;
    // SAFETY: integers, for which every bit pattern is valid.
    let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
    attr.type_ = uprobe_type()?;
    attr.size = size_of::<perf_event_attr>() as u32;
    attr.config = semaphore << SEMAPHORE_SHIFT;
    attr.__bindgen_anon_3.config1 = name.as_ptr() as u64;
    attr.__bindgen_anon_4.config2 = offset;
    // All processes. A uprobe is not bound to a CPU, but the call requires one.
    let (process, cpu, group) = (-1, 0, -1);
    let flags = PERF_FLAG_FD_CLOEXEC;
    // SAFETY: the kernel reads the settings and the name, which live until it returns.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, process, cpu, group, flags) };
    owned_fd(fd)
}

fn link_program(program: BorrowedFd<'_>, event: BorrowedFd<'_>, row: u64) -> io::Result<OwnedFd> {
    // SAFETY: as above.
    let mut attr: bpf_attr = unsafe { std::mem::zeroed() };
    let link = &raw mut attr;
    // SAFETY: fields of the link_create command; the rest stays zero.
    unsafe {
        (*link).link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd().cast_unsigned();
        (*link).link_create.__bindgen_anon_2.target_fd = event.as_raw_fd().cast_unsigned();
        (*link).link_create.attach_type = bpf_attach_type::BPF_PERF_EVENT as u32;
        (*link).link_create.__bindgen_anon_3.perf_event.bpf_cookie = row;
    }
    let size = size_of::<bpf_attr>();
    // SAFETY: the kernel reads the words, which live until it returns.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, bpf_cmd::BPF_LINK_CREATE as u32, link, size) };
    owned_fd(fd)
}

fn owned_fd(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = libc::c_int::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened it, and no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
