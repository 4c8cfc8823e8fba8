//! Entry points of blkkin's eBPF programs.
//!
//! The module defines each hook twice: as tp_btf (typed arguments, plain loads) and as raw_tp
//! (untyped arguments, bpf_probe_read_kernel). Where the kernel enters a function exactly when a
//! tracepoint fires (the tracer's `tracepoint_equivalents`), it also defines fentry (typed) and
//! kprobe (untyped) variants. All variants call one body; the loader attaches one of them.
//!
//! In the order of an operation's life:
//!
//! - `syscall` records system calls; `task` decides which tasks are traced and reads their thread
//!   contexts; `file` identifies the files they use. `task::wait` measures what they wait for, and,
//!   on request, `task::sleep` where they sleep and `task::dirty` the pages that stores into mappings make dirty.
//! - `async_io` makes spans of the requests of io_uring and libaio.
//! - `block` tracks bios and requests; `journal` records jbd2 commits, which serve fsyncs of
//!   several tasks, and finds what an fsync on xfs waits for.
//! - `nbd` parses NBD requests on client sockets, and `usdt` records USDT events. Both are loaded
//!   only on request.
//! - `totals` counts block requests instead of recording them; loaded alone, on request.
//! - `runtime` has the kernel reads, per-CPU state, tables, settings and rings that all of them
//!   use.

#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod async_io;
mod block;
mod file;
mod journal;
mod nbd;
mod runtime;
mod syscall;
mod task;
mod totals;
mod usdt;

use async_io::uring;
use blkkin_probe_abi::settings::Program;
use block::{bio, legacy_request, request};
use core::ffi::c_void;
use runtime::arguments::{ArgArray, ArgRegisters, Arguments};
use runtime::deferred;
use runtime::layout::offset;
use runtime::percpu::PerCpuState;
use runtime::read::{DirectLoad, Pointer, ProbeRead};
use runtime::timing::timed;
use task::{fork, page_fault, sleep, wait};

/// Position of the pause among the arguments of balance_dirty_pages: where it has 8, and where it has
/// 12 as in Linux 6.1.
const PAUSE_ARGUMENT: u32 = 6;
const PAUSE_ARGUMENT_BEFORE: u32 = 10;

/// Returns the `n`th argument of a tracepoint: tp_btf and raw_tp both pass an array of words.
#[inline(always)]
fn arg(context: *mut c_void, n: usize) -> Pointer {
    ArgArray::pointer(context, n)
}

/// Returns the `n`th argument as a number.
#[inline(always)]
fn word(context: *mut c_void, n: usize) -> u64 {
    ArgArray::word(context, n)
}

/// Defines the tp_btf and raw_tp variants of a hook. `$read` names the type that reads kernel
/// memory in the body.
macro_rules! hook {
    ($tracepoint:literal, $typed:ident, $raw:ident, |$context:ident, $read:ident| $body:expr) => {
        #[unsafe(no_mangle)]
        #[unsafe(link_section = concat!("tp_btf/", $tracepoint))]
        pub extern "C" fn $typed($context: *mut c_void) -> i32 {
            type $read = DirectLoad;
            $body;
            0
        }
        #[unsafe(no_mangle)]
        #[unsafe(link_section = concat!("raw_tp/", $tracepoint))]
        pub extern "C" fn $raw($context: *mut c_void) -> i32 {
            type $read = ProbeRead;
            $body;
            0
        }
    };
}

/// Runs the body of a program that may end parts of deferred operations, and decides about those that ended. A
/// macro like `timed!`, for the same reason.
macro_rules! ending {
    ($program:expr, $body:expr) => {
        timed!($program, {
            $body;
            deferred::decide($program)
        })
    };
}

/// Defines the fentry and kprobe variants of a function that replaces a hook's tracepoint. `$read`
/// names the type that reads kernel memory, `$args` the type that reads the arguments.
macro_rules! function {
    ($function:literal, $typed:ident, $untyped:ident, |$context:ident, $read:ident, $args:ident| $body:expr) => {
        #[unsafe(no_mangle)]
        #[unsafe(link_section = concat!("fentry/", $function))]
        pub extern "C" fn $typed($context: *mut c_void) -> i32 {
            type $read = DirectLoad;
            type $args = ArgArray;
            $body;
            0
        }
        #[unsafe(no_mangle)]
        #[unsafe(link_section = concat!("kprobe/", $function))]
        pub extern "C" fn $untyped($context: *mut c_void) -> i32 {
            type $read = ProbeRead;
            type $args = ArgRegisters;
            $body;
            0
        }
    };
}

/// Defines programs that do nothing. The tracer measures with them what the kernel takes for a run
/// (`tracer/src/selection/budget/run_cost.rs`).
macro_rules! empty {
    ($($name:ident),+) => {
        $(
            #[unsafe(no_mangle)]
            #[unsafe(link_section = "raw_tp/sys_enter")]
            pub extern "C" fn $name(_context: *mut c_void) -> i32 {
                0
            }
        )+
    };
}

empty!(empty_0, empty_1, empty_2, empty_3, empty_4);

hook!("sys_enter", call_enter_btf, call_enter_raw, |c, Read| ending!(
    Program::SyscallEnter,
    syscall::enter::<Read>(|| arg(c, 0), || word(c, 1))
));
hook!("sys_exit", call_exit_btf, call_exit_raw, |c, Read| ending!(
    Program::SyscallExit,
    syscall::exit::<Read>(arg(c, 0), || word(c, 1) as i64)
));
hook!("sys_enter", nbd_enter_btf, nbd_enter_raw, |c, Read| nbd::enter::<Read>(|| arg(c, 0), word(c, 1)));
hook!("sys_exit", nbd_exit_btf, nbd_exit_raw, |c, Read| nbd::exit::<Read>(arg(c, 0), word(c, 1) as i64));
hook!("tcp_retransmit_skb", nbd_retransmit_btf, nbd_retransmit_raw, |c, Read| {
    let _: core::marker::PhantomData<Read>;
    nbd::tcp::retransmit(arg(c, 0), arg(c, 1))
});
hook!("inet_sock_set_state", nbd_end_btf, nbd_end_raw, |c, Read| {
    let _: core::marker::PhantomData<Read>;
    nbd::tcp::state_change(arg(c, 0), word(c, 1) as u32, word(c, 2) as u32)
});
hook!("block_bio_queue", bio_queue_btf, bio_queue_raw, |c, Read| ending!(
    Program::BioQueue,
    bio::queue::<Read>(arg(c, 0))
));
hook!("block_bio_complete", bio_complete_btf, bio_complete_raw, |c, Read| ending!(
    Program::BioComplete,
    bio::complete::<Read>(arg(c, 1))
));
hook!("block_io_start", request_start_btf, request_start_raw, |c, Read| ending!(
    Program::RequestStart,
    request::start::<Read>(arg(c, 0))
));
hook!("block_getrq", request_take_btf, request_take_raw, |c, Read| ending!(
    Program::RequestStart,
    legacy_request::on_getrq::<Read>(arg(c, 0))
));
hook!("block_rq_insert", request_insert_btf, request_insert_raw, |c, Read| ending!(
    Program::RequestInsert,
    request::insert::<Read>(arg(c, 0))
));
hook!("block_rq_issue", request_issue_btf, request_issue_raw, |c, Read| ending!(
    Program::RequestIssue,
    request::issue::<Read>(arg(c, 0))
));
hook!("block_rq_complete", request_complete_btf, request_complete_raw, |c, Read| {
    ending!(
        Program::RequestComplete,
        request::complete::<Read>(arg(c, 0), word(c, 1) as u32, word(c, 2) as u32)
    )
});
hook!("block_rq_merge", request_merge_btf, request_merge_raw, |c, Read| {
    let _: core::marker::PhantomData<Read>;
    ending!(Program::RequestMerge, request::merge(arg(c, 0)))
});
hook!("block_io_start", totals_start_btf, totals_start_raw, |c, Read| timed!(
    Program::RequestStart,
    totals::start::<Read>(arg(c, 0))
));
hook!("block_rq_issue", totals_issue_btf, totals_issue_raw, |c, Read| timed!(
    Program::RequestIssue,
    totals::issue::<Read>(arg(c, 0))
));
hook!("block_rq_complete", totals_complete_btf, totals_complete_raw, |c, Read| timed!(
    Program::RequestComplete,
    totals::complete::<Read>(arg(c, 0), word(c, 1) as u32, word(c, 2) as u32)
));
hook!("mm_filemap_fault", fault_begin_btf, fault_begin_raw, |c, Read| timed!(
    Program::FaultBegin,
    page_fault::begin::<Read>(arg(c, 0), word(c, 1))
));
hook!("page_fault_user", fault_enter_btf, fault_enter_raw, |c, Read| {
    let _: core::marker::PhantomData<Read>;
    timed!(Program::FaultBegin, page_fault::begin_any(word(c, 0)))
});
hook!("writeback_dirty_folio", dirty_btf, dirty_raw, |c, Read| task::dirty::folio::<Read>(
    arg(c, 0),
    arg(c, 1)
));
hook!("io_uring_submit_req", async_submit_btf, async_submit_raw, |c, Read| ending!(
    Program::AsyncSubmit,
    uring::submit::<Read>(arg(c, 0))
));
hook!("io_uring_submit_sqe", async_submit_sqe_btf, async_submit_sqe_raw, |c, Read| {
    ending!(Program::AsyncSubmit, uring::submit::<Read>(arg(c, 0)))
});
hook!("io_uring_queue_async_work", async_queue_btf, async_queue_raw, |c, Read| {
    file::moves::on_async_work::<Read>(arg(c, 0));
    timed!(Program::AsyncQueue, uring::queue(arg(c, 0)))
});
hook!("io_uring_complete", async_complete_btf, async_complete_raw, |c, Read| {
    let _: core::marker::PhantomData<Read>;
    ending!(Program::AsyncComplete, uring::complete(arg(c, 1)))
});
hook!("ext4_sync_file_enter", sync_enter_btf, sync_enter_raw, |c, Read| {
    let _: core::marker::PhantomData<Read>;
    journal::sync_enter(word(c, 1) as u32)
});
hook!("ext4_sync_file_exit", sync_exit_btf, sync_exit_raw, |c, Read| {
    let _: core::marker::PhantomData<Read>;
    journal::sync_exit(arg(c, 0))
});
hook!("jbd2_start_commit", commit_start_btf, commit_start_raw, |c, Read| {
    journal::commit_start::<Read>(arg(c, 0), arg(c, 1))
});
hook!("jbd2_end_commit", commit_end_btf, commit_end_raw, |_c, Read| {
    let _: core::marker::PhantomData<Read>;
    journal::commit_end()
});
hook!("writeback_start", writeback_start_btf, writeback_start_raw, |c, Read| {
    block::pages::worker_reason::<Read>(Some(arg(c, 1)))
});
hook!("writeback_written", writeback_end_btf, writeback_end_raw, |_c, Read| {
    block::pages::worker_reason::<Read>(None)
});
hook!("contention_begin", lock_begin_btf, lock_begin_raw, |c, Read| {
    let _: core::marker::PhantomData<Read>;
    wait::lock_begin(word(c, 0), word(c, 1) as u32)
});
hook!("contention_end", lock_end_btf, lock_end_raw, |c, Read| {
    let _: core::marker::PhantomData<Read>;
    wait::lock_end(word(c, 0))
});
#[unsafe(no_mangle)]
#[unsafe(link_section = "tp_btf/sched_switch")]
pub extern "C" fn sleep_btf(c: *mut c_void) -> i32 {
    timed!(Program::Sleep, sleep::switch(c, word(c, 0) as u8 != 0, arg(c, 1), arg(c, 2), word(c, 3) as u32));
    0
}
hook!("balance_dirty_pages", dirty_pause_btf, dirty_pause_raw, |c, Read| {
    let _: core::marker::PhantomData<Read>;
    // The verifier allows only constant positions; the branch is one for it.
    match offset!(dirty_pause_argument) {
        PAUSE_ARGUMENT => wait::pause(word(c, PAUSE_ARGUMENT as usize) as i64),
        PAUSE_ARGUMENT_BEFORE => wait::pause(word(c, PAUSE_ARGUMENT_BEFORE as usize) as i64),
        _ => {}
    }
});
hook!("xfs_log_force", log_force_btf, log_force_raw, |_c, Read| {
    let _: core::marker::PhantomData<Read>;
    journal::xfs_log::force()
});
hook!("xlog_iclog_wait_on", log_wait_btf, log_wait_raw, |c, Read| {
    let _: core::marker::PhantomData<Read>;
    journal::xfs_log::wait_on(arg(c, 0))
});
hook!("sched_process_exec", task_exec_btf, task_exec_raw, |_c, Read| {
    let _: core::marker::PhantomData<Read>;
    if let Some(percpu) = PerCpuState::of(Program::TaskExec) {
        fork::exec(percpu)
    }
});
hook!("sched_process_exit", task_exit_btf, task_exit_raw, |_c, Read| {
    let _: core::marker::PhantomData<Read>;
    if let Some(percpu) = PerCpuState::of(Program::TaskExit) {
        fork::exit(percpu)
    }
});

#[unsafe(no_mangle)]
#[unsafe(link_section = "tp_btf/sched_process_fork")]
pub extern "C" fn task_fork_btf(context: *mut c_void) -> i32 {
    if let Some(percpu) = PerCpuState::of(Program::TaskFork) {
        fork::fork(percpu, arg(context, 1));
    }
    0
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp/sched_process_fork")]
pub extern "C" fn task_fork_raw(context: *mut c_void) -> i32 {
    if let Some(percpu) = PerCpuState::of(Program::TaskFork) {
        fork::fork_by_tid(percpu, arg(context, 1));
    }
    0
}

function!("x64_sys_call", call_enter_fentry, call_enter_kprobe, |c, Read, Args| {
    ending!(
        Program::SyscallEnter,
        syscall::enter::<Read>(|| Args::pointer(c, 0), || Args::word(c, 1) as u32 as u64)
    )
});
function!("submit_bio_noacct_nocheck", bio_queue_fentry, bio_queue_kprobe, |c, Read, Args| {
    ending!(Program::BioQueue, bio::submit::<Read>(Args::pointer(c, 0)))
});
function!("blk_mq_start_request", request_issue_fentry, request_issue_kprobe, |c, Read, Args| {
    ending!(Program::RequestIssue, request::issue::<Read>(Args::pointer(c, 0)))
});
function!("ext4_sync_file", sync_enter_fentry, sync_enter_kprobe, |c, Read, Args| {
    let _: core::marker::PhantomData<Read>;
    journal::sync_enter(Args::word(c, 3) as u32)
});
function!("proc_exec_connector", task_exec_fentry, task_exec_kprobe, |_c, Read, Args| {
    let _: core::marker::PhantomData<(Read, Args)>;
    if let Some(percpu) = PerCpuState::of(Program::TaskExec) {
        fork::exec(percpu)
    }
});
function!("exit_files", task_exit_fentry, task_exit_kprobe, |c, Read, Args| {
    let _: core::marker::PhantomData<Read>;
    if let Some(percpu) = PerCpuState::of(Program::TaskExit) {
        fork::exit_files(percpu, Args::pointer(c, 0))
    }
});

#[unsafe(no_mangle)]
#[unsafe(link_section = "fentry/syscall_exit_to_user_mode_prepare")]
pub extern "C" fn call_exit_fentry(context: *mut c_void) -> i32 {
    ending!(Program::SyscallExit, syscall::exit_to_user_mode::<DirectLoad>(ArgArray::pointer(context, 0)));
    0
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "fentry/wake_up_new_task")]
pub extern "C" fn task_fork_fentry(context: *mut c_void) -> i32 {
    if let Some(percpu) = PerCpuState::of(Program::TaskFork) {
        fork::on_wake_up_new_task::<DirectLoad>(percpu, ArgArray::pointer(context, 0), fork::fork);
    }
    0
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "kprobe/wake_up_new_task")]
pub extern "C" fn task_fork_kprobe(context: *mut c_void) -> i32 {
    if let Some(percpu) = PerCpuState::of(Program::TaskFork) {
        fork::on_wake_up_new_task::<ProbeRead>(percpu, ArgRegisters::pointer(context, 0), fork::fork_by_tid);
    }
    0
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "perf_event")]
pub extern "C" fn fault_end_perf(context: *mut c_void) -> i32 {
    // SAFETY: the context is a struct bpf_perf_event_data.
    page_fault::end(unsafe { *context.byte_add(runtime::arch::PERF_ADDRESS).cast::<u64>() });
    0
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn usdt_uprobe(context: *mut c_void) -> i32 {
    usdt::on_probe(context);
    0
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 4] = *b"GPL\0";

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // SAFETY: nothing here panics; the linker drops this.
    unsafe { core::hint::unreachable_unchecked() }
}
