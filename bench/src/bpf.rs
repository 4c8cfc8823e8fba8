//! Hand-written eBPF programs of a few instructions, to measure the kernel's own cost.
//!
//! *In*: instructions. *Out*: a program that is attached or run once. *Rejected*: a tool chain for
//! them.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// Commands and types of include/uapi/linux/bpf.h.
const PROG_LOAD: libc::c_long = 5;
const PROG_TEST_RUN: libc::c_long = 10;
const RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const PROG_TYPE_RAW_TRACEPOINT: u32 = 17;

/// Encodes `r0 = NUMBER`: opcode, registers, offset and constant.
pub(crate) const fn number(register: u8, number: i32) -> u64 {
    0xb7 | (register as u64) << 8 | ((number as u32) as u64) << 32
}

/// Encoded `exit`.
pub(crate) const EXIT: u64 = 0x95;

/// Start of `union bpf_attr` for BPF_PROG_LOAD; the kernel reads missing fields as zero.
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

/// Start of `union bpf_attr` for BPF_RAW_TRACEPOINT_OPEN.
#[repr(C)]
struct Open {
    name: u64,
    program: u32,
    reserved: u32,
}

/// Start of `union bpf_attr` for BPF_PROG_TEST_RUN.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    returned: u32,
    data_sizes: [u32; 2],
    data: [u64; 2],
    repeat: u32,
    duration: u32,
    context_sizes: [u32; 2],
    contexts: [u64; 2],
    flags: u32,
    cpu: u32,
}

const _: () = assert!(size_of::<Load>() == 64 && size_of::<Open>() == 16 && size_of::<TestRun>() == 72);

/// Loaded program, unloaded on drop.
pub(crate) struct Program(OwnedFd);

impl Program {
    /// Loads a raw tracepoint program. The kernel lists it by this name, up to 15 bytes.
    pub(crate) fn load(name: &CStr, instructions: &[u64]) -> io::Result<Program> {
        let mut bytes = [0; 16];
        let length = name.count_bytes().min(bytes.len() - 1);
        bytes[..length].copy_from_slice(&name.to_bytes()[..length]);
        let mut load = Load {
            program_type: PROG_TYPE_RAW_TRACEPOINT,
            instructions: instructions.len() as u32,
            program: instructions.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64,
            log_level: 0,
            log_size: 0,
            log: 0,
            kernel_version: 0,
            flags: 0,
            name: bytes,
        };
        opened(bpf(PROG_LOAD, &mut load)?).map(Program)
    }

    /// Attaches the program to sys_enter until the returned link is dropped.
    pub(crate) fn attach(&self) -> io::Result<OwnedFd> {
        let mut open = Open { name: c"sys_enter".as_ptr() as u64, program: self.number(), reserved: 0 };
        opened(bpf(RAW_TRACEPOINT_OPEN, &mut open)?)
    }

    /// Runs the program once and returns its return value.
    pub(crate) fn run(&self) -> io::Result<u32> {
        let mut run = TestRun { program: self.number(), ..TestRun::default() };
        bpf(PROG_TEST_RUN, &mut run)?;
        Ok(run.returned)
    }

    fn number(&self) -> u32 {
        self.0.as_raw_fd().cast_unsigned()
    }
}

fn opened(fd: libc::c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just created it, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: `attributes` has the size that is passed, and its pointers are valid during the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
