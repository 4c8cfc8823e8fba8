//! New requests: the submitter and originating bio of a request, and the creation of its entry.

use super::in_flight::{self, Bio, REQUEST_CLAIMS};
use super::passthrough::{self, Submitter};
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{DirectLoad, KernelRead, Pointer};
use crate::runtime::settings::setting;
use crate::task;
use blkkin_probe_abi::counters::*;
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::Program;

/// Flags of `cmd_flags`: REQ_FUA and REQ_PREFLUSH (include/linux/blk_types.h; enum req_flag_bits
/// begins at 8).
const OPF_FUA: u32 = 1 << 17;

pub const OPF_PREFLUSH: u32 = 1 << 18;

/// Bio that a request was allocated for.
pub struct OriginatingBio {
    /// Entry of the bio.
    pub bio: &'static mut Bio,
    /// Address of the bio if the request carries the whole bio and nothing else; 0 if not, or if
    /// unknown.
    pub whole: u64,
}

/// Origin and start of a request.
pub struct NewRequest {
    /// Bio that the request was allocated for; none if no traced bio.
    pub originating: Option<OriginatingBio>,
    /// Submitter of a request without an originating bio.
    pub submitter: Submitter,
    pub disk: u32,
    pub start_ns: u64,
    /// `cmd_flags` at the start: the flush machine later clears the flags that it handles.
    pub opf: u32,
}

impl NewRequest {
    /// Returns whether the request carries exactly its originating bio.
    #[inline(always)]
    pub fn carries_whole_bio(&self) -> bool {
        match &self.originating {
            Some(originating) => originating.whole != 0,
            None => false,
        }
    }
}

/// Creates the entry of a request; false if the table is full.
#[inline(always)]
pub fn insert<R: KernelRead>(
    percpu: &mut PerCpuState,
    program: Program,
    rq: Pointer,
    address: u64,
    new: NewRequest,
) -> bool {
    let Some(entry) = in_flight::claim_request(percpu, address, REQUEST_CLAIMS) else { return false };
    percpu.count(REQUESTS_STARTED);
    let own = percpu.next_span_id(program);
    // A request whose first event comes late has left its task's plug. A passthrough request
    // bypasses the plug where its sender waits for it (blk_execute_rq).
    let late = setting!(legacy_request_start) != 0;
    let plugged = if late || passthrough::is_passthrough(new.opf) { 0 } else { plug_flag(new.opf) };
    let (mut parent, mut root, mut flags) = (0, 0, plugged | REQUEST_NO_PARENT);
    let (mut task, mut version) = new.submitter;
    if let Some(OriginatingBio { bio, .. }) = new.originating {
        (parent, root, task, version) = (bio.span, bio.root, bio.task, bio.task_version);
        flags = plugged | in_flight::defer_request(percpu, bio);
        bio.request = own;
    }
    // SAFETY: `rq` is of the kind that R reads.
    unsafe {
        entry.span = own;
        entry.parent = parent;
        entry.root = if root != 0 { root } else { own };
        entry.task = task;
        entry.task_version = version;
        entry.insert_ns = 0;
        entry.issue_ns = 0;
        entry.sector = R::read(rq, offset!(rq_sector));
        entry.bytes = R::read(rq, offset!(rq_data_len));
        entry.opf = new.opf;
        entry.dev = new.disk;
        entry.status = 0;
        entry.bios = 0;
        entry.tag = -1;
        entry.flags = flags;
        entry.start_ns = new.start_ns;
    }
    true
}

/// Returns REQUEST_PLUGGED if the allocating task has a plug for the request (blk_mq_submit_bio,
/// block/blk-mq.c). Requests that need a flush bypass the plug for the flush machine.
#[inline(always)]
pub fn plug_flag(opf: u32) -> u16 {
    if offset!(task_plug) == ABSENT || opf & (OPF_PREFLUSH | OPF_FUA) != 0 {
        return 0;
    }
    // SAFETY: the current task is typed.
    let plug: u64 = unsafe { DirectLoad::read(task::current(), offset!(task_plug)) };
    if plug != 0 { REQUEST_PLUGGED } else { 0 }
}
