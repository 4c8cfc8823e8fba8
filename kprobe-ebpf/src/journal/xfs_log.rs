//! Waits of fsyncs for the log of xfs.
//!
//! *In*: `xfs_log_force`, where a task begins to write the log out up to a sequence number, and
//! `xlog_iclog_wait_on`, where it sleeps until a buffer of the log (iclog) is on the disk. *Out*: a wait
//! of the open system call, with the bio that writes the buffer.
//!
//! *Invariant*: the bio is part of the buffer (`struct xlog_in_core`, fs/xfs/xfs_log_priv.h) that the
//! kernel's own hook names, and in flight when the task begins to sleep. A buffer that is written later,
//! or whose write has ended and waits for its callbacks, gives a wait without a bio.
//!
//! *The end* of the wait is the system call's: xfs_file_fsync returns after it, or writes a flush of its
//! own, whose time is that of the call's I/O.
//!
//! *Not here*: a log write that the task submits itself, which is its own I/O; calls that force the log
//! without waiting.

use crate::block::in_flight;
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::Pointer;
use crate::task::{self, wait};
use blkkin_probe_abi::settings::Program;

/// Handles xfs_log_force(mount, sequence, caller).
#[inline(always)]
pub fn force() {
    let task = task::current();
    let Some(state) = task::state(task) else { return };
    if state.in_syscall() {
        wait::log_begin(task, state);
    }
}

/// Handles xlog_iclog_wait_on(iclog, caller).
#[inline(always)]
pub fn wait_on(iclog: Pointer) {
    let task = task::current();
    let Some(state) = task::state(task) else { return };
    if !state.in_syscall() {
        return;
    }
    let Some(percpu) = PerCpuState::of(Program::LogWait) else { return };
    wait::log_begin(task, state);
    // A typed pointer may not become a key.
    let bio = percpu.address(iclog).wrapping_add(offset!(iclog_bio) as u64);
    wait::log_sleep(state, in_flight::ids_of(bio));
}
