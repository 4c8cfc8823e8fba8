//! An eBPF program of two instructions that does nothing, on sys_enter: what the kernel's statistics read for it is what
//! they add to every other.

use std::ffi::CStr;
use std::os::fd::{FromRawFd, OwnedFd};

use anyhow::{Context, Result};

/// As the kernel lists it.
pub(super) const NAME: &str = "blkkin_empty";
const NAME_C: &CStr = c"blkkin_empty";

/// Commands and types of include/uapi/linux/bpf.h.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const BPF_PROG_TYPE_RAW_TRACEPOINT: u32 = 17;
/// `r0 = 0; exit`: code, registers, offset and constant of each.
const PROGRAM: [u64; 2] = [0x0000_0000_0000_00b7, 0x0000_0000_0000_0095];

/// The begin of `union bpf_attr` for BPF_PROG_LOAD; the kernel takes what is missing as zero.
#[repr(C)]
struct Load {
    program_type: u32,
    instructions: u32,
    program: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

/// And for BPF_RAW_TRACEPOINT_OPEN.
#[repr(C)]
struct Open {
    name: u64,
    program: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<Load>() == 64 && size_of::<Open>() == 16);

/// Attached for as long as these live: the program and its link.
pub(super) fn attach() -> Result<(OwnedFd, OwnedFd)> {
    let mut name = [0; 16];
    name[..NAME.len()].copy_from_slice(&NAME_C.to_bytes()[..NAME.len()]);
    let load = Load {
        program_type: BPF_PROG_TYPE_RAW_TRACEPOINT,
        instructions: PROGRAM.len() as u32,
        program: PROGRAM.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name,
    };
    let program = bpf(BPF_PROG_LOAD, &load).context("an empty program cannot be loaded")?;
    let number = u32::try_from(std::os::fd::AsRawFd::as_raw_fd(&program)).context("a negative descriptor")?;
    let open = Open { name: c"sys_enter".as_ptr() as u64, program: number, reserved: 0 };
    let link = bpf(BPF_RAW_TRACEPOINT_OPEN, &open).context("an empty program cannot be attached")?;
    Ok((program, link))
}

fn bpf<T>(command: libc::c_long, attributes: &T) -> std::io::Result<OwnedFd> {
    // SAFETY: `attributes` is as large as said, and what it points to lives across the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made it for us, and nobody else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(std::io::Error::last_os_error()),
    }
}
