//! What a read found in the page cache, and what it had the kernel fetch.
//!
//! *In*: the trace of a read call. *Out*: the bytes that the call returned, those of them that its own
//! bios fetched, and those that the bios fetched beyond (read-ahead).
//!
//! *Invariant*: fetched bytes are the part of the call's own range that pages of its own bios cover, by
//! the file's offsets. A call with a bio whose pages are not known has no result.
//!
//! *Not here*: a read that waits for pages which another task, or an earlier read-ahead, has begun to
//! fetch. It queues no bio, so its bytes count as cached.

use std::ops::Range;

use blkkin_wire::event::{SyscallEvent, SyscallOutcome};
use blkkin_wire::page_origin::PageKind;
use blkkin_wire::syscalls::SyscallClass;

use super::Trace;
use super::page_origins::OriginIndex;

/// A read through the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedRead {
    /// Bytes that the call returned.
    pub bytes: u64,
    /// Bytes of these that its bios fetched.
    pub fetched: u64,
    /// Further bytes of the file that its bios fetched.
    pub read_ahead: u64,
}

impl CachedRead {
    /// Returns the read of a trace's call; none if the call is no read through the page cache, failed,
    /// or if the pages of a bio are not known.
    pub fn of(trace: &Trace) -> Option<CachedRead> {
        let call = trace.call().filter(|call| call.reads_page_cache)?;
        let range = range(call)?;
        let mut read = CachedRead { bytes: range.end - range.start, ..CachedRead::default() };
        if call.bios == 0 {
            return Some(read);
        }
        let file = call.file?.file.unnamed();
        let origins = OriginIndex::of(trace);
        let mut bios = 0;
        for bio in trace.bios.iter().filter(|bio| trace.queued_by_root(bio)) {
            bios += 1;
            let origin = origins.of_bio(bio).filter(|_| !bio.op.is_write())?;
            if origin.kind == PageKind::File {
                if origin.file != Some(file) || origin.unattributed.is_some() {
                    return None;
                }
                for pages in origin.ranges() {
                    let own = range.end.min(pages.end).saturating_sub(range.start.max(pages.start));
                    read.fetched += own;
                    read.read_ahead += pages.end - pages.start - own;
                }
            }
        }
        (bios == call.bios).then_some(read)
    }
}

/// Returns the range of the file that the call read.
fn range(call: &SyscallEvent) -> Option<Range<u64>> {
    let spec = call.call.spec();
    let SyscallOutcome::Returned(ret) = call.outcome else { return None };
    let bytes = spec.bytes(ret).filter(|_| spec.class == SyscallClass::Read)?;
    let start = match spec.offset(&call.args) {
        Some(offset) => u64::try_from(offset).ok()?,
        None => call.file?.start_by_position(bytes)?,
    };
    Some(start..start.checked_add(bytes)?)
}
