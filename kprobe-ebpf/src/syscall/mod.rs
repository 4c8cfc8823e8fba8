//! System calls: arguments at sys_enter, result at sys_exit, one record at the end.
//!
//! The tests run cheapest first: the system call's bit in a frozen table (4 to 12 ns), the task's
//! state (25 ns), then everything else. The clock is read last at entry, and at exit as soon as the
//! system call is known to be traced. So the cost of the probes is outside the recorded time except
//! for that lookup (5 ns), and an untraced task does not pay for a clock read (35 ns per system
//! call of every task).
//!
//! Invariant: `state.span` is not 0 while a traced system call is open; it is the parent of all I/O
//! that the task submits meanwhile. Outside a system call it may be a page fault's (`page_fault`).
//! An entry that finds an open system call has missed an exit: that system call is written as
//! incomplete, so it cannot claim the next one's bios.
//!
//! A call that a path filter or head sampling excludes has an open span as well, which no record names:
//! its bios must not pass for those of a page fault or of the kernel.

mod capture;

use crate::async_io::libaio;
use crate::block::device::device_passes;
use crate::file::moves;
use crate::runtime::arch;
use crate::runtime::deferred;
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{DirectLoad, KernelRead, Pointer};
use crate::runtime::settings::{setting, shape};
use crate::task::{self, TaskState, open_syscall, page_fault, page_writes, sampling, sleep, thread_context};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::deferred::{KEEP_SYSCALLS, VERDICT_DROP, sampled_verdict, sampling_of};
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::{BLOCK_ONLY_ALL, Program, SyscallShape};

/// Handles sys_enter(regs, number). Both arguments are closures, evaluated where they are needed:
/// kept from the start they would take more stack than the context that they are read from.
#[inline(always)]
pub fn enter<R: KernelRead>(regs: impl Fn() -> Pointer, number: impl Fn() -> u64) {
    let shape = shape(number());
    if shape.has(SyscallShape::MOVES) {
        moves::begin();
    }
    if !shape.has(SyscallShape::TRACED) {
        if shape.has(SyscallShape::UNMAPS) {
            let regs = regs();
            // SAFETY: `regs` is of the kind that R reads.
            unsafe { thread_context::on_munmap(R::read(regs, arch::ARGS[0]), R::read(regs, arch::ARGS[1])) };
        }
        return;
    }
    let Some(percpu) = PerCpuState::of(Program::SyscallEnter) else { return };
    let Some(state) = task::traced(percpu, Program::SyscallEnter) else { return };
    let task = task::current();
    // SAFETY: `task` is typed.
    if unsafe { DirectLoad::read::<u32>(task, offset!(task_compat)) } & arch::COMPAT != 0 {
        percpu.count(SYSCALLS_COMPAT);
        return;
    }
    if state.span != 0 {
        if state.span_start_ns != 0 {
            page_fault::end_unseen(Program::SyscallEnter as u32);
        } else {
            libaio::finish_submitting(percpu, state);
            open_syscall::abandon(percpu, state);
        }
    }
    percpu.count(SYSCALLS_ENTERED);
    let span = percpu.next_span_id(Program::SyscallEnter);
    state.shape = shape.0;
    let fields = &mut state.record;
    fields.header.flags = 0;
    fields.header.sampling = 0;
    state.context_fault = 0;
    (state.verdict, state.deferred) = (sampled_verdict(0) as u32, 0);
    let sampled = sampling::is_on() && !shape.has(SyscallShape::UNSAMPLED);
    let decided = sampled && !thread_context::may_exist(state);
    if decided && !sampling::decide(state, span) {
        open_syscall::exclude(percpu, state, span, CALLS_UNSAMPLED);
        return;
    }
    let fields = &mut state.record;
    fields.number = number() as u16;
    fields.task_version = state.version;
    fields.fd = -1;
    fields.path_len = [0; 2];
    fields.sync_tid = 0;
    let regs = regs();
    // SAFETY: `regs` is of the kind that R reads.
    unsafe {
        fields.args = [
            R::read(regs, arch::ARGS[0]),
            R::read(regs, arch::ARGS[1]),
            R::read(regs, arch::ARGS[2]),
            R::read(regs, arch::ARGS[3]),
            R::read(regs, arch::ARGS[4]),
            R::read(regs, arch::ARGS[5]),
        ];
    }
    state.file = 0;
    state.second_file = 0;
    if shape.fd() != 0 {
        capture::record_file(percpu, task, state, shape);
    }
    if shape.has(SyscallShape::EXCLUDABLE) && capture::has_excluded_files(state, shape) {
        open_syscall::exclude(percpu, state, span, SYSCALLS_FILTERED);
        return;
    }
    if shape.path() != 0 && setting!(path_args) != 0 {
        capture::copy_paths(state, shape);
    }
    thread_context::read_at_entry(percpu, task, state);
    sleep::prepare(task);
    if sampled && !decided && !sampling::decide(state, span) {
        open_syscall::exclude(percpu, state, span, CALLS_UNSAMPLED);
        return;
    }
    state.record.header.sampling = sampling_of(state.verdict as u64);
    state.bios = 0;
    state.iocb = 0;
    // SAFETY: `task` is typed; the clock has no preconditions.
    unsafe {
        state.sleeps = DirectLoad::read::<u64>(task, offset!(task_nvcsw)) as u32;
        if offset!(task_run_delay) != ABSENT {
            state.run_delay = DirectLoad::read(task, offset!(task_run_delay));
        }
        state.span = span;
        state.record.enter_ns = bpf_ktime_get_ns();
    }
}

/// Handles syscall_exit_to_user_mode_prepare(regs), on the kernel's way out of a system call.
#[inline(always)]
pub fn exit_to_user_mode<R: KernelRead>(regs: Pointer) {
    // SAFETY: `regs` is of the kind that R reads.
    exit::<R>(regs, || unsafe { R::read(regs, arch::RETURNED) })
}

/// Handles sys_exit(regs, ret). `ret` is evaluated only if a system call is open.
#[inline(always)]
pub fn exit<R: KernelRead>(regs: Pointer, ret: impl FnOnce() -> i64) {
    // One plain load saves untraced tasks the lookup in task storage.
    if R::CHEAP || thread_context::slots_exist() || moves::in_progress() {
        // SAFETY: `regs` is of the kind that R reads.
        let shape = shape(unsafe { number::<R>(regs) });
        if shape.has(SyscallShape::MOVES) {
            moves::end();
        }
        if !shape.has(SyscallShape::TRACED) {
            if shape.has(SyscallShape::UNMAPS) {
                // SAFETY: as above.
                unsafe {
                    thread_context::on_munmap(
                        R::read(regs, arch::FIRST_ARG_AT_RETURN),
                        R::read(regs, arch::ARGS[1]),
                    )
                };
            }
            return;
        }
    }
    let task = task::current();
    let Some(state) = task::state(task) else { return };
    if state.span == 0 || state.span_start_ns != 0 {
        return;
    }
    if state.is_excluded() {
        state.span = 0;
        return;
    }
    // SAFETY: the clock has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    let Some(percpu) = PerCpuState::of(Program::SyscallExit) else { return };
    libaio::finish_submitting(percpu, state);
    finish(percpu, task, state, ret(), now);
    page_writes::end(state);
    state.span = 0;
}

/// Returns the number of the system call that these registers made.
///
/// # Safety
/// `regs` is of the kind that `R` reads.
#[inline(always)]
pub unsafe fn number<R: KernelRead>(regs: Pointer) -> u64 {
    // SAFETY: by the contract. The register is as wide as its field.
    unsafe {
        if cfg!(bpf_target_arch = "aarch64") {
            R::read::<u32>(regs, arch::NUMBER) as u64
        } else {
            R::read::<u64>(regs, arch::NUMBER)
        }
    }
}

/// Returns whether the call may have made pages dirty that will be written to a filtered device.
#[inline(always)]
fn writes_pages_of_filtered_device(state: &TaskState) -> bool {
    let dev = state.record.file.dev;
    state.record.header.flags & SYSCALL_WRITES_PAGE_CACHE != 0 && device_passes(dev, dev)
}

#[inline(always)]
fn finish(percpu: &mut PerCpuState, task: Pointer, state: &mut TaskState, ret: i64, now: u64) {
    let shape = SyscallShape(state.shape);
    // An fsync that the journal thread served has no bio of its own.
    let dev = state.record.file.dev;
    let waited_for_commit = state.record.header.flags & SYSCALL_HAS_SYNC_TID != 0 && device_passes(dev, dev);
    let no_block_io = state.bios == 0 && !waited_for_commit;
    thread_context::read_at_return(percpu, state);
    let block_only = setting!(block_only) == BLOCK_ONLY_ALL
        || setting!(block_only) != 0 && !writes_pages_of_filtered_device(state);
    if no_block_io
        && (block_only
            || ((setting!(slower_than_ns) != 0 && now - state.record.enter_ns < setting!(slower_than_ns)
                || setting!(errors_only) != 0 && ret >= 0)
                && !thread_context::keeps_sampled(state)))
    {
        percpu.count(SYSCALLS_FILTERED);
        if deferred::is_on() && state.deferred != 0 {
            deferred::end_part(percpu, state.span);
        }
        return;
    }
    state.record.ret = ret;
    let mut is_deferred = false;
    if deferred::is_on() && state.is_deferred() {
        let time = now - state.record.enter_ns;
        let verdict = deferred::verdict_of_call(KEEP_SYSCALLS + state.record.number as u32, ret < 0, time);
        match open_syscall::close(percpu, state, verdict) {
            deferred::UNDECIDED => is_deferred = true,
            VERDICT_DROP => return,
            _ => {}
        }
    }
    if shape.has(SyscallShape::OPENS) && ret >= 0 {
        capture::record_opened_file(percpu, task, state, ret as u32, now);
    }
    if shape.has(SyscallShape::POSITION) {
        if let Some(position) = capture::position_now(percpu, task, state.record.fd as u32, state.file) {
            state.record.position_after = position;
            state.record.header.flags |= SYSCALL_HAS_POSITION_AFTER;
        }
        if state.second_file != 0 {
            // SAFETY: as in `capture::record_file`.
            let second = unsafe { &mut *(&raw mut state.tail).cast::<SecondFile>() };
            second.position_after =
                capture::position_now(percpu, task, second.fd as u32, state.second_file).unwrap_or(-1);
        }
    }
    // After a successful execve the addresses are those of another program.
    let same_program = state.version == state.record.task_version;
    if state.record.header.flags & SYSCALL_PATH_FAULT != 0 && same_program {
        // The page was not resident at entry; the kernel has read it since, so it may be resident
        // now.
        state.record.header.flags &= !(SYSCALL_PATH_FAULT | SYSCALL_PATH_TRUNCATED);
        capture::copy_paths(state, shape);
    }
    // SAFETY: `task` is typed.
    let sleeps = unsafe { DirectLoad::read::<u64>(task, offset!(task_nvcsw)) } as u32;
    state.sleeps = sleeps.wrapping_sub(state.sleeps);
    if offset!(task_run_delay) != ABSENT {
        // SAFETY: as above.
        let run_delay: u64 = unsafe { DirectLoad::read(task, offset!(task_run_delay)) };
        state.record.cpu_wait_ns = run_delay.wrapping_sub(state.run_delay);
        state.record.header.flags |= SYSCALL_HAS_CPU_WAIT;
    }
    open_syscall::write(percpu, state, now, is_deferred);
}
