//! Totals of block requests: counts, bytes, times and histograms by submitter, disk and operation, instead of a
//! record of each request.
//!
//! *In*: a request's start, issue and completion. *Out*: [`Total`]s, which user space reads once a second; nothing
//! goes through a ring. These programs are an object of their own, without those that record.
//!
//! *Key.* The task that allocates a request is the submitter (block_io_start). A workqueue's worker is called `kworker`,
//! because its name changes with each item of work. With `disk_total_sets` a key has no submitter.
//!
//! *Kernels before 6.5* announce no request. There the task that issues a request is its submitter, and the request
//! begins when the kernel's own statistics begin it (`request.start_time_ns`), or at its issue where that is 0.
//! A request that is never issued, like a flush without data, is counted at its completion, and its submitter is
//! `unknown`.
//!
//! *Invariant*: a request is counted once, at its last completion, as `block::request` defines it; its time in the
//! queue and in the device are those between the three hooks, or before 6.5 from that begin on. A request that is never
//! issued has time in the queue only. A total belongs to one CPU and one program. So no
//! addition is atomic.
//!
//! *Full tables.* A key without a place counts in [`OTHERS`]. A request without a place is not counted in a total,
//! but in REQUESTS_UNTRACKED. A request that the scheduler merges into another never completes; its entry is
//! overwritten when its address is used again. Before 6.5 an entry whose begin differs from the request's is stale; where the kernel keeps no
//! begin, it is not noticed.
//!
//! *Rejected*: a hash map by key. Its lookup costs more than the sum of these programs (runtime/table.rs).

use crate::block::new_request::OPF_PREFLUSH;
use crate::block::request::{OP_FLUSH, OP_MASK};
use crate::block::{device, passthrough};
use crate::runtime::atomic::compare_exchange;
use crate::runtime::bucket::bounded_bucket;
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{DirectLoad, KernelRead, Pointer};
use crate::runtime::settings::setting;
use crate::runtime::table::{self, ClaimCounters};
use crate::task::{self, filter};
use aya_ebpf::btf_maps::{Array, PerCpuArray};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::{REQUESTS_STALE, REQUESTS_UNTRACKED};
use blkkin_probe_abi::in_flight::Set;
use blkkin_probe_abi::settings::Program;
use blkkin_probe_abi::totals::*;

#[btf_map]
static TOTAL_KEYS: Array<KeySet, KEY_SETS> = Array::new();

#[btf_map]
static TOTAL_SUMS: PerCpuArray<Total, TOTALS> = PerCpuArray::new();

#[btf_map]
static TOTAL_REQUESTS: Array<Set<TotalRequest>, TOTAL_REQUEST_SETS> = Array::new();

/// Counters of claims of a request's entry. An entry of a merged request is stale too.
const CLAIMS: ClaimCounters = ClaimCounters { stale: REQUESTS_STALE, full: REQUESTS_UNTRACKED };

/// Task flag of a workqueue's worker (PF_WQ_WORKER, include/linux/sched.h).
const PF_WQ_WORKER: u32 = 0x20;
const KWORKER: [u64; 2] = [u64::from_ne_bytes(*b"kworker\0"), 0];
const UNKNOWN: [u64; 2] = [u64::from_ne_bytes(*b"unknown\0"), 0];

/// Handles block_io_start(request).
#[inline(always)]
pub fn start<R: KernelRead>(rq: Pointer) {
    let Some(percpu) = PerCpuState::of(Program::RequestStart) else { return };
    let address = percpu.address(rq);
    // SAFETY: the clock has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    begin::<R>(percpu, rq, address, now);
}

/// Creates the entry of a request that the current task submits, and that began at this time.
#[inline(always)]
fn begin<R: KernelRead>(
    percpu: &mut PerCpuState,
    rq: Pointer,
    address: u64,
    start_ns: u64,
) -> Option<&'static mut TotalRequest> {
    // SAFETY: `rq` is of the kind that R reads.
    let (disk, opf, bytes) = unsafe {
        (
            device::disk_of::<R>(rq),
            R::read::<u32>(rq, offset!(rq_cmd_flags)),
            R::read::<u32>(rq, offset!(rq_data_len)),
        )
    };
    if !device::device_passes(disk, disk) {
        return None;
    }
    // A write without data is sent for its flush.
    let is_flush = bytes == 0 && opf & OPF_PREFLUSH != 0;
    let operation = if is_flush { OP_FLUSH } else { opf & OP_MASK };
    let total = position(&key_of(Submitter::Current, disk, operation));
    let entry = table::claim(&TOTAL_REQUESTS, address, percpu, CLAIMS)?;
    *entry = TotalRequest { start_ns, issue_ns: 0, bytes, total };
    Some(entry)
}

/// Handles block_rq_issue(request).
#[inline(always)]
pub fn issue<R: KernelRead>(rq: Pointer) {
    let Some(percpu) = PerCpuState::of(Program::RequestIssue) else { return };
    let address = percpu.address(rq);
    // SAFETY: the clock has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    // SAFETY: `rq` is of the kind that R reads.
    if let Some(entry) = unsafe { entry_of::<R>(percpu, rq, address) } {
        // A request that the device could not take is issued again.
        if entry.issue_ns == 0 {
            entry.issue_ns = now;
            // SAFETY: `rq` is of the kind that R reads.
            entry.bytes = unsafe { R::read(rq, offset!(rq_data_len)) };
        }
        return;
    }
    // SAFETY: as above.
    let opf: u32 = unsafe { R::read(rq, offset!(rq_cmd_flags)) };
    let passthrough = passthrough::is_passthrough(opf);
    // The flush machine's own request: its time is that of the requests that it serves. Where requests are announced,
    // any other without an entry began before these programs did.
    if !passthrough && (opf & OP_MASK == OP_FLUSH || setting!(legacy_request_start) == 0) {
        return;
    }
    // SAFETY: as above.
    let begin_ns: u64 = unsafe { R::read(rq, offset!(rq_start_time)) };
    // Not a later time than the kernel's: `entry_of` compares them.
    let start_ns = if begin_ns == 0 { now } else { begin_ns };
    if let Some(entry) = begin::<R>(percpu, rq, address, start_ns) {
        entry.issue_ns = now;
    }
}

/// Returns the entry of a request. Before 6.5 an entry whose begin differs from the request's is stale.
///
/// # Safety
/// `rq` is of the kind that R reads.
#[inline(always)]
unsafe fn entry_of<R: KernelRead>(
    percpu: &mut PerCpuState,
    rq: Pointer,
    address: u64,
) -> Option<&'static mut TotalRequest> {
    let entry = table::find(&TOTAL_REQUESTS, address)?;
    if setting!(legacy_request_start) != 0 {
        // SAFETY: by the contract.
        let begin: u64 = unsafe { R::read(rq, offset!(rq_start_time)) };
        if begin != 0 && begin != entry.start_ns {
            percpu.count(REQUESTS_STALE);
            table::release(entry);
            return None;
        }
    }
    Some(entry)
}

/// Handles block_rq_complete(request, status, bytes).
#[inline(always)]
pub fn complete<R: KernelRead>(rq: Pointer, status: u32, bytes: u32) {
    let Some(percpu) = PerCpuState::of(Program::RequestComplete) else { return };
    let address = percpu.address(rq);
    // SAFETY: `rq` is of the kind that R reads.
    let entry = unsafe { entry_of::<R>(percpu, rq, address) };
    if entry.is_none() && setting!(legacy_request_start) == 0 {
        return;
    }
    // SAFETY: as above.
    let (left, flags) =
        unsafe { (R::read::<u32>(rq, offset!(rq_data_len)), R::read::<u32>(rq, offset!(rq_flags))) };
    if flags >> (offset!(rqf_flush_seq_bit) & 31) & 1 != 0 || bytes < left {
        return;
    }
    // SAFETY: the clock has no preconditions.
    let now = unsafe { bpf_ktime_get_ns() };
    let request = match entry {
        Some(entry) => {
            let request = *entry;
            table::release(entry);
            request
        }
        // SAFETY: as above.
        None => match unsafe { never_issued::<R>(rq, left, now) } {
            Some(request) => request,
            None => return,
        },
    };
    let Some(total) = TOTAL_SUMS.get_ptr_mut(request.total) else { return };
    // SAFETY: this program alone writes the total of this CPU.
    let total = unsafe { &mut *total };
    total.requests += 1;
    total.bytes += request.bytes as u64;
    total.errors += (status & 0xff != 0) as u64;
    let issued = if request.issue_ns == 0 { now } else { request.issue_ns };
    let queue = issued.saturating_sub(request.start_ns);
    total.queue_ns += queue;
    add(&mut total.queue, queue);
    if request.issue_ns != 0 {
        let device = now.wrapping_sub(issued);
        total.device_ns += device;
        add(&mut total.device, device);
    }
}

/// State of a request that was not issued, or is to be issued again (MQ_RQ_IDLE, include/linux/blk-mq.h).
const STATE_IDLE: u32 = 0;

/// Returns a request that completes and has no entry, if it was never issued: a flush without data, or one that failed
/// before.
///
/// # Safety
/// `rq` is of the kind that R reads.
#[inline(always)]
unsafe fn never_issued<R: KernelRead>(rq: Pointer, bytes: u32, now: u64) -> Option<TotalRequest> {
    // SAFETY: by the contract; a request's bio is of the same kind.
    let (bio_opf, begin_ns, disk) = unsafe {
        let bio: Pointer = R::read(rq, offset!(rq_bio));
        // The flush machine's own request has no bio.
        if bio.is_null() || R::read::<u32>(rq, offset!(rq_state)) != STATE_IDLE {
            return None;
        }
        let bio_opf: u32 = R::read(bio, offset!(bio_opf));
        (bio_opf, R::read::<u64>(rq, offset!(rq_start_time)), device::disk_of::<R>(rq))
    };
    if !device::device_passes(disk, disk) {
        return None;
    }
    // The request's own flag is cleared by then (blk_insert_flush, block/blk-flush.c).
    let is_flush = bytes == 0 && bio_opf & OPF_PREFLUSH != 0;
    let operation = if is_flush { OP_FLUSH } else { bio_opf & OP_MASK };
    let total = position(&key_of(Submitter::Unknown, disk, operation));
    let start_ns = if begin_ns == 0 { now } else { begin_ns };
    Some(TotalRequest { start_ns, issue_ns: 0, bytes, total })
}

#[inline(always)]
fn add(histogram: &mut [u32; BUCKETS], ns: u64) {
    if let Some(bucket) = bounded_bucket(ns) {
        histogram[bucket] += 1;
    }
}

/// Submitter of a request.
#[derive(Clone, Copy, PartialEq)]
enum Submitter {
    Current,
    Unknown,
}

/// Returns the key of a request.
#[inline(always)]
fn key_of(submitter: Submitter, disk: u32, operation: u32) -> TotalKey {
    if setting!(disk_total_sets) != 0 {
        return TotalKey { program: [0; 2], cgroup: 0, disk, operation };
    }
    if submitter == Submitter::Unknown {
        return TotalKey { program: UNKNOWN, cgroup: 0, disk, operation };
    }
    let task = task::current();
    // SAFETY: the current task is typed.
    let program = unsafe {
        if DirectLoad::read::<u32>(task, offset!(task_flags)) & PF_WQ_WORKER != 0 {
            KWORKER
        } else {
            let process: Pointer = DirectLoad::read(task, offset!(task_group_leader));
            [DirectLoad::read(process, offset!(task_comm)), DirectLoad::read(process, offset!(task_comm) + 8)]
        }
    };
    TotalKey { program, cgroup: filter::cgroup_of(task), disk, operation }
}

/// Returns the position of a key's total, which gets a place if there is one.
#[inline(always)]
fn position(key: &TotalKey) -> u32 {
    let sets = setting!(disk_total_sets);
    let number = if sets != 0 { set_of(key) & (sets - 1) } else { set_of(key) };
    let Some(set) = TOTAL_KEYS.get_ptr_mut(number) else { return OTHERS };
    let mut way = 0;
    while way < KEY_WAYS {
        // SAFETY: a place of a set of the map. Its state is read before its key.
        unsafe {
            let place = &raw mut (*set).places[way];
            let mut state = (&raw const (*place).state).read_volatile();
            if state == KEY_FREE {
                state = compare_exchange(&raw mut (*place).state, KEY_FREE, KEY_CLAIMED);
                if state == KEY_FREE {
                    (&raw mut (*place).key).write_volatile(*key);
                    (&raw mut (*place).state).write_volatile(KEY_READY);
                    return position_of(number, way as u32);
                }
            }
            if state == KEY_READY && is_same(&raw const (*place).key, key) {
                return position_of(number, way as u32);
            }
        }
        way += 1;
    }
    OTHERS
}

/// Returns whether a place has this key.
///
/// # Safety
/// `place` is a key of the map.
#[inline(always)]
unsafe fn is_same(place: *const TotalKey, key: &TotalKey) -> bool {
    // SAFETY: by the contract. Word by word: a comparison of the whole would call memcmp.
    unsafe {
        (&raw const (*place).program[0]).read_volatile() == key.program[0]
            && (&raw const (*place).program[1]).read_volatile() == key.program[1]
            && (&raw const (*place).cgroup).read_volatile() == key.cgroup
            && (&raw const (*place).disk).read_volatile() == key.disk
            && (&raw const (*place).operation).read_volatile() == key.operation
    }
}
