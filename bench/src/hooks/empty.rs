//! Empty eBPF program of two instructions on sys_enter. The statistics that the kernel reads for it
//! are their overhead for any program.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use anyhow::{Context, Result};

use crate::bpf::{self, Program};

/// Name in the kernel's list.
pub(super) const NAME: &str = "blkkin_empty";
const NAME_C: &CStr = c"blkkin_empty";

/// Attaches the program until the returned values are dropped.
pub(super) fn attach() -> Result<(Program, OwnedFd)> {
    let program = Program::load(NAME_C, &[bpf::number(0, 0), bpf::EXIT])
        .context("an empty program cannot be loaded")?;
    let link = program.attach().context("an empty program cannot be attached")?;
    Ok((program, link))
}
