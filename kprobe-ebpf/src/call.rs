//! System calls: what was asked at sys_enter, what became of it at sys_exit, one record at the end.
//!
//! Order of the tests, cheapest first: the call's bit in a frozen table (4 to 12 ns), the task's state (25 ns),
//! then everything else. The clock is read last at entry, and at exit as soon as the call is known to be followed:
//! what the probes cost lies outside the call's time but for that look (5 ns), and a task that is not followed does
//! not pay for a clock that nobody reads (35 ns a call of every task).
//!
//! Invariant: `state.span` is not 0 exactly while a followed call is open; whatever the task submits meanwhile is
//! submitted *by* this call. An entry that finds a call open has missed an exit: that call is written as
//! incomplete, not left to claim the next one's bios.

use crate::access::{Access, Direct, Pointer, Probe};
use crate::arch;
use crate::attributes;
use crate::context;
use crate::file::{self, Open};
use crate::filter::device_wanted;
use crate::layout::offset;
use crate::local::Local;
use crate::ring;
use crate::settings::{setting, shape};
use crate::task::{self, TaskState};
use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_probe_read_user_str};
use blkkin_probe_abi::context::Head;
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::{CallShape, Program};

/// sys_enter(regs, number). Both are asked for where they are needed: kept from the start they would take more of the stack
/// than what they are read from.
#[inline(always)]
pub fn enter<A: Access>(regs: impl Fn() -> Pointer, number: impl Fn() -> u64) {
    let shape = shape(number());
    if !shape.has(CallShape::FOLLOWED) {
        if shape.has(CallShape::UNMAPS) {
            let regs = regs();
            // SAFETY: `regs` is of the kind that A reads.
            unsafe { context::unmapped(A::read(regs, arch::ARGS[0]), A::read(regs, arch::ARGS[1])) };
        }
        return;
    }
    let Some(local) = Local::of(Program::CallEnter) else { return };
    let Some(state) = task::followed(local, Program::CallEnter) else { return };
    let task = task::current();
    // SAFETY: `task` is typed.
    if unsafe { Direct::read::<u32>(task, offset!(task_compat)) } & arch::COMPAT != 0 {
        local.count(CALLS_COMPAT);
        return;
    }
    if state.span != 0 {
        abandon(local, state);
    }
    local.count(CALLS_ENTERED);
    let record = &mut state.record;
    record.header.flags = 0;
    record.number = number() as u16;
    record.task_version = state.version;
    record.fd = -1;
    record.path_len = [0; 2];
    record.sync_tid = 0;
    let regs = regs();
    // SAFETY: `regs` is of the kind that A reads.
    unsafe {
        record.args = [
            A::read(regs, arch::ARGS[0]),
            A::read(regs, arch::ARGS[1]),
            A::read(regs, arch::ARGS[2]),
            A::read(regs, arch::ARGS[3]),
            A::read(regs, arch::ARGS[4]),
            A::read(regs, arch::ARGS[5]),
        ];
    }
    state.shape = shape.0;
    state.file = 0;
    state.second_file = 0;
    if shape.fd() != 0 {
        describe_file(local, task, state, shape);
    }
    if shape.path() != 0 && setting!(path_args) != 0 {
        copy_paths(state, shape);
    }
    state.context_fault = 0;
    context::note(local, task, state);
    state.bios = 0;
    // SAFETY: `task` is typed; the clock has no preconditions.
    unsafe {
        state.sleeps = Direct::read::<u64>(task, offset!(task_nvcsw)) as u32;
        if offset!(task_run_delay) != ABSENT {
            state.run_delay = Direct::read(task, offset!(task_run_delay));
        }
        state.span = local.mint(Program::CallEnter);
        state.record.enter_ns = bpf_ktime_get_ns();
    }
}

/// The argument at `index`; 0 beyond the sixth.
#[inline(always)]
fn arg(record: &CallRecord, index: u32) -> u64 {
    let mut index = index as u64;
    // SAFETY: changes nothing (but is an instruction: the kernel refuses line information for none). It hides from the compiler where the index comes from, or it would compute the
    // address from bits that the verifier cannot bound, and drop the test that bounds it.
    unsafe { core::arch::asm!("{0} = {0}", inout(reg) index, options(nomem, nostack, preserves_flags)) };
    if index > 5 {
        return 0;
    }
    record.args[index as usize]
}

/// Identity and position of the primary descriptor's file, and of the second's.
#[inline(always)]
fn describe_file(local: &mut Local, task: Pointer, state: &mut TaskState, shape: CallShape) {
    let position = shape.has(CallShape::POSITION);
    let fd = arg(&state.record, shape.fd() - 1) as u32;
    state.record.fd = fd as i32;
    let Some(seen) = look(local, task, fd) else { return };
    state.file = seen.address;
    state.record.file = seen.id;
    state.record.header.flags |= CALL_HAS_FILE;
    if position {
        state.record.position_before = seen.position;
        state.record.header.flags |= CALL_HAS_POSITION_BEFORE;
    }
    if shape.second_fd() != 0 {
        let fd = arg(&state.record, shape.second_fd() - 1) as u32;
        let Some(seen) = look(local, task, fd) else { return };
        state.second_file = seen.address;
        let second = SecondFile {
            file: seen.id,
            position_before: seen.position,
            position_after: -1,
            fd: fd as i32,
            reserved: 0,
        };
        // SAFETY: the tail is larger than a SecondFile; it lies at a multiple of 8.
        unsafe { (&raw mut state.tail).cast::<SecondFile>().write(second) };
        state.record.header.flags |= CALL_HAS_SECOND;
    }
}

struct Seen {
    address: u64,
    id: FileId,
    position: i64,
}

/// What `fd` names now; its name is announced if it was not yet.
#[inline(always)]
fn look(local: &mut Local, task: Pointer, fd: u32) -> Option<Seen> {
    // SAFETY: each pointer is read by the way it was found.
    let seen = unsafe {
        match file::of(task, fd) {
            Open::Typed(file) => Seen {
                address: local.address(file),
                id: file::identity::<Direct>(file),
                position: file::position::<Direct>(file),
            },
            Open::Untyped(file) => Seen {
                address: file as u64,
                id: file::identity::<Probe>(file),
                position: file::position::<Probe>(file),
            },
            Open::None => return None,
        }
    };
    file::name(local, seen.address, &seen.id, false, 0);
    Some(seen)
}

/// Copies the path arguments behind the record.
#[inline(always)]
fn copy_paths(state: &mut TaskState, shape: CallShape) {
    let first = copy_path(state, arg(&state.record, shape.path() - 1), 0);
    state.record.path_len[0] = first as u16;
    if shape.second_path() != 0 {
        let second = copy_path(state, arg(&state.record, shape.second_path() - 1), first);
        state.record.path_len[1] = second as u16;
    }
}

/// Copies one, to `at`; its length without NUL. One byte more than is kept is asked for, to see a cut.
#[inline(always)]
fn copy_path(state: &mut TaskState, from: u64, at: usize) -> usize {
    const ASKED: usize = PATH_ARG_MAX + 2;
    if from == 0 {
        return 0;
    }
    let at = if at > PATH_ARG_MAX { return 0 } else { at };
    // SAFETY: `at + ASKED` lies inside the tail; the helper takes any user address.
    let copied = unsafe {
        let to = (&raw mut state.tail).cast::<u8>().add(at);
        bpf_probe_read_user_str(to.cast(), ASKED as u32, from as *const _)
    };
    if copied <= 0 || copied > ASKED as i64 {
        state.record.header.flags |= CALL_PATH_FAULT;
        return 0;
    }
    if copied as usize == ASKED {
        state.record.header.flags |= CALL_PATH_TRUNCATED;
        return PATH_ARG_MAX;
    }
    copied as usize - 1
}

/// syscall_exit_to_user_mode_prepare(regs), where the kernel is on its way out of a call.
#[inline(always)]
pub fn leave<A: Access>(regs: Pointer) {
    // SAFETY: `regs` is of the kind that A reads.
    exit::<A>(regs, || unsafe { A::read(regs, arch::RETURNED) })
}

/// sys_exit(regs, ret). `ret` is asked for only where a call is open.
#[inline(always)]
pub fn exit<A: Access>(regs: Pointer, ret: impl FnOnce() -> i64) {
    // One plain load spares a task that is not followed the look into its storage.
    if A::CHEAP || context::may_be_unmapped() {
        // SAFETY: `regs` is of the kind that A reads.
        let shape = shape(unsafe { number::<A>(regs) });
        if !shape.has(CallShape::FOLLOWED) {
            if shape.has(CallShape::UNMAPS) {
                // SAFETY: as above.
                unsafe { context::unmapped(A::read(regs, arch::FIRST), A::read(regs, arch::ARGS[1])) };
            }
            return;
        }
    }
    let task = task::current();
    let Some(state) = task::state(task) else { return };
    if state.span == 0 || state.commit_start_ns != 0 {
        return;
    }
    // SAFETY: the clock has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    let Some(local) = Local::of(Program::CallExit) else { return };
    finish(local, task, state, ret(), now);
    state.span = 0;
}

/// The number of the call that these registers made.
///
/// # Safety
/// `regs` is of the kind that `A` reads.
#[inline(always)]
pub unsafe fn number<A: Access>(regs: Pointer) -> u64 {
    // SAFETY: by the contract. The register is as wide as its field.
    unsafe {
        if cfg!(bpf_target_arch = "aarch64") {
            A::read::<u32>(regs, arch::NUMBER) as u64
        } else {
            A::read::<u64>(regs, arch::NUMBER)
        }
    }
}

#[inline(always)]
fn finish(local: &mut Local, task: Pointer, state: &mut TaskState, ret: i64, now: u64) {
    let shape = CallShape(state.shape);
    // An fsync that the journal's thread served has no bio of its own.
    let dev = state.record.file.dev;
    let waited = state.record.header.flags & CALL_HAS_SYNC_TID != 0 && device_wanted(dev, dev);
    let quiet = state.bios == 0 && !waited;
    context::retry(local, state);
    if quiet
        && (setting!(block_only) != 0
            || ((setting!(slower_than_ns) != 0 && now - state.record.enter_ns < setting!(slower_than_ns)
                || setting!(errors_only) != 0 && ret >= 0)
                && !context::keeps(state)))
    {
        local.count(CALLS_FILTERED);
        return;
    }
    state.record.ret = ret;
    if shape.has(CallShape::OPENS) && ret >= 0 {
        opened(local, task, state, ret as u32, now);
    }
    if shape.has(CallShape::POSITION) {
        if let Some(position) = position_now(local, task, state.record.fd as u32, state.file) {
            state.record.position_after = position;
            state.record.header.flags |= CALL_HAS_POSITION_AFTER;
        }
        if state.second_file != 0 {
            // SAFETY: as in `describe_file`.
            let second = unsafe { &mut *(&raw mut state.tail).cast::<SecondFile>() };
            second.position_after =
                position_now(local, task, second.fd as u32, state.second_file).unwrap_or(-1);
        }
    }
    if state.record.header.flags & CALL_PATH_FAULT != 0 {
        // The page was not there at entry; the kernel has just read it, so now it may be.
        state.record.header.flags &= !(CALL_PATH_FAULT | CALL_PATH_TRUNCATED);
        copy_paths(state, shape);
    }
    // SAFETY: `task` is typed.
    let sleeps = unsafe { Direct::read::<u64>(task, offset!(task_nvcsw)) } as u32;
    state.sleeps = sleeps.wrapping_sub(state.sleeps);
    if offset!(task_run_delay) != ABSENT {
        // SAFETY: as above.
        let run_delay: u64 = unsafe { Direct::read(task, offset!(task_run_delay)) };
        state.record.cpu_wait_ns = run_delay.wrapping_sub(state.run_delay);
        state.record.header.flags |= CALL_HAS_CPU_WAIT;
    }
    write(local, state, now);
}

/// What a call opened: it is the call's file, and its name is announced.
#[inline(always)]
fn opened(local: &mut Local, task: Pointer, state: &mut TaskState, fd: u32, now: u64) {
    // SAFETY: each pointer is read by the way it was found.
    let (address, id) = unsafe {
        match file::of(task, fd) {
            Open::Typed(file) => (local.address(file), file::identity::<Direct>(file)),
            Open::Untyped(file) => (file as u64, file::identity::<Probe>(file)),
            Open::None => return,
        }
    };
    state.record.fd = fd as i32;
    state.record.file = id;
    state.record.header.flags |= CALL_HAS_FILE;
    file::name(local, address, &id, true, now);
}

/// The position of the file that `fd` named at entry, if it still names it: while a call is open the kernel holds
/// its file, so an equal address is the same file.
#[inline(always)]
fn position_now(local: &mut Local, task: Pointer, fd: u32, file: u64) -> Option<i64> {
    // SAFETY: each pointer is read by the way it was found.
    unsafe {
        match file::of(task, fd) {
            Open::Typed(now) if local.address(now) == file => Some(file::position::<Direct>(now)),
            Open::Untyped(now) if now as u64 == file => Some(file::position::<Probe>(now)),
            _ => None,
        }
    }
}

/// Writes the record of a call whose exit was not seen.
#[inline(always)]
pub fn abandon(local: &mut Local, state: &mut TaskState) {
    state.record.header.flags |= CALL_NO_EXIT;
    state.sleeps = 0;
    // SAFETY: the clock has no preconditions.
    write(local, state, unsafe { bpf_ktime_get_ns() });
    state.span = 0;
}

#[inline(always)]
fn write(local: &mut Local, state: &mut TaskState, now: u64) {
    let flags = state.record.header.flags;
    if flags & CALL_PATH_TRUNCATED != 0 {
        local.count(CALLS_TRUNCATED);
    }
    let own = attributes::own_tail(state);
    let (mut tail, mut behind) = (own, 0);
    if flags & CALL_HAS_CONTEXT != 0 {
        let at = attributes::head_at(own);
        behind = attributes::behind(local, state, at);
        // SAFETY: behind the room there is room for a head; the tail lies at a multiple of 8.
        unsafe { (&raw mut state.tail).byte_add(at as usize).cast::<Head>().write(state.head) };
        tail = at + size_of::<Head>() as u64 + behind;
    }
    let record = &mut state.record;
    let len = size_of::<CallRecord>() as u64 + tail;
    record.header.tag = TAG_CALL;
    record.header.reserved = 0;
    record.header.len = len as u32;
    record.header.time_ns = now;
    record.span = state.span;
    record.task = state.task;
    record.bios = state.bios;
    record.sleeps = state.sleeps;
    // SAFETY: the tail lies directly behind the record in the task's state.
    unsafe {
        if tail == 0 {
            ring::put(local, TAG_CALL, record);
        } else if own | behind == 0 {
            ring::put(local, TAG_CALL, &*(&raw const *record).cast::<CallInContext>());
        } else {
            ring::write(local, TAG_CALL, (&raw const *record).cast(), len);
        }
    }
}
