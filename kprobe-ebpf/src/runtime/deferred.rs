//! Deferred operations: the records of a call or submission, and of all below it, wait until the last of them
//! ends. The verdict about the operation then writes them to the ring or drops them.
//!
//! *In*: the begin of each part of an operation (call, submission, bio, request), its record at its end, and
//! the verdict. *Out*: records in the ring, in the order in which the parts ended; or counts of what was
//! dropped. *Invariant*: the program that ends the last part decides, so each record has been stored by then, and
//! no CPU waits for another. An operation is written whole or not at all.
//!
//! *Parts.* An operation gets its entry with its first bio or submission. The entry counts the parts that are
//! open, and one for the root. Each part ends by storing its record and only then leaving the count.
//!
//! *What outgrows its place* is kept: what is stored is written at the end, and each further record at once.
//!
//! *Parts whose end is missed* keep an entry until another object at their address takes their place. One that
//! none takes is taken where its set is full, after ten minutes.
//!
//! *Rejected*: records in the ring, and user space decides. That is what makes recording dear: the ring, the
//! wake-ups and the reader cost more than the programs. *Rejected*: a queue of records for each task. Parts
//! end in interrupts, on other CPUs, and after the call has returned.

use super::atomic::{compare_exchange, fetch_add};
use super::bucket::bounded_bucket;
use super::percpu::PerCpuState;
use super::ring;
use super::settings::setting;
use super::table;
use aya_ebpf::btf_maps::{Array, PerCpuArray};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::Plain;
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::deferred::*;
use blkkin_probe_abi::in_flight::{Set, WAYS, set_of};
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::Program;
use blkkin_probe_abi::sleep::TAG_SLEEPS;
use blkkin_probe_abi::totals::BUCKETS;
use blkkin_probe_abi::wait::TAG_WAITS;

#[btf_map]
static DEFERRED_OPERATIONS: Array<Set<DeferredOperation>, DEFERRED_SETS> = Array::new();

#[btf_map]
static KEEP_RULES: Array<u64, KEEP_WORDS> = Array::new();

#[btf_map]
static KEEP_DISK_LIMITS: Array<[u64; KEEP_DISKS], KEEP_WORDS> = Array::new();

#[btf_map]
static KEEP_LATENCIES: PerCpuArray<[u64; BUCKETS], KEEP_HISTOGRAMS> = PerCpuArray::new();

/// Bits of a final verdict that number its reason from 1, in the order of the counters.
const REASON_MASK: u64 = 3;
const _: () = {
    assert!(VERDICT_SLOW & REASON_MASK == 1);
    assert!(KEPT_FAILED - KEPT_SLOW == ((VERDICT_FAILED & REASON_MASK) - 1) as usize);
    assert!(KEPT_LARGE - KEPT_SLOW == ((VERDICT_LARGE & REASON_MASK) - 1) as usize);
};

/// Argument of [`begin_part`]: the operation must have an entry.
pub const FIND: u64 = 0;
/// A call's first part creates the entry, which counts as a part itself.
pub const FOR_ROOT: u64 = 1 << 16;
/// The part is the root.
pub const AS_ROOT: u64 = 1 << 17;

/// Begin of an entry that no operation has. It is later than any other.
const NO_BEGIN: u64 = u64::MAX;

/// Maximum number of operations of which one run of a program ends the last part: one for each bio of a request.
const ENDED_MAX: u32 = WALK_MAX as u32;

/// Verdict of [`close_root`]: other parts are open, so the root's record is deferred as well.
pub const UNDECIDED: u64 = 1 << 16;

/// Returns whether operations are deferred. Without the option its code is dead to the verifier.
#[inline(always)]
pub fn is_on() -> bool {
    setting!(defers) != 0
}

/// Returns the verdict that an operation deserves by its end: the word of its rule, whether it failed, and
/// how long it took. A rule that compares operations with each other counts the time.
#[inline(always)]
pub fn verdict(rule: u32, failed: bool, ns: u64) -> u64 {
    let rule = word(rule);
    count_latency(rule, ns);
    verdict_by(rule, failed, ns)
}

/// Returns the verdict about a call. If nothing decides yet, it names the disks of which the call exceeded the limit
/// ([`SLOW_AT`]).
#[inline(always)]
pub fn verdict_of_call(rule: u32, failed: bool, ns: u64) -> u64 {
    let verdict = verdict(rule, failed, ns);
    if is_final(verdict) || word(KEEP_FLAGS) & KEEP_AT_DISKS == 0 {
        return verdict;
    }
    verdict | disks_exceeded(rule, ns)
}

/// Returns the disks of which an operation with this rule exceeded the limit, as bits of a verdict.
#[inline(always)]
fn disks_exceeded(rule: u32, ns: u64) -> u64 {
    let Some(limits) = KEEP_DISK_LIMITS.get_ptr_mut(rule) else { return 0 };
    let (mut exceeded, mut disk) = (0, 0);
    while disk < KEEP_DISKS {
        // SAFETY: a word of the map.
        let limit = unsafe { core::ptr::read_volatile(limits.cast::<u64>().add(disk)) };
        if limit != 0 && ns >= limit {
            exceeded |= 1 << SLOW_AT_SHIFT << disk;
        }
        disk += 1;
    }
    exceeded
}

/// Returns the verdict about an operation that cannot be compared by its time, and does not count it.
#[inline(always)]
pub fn verdict_without_time(failed: bool) -> u64 {
    verdict_by(KEEP_NS, failed, 0)
}

#[inline(always)]
fn verdict_by(rule: u64, failed: bool, ns: u64) -> u64 {
    if failed && word(KEEP_FLAGS) & KEEP_FAILED != 0 {
        return VERDICT_FAILED;
    }
    if ns >= rule & KEEP_NS { VERDICT_SLOW } else { VERDICT_DROP }
}

#[inline(always)]
fn word(index: u32) -> u64 {
    // SAFETY: a word of the map.
    KEEP_RULES.get_ptr_mut(index).map_or(KEEP_NS, |word| unsafe { core::ptr::read_volatile(word) })
}

/// Counts the time of an operation in the histogram of its rule's word, if it names one. Atomic, because an operation may
/// end in an interrupt of a program that counts another one. Inline: where a bio ends the stack has no room for a further
/// function.
#[inline(always)]
fn count_latency(rule: u64, ns: u64) {
    let histogram = rule >> KEEP_HISTOGRAM_SHIFT;
    if histogram == 0 {
        return;
    }
    let Some(counts) = KEEP_LATENCIES.get_ptr_mut(histogram as u32 - 1) else { return };
    if let Some(bucket) = bounded_bucket(ns) {
        // SAFETY: a word of the map.
        unsafe { fetch_add(counts.cast::<u64>().add(bucket), 1) };
    }
}

/// Counts an operation that is kept for a reason.
#[inline(always)]
pub fn count_kept(percpu: &mut PerCpuState, mut verdict: u64) {
    if !is_final(verdict) {
        return;
    }
    // A mask bounds the index for each verifier: that of Linux 6.1 loses the bound of a comparison below
    // `verdict - VERDICT_SLOW`. The compiler must not drop the mask.
    // SAFETY: changes nothing.
    unsafe { core::arch::asm!("{0} = {0}", inout(reg) verdict, options(nomem, nostack, preserves_flags)) };
    percpu.count(KEPT_SLOW - 1 + (verdict & REASON_MASK) as usize);
}

/// Begins a part of the operation `root`: `how` is [`FIND`], or one of the other two and the verdict so far.
/// Returns 0 if the operation has no entry. A global function, because the callers have no stack to spare.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn begin_part(root: u64, how: u64, begin_ns: u64, slot: u64) -> u64 {
    let Some(percpu) = PerCpuState::by_slot(slot as u32) else { return 0 };
    if let Some(entry) = table::find(&DEFERRED_OPERATIONS, root) {
        // SAFETY: a word of the table.
        unsafe { fetch_add(&raw mut entry.open, 1) };
        return 1;
    }
    if how == FIND {
        return 0;
    }
    let Some(set) = DEFERRED_OPERATIONS.get_ptr_mut(set_of(root, DEFERRED_SETS)) else { return 0 };
    let mut way = 0;
    while way < WAYS {
        // SAFETY: a way of a set of the map; the exchange decides between two CPUs.
        unsafe {
            let way = &raw mut (*set).ways[way];
            let key = core::ptr::read_volatile(&raw const (*way).key);
            let begun = core::ptr::read_volatile(&raw const (*way).value.begin_ns);
            // A way that is being claimed has no begin yet.
            let known = key != 0 && begun != 0 && begun < begin_ns;
            // One CPU alone takes the place of an operation.
            let expired = known
                && begin_ns - begun > DEFERRED_NS_MAX
                && compare_exchange(&raw mut (*way).value.begin_ns, begun, NO_BEGIN) == begun;
            if (key == 0 || expired) && compare_exchange(&raw mut (*way).key, key, root) == key {
                let value = &raw mut (*way).value;
                if expired {
                    percpu.count(DEFERRED_EXPIRED);
                    let mut record = 0;
                    while record < DEFERRED_RECORDS {
                        core::ptr::write_volatile(&raw mut (*value).stored[record][0], 0);
                        record += 1;
                    }
                }
                core::ptr::write_volatile(&raw mut (*value).begin_ns, begin_ns);
                core::ptr::write_volatile(&raw mut (*value).records, 0);
                core::ptr::write_volatile(&raw mut (*value).verdict, how & (FOR_ROOT - 1));
                core::ptr::write_volatile(&raw mut (*value).reason, 0);
                let version = word(KEEP_FLAGS) >> KEEP_DISKS_VERSION_SHIFT << KEEP_DISKS_VERSION_SHIFT;
                core::ptr::write_volatile(&raw mut (*value).slow_at, version);
                let open = if how & FOR_ROOT != 0 { 2 } else { 1 };
                core::ptr::write_volatile(&raw mut (*value).open, open);
                return 1;
            }
        }
        way += 1;
    }
    percpu.count(DEFERRED_UNTRACKED);
    0
}

/// Returns the operation `root`, of which a part is open; none if it lost its place to another one, which was
/// counted.
#[inline(always)]
pub fn operation(root: u64) -> Option<&'static mut DeferredOperation> {
    table::find(&DEFERRED_OPERATIONS, root)
}

/// Ends a part without a record of the operation `root`.
#[inline(always)]
pub fn end_part(percpu: &mut PerCpuState, root: u64) {
    if let Some(entry) = operation(root) {
        leave(percpu, entry, root);
    }
}

/// Ends a part of the operation `root`, whose record is stored. If it is the last one, the program decides
/// about the operation before it returns: [`decide`].
#[inline(always)]
pub fn leave(percpu: &mut PerCpuState, entry: &mut DeferredOperation, root: u64) {
    // SAFETY: words of the table. After the last part no other CPU uses the entry.
    unsafe {
        if fetch_add(&raw mut entry.open, u64::MAX) == 1 {
            core::ptr::write_volatile(&raw mut entry.next, percpu.ended);
            percpu.ended = root;
        }
    }
}

/// Decides about the operations whose last part this run of the program ended. At the program's end: where a
/// part ends the stack has no room for it.
#[inline(always)]
pub fn decide(program: Program) {
    if !is_on() {
        return;
    }
    let mut operation = 0;
    while operation < ENDED_MAX {
        if decide_first(program as u64) == 0 {
            return;
        }
        operation += 1;
    }
}

/// Decides about the first of these operations. Returns 0 if there is none.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn decide_first(slot: u64) -> u64 {
    let Some(percpu) = PerCpuState::by_slot(slot as u32) else { return 0 };
    let root = percpu.ended;
    if root == 0 {
        return 0;
    }
    percpu.ended = 0;
    if let Some(entry) = table::find(&DEFERRED_OPERATIONS, root) {
        // SAFETY: a word of the table.
        percpu.ended = unsafe { core::ptr::read_volatile(&raw const entry.next) };
        let verdict = final_verdict(entry, root);
        release(entry, verdict, slot);
    }
    1
}

/// Closes the operation `root`, whose own record is not stored yet, with this verdict about the root. Returns
/// the verdict about the operation; or [`UNDECIDED`] if other parts are open, and the root stays open.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn close_root(root: u64, verdict: u64, slot: u64) -> u64 {
    let Some(entry) = operation(root) else { return verdict & !SLOW_AT };
    // The count comes first: once the root is alone, no other part changes the verdict.
    // SAFETY: a word of the table. The addition of nothing orders the reads on arm64.
    let open = unsafe { fetch_add(&raw mut entry.open, 0) };
    keep(entry, verdict);
    // SAFETY: a word of the table, which the root alone writes.
    unsafe {
        let slow_at = core::ptr::read_volatile(&raw const entry.slow_at);
        core::ptr::write_volatile(&raw mut entry.slow_at, slow_at | verdict & SLOW_AT);
    }
    if open > 1 {
        return UNDECIDED;
    }
    let verdict = final_verdict(entry, root);
    release(entry, verdict, slot);
    verdict
}

/// Takes the verdict about a part into account.
#[inline(always)]
pub fn keep(entry: &mut DeferredOperation, verdict: u64) {
    if is_final(verdict) {
        // SAFETY: a word of the table. Of two reasons either is right.
        unsafe { core::ptr::write_volatile(&raw mut entry.reason, verdict) };
    }
}

/// Returns the verdict about an operation of which no part is open but the root.
#[inline(always)]
fn final_verdict(entry: &DeferredOperation, root: u64) -> u64 {
    let verdict = current_verdict(entry);
    if is_final(verdict) || word(KEEP_FLAGS) & KEEP_AT_DISKS == 0 {
        return verdict;
    }
    combined(verdict, verdict_by_disk(root))
}

/// Returns whether the operation `root` has a bio at a disk of which its submission exceeded the limit, or its call, as a
/// verdict. A global function, because the verifier would repeat all that follows for each record.
///
/// By the records of submissions: where these end, the stack of Linux 6.1 has no room for limits.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn verdict_by_disk(root: u64) -> u64 {
    let Some(entry) = operation(root) else { return VERDICT_DROP };
    // SAFETY: a word of the table.
    let of_call = unsafe { core::ptr::read_volatile(&raw const entry.slow_at) };
    if (of_call ^ word(KEEP_FLAGS)) >> KEEP_DISKS_VERSION_SHIFT != 0 {
        return VERDICT_DROP;
    }
    let mut at = 0;
    while at < DEFERRED_RECORDS {
        // SAFETY: words of the table. A place has at least as many words as a record.
        unsafe {
            let record = (&raw const entry.stored).cast::<u64>().add(at * DEFERRED_RECORD_WORDS);
            let (flags, parent) = match core::ptr::read_volatile(record) as u8 {
                0 => break,
                TAG_BIO => {
                    let bio = record.cast::<BioRecord>();
                    let flags = core::ptr::read_volatile(&raw const (*bio).header.flags);
                    (flags, core::ptr::read_volatile(&raw const (*bio).parent))
                }
                TAG_BIO_REQUEST => {
                    let pair = record.cast::<BioRequestRecord>();
                    let flags = core::ptr::read_volatile(&raw const (*pair).bio_flags);
                    (flags, core::ptr::read_volatile(&raw const (*pair).parent))
                }
                _ => (0, 0),
            };
            let at_disks = u64::from(flags / BIO_AT_DISK) << SLOW_AT_SHIFT & SLOW_AT;
            if at_disks != 0 && at_disks & (of_call | exceeded_by_submission(root, parent)) != 0 {
                return VERDICT_SLOW;
            }
        }
        at += 1;
    }
    VERDICT_DROP
}

/// Returns the disks of which the submission `parent` of the operation `root` exceeded the limit; those of any submission
/// if the parent is I/O above another device.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn exceeded_by_submission(root: u64, parent: u64) -> u64 {
    let Some(entry) = operation(root) else { return 0 };
    let (mut any, mut at) = (0, 0);
    while at < DEFERRED_RECORDS {
        // SAFETY: as above.
        unsafe {
            let record = (&raw const entry.stored).cast::<u64>().add(at * DEFERRED_RECORD_WORDS);
            if core::ptr::read_volatile(record) as u8 == TAG_ASYNC_IO {
                let io = &*record.cast::<AsyncIoRecord>();
                let exceeded = disks_exceeded_by(io);
                if io.span == parent {
                    return exceeded;
                }
                any |= exceeded;
            }
        }
        at += 1;
    }
    if parent == root { 0 } else { any }
}

/// Returns the flags of a bio at this disk: those of the disks that have limits.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn flags_of_disk(disk: u64) -> u64 {
    if word(KEEP_FLAGS) & KEEP_AT_DISKS == 0 {
        return 0;
    }
    let Some(disks) = KEEP_DISK_LIMITS.get_ptr_mut(KEEP_DISK_NUMBERS) else { return 0 };
    let (mut flags, mut place) = (0, 0);
    while place < KEEP_DISKS {
        // SAFETY: a word of the map.
        if unsafe { core::ptr::read_volatile(disks.cast::<u64>().add(place)) } == disk {
            flags |= (BIO_AT_DISK as u64) << place;
        }
        place += 1;
    }
    flags
}

/// Returns the disks of which a submission exceeded the limit. The time of an end that was not seen is not that of the
/// submission.
#[inline(always)]
fn disks_exceeded_by(io: &AsyncIoRecord) -> u64 {
    if io.header.flags & ASYNC_NO_END != 0 {
        return 0;
    }
    disks_exceeded(rule_of_submission(io.interface, io.opcode), io.header.time_ns.wrapping_sub(io.start_ns))
}

/// Returns the index of the word of the rule that keeps a submission.
#[inline(always)]
pub fn rule_of_submission(interface: u8, opcode: u8) -> u32 {
    if interface == ASYNC_LIBAIO {
        return KEEP_LIBAIO + (opcode & 15) as u32;
    }
    KEEP_URING + (opcode & 63) as u32
}

/// Returns the verdict about an operation, as far as its parts have ended.
#[inline(always)]
fn current_verdict(entry: &DeferredOperation) -> u64 {
    // SAFETY: words of the table.
    unsafe {
        verdict_of(
            core::ptr::read_volatile(&raw const entry.verdict),
            core::ptr::read_volatile(&raw const entry.reason),
            core::ptr::read_volatile(&raw const entry.records),
        )
    }
}

/// Returns the field `sampling` of a root's record that finds no room and is written at once.
#[inline(always)]
pub fn sampling_without_room(entry: &DeferredOperation) -> u8 {
    sampling_of(combined(current_verdict(entry), VERDICT_LARGE))
}

/// Returns whether there is room for the record of a call, and those of its waits and sleeps.
#[inline(always)]
pub fn has_room(entry: &DeferredOperation) -> bool {
    // SAFETY: a word of the table.
    unsafe { core::ptr::read_volatile(&raw const entry.records) + 3 <= DEFERRED_RECORDS as u64 }
}

/// Ends a part of the operation `root` with its record, which is stored, or written to the ring if there is no
/// room left. `tag` is the record's; `failed`: the part failed.
#[inline(always)]
pub fn end_with<T: Plain>(percpu: &mut PerCpuState, root: u64, tag: u8, record: &T, failed: bool) {
    let Some(entry) = operation(root) else { return };
    if failed && word(KEEP_FLAGS) & KEEP_FAILED != 0 {
        keep(entry, VERDICT_FAILED);
    }
    put(percpu, entry, tag, record);
    leave(percpu, entry, root);
}

/// Stores a record of an operation, or writes it to the ring if there is no room left.
#[inline(always)]
pub fn put<T: Plain>(percpu: &mut PerCpuState, entry: &mut DeferredOperation, tag: u8, record: &T) {
    const { assert!(size_of::<T>() <= 8 * DEFERRED_RECORD_WORDS && size_of::<T>().is_multiple_of(8)) };
    let from = core::ptr::from_ref(record).cast::<u64>();
    let Some(room) = room(entry) else {
        let [fired, dropped] = counters_of(tag);
        ring::put_counted(percpu, fired, dropped, record);
        return;
    };
    // SAFETY: a Plain record is words without padding, and a record of the table has as many. Volatile, or the
    // compiler would call memcpy.
    unsafe {
        let mut word = 0;
        while word < size_of::<T>() / 8 {
            core::ptr::write_volatile(room.add(word), core::ptr::read_volatile(from.add(word)));
            word += 1;
        }
    }
}

/// Returns the place of the next record of an operation, of which each word up to its length must be
/// written; none if there is none left. The operation is kept then.
#[inline(always)]
pub fn room(entry: &mut DeferredOperation) -> Option<*mut u64> {
    // SAFETY: words of the table; the index is checked.
    unsafe {
        let at = fetch_add(&raw mut entry.records, 1);
        if at < DEFERRED_RECORDS as u64 {
            return Some((&raw mut entry.stored).cast::<u64>().add(at as usize * DEFERRED_RECORD_WORDS));
        }
    }
    None
}

/// Returns the counters of records that are due and that found no room, by their tag.
#[inline(always)]
fn counters_of(tag: u8) -> [usize; 2] {
    match tag {
        TAG_ASYNC_IO => [ASYNC_FIRED, ASYNC_DROPPED],
        TAG_BIO_PAGES => [PAGES_FIRED, PAGES_DROPPED],
        TAG_WAITS => [WAITS_FIRED, WAITS_DROPPED],
        TAG_SLEEPS => [SLEEPS_FIRED, SLEEPS_DROPPED],
        TAG_BIO => [FIRED + TAG_BIO as usize, DROPPED + TAG_BIO as usize],
        TAG_BIO_REQUEST => [FIRED + TAG_BIO_REQUEST as usize, DROPPED + TAG_BIO_REQUEST as usize],
        TAG_REQUEST => [FIRED + TAG_REQUEST as usize, DROPPED + TAG_REQUEST as usize],
        _ => [FIRED + TAG_SYSCALL as usize, DROPPED + TAG_SYSCALL as usize],
    }
}

/// Writes or drops the records of an operation of which no part is open, and releases its entry.
#[inline(always)]
fn release(entry: &mut DeferredOperation, verdict: u64, slot: u64) {
    let Some(percpu) = PerCpuState::by_slot(slot as u32) else { return };
    // SAFETY: words of the table, which no other CPU uses any more.
    unsafe {
        count_kept(percpu, verdict);
        let mut at = 0;
        while at < DEFERRED_RECORDS {
            let record = (&raw mut entry.stored).cast::<u64>().add(at * DEFERRED_RECORD_WORDS);
            let first = core::ptr::read_volatile(record);
            if first == 0 {
                break;
            }
            if verdict != VERDICT_DROP {
                write(percpu, record, first, verdict);
            } else {
                drop_record(percpu, first as u8);
            }
            core::ptr::write_volatile(record, 0);
            at += 1;
        }
    }
    // SAFETY: as above.
    unsafe { core::ptr::write_volatile(&raw mut entry.begin_ns, NO_BEGIN) };
    table::release_in_order(entry);
}

/// Writes a record to the ring.
///
/// # Safety
/// `record` is a record of an operation, and `first` its first word.
#[inline(always)]
unsafe fn write(percpu: &mut PerCpuState, record: *mut u64, first: u64, verdict: u64) {
    let tag = first as u8;
    // SAFETY: a record has more than four words; its length is checked.
    unsafe {
        // The parent of a submission is its fourth word.
        let is_root =
            tag == TAG_SYSCALL || (tag == TAG_ASYNC_IO && core::ptr::read_volatile(record.add(3)) == 0);
        if is_root {
            core::ptr::write_volatile(record.cast::<u8>().add(1), sampling_of(verdict));
        }
        let len = first >> 32;
        if len <= 8 * DEFERRED_RECORD_WORDS as u64 {
            let [mut fired, mut dropped] = counters_of(tag);
            // The verifier does not know what a table has, and the compiler must not either.
            core::arch::asm!("{0} = {0}", inout(reg) fired, options(nomem, nostack, preserves_flags));
            core::arch::asm!("{0} = {0}", inout(reg) dropped, options(nomem, nostack, preserves_flags));
            if fired < COUNTERS && dropped < COUNTERS {
                ring::write_counted(percpu, fired, dropped, record.cast(), len);
            }
        }
    }
}

#[inline(always)]
fn drop_record(percpu: &mut PerCpuState, tag: u8) {
    match tag {
        TAG_SYSCALL | TAG_ASYNC_IO => percpu.count(CALLS_UNSAMPLED),
        TAG_BIO => percpu.count(BIOS_UNSAMPLED),
        TAG_REQUEST => percpu.count(REQUESTS_UNSAMPLED),
        TAG_BIO_REQUEST => {
            percpu.count(BIOS_UNSAMPLED);
            percpu.count(REQUESTS_UNSAMPLED);
        }
        _ => {}
    }
}

/// Returns the time at which an operation begins that has no other clock reading yet.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: the clock has no preconditions.
    unsafe { bpf_ktime_get_ns() }
}
