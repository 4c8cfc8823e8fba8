//! Block requests: from block_io_start, in the task that allocates, over insertion and issue, to the last completion.
//!
//! *Owner.* block_io_start fires right after the request was taken from its pool, with the bio that it was taken
//! for as its first (635,121 of 635,121): that bio's span is the request's parent. Bios that merge into it later
//! are found when it completes, by walking rq→bio, which is still whole at block_rq_complete. Whose a request without such a
//! bio is, a driver's command, command.rs says.
//!
//! *Alone.* A request that carries one bio, whole, is alone.rs' until anything happens to it.
//!
//! *End.* A completion is the last one if it covers what is left (`nr_bytes >= __data_len`) and the request is not
//! inside the flush machine's sequence (RQF_FLUSH_SEQ), where its data part completes before it is done; so
//! write + FUA on a device without FUA, which completes twice, is one request.
//!
//! *Not here*: the flush machine's own request, which no block_io_start announces: it is nobody's, and its time is
//! seen as that of the requests that it serves (flush.rs).

use crate::access::{Access, Direct, Pointer};
use crate::block::{self, Bio, Carried, REQUESTS, Request};
use crate::command::{self, Asker};
use crate::layout::offset;
use crate::local::{Local, Walk};
use crate::settings::setting;
use crate::table::{self, Claim};
use crate::{alone, bio, flush, late, ring, task};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::Program;

/// Operation bits of `cmd_flags`, and a cache flush (REQ_OP_FLUSH, include/linux/blk_types.h).
const OP_MASK: u32 = 0xff;
const OP_FLUSH: u32 = 2;
/// Flags of `cmd_flags`: REQ_FUA and REQ_PREFLUSH (the same file; its enum req_flag_bits begins at 8).
const OPF_FUA: u32 = 1 << 17;
const OPF_PREFLUSH: u32 = 1 << 18;

/// The bio that a request was taken for.
pub struct Owner {
    /// What is known of it.
    pub bio: &'static mut Bio,
    /// Its address if the request has all of it, and nothing else; 0 if not, or if that is not known.
    pub whole: u64,
}

/// Whose a request is, and since when.
pub struct Begun {
    /// The bio that it was taken for; none of those that are followed.
    pub owner: Option<Owner>,
    /// Who asked for it, where no bio says it.
    pub asker: Asker,
    pub disk: u32,
    pub start_ns: u64,
    /// As it was then: the flush machine takes away what it does itself.
    pub opf: u32,
}

impl Begun {
    /// Whether it has all of its one bio.
    #[inline(always)]
    fn is_whole(&self) -> bool {
        match &self.owner {
            Some(owner) => owner.whole != 0,
            None => false,
        }
    }
}

/// block_io_start(request).
#[inline(always)]
pub fn start<A: Access>(rq: Pointer) {
    let Some(local) = Local::of(Program::RequestStart) else { return };
    // SAFETY: `rq` is of the kind that A reads.
    let (first, mut disk, mut opf) = unsafe {
        (A::read::<Pointer>(rq, offset!(rq_bio)), disk_of::<A>(rq), A::read(rq, offset!(rq_cmd_flags)))
    };
    let no_bio = first.is_null() || command::is(opf);
    // SAFETY: as above.
    let owner = if no_bio { None } else { unsafe { owner::<A>(local, first) } };
    let address = local.address(rq);
    let mut asker = command::NOBODY;
    if owner.is_none() {
        match command::asker(local, opf, disk) {
            Some(found) => {
                asker = found;
                // Read again, instead of kept on a stack that is nearly full where a task is described.
                // SAFETY: as above.
                (disk, opf) = unsafe { (disk_of::<A>(rq), A::read(rq, offset!(rq_cmd_flags))) };
            }
            None => {
                // What lived at this address ended unseen; it must not claim what lives there now.
                alone::forget(local, address);
                if let Some(left_over) = table::find(&REQUESTS, address) {
                    table::release(left_over);
                    local.count(REQUESTS_STALE);
                }
                return;
            }
        }
    }
    // SAFETY: the clock has no preconditions.
    let start_ns = unsafe { bpf_ktime_get_ns() };
    let begun = Begun { owner, asker, disk, start_ns, opf };
    if begun.is_whole() {
        // SAFETY: as above.
        unsafe { alone::begin::<A>(local, rq, address, begun) };
    } else {
        alone::forget(local, address);
        let began = begin::<A>(local, Program::RequestStart, rq, address, begun);
        if began && command::is(opf) {
            command::attach(address);
        }
    }
}

/// Makes the entry of a request, if there is room for it.
#[inline(always)]
pub fn begin<A: Access>(
    local: &mut Local,
    program: Program,
    rq: Pointer,
    address: u64,
    begun: Begun,
) -> bool {
    let entry = match table::claim(&REQUESTS, address) {
        Claim::Fresh(entry) => entry,
        Claim::Stale(entry) => {
            local.count(REQUESTS_STALE);
            entry
        }
        Claim::Full => {
            local.count(REQUESTS_UNTRACKED);
            return false;
        }
    };
    local.count(REQUESTS_STARTED);
    let own = local.mint(program);
    // One that is seen late is no longer in its task's hands, and a driver's command goes past the plug where its sender waits
    // for it (blk_execute_rq).
    let late = setting!(requests_begin_late) != 0;
    let plugged = if late || command::is(begun.opf) { 0 } else { plugged(begun.opf) };
    let (mut parent, mut root, mut flags) = (0, 0, plugged | REQUEST_NO_PARENT);
    let (mut task, mut version) = begun.asker;
    if let Some(Owner { bio, .. }) = begun.owner {
        (parent, root, task, version, flags) = (bio.span, bio.root, bio.task, bio.task_version, plugged);
        bio.request = own;
    }
    // SAFETY: `rq` is of the kind that A reads.
    unsafe {
        entry.span = own;
        entry.parent = parent;
        entry.root = if root != 0 { root } else { own };
        entry.task = task;
        entry.task_version = version;
        entry.insert_ns = 0;
        entry.issue_ns = 0;
        entry.sector = A::read(rq, offset!(rq_sector));
        entry.bytes = A::read(rq, offset!(rq_data_len));
        entry.opf = begun.opf;
        entry.dev = begun.disk;
        entry.status = 0;
        entry.bios = 0;
        entry.tag = -1;
        entry.flags = flags;
        entry.start_ns = begun.start_ns;
    }
    true
}

/// The number of the disk that a request is for.
///
/// # Safety
/// `rq` is of the kind that `A` reads.
#[inline(always)]
pub unsafe fn disk_of<A: Access>(rq: Pointer) -> u32 {
    // SAFETY: by the contract.
    unsafe {
        let queue: Pointer = A::read(rq, offset!(rq_queue));
        block::disk_number::<A>(A::read(queue, offset!(queue_disk)))
    }
}

/// The bio that a request was just made for.
#[inline(always)]
unsafe fn owner<A: Access>(local: &mut Local, first: Pointer) -> Option<Owner> {
    let address = local.address(first);
    // SAFETY: by the caller's contract.
    unsafe {
        if let Some(bio) = block::itself(address, A::read(first, offset!(bio_sector))) {
            let size: u32 = A::read(first, offset!(bio_size));
            let whole = if size == bio.bytes && bio.done == 0 { address } else { 0 };
            return Some(Owner { bio, whole });
        }
        let bio = block::split_from(carried::<A>(local, first))?;
        bio.flags |= BIO_SPLIT;
        Some(Owner { bio, whole: 0 })
    }
}

/// REQUEST_PLUGGED if the task that allocates a request has a plug that it goes into (blk_mq_submit_bio, block/blk-mq.c): what
/// asks for a flush goes past it to the flush machine.
#[inline(always)]
pub fn plugged(opf: u32) -> u16 {
    if offset!(task_plug) == ABSENT || opf & (OPF_PREFLUSH | OPF_FUA) != 0 {
        return 0;
    }
    // SAFETY: the current task is typed.
    let plug: u64 = unsafe { Direct::read(task::current(), offset!(task_plug)) };
    if plug != 0 { REQUEST_PLUGGED } else { 0 }
}

/// block_rq_insert(request): it goes into a queue where it waits for its turn: the scheduler's or, without one, the
/// software queue of a device that is busy. Where a scheduler sorts requests bios merge into them, so it is kept apart
/// from its bio from here on.
#[inline(always)]
pub fn insert<A: Access>(rq: Pointer) {
    let Some(local) = Local::of(Program::RequestInsert) else { return };
    let address = local.address(rq);
    if let Some(flight) = alone::find(local, address) {
        // SAFETY: `rq` is of the kind that A reads.
        let bytes = unsafe { A::read(rq, offset!(rq_data_len)) };
        alone::part(local, flight, bytes);
    }
    let Some(entry) = late::known::<A>(local, Program::RequestInsert, rq, address) else { return };
    if entry.insert_ns == 0 && entry.issue_ns == 0 {
        // SAFETY: the clock has no preconditions.
        entry.insert_ns = unsafe { bpf_ktime_get_ns() };
    }
}

/// block_rq_issue(request).
#[inline(always)]
pub fn issue<A: Access>(rq: Pointer) {
    let Some(local) = Local::of(Program::RequestIssue) else { return };
    let address = local.address(rq);
    if let Some(flight) = alone::find(local, address) {
        let carrier = &mut flight.bio.carrier;
        if is_first_issue(carrier.issue_ns, &mut carrier.flags) {
            // SAFETY: `rq` is of the kind that A reads.
            unsafe {
                carrier.sector = A::read(rq, offset!(rq_sector));
                carrier.tag = A::read(rq, offset!(rq_tag));
                if carrier.issue_ns == 0 {
                    carrier.issue_ns = bpf_ktime_get_ns();
                }
            }
        }
        return;
    }
    let known = late::known::<A>(local, Program::RequestIssue, rq, address);
    let Some(entry) = known.or_else(|| late::begin_command::<A>(local, rq, address)) else {
        // SAFETY: `rq` is of the kind that A reads; the clock has no preconditions.
        unsafe {
            if A::read::<u32>(rq, offset!(rq_cmd_flags)) & OP_MASK == OP_FLUSH {
                let hctx: Pointer = A::read(rq, offset!(rq_hctx));
                flush::serve(address, local.address(hctx), bpf_ktime_get_ns());
            }
        }
        return;
    };
    if !is_first_issue(entry.issue_ns, &mut entry.flags) {
        return;
    }
    // SAFETY: `rq` is of the kind that A reads.
    unsafe {
        entry.sector = A::read(rq, offset!(rq_sector));
        entry.bytes = A::read(rq, offset!(rq_data_len));
        entry.tag = A::read(rq, offset!(rq_tag));
        if entry.issue_ns == 0 {
            entry.issue_ns = bpf_ktime_get_ns();
        }
    }
}

/// Whether a request is issued for the first time; notes that it is.
#[inline(always)]
fn is_first_issue(issue_ns: u64, flags: &mut u16) -> bool {
    // The data of a request whose flush came first is no repetition.
    if issue_ns != 0 && (*flags & REQUEST_SERVED == 0 || *flags & REQUEST_ISSUED != 0) {
        *flags |= REQUEST_REQUEUED;
        return false;
    }
    *flags |= REQUEST_ISSUED;
    true
}

/// block_rq_merge(request): it was merged into another and is freed; its bios go on in that one.
#[inline(always)]
pub fn merge(rq: Pointer) {
    let Some(local) = Local::of(Program::RequestMerge) else { return };
    let address = local.address(rq);
    if let Some(flight) = alone::find(local, address) {
        return alone::merge(local, flight);
    }
    if let Some(entry) = table::find(&REQUESTS, address) {
        table::release(entry);
        local.count(REQUESTS_MERGED);
    }
}

/// block_rq_complete(request, status, bytes).
#[inline(always)]
pub fn complete<A: Access>(rq: Pointer, status: u32, bytes: u32) {
    let Some(local) = Local::of(Program::RequestComplete) else { return };
    let address = local.address(rq);
    // SAFETY: `rq` is of the kind that A reads; the clock has no preconditions.
    let (now, left, in_sequence) = unsafe {
        let flags: u32 = A::read(rq, offset!(rq_flags));
        let left: u32 = A::read(rq, offset!(rq_data_len));
        (bpf_ktime_get_ns(), left, flags >> (offset!(rqf_flush_seq_bit) & 31) & 1 != 0)
    };
    if let Some(flight) = alone::find(local, address) {
        // SAFETY: as above.
        let first = unsafe { A::read(rq, offset!(rq_bio)) };
        let whole = bytes == left && bytes == flight.bio.bytes;
        if whole && !in_sequence && flight.is_of(local.address(first)) {
            return alone::end(local, flight, status, now);
        }
        alone::part(local, flight, left);
    }
    let known = table::find(&REQUESTS, address);
    let Some(entry) = known.or_else(|| late::begin::<A>(local, Program::RequestComplete, rq, address)) else {
        // A request that was begun for a bio that nobody follows may carry ours, merged into it.
        local.walk = Walk::new(bytes, status, in_sequence, now);
        // SAFETY: as above.
        unsafe {
            if !command::is(A::read(rq, offset!(rq_cmd_flags))) {
                walk::<A>(local, rq);
            }
        }
        return;
    };
    if entry.status == 0 {
        entry.status = status & 0xff;
    }
    if in_sequence {
        entry.flags |= REQUEST_FLUSH_SEQUENCE;
    }
    local.walk = Walk::new(bytes, status, in_sequence, now);
    (local.walk.span, local.walk.parent) = (entry.span, entry.parent);
    if !command::is(entry.opf) {
        // SAFETY: as above.
        unsafe { walk::<A>(local, rq) };
    }
    if in_sequence || bytes < left {
        return;
    }
    entry.bios += local.walk.bios as u16;
    if entry.issue_ns == 0 {
        entry.flags |= REQUEST_NEVER_ISSUED;
    }
    end(local, entry, now);
}

/// Goes over the bios that this completion covers, and credits each with its part.
#[inline(always)]
unsafe fn walk<A: Access>(local: &mut Local, rq: Pointer) {
    // SAFETY: by the caller's contract.
    unsafe {
        let mut bio: Pointer = A::read(rq, offset!(rq_bio));
        let mut turn = 0;
        while turn < WALK_MAX {
            if bio.is_null() {
                return;
            }
            let size: u32 = A::read(bio, offset!(bio_size));
            let carried = carried::<A>(local, bio);
            if credit(carried.bio, carried.end_io, carried.private, carried.sector, size as u64) == 0 {
                return;
            }
            bio = A::read(bio, offset!(bio_next));
            turn += 1;
        }
        if bio.is_null() {
            return;
        }
    }
    local.count(WALK_OVERFLOW);
}

/// A bio as it is now.
///
/// # Safety
/// `bio` is of the kind that `A` reads.
#[inline(always)]
pub unsafe fn carried<A: Access>(local: &mut Local, bio: Pointer) -> Carried {
    // SAFETY: by the caller's contract: `bio` is of the kind that A reads.
    unsafe {
        let end_io: Pointer = A::read(bio, offset!(bio_end_io));
        let private: Pointer = A::read(bio, offset!(bio_private));
        Carried {
            bio: local.address(bio),
            end_io: local.address(end_io),
            private: local.address(private),
            sector: A::read(bio, offset!(bio_sector)),
        }
    }
}

/// Gives a bio its part of the completion, and ends it when all its bytes are done. Says 0 when the completion
/// covers no more.
///
/// A global function for the verifier: it takes numbers only and is checked once, by itself, not at each of the
/// walk's 256 turns (inlined: over 1 M instructions). What it needs besides lies in the program's slot.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn credit(bio: u64, end_io: u64, private: u64, sector: u64, size: u64) -> u64 {
    let Some(local) = Local::of(Program::RequestComplete) else { return 0 };
    let part = if size > local.walk.budget { local.walk.budget } else { size };
    if part == 0 && size != 0 {
        return 0;
    }
    local.walk.budget -= part;
    let Some((found, clone)) = block::origin(Carried { bio, end_io, private, sector }) else {
        return 1;
    };
    local.walk.bios += 1;
    // Of a bio that several requests carried, this says it of the last.
    if found.span == local.walk.parent {
        found.flags |= BIO_FIRST;
    } else {
        found.flags &= !BIO_FIRST;
    }
    if clone {
        found.flags |= BIO_SPLIT;
    }
    found.request = local.walk.span;
    if local.walk.status != 0 {
        found.status = local.walk.status;
    }
    let bytes = found.bytes as u64;
    // Last of all: the addition publishes what is written above, and whoever completes the sum ends the entry, which
    // may be another's from then on. Parts of a split end on several CPUs.
    // SAFETY: a word of the table.
    let before = unsafe { table::fetch_add(&raw mut found.done, part) };
    if local.walk.in_sequence == 0 && before + part >= bytes {
        let now = local.walk.now;
        bio::end(local, found, now);
    }
    1
}

#[inline(always)]
fn end(local: &mut Local, entry: &mut Request, now: u64) {
    let record = RequestRecord {
        header: Header {
            tag: TAG_REQUEST,
            reserved: 0,
            flags: entry.flags,
            len: size_of::<RequestRecord>() as u32,
            time_ns: now,
        },
        span: entry.span,
        parent: entry.parent,
        root: entry.root,
        task: entry.task,
        start_ns: entry.start_ns,
        insert_ns: entry.insert_ns,
        issue_ns: entry.issue_ns,
        sector: entry.sector,
        dev: entry.dev,
        bytes: entry.bytes,
        opf: entry.opf,
        status: entry.status,
        task_version: entry.task_version,
        bios: entry.bios,
        tag: entry.tag,
    };
    table::release(entry);
    ring::put(local, TAG_REQUEST, &record);
}
