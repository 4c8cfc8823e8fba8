//! An eBPF program of two instructions that does nothing, on sys_enter: what the kernel's statistics read for it is what
//! they add to every other.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use anyhow::{Context, Result};

use crate::bpf::{self, Program};

/// As the kernel lists it.
pub(super) const NAME: &str = "blkkin_empty";
const NAME_C: &CStr = c"blkkin_empty";

/// Attached for as long as these live: the program and its link.
pub(super) fn attach() -> Result<(Program, OwnedFd)> {
    let program = Program::load(NAME_C, &[bpf::number(0, 0), bpf::EXIT])
        .context("an empty program cannot be loaded")?;
    let link = program.attach().context("an empty program cannot be attached")?;
    Ok((program, link))
}
