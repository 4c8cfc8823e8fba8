//! Perf events with a BPF program.
//!
//! *In*: the settings of an event, and a loaded program. *Out*: a [`PerfLink`]. While it lives, each
//! occurrence of the event runs the program. *Invariant*: nothing outlives the descriptors, and a
//! program that this process executes inherits none of them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use aya_obj::generated::{
    PERF_FLAG_FD_CLOEXEC, bpf_attach_type, bpf_attr, bpf_cmd, perf_event_attr, perf_sw_ids, perf_type_id,
};

/// A program that runs at each occurrence of a perf event.
#[derive(Debug)]
pub(crate) struct PerfLink {
    /// Before the event, to which the link refers.
    _link: OwnedFd,
    _event: OwnedFd,
}

/// Opens an event for all processes on `cpu`, and links `program` to it with this cookie.
pub(crate) fn attach(
    program: BorrowedFd<'_>,
    attr: &mut perf_event_attr,
    cpu: u32,
    cookie: u64,
) -> io::Result<PerfLink> {
    attr.size = size_of::<perf_event_attr>() as u32;
    let (process, group, flags) = (-1, -1, PERF_FLAG_FD_CLOEXEC);
    // SAFETY: the kernel reads the settings, which live until it returns, like what they point at.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const *attr, process, cpu.cast_signed(), group, flags)
    };
    let event = owned_fd(fd)?;
    let link = link_program(program, event.as_fd(), cookie)?;
    Ok(PerfLink { _link: link, _event: event })
}

/// Runs `program` at each major page fault in user mode: one event for each of these CPUs.
pub(crate) fn attach_to_major_faults(program: BorrowedFd<'_>, cpus: &[u32]) -> io::Result<Vec<PerfLink>> {
    let attach_one = |cpu: &u32| {
        // SAFETY: integers, for which every bit pattern is valid.
        let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
        attr.type_ = perf_type_id::PERF_TYPE_SOFTWARE as u32;
        attr.config = perf_sw_ids::PERF_COUNT_SW_PAGE_FAULTS_MAJ as u64;
        attr.__bindgen_anon_1.sample_period = 1;
        // Faults of the kernel belong to the system call that it works for.
        attr.set_exclude_kernel(1);
        attach(program, &mut attr, *cpu, 0)
    };
    cpus.iter().map(attach_one).collect()
}

fn link_program(program: BorrowedFd<'_>, event: BorrowedFd<'_>, cookie: u64) -> io::Result<OwnedFd> {
    // SAFETY: integers, for which every bit pattern is valid.
    let mut attr: bpf_attr = unsafe { std::mem::zeroed() };
    let link = &raw mut attr;
    // SAFETY: fields of the link_create command; the rest stays zero.
    unsafe {
        (*link).link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd().cast_unsigned();
        (*link).link_create.__bindgen_anon_2.target_fd = event.as_raw_fd().cast_unsigned();
        (*link).link_create.attach_type = bpf_attach_type::BPF_PERF_EVENT as u32;
        (*link).link_create.__bindgen_anon_3.perf_event.bpf_cookie = cookie;
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
