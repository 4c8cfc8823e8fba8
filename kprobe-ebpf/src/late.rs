//! Requests of kernels before 6.5, which have no block_io_start (5a80bd075f3b): there a request is first seen when it is
//! inserted or issued, by then perhaps in another task and with other bios merged into it.
//!
//! *Whose it is*: block_getrq, which those kernels have, fires in the submitter right after a request was taken from its
//! pool, with the bio that it was taken for, and that bio is marked. A request that is seen first looks for the first marked
//! bio in its list: bios that merged were never marked, and requests that merged have theirs behind.
//!
//! *Since when*: since its bio was queued, which includes the wait for a free request.
//!
//! *A driver's command* has no such bio: it is first seen at its issue, and whose it is, command.rs says.

use crate::access::{Access, Pointer};
use crate::block::{self, Carried, REQUESTS, Request};
use crate::command;
use crate::layout::offset;
use crate::local::Local;
use crate::request::{self, Begun, Owner, carried, disk_of};
use crate::settings::setting;
use crate::table;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::counters::REQUESTS_STALE;
use blkkin_probe_abi::record::{BIO_SPLIT, BIO_TOOK_REQUEST};
use blkkin_probe_abi::settings::Program;

/// Bios that are looked at: the one that is looked for is the first, unless others were merged in front of it.
const FRONT_MAX: usize = 64;

/// block_getrq(bio).
#[inline(always)]
pub fn take<A: Access>(bio: Pointer) {
    let Some(local) = Local::of(Program::RequestStart) else { return };
    // SAFETY: `bio` is of the kind that A reads.
    if let Some((entry, _)) = block::origin(unsafe { carried::<A>(local, bio) }) {
        entry.flags |= BIO_TOOK_REQUEST;
    }
}

/// The entry of a request that is inserted or issued, which `program` sees. Where block_io_start announces requests, and
/// clears what an unseen end has left, that is whatever the table has; elsewhere an entry of another owner is such a left-over.
#[inline(always)]
pub fn known<A: Access>(
    local: &mut Local,
    program: Program,
    rq: Pointer,
    address: u64,
) -> Option<&'static mut Request> {
    let found = table::find(&REQUESTS, address);
    if setting!(requests_begin_late) == 0 {
        return found;
    }
    // SAFETY: `rq` is of the kind that A reads.
    if command::is(unsafe { A::read(rq, offset!(rq_cmd_flags)) }) {
        // Issued again, unless what was here was no command and its end was not seen.
        return match found {
            Some(entry) if !command::is(entry.opf) => {
                table::release(entry);
                local.count(REQUESTS_STALE);
                None
            }
            found => found,
        };
    }
    // SAFETY: as above.
    if unsafe { A::read::<Pointer>(rq, offset!(rq_bio)) }.is_null() {
        // Inside the flush machine's sequence a request's bios are done and put aside.
        return found;
    }
    // SAFETY: as above.
    let owner = unsafe { taker::<A>(local, rq) }.and_then(block::origin).map_or(0, |(bio, _)| bio.span);
    match found {
        Some(entry) if owner != 0 && entry.parent == owner => Some(entry),
        Some(_) if owner == 0 => {
            if let Some(left_over) = table::find(&REQUESTS, address) {
                table::release(left_over);
                local.count(REQUESTS_STALE);
            }
            None
        }
        _ => begin::<A>(local, program, rq, address),
    }
}

/// Makes the entry of a request that `program` is the first to see; none where block_io_start would have shown it.
#[inline(always)]
pub fn begin<A: Access>(
    local: &mut Local,
    program: Program,
    rq: Pointer,
    address: u64,
) -> Option<&'static mut Request> {
    if setting!(requests_begin_late) == 0 {
        return None;
    }
    // SAFETY: `rq` is of the kind that A reads.
    let (carried, disk) = unsafe { (taker::<A>(local, rq)?, disk_of::<A>(rq)) };
    let (bio, clone) = block::origin(carried)?;
    if clone {
        bio.flags |= BIO_SPLIT;
    }
    let (start_ns, opf) = (bio.queue_ns, bio.opf);
    // Others may have joined it by now: it stays in the table.
    let owner = Some(Owner { bio, whole: 0 });
    let begun = Begun { owner, asker: command::NOBODY, disk, start_ns, opf };
    request::begin::<A>(local, program, rq, address, begun);
    table::find(&REQUESTS, address)
}

/// Makes the entry of a driver's command that is issued and not known; none where block_io_start would have shown it.
#[inline(always)]
pub fn begin_command<A: Access>(
    local: &mut Local,
    rq: Pointer,
    address: u64,
) -> Option<&'static mut Request> {
    if setting!(requests_begin_late) == 0 {
        return None;
    }
    // SAFETY: `rq` is of the kind that A reads; the clock has no preconditions.
    let begun = unsafe {
        let opf = A::read(rq, offset!(rq_cmd_flags));
        if !command::is(opf) {
            return None;
        }
        let disk = disk_of::<A>(rq);
        let asker = command::late_asker::<A>(local, rq, disk)?;
        Begun { owner: None, asker, disk, start_ns: bpf_ktime_get_ns(), opf }
    };
    let known = begun.asker.0 != 0;
    if !request::begin::<A>(local, Program::RequestIssue, rq, address, begun) {
        return None;
    }
    if known {
        command::attach(address);
    }
    table::find(&REQUESTS, address)
}

/// The bio that `rq` was taken for.
#[inline(always)]
unsafe fn taker<A: Access>(local: &mut Local, rq: Pointer) -> Option<Carried> {
    // SAFETY: by the caller's contract: `rq` is of the kind that A reads.
    unsafe {
        let mut bio: Pointer = A::read(rq, offset!(rq_bio));
        let mut turn = 0;
        while turn < FRONT_MAX {
            if bio.is_null() {
                return None;
            }
            let carried = carried::<A>(local, bio);
            if took(carried.bio, carried.end_io, carried.private, carried.sector) != 0 {
                return Some(carried);
            }
            bio = A::read(bio, offset!(bio_next));
            turn += 1;
        }
    }
    None
}

/// Whether a request was taken for this bio. A global function for the verifier: checked once, not at each turn.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn took(bio: u64, end_io: u64, private: u64, sector: u64) -> u64 {
    match block::origin(Carried { bio, end_io, private, sector }) {
        Some((entry, _)) => u64::from(entry.flags & BIO_TOOK_REQUEST),
        None => 0,
    }
}
