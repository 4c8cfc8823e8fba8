//! Stacked devices: the upper bio or request that a lower device's bio belongs to.
//!
//! A driver that receives a bio or request and creates bios of its own stores a pointer to it where
//! the completion of its own bio will look. The completion function identifies the driver. So from
//! any bio a chain of pointers leads to the upper I/O, in whichever task and however late the bio
//! is submitted: [`PointerStep`](blkkin_probe_abi::settings::PointerStep)s, which the tracer's
//! `stacked_layouts` lists with their sources.
//!
//! - *Device-mapper*: the clone of a bio is part of a `dm_target_io`, which points at its `dm_io`,
//!   which points at the original bio. The bio that crypt makes of a clone, with its own pages and
//!   in a worker, points at the clone.
//! - *md raid1 and raid10*: each mirror's bio points at the `r1bio` or `r10bio`, which points at
//!   the original bio or at md's clone of it. *raid0* submits that clone itself.
//! - *loop with direct I/O*: its worker reads or writes the backing file with a kiocb inside the
//!   loop device's own request: `struct loop_cmd` follows `struct request`. A direct I/O bio leads
//!   to its kiocb, and from there the request is one subtraction away.
//!
//! - *Asynchronous I/O*: the kiocb of io_uring or libaio is that of a submission (`async_io`).
//!
//! The found address is looked up among the I/O in flight: a bio that covers its current sector, or
//! a request. A path of several steps passes over bios without a hook (the front of a split, a
//! clone that was mapped and not submitted) until it reaches a traced one.
//!
//! *Why the match is exact*: a driver that waits for a bio's completion keeps the memory that the
//! completion will touch. The address of a request in flight, plus less than the size of its
//! driver's private data, is within that request's memory; a kiocb there belongs to that request.
//!
//! *`bio_chain_endio` is not a first step*: a chain also ties a bio to its successor
//! (blk_next_bio), of which it is no part.
//!
//! *Not here*: a loop device without direct I/O, whose worker reads and dirties page cache pages:
//! the disk I/O is readahead and write-back, and belongs to no request (`loop_file` has the writes). Also
//! a flush of a loop device, which is an fsync of its file. Both are the kernel's own work.

use super::in_flight::{self, BIOS, REQUESTS};
use super::single_bio;
use crate::async_io;
use crate::async_io::libaio::submission_of_iocb;
use crate::file::name::name_file;
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{KernelRead, Pointer, ProbeRead};
use crate::runtime::settings::setting;
use crate::runtime::table;
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::{BIO_DEFERRED, REQUEST_DEFERRED};
use blkkin_probe_abi::settings::{POINTER_STEPS_MAX, Program, STEP_TO_BIO, STEP_TO_KIOCB, SyscallShape};

/// Maximum steps of a path: crypt on the front of a split has three, and each level of devices
/// starts at a traced bio.
const STEPS_MAX: usize = 5;

/// The bio belongs to a bio or request of a device above; the other numbers are `async_io`'s `OF_*`.
pub const OF_UPPER_IO: u64 = 4;

/// Returns [`OF_UPPER_IO`] if `bio` belongs to a traced upper bio or request, one of `async_io`'s
/// `OF_*` if it belongs to a submission, and 0 otherwise. It stores that one's span and root in the slot's `walk`, because the stack
/// of 512 bytes is nearly full at the call.
/// `shape`: rules of the system call that the submitter is inside; 0 for none. Inside a call that
/// submits no asynchronous I/O only a path to a bio counts, because a worker is in no system call.
///
/// # Safety
/// `bio` is of the kind that `R` reads.
#[inline(always)]
pub unsafe fn upper<R: KernelRead>(percpu: &mut PerCpuState, bio: Pointer, shape: u32) -> u64 {
    let in_syscall = shape != 0 && shape & SyscallShape::SUBMITS == 0;
    (percpu.walk.bios, percpu.walk.status) = (0, 0);
    if in_syscall && setting!(stacked) == 0 {
        return 0;
    }
    // SAFETY: by the contract.
    let (end_io, private): (Pointer, Pointer) =
        unsafe { (R::read(bio, offset!(bio_end_io)), R::read(bio, offset!(bio_private))) };
    let (end_io, private) = (percpu.address(end_io), percpu.address(private));
    let mut found = match may_have_upper(end_io, in_syscall) {
        true => find_upper(percpu.address(bio), end_io, private),
        false => 0,
    };
    if found == async_io::OF_UNKNOWN_KIOCB {
        let submits =
            shape & (SyscallShape::SUBMITS_IOCBS | SyscallShape::EXCLUDED) == SyscallShape::SUBMITS_IOCBS;
        percpu.naming.file = 0;
        found = if submits { submission_of_iocb(percpu.walk.now) } else { 0 };
        if percpu.naming.file != 0 {
            async_io::set_file_name(percpu.walk.bios as u32, name_file(percpu.slot() as u64));
        }
    }
    // Also for an unknown kiocb: overlayfs gives the layer's file one of its own.
    if found == 0 && !in_syscall && async_io::in_worker() {
        return find_submission_of_worker(0);
    }
    found
}

/// Finds the submission that the current worker of io_uring executes. A global function, because the
/// caller has no stack to spare.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn find_submission_of_worker(_unused: u64) -> u64 {
    let Some(percpu) = PerCpuState::of(Program::BioQueue) else { return 0 };
    async_io::of_worker(percpu)
}

/// Returns whether bios with this completion function may have upper I/O.
#[inline(always)]
fn may_have_upper(end_io: u64, in_syscall: bool) -> bool {
    let mut found = false;
    let mut i = 0;
    while i < POINTER_STEPS_MAX {
        let of_interest = setting!(pointer_steps[i].to) == STEP_TO_BIO || !in_syscall;
        found |= of_interest
            && setting!(pointer_steps[i].end_io) != 0
            && setting!(pointer_steps[i].end_io) == end_io;
        i += 1;
    }
    found
}

/// Follows the path from a bio to the first tracked bio or request, and stores its span and root in
/// the slot's walk. Returns 0 if there is none. A global function, which the verifier checks once.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn find_upper(bio: u64, end_io: u64, private: u64) -> u64 {
    let Some(percpu) = PerCpuState::of(Program::BioQueue) else { return 0 };
    let (mut bio, mut end_io, mut private) = (bio, end_io, private);
    let mut step = 0;
    while step < STEPS_MAX {
        let (to, address) = match pointer_step(bio, end_io, private) {
            Some(found) => found,
            None if step > 0 && end_io == setting!(bio_chain_endio) => (STEP_TO_BIO, private),
            None => return 0,
        };
        if address == 0 {
            return 0;
        }
        if to == STEP_TO_KIOCB {
            return of_kiocb(percpu, address);
        }
        // SAFETY: bpf_probe_read_kernel takes any address.
        unsafe {
            if let Some(entry) = table::find(&BIOS, address) {
                let sector = ProbeRead::read(address as Pointer, offset!(bio_sector));
                if entry.request_part.rq == 0 && in_flight::covers(entry, sector) {
                    return store_upper(percpu, entry.span, entry.root, entry.flags & BIO_DEFERRED);
                }
                return 0;
            }
            bio = address;
            end_io = ProbeRead::read(bio as Pointer, offset!(bio_end_io));
            private = ProbeRead::read(bio as Pointer, offset!(bio_private));
        }
        step += 1;
    }
    0
}

/// Takes one step: returns the kind of its target and the target's address.
#[inline(always)]
fn pointer_step(bio: u64, end_io: u64, private: u64) -> Option<(u32, u64)> {
    if end_io == 0 {
        return None;
    }
    let mut i = 0;
    while i < POINTER_STEPS_MAX {
        if setting!(pointer_steps[i].end_io) == end_io {
            let container_offset = setting!(pointer_steps[i].container_offset);
            let mut at =
                if container_offset == ABSENT { private } else { bio.wrapping_sub(container_offset as u64) };
            // SAFETY: bpf_probe_read_kernel takes any address.
            unsafe {
                if setting!(pointer_steps[i].first_offset) != ABSENT {
                    at = ProbeRead::read(at as Pointer, setting!(pointer_steps[i].first_offset));
                }
                if setting!(pointer_steps[i].second_offset) != ABSENT {
                    at = ProbeRead::read(at as Pointer, setting!(pointer_steps[i].second_offset));
                }
            }
            return Some((setting!(pointer_steps[i].to), at));
        }
        i += 1;
    }
    None
}

/// Finds the submission or the loop device's request that a kiocb belongs to.
#[inline(always)]
fn of_kiocb(percpu: &mut PerCpuState, kiocb: u64) -> u64 {
    let of_submission = async_io::of_kiocb(percpu, kiocb);
    if of_submission != 0 || loop_request(percpu, kiocb) != 0 {
        return if of_submission != 0 { of_submission } else { async_io::OF_SUBMISSION };
    }
    percpu.walk.now = kiocb;
    async_io::OF_UNKNOWN_KIOCB
}

/// Finds the loop device's request that contains a kiocb.
#[inline(always)]
fn loop_request(percpu: &mut PerCpuState, kiocb: u64) -> u64 {
    if offset!(loop_kiocb) == ABSENT {
        return 0;
    }
    let request = kiocb.wrapping_sub(offset!(loop_kiocb) as u64);
    if let Some(single) = single_bio::find(percpu, request) {
        let is_deferred = single.bio.flags & BIO_DEFERRED;
        return store_upper(percpu, single.bio.request_part.span, single.bio.root, is_deferred);
    }
    let Some(entry) = table::find(&REQUESTS, request) else { return 0 };
    store_upper(percpu, entry.span, entry.root, entry.flags & REQUEST_DEFERRED)
}

/// Stores the result of a path for the caller of [`upper`].
#[inline(always)]
fn store_upper(percpu: &mut PerCpuState, span: u64, root: u64, is_deferred: u16) -> u64 {
    (percpu.walk.span, percpu.walk.parent, percpu.walk.status) = (span, root, (is_deferred != 0) as u32);
    OF_UPPER_IO
}
