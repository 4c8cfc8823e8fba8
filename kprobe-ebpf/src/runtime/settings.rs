//! Loader settings, frozen before verification: a filter that is not set is dead code to the
//! verifier.

use crate::runtime::layout::frozen;
use blkkin_probe_abi::settings::{
    FILTERS_MAX, PAGE_COMPLETIONS_MAX, POINTER_STEPS_MAX, PageCompletion, PointerStep, ProbeSettings,
    SYSCALL_NUMBERS, SyscallShape,
};

/// Settings of this run, written by the loader.
#[unsafe(no_mangle)]
pub static SETTINGS: ProbeSettings = EMPTY;

/// Capture rules by system call number, written by the loader.
#[unsafe(no_mangle)]
pub static SYSCALLS: [u32; SYSCALL_NUMBERS] = [0; SYSCALL_NUMBERS];

const EMPTY: ProbeSettings = ProbeSettings {
    seed: 0,
    slower_than_ns: 0,
    bio_chain_endio: 0,
    btrfs_direct_end_io: 0,
    scheduler_begin: 0,
    scheduler_end: 0,
    trace_mode: 0,
    errors_only: 0,
    block_only: 0,
    path_args: 0,
    file_paths: 0,
    kernel_origin: 0,
    inherit_by_tid: 0,
    legacy_request_start: 0,
    pids_len: 0,
    tids_len: 0,
    comms_len: 0,
    cgroups_len: 0,
    devices_len: 0,
    own_pid: 0,
    stacked: 0,
    contexts: 0,
    async_io: 0,
    tick_ns: 0,
    head_sampling: 0,
    timed: 0,
    defers: 0,
    disk_total_sets: 0,
    async_operations: 0,
    pids: [0; FILTERS_MAX],
    tids: [0; FILTERS_MAX],
    devices: [0; FILTERS_MAX],
    cgroups: [0; FILTERS_MAX],
    comms: [[0; 2]; FILTERS_MAX],
    pointer_steps: [NO_STEP; POINTER_STEPS_MAX],
    page_completions: [NO_COMPLETION; PAGE_COMPLETIONS_MAX],
};

const NO_STEP: PointerStep =
    PointerStep { end_io: 0, container_offset: 0, first_offset: 0, second_offset: 0, to: 0 };

const NO_COMPLETION: PageCompletion = PageCompletion { end_io: 0, rule: 0, reserved: 0 };

/// Value of one setting.
macro_rules! setting {
    ($field:ident $([$index:expr])* $(. $member:ident)?) => {
        $crate::runtime::layout::frozen(&$crate::runtime::settings::SETTINGS.$field $([$index])* $(.$member)?)
    };
}
pub(crate) use setting;

/// Returns the capture rules of system call `number`; empty for a number outside the table.
#[inline(always)]
pub fn shape(number: u64) -> SyscallShape {
    if number >= SYSCALL_NUMBERS as u64 {
        return SyscallShape(0);
    }
    SyscallShape(frozen(&SYSCALLS[number as usize]))
}
