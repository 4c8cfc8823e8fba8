//! blkkin's eBPF programs. Entry points only: each hook once as tp_btf (arguments typed, plain loads) and once as
//! raw_tp (arguments untyped, read by helper); and where a function of the kernel is entered exactly when a tracepoint fires
//! (`tracer/src/functions.rs`), once more as fentry (typed) and kprobe (untyped). All call one body. The loader attaches one.
//!
//! In the order of a request's life: call.rs → bio.rs → request.rs (alone.rs where bio and request are one to one), with journal.rs for what jbd2 does on behalf of
//! others, stacked.rs for devices on devices, command.rs for what drivers send of their own, flush.rs for the cache flushes and late.rs for older kernels; task.rs says who is followed (lineage.rs: because
//! of whom, filter.rs: who is not, describe.rs: what a person calls it), context.rs for which span of its own a program calls, file.rs and path.rs which file it is about; block.rs
//! and table.rs keep what is in flight; nbd.rs is by itself: what programs ask NBD servers, by sockets (socket.rs, stream.rs), loaded only when asked for; so is hit.rs: probes in programs; local.rs is each program's own memory and ring.rs the way out.

#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod access;
mod alone;
mod arch;
mod arguments;
mod attributes;
mod bio;
mod block;
mod call;
mod command;
mod context;
mod describe;
mod file;
mod filter;
mod flush;
mod hit;
mod journal;
mod late;
mod layout;
mod lineage;
mod local;
mod nbd;
mod path;
mod request;
mod ring;
mod settings;
mod socket;
mod stacked;
mod stream;
mod table;
mod task;

use access::{Direct, Pointer, Probe};
use arguments::{Arguments, Registers, Words};
use blkkin_probe_abi::settings::Program;
use core::ffi::c_void;
use local::Local;

/// The `n`th argument of a tracepoint: tp_btf and raw_tp both hand over an array of words.
#[inline(always)]
fn arg(context: *mut c_void, n: usize) -> Pointer {
    Words::pointer(context, n)
}

/// As [`arg`], for a number.
#[inline(always)]
fn word(context: *mut c_void, n: usize) -> u64 {
    Words::word(context, n)
}

/// Both twins of a hook. `$way` names the way to read inside the body.
macro_rules! hook {
    ($tracepoint:literal, $typed:ident, $raw:ident, |$context:ident, $way:ident| $body:expr) => {
        #[unsafe(no_mangle)]
        #[unsafe(link_section = concat!("tp_btf/", $tracepoint))]
        pub extern "C" fn $typed($context: *mut c_void) -> i32 {
            type $way = Direct;
            $body;
            0
        }
        #[unsafe(no_mangle)]
        #[unsafe(link_section = concat!("raw_tp/", $tracepoint))]
        pub extern "C" fn $raw($context: *mut c_void) -> i32 {
            type $way = Probe;
            $body;
            0
        }
    };
}

/// Both twins of a function that is entered when a hook's tracepoint fires. `$way` names the way to read, `$from` where the
/// arguments are.
macro_rules! function {
    ($function:literal, $typed:ident, $untyped:ident, |$context:ident, $way:ident, $from:ident| $body:expr) => {
        #[unsafe(no_mangle)]
        #[unsafe(link_section = concat!("fentry/", $function))]
        pub extern "C" fn $typed($context: *mut c_void) -> i32 {
            type $way = Direct;
            type $from = Words;
            $body;
            0
        }
        #[unsafe(no_mangle)]
        #[unsafe(link_section = concat!("kprobe/", $function))]
        pub extern "C" fn $untyped($context: *mut c_void) -> i32 {
            type $way = Probe;
            type $from = Registers;
            $body;
            0
        }
    };
}

hook!("sys_enter", call_enter_btf, call_enter_raw, |c, Way| call::enter::<Way>(|| arg(c, 0), || word(c, 1)));
hook!("sys_exit", call_exit_btf, call_exit_raw, |c, Way| call::exit::<Way>(arg(c, 0), || word(c, 1) as i64));
hook!("sys_enter", nbd_enter_btf, nbd_enter_raw, |c, Way| nbd::enter::<Way>(|| arg(c, 0), word(c, 1)));
hook!("sys_exit", nbd_exit_btf, nbd_exit_raw, |c, Way| nbd::exit::<Way>(arg(c, 0), word(c, 1) as i64));
hook!("tcp_retransmit_skb", nbd_resend_btf, nbd_resend_raw, |c, Way| {
    let _: core::marker::PhantomData<Way>;
    stream::resent(arg(c, 0), arg(c, 1))
});
hook!("inet_sock_set_state", nbd_end_btf, nbd_end_raw, |c, Way| {
    let _: core::marker::PhantomData<Way>;
    stream::state(arg(c, 0), word(c, 1) as u32, word(c, 2) as u32)
});
hook!("block_bio_queue", bio_queue_btf, bio_queue_raw, |c, Way| bio::queue::<Way>(arg(c, 0)));
hook!("block_bio_complete", bio_complete_btf, bio_complete_raw, |c, Way| bio::complete::<Way>(arg(c, 1)));
hook!("block_io_start", request_start_btf, request_start_raw, |c, Way| request::start::<Way>(arg(c, 0)));
hook!("block_getrq", request_take_btf, request_take_raw, |c, Way| late::take::<Way>(arg(c, 0)));
hook!("block_rq_insert", request_insert_btf, request_insert_raw, |c, Way| request::insert::<Way>(arg(c, 0)));
hook!("block_rq_issue", request_issue_btf, request_issue_raw, |c, Way| request::issue::<Way>(arg(c, 0)));
hook!("block_rq_complete", request_complete_btf, request_complete_raw, |c, Way| {
    request::complete::<Way>(arg(c, 0), word(c, 1) as u32, word(c, 2) as u32)
});
hook!("block_rq_merge", request_merge_btf, request_merge_raw, |c, Way| {
    let _: core::marker::PhantomData<Way>;
    request::merge(arg(c, 0))
});
hook!("ext4_sync_file_enter", sync_enter_btf, sync_enter_raw, |c, Way| {
    let _: core::marker::PhantomData<Way>;
    journal::sync_enter(word(c, 1) as u32)
});
hook!("ext4_sync_file_exit", sync_exit_btf, sync_exit_raw, |c, Way| {
    let _: core::marker::PhantomData<Way>;
    journal::sync_exit(arg(c, 0))
});
hook!("jbd2_start_commit", commit_start_btf, commit_start_raw, |c, Way| {
    journal::commit_start::<Way>(arg(c, 0), arg(c, 1))
});
hook!("jbd2_end_commit", commit_end_btf, commit_end_raw, |_c, Way| {
    let _: core::marker::PhantomData<Way>;
    journal::commit_end()
});
hook!("sched_process_exec", task_exec_btf, task_exec_raw, |_c, Way| {
    let _: core::marker::PhantomData<Way>;
    if let Some(local) = Local::of(Program::TaskExec) {
        lineage::exec(local)
    }
});
hook!("sched_process_exit", task_exit_btf, task_exit_raw, |_c, Way| {
    let _: core::marker::PhantomData<Way>;
    if let Some(local) = Local::of(Program::TaskExit) {
        lineage::exit(local)
    }
});

#[unsafe(no_mangle)]
#[unsafe(link_section = "tp_btf/sched_process_fork")]
pub extern "C" fn task_fork_btf(context: *mut c_void) -> i32 {
    if let Some(local) = Local::of(Program::TaskFork) {
        lineage::fork(local, arg(context, 1));
    }
    0
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "raw_tp/sched_process_fork")]
pub extern "C" fn task_fork_raw(context: *mut c_void) -> i32 {
    if let Some(local) = Local::of(Program::TaskFork) {
        lineage::fork_noted(local, arg(context, 1));
    }
    0
}

function!("x64_sys_call", call_enter_fentry, call_enter_kprobe, |c, Way, From| {
    call::enter::<Way>(|| From::pointer(c, 0), || From::word(c, 1) as u32 as u64)
});
function!("submit_bio_noacct_nocheck", bio_queue_fentry, bio_queue_kprobe, |c, Way, From| {
    bio::submit::<Way>(From::pointer(c, 0))
});
function!("blk_mq_start_request", request_issue_fentry, request_issue_kprobe, |c, Way, From| {
    request::issue::<Way>(From::pointer(c, 0))
});
function!("ext4_sync_file", sync_enter_fentry, sync_enter_kprobe, |c, Way, From| {
    let _: core::marker::PhantomData<Way>;
    journal::sync_enter(From::word(c, 3) as u32)
});
function!("proc_exec_connector", task_exec_fentry, task_exec_kprobe, |_c, Way, From| {
    let _: core::marker::PhantomData<(Way, From)>;
    if let Some(local) = Local::of(Program::TaskExec) {
        lineage::exec(local)
    }
});
function!("exit_files", task_exit_fentry, task_exit_kprobe, |c, Way, From| {
    let _: core::marker::PhantomData<Way>;
    if let Some(local) = Local::of(Program::TaskExit) {
        lineage::exit_of(local, From::pointer(c, 0))
    }
});

#[unsafe(no_mangle)]
#[unsafe(link_section = "fentry/syscall_exit_to_user_mode_prepare")]
pub extern "C" fn call_exit_fentry(context: *mut c_void) -> i32 {
    call::leave::<Direct>(Words::pointer(context, 0));
    0
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "fentry/wake_up_new_task")]
pub extern "C" fn task_fork_fentry(context: *mut c_void) -> i32 {
    if let Some(local) = Local::of(Program::TaskFork) {
        lineage::woken::<Direct>(local, Words::pointer(context, 0), lineage::fork);
    }
    0
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "kprobe/wake_up_new_task")]
pub extern "C" fn task_fork_kprobe(context: *mut c_void) -> i32 {
    if let Some(local) = Local::of(Program::TaskFork) {
        lineage::woken::<Probe>(local, Registers::pointer(context, 0), lineage::fork_noted);
    }
    0
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe")]
pub extern "C" fn hit_uprobe(context: *mut c_void) -> i32 {
    hit::hit(context);
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
