//! Bios: from block_bio_queue, in the task that submits, to the completion of the last byte.
//!
//! Submitting may sleep (submit_bio_noacct begins with might_sleep), so the current task is the submitter and
//! never a task that an interrupt happened to stop. One exception: a bio that blk-throttle held back passes this hook in
//! the kernel's worker that lets it go, and is then nobody's of those who are followed.

use crate::access::{Access, Pointer};
use crate::block::{self, BIOS, Bio};
use crate::filter::device_wanted;
use crate::layout::offset;
use crate::local::Local;
use crate::settings::setting;
use crate::table::{self, Claim};
use crate::{alone, ring, stacked, task};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::{ORIGIN_ALL, ORIGIN_TASKS, Program, TASK_ACTIVE};

/// submit_bio_noacct_nocheck(bio): a bio is announced there once, and has a flag from then on until it ends.
#[inline(always)]
pub fn submit<A: Access>(bio: Pointer) {
    // SAFETY: `bio` is of the kind that A reads.
    let flags: u16 = unsafe { A::read(bio, offset!(bio_flags)) };
    if flags >> (offset!(bio_traced_bit) & 15) & 1 == 0 {
        queue::<A>(bio);
    }
}

/// block_bio_queue(bio).
#[inline(always)]
pub fn queue<A: Access>(bio: Pointer) {
    let Some(local) = Local::of(Program::BioQueue) else { return };
    let state = task::submitter(local, Program::BioQueue);
    let (mut span, mut task, mut version, mut active) = (0, 0, 0, false);
    if let Some(state) = &state {
        (span, task, version) = (state.span, state.task, state.version);
        active = state.flags & TASK_ACTIVE != 0;
    }
    let address = local.address(bio);
    // SAFETY: `bio` is of the kind that A reads.
    let (dev, disk) = unsafe { block::devices::<A>(bio) };
    let origin = setting!(kernel_origin);
    // SAFETY: as above.
    let below = unsafe { stacked::is_below::<A>(local, bio, span != 0) };
    let wanted = span != 0 || below || origin == ORIGIN_ALL || (active && origin == ORIGIN_TASKS);
    if !wanted || !device_wanted(dev, disk) {
        // What lived at this address ended unseen; it must not claim what lives there now.
        if let Some(left_over) = table::find(&BIOS, address) {
            table::release(left_over);
            local.count(BIOS_STALE);
        }
        return;
    }
    let entry = match table::claim(&BIOS, address) {
        Claim::Fresh(entry) => entry,
        Claim::Stale(entry) => {
            local.count(BIOS_STALE);
            entry
        }
        Claim::Full => {
            local.count(BIOS_UNTRACKED);
            return;
        }
    };
    local.count(BIOS_QUEUED);
    if let Some(state) = state {
        if span != 0 && !below {
            state.bios += 1;
        }
    }
    let own = local.mint(Program::BioQueue);
    entry.span = own;
    if below {
        (entry.parent, entry.root, entry.flags) = (local.walk.span, local.walk.parent, BIO_BELOW);
    } else if span != 0 {
        (entry.parent, entry.root, entry.flags) = (span, span, 0);
    } else {
        (entry.parent, entry.root, entry.flags) = (0, own, BIO_KERNEL_ORIGIN);
    }
    if below && task == 0 {
        if let Some(worker) = task::worker(local, Program::BioQueue) {
            (task, version) = (worker.task, worker.version);
        }
    }
    // SAFETY: as above.
    unsafe {
        entry.task = task;
        entry.task_version = version;
        entry.request = 0;
        entry.done = 0;
        entry.carrier.rq = 0;
        entry.status = 0;
        entry.dev = dev;
        entry.sector = A::read(bio, offset!(bio_sector));
        entry.bytes = A::read(bio, offset!(bio_size));
        entry.opf = A::read(bio, offset!(bio_opf));
        entry.queue_ns = bpf_ktime_get_ns();
    }
}

/// block_bio_complete(queue, bio): fires for bios that no request carried to their end (a bio-based device, or
/// refused before a request was made) and for parents of splits, whose last part may have ended them already.
#[inline(always)]
pub fn complete<A: Access>(bio: Pointer) {
    let Some(local) = Local::of(Program::BioComplete) else { return };
    let address = local.address(bio);
    let Some(entry) = table::find(&BIOS, address) else { return };
    // SAFETY: `bio` is of the kind that A reads.
    let (status, sector): (u8, u64) =
        unsafe { (A::read(bio, offset!(bio_status)), A::read(bio, offset!(bio_sector))) };
    if !block::covers(entry, sector) {
        return;
    }
    if entry.carrier.rq != 0 {
        // It ended before its request did.
        if let Some(flight) = alone::find(local, entry.carrier.rq) {
            let bytes = flight.bio.bytes;
            alone::part(local, flight, bytes);
        }
    }
    if entry.status == 0 {
        entry.status = status as u32;
    }
    if entry.request == 0 {
        entry.flags |= BIO_NO_REQUEST;
    }
    // SAFETY: the clock has no preconditions.
    end(local, entry, unsafe { bpf_ktime_get_ns() });
}

/// Writes the bio's record and forgets it.
#[inline(always)]
pub fn end(local: &mut Local, entry: &mut Bio, now: u64) {
    let record = BioRecord {
        header: Header {
            tag: TAG_BIO,
            reserved: 0,
            flags: entry.flags,
            len: size_of::<BioRecord>() as u32,
            time_ns: now,
        },
        span: entry.span,
        parent: entry.parent,
        root: entry.root,
        task: entry.task,
        request: entry.request,
        queue_ns: entry.queue_ns,
        sector: entry.sector,
        dev: entry.dev,
        bytes: entry.bytes,
        opf: entry.opf,
        status: entry.status,
        task_version: entry.task_version,
        reserved: [0; 3],
    };
    table::release(entry);
    ring::put(local, TAG_BIO, &record);
}
