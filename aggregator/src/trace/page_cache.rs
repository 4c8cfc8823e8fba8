//! Bytes that a read found in the page cache, and bytes that the kernel fetched for it.
//!
//! *In*: the trace of a read call. *Out*: the bytes that the call returned, those of them that its own
//! bios fetched, and those that the bios fetched beyond (read-ahead).
//!
//! *Invariant*: fetched bytes are the part of the call's own range that pages of its own bios cover, by
//! the file's offsets. A call with a bio whose pages are not known has no result, and is counted.
//!
//! *Which file systems*: those whose bios have the pages of the file that the call names
//! (`FILE_SYSTEMS`), also below overlayfs. btrfs is none of them: a bio of compressed data has other lengths.
//! Nor are FUSE, those of a network, and overlayfs where the layer's file is not known.
//!
//! *Not here*: a read that waits for pages which another task, or an earlier read-ahead, has begun to
//! fetch. It queues no bio, so its bytes count as cached.

use std::ops::Range;

use blkkin_wire::event::{SyscallEvent, SyscallOutcome};
use blkkin_wire::page_origin::PageKind;
use blkkin_wire::syscalls::SyscallClass;

use super::Trace;
use super::page_origins::OriginIndex;

/// File systems with the pages of the file that the call names, by the kernel's names.
const FILE_SYSTEMS: [&str; 6] = ["ext2", "ext3", "ext4", "xfs", "vfat", "exfat"];
/// Bytes of a page.
const PAGE: u64 = 4_096;

/// A read through the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedRead {
    /// Bytes that the call returned.
    pub bytes: u64,
    /// Bytes of these that its bios fetched.
    pub fetched: u64,
    /// Bytes beyond the pages of its range that its bios fetched.
    pub read_ahead: u64,
}

/// Read of a call, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCacheRead {
    /// Bytes that it returned and that it fetched.
    Known(CachedRead),
    /// The pages of a bio, or the range of the call, are not known.
    Unknown,
}

impl CachedRead {
    /// Returns the read of a trace's call, if it is known.
    pub fn of(trace: &Trace) -> Option<CachedRead> {
        match PageCacheRead::of(trace) {
            Some(PageCacheRead::Known(read)) => Some(read),
            Some(PageCacheRead::Unknown) | None => None,
        }
    }

    fn known(trace: &Trace, call: &SyscallEvent, range: Range<u64>) -> Option<CachedRead> {
        let mut read = CachedRead { bytes: range.end - range.start, ..CachedRead::default() };
        if call.bios == 0 {
            return Some(read);
        }
        let file = call.file?.file.unnamed();
        let pages = range.start / PAGE * PAGE..range.end.next_multiple_of(PAGE);
        let origins = OriginIndex::of(trace);
        let mut bios = 0;
        for bio in trace.bios.iter().filter(|bio| trace.queued_by_root(bio)) {
            bios += 1;
            let origin = origins.of_bio(bio).filter(|_| !bio.op.is_write())?;
            if origin.kind == PageKind::File {
                if origin.file != Some(file) || origin.unattributed.is_some() {
                    return None;
                }
                for fetched in origin.ranges() {
                    read.fetched += overlap(&range, &fetched);
                    read.read_ahead += fetched.end - fetched.start - overlap(&pages, &fetched);
                }
            }
        }
        // More than it returned: a page was fetched twice, after an error.
        (bios == call.bios && read.fetched <= read.bytes).then_some(read)
    }
}

impl PageCacheRead {
    /// Returns the read of a trace's call; none if it is no read through the page cache of a known file
    /// system, failed, or returned nothing.
    pub fn of(trace: &Trace) -> Option<PageCacheRead> {
        let call = trace.call().filter(|call| call.reads_page_cache)?;
        let file = trace.names.file.as_ref()?;
        if !FILE_SYSTEMS.contains(&&*file.filesystem) || bytes(call)? == 0 {
            return None;
        }
        let read = range(call).and_then(|range| CachedRead::known(trace, call, range));
        Some(read.map_or(PageCacheRead::Unknown, PageCacheRead::Known))
    }
}

/// Returns the bytes that two ranges have in common.
fn overlap(one: &Range<u64>, other: &Range<u64>) -> u64 {
    one.end.min(other.end).saturating_sub(one.start.max(other.start))
}

/// Returns the bytes that the call read; none if it failed.
fn bytes(call: &SyscallEvent) -> Option<u64> {
    let spec = call.call.spec();
    let SyscallOutcome::Returned(ret) = call.outcome else { return None };
    spec.bytes(ret).filter(|_| spec.class == SyscallClass::Read)
}

/// Returns the range of the file that the call read; none if it failed, or at a position that others
/// move.
fn range(call: &SyscallEvent) -> Option<Range<u64>> {
    let bytes = bytes(call)?;
    let start = match call.call.spec().offset(&call.args) {
        Some(offset) => u64::try_from(offset).ok()?,
        None => {
            let file = call.file?;
            let start = file.start_by_position(bytes)?;
            // Else another thread has moved the position meanwhile.
            (file.position_before == i64::try_from(start).ok()).then_some(start)?
        }
    };
    Some(start..start.checked_add(bytes)?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use blkkin_wire::clock::MonotonicNs;
    use blkkin_wire::event::{BioEvent, BlockOp, FileEvent, OpenFile, Submitter};
    use blkkin_wire::ids::{Fd, SpanId};
    use blkkin_wire::page_origin::{PageOriginEvent, Unattributed};
    use blkkin_wire::syscalls::SyscallId;

    use super::*;
    use crate::fixtures;
    use crate::trace::Root;

    /// A read of `bytes` bytes that moves the position from `before` to `after`, and fetches these ranges.
    fn read(bytes: i64, (before, after): (i64, i64), fetched: &[(u64, u64)]) -> Trace {
        let mut trace = fixtures::trace(7);
        let file = fixtures::file_id(12);
        let times = [1, 9].map(MonotonicNs);
        let name = SyscallId::by_name("read").unwrap();
        let bare = SyscallEvent::bare(SpanId(7), fixtures::TASK, name, times[0], times[1]);
        let (position_before, position_after) = (Some(before), Some(after));
        trace.root = Root::Call(SyscallEvent {
            file: Some(OpenFile { fd: Fd(3), file, position_before, position_after }),
            outcome: SyscallOutcome::Returned(bytes),
            reads_page_cache: true,
            bios: fetched.len() as u32,
            ..bare
        });
        trace.names.file = Some(Arc::new(FileEvent::bare(file, MonotonicNs(0), "/srv/data").into()));
        for (span, (start, end)) in (20..).zip(fetched) {
            let bytes = (end - start) as u32;
            let ids = [span, 7, span + 100].map(SpanId);
            let pair = blkkin_wire::event::PairEvent::bare(ids, fixtures::TASK, fixtures::DISK, times);
            let op = BlockOp(0);
            let bio = BioEvent { bytes, op, submitter: Submitter::Span(SpanId(7)), ..pair.bio };
            let origin = fixtures::page_origin(&bio, Vec::new());
            let (file, offset) = (Some(file), *start);
            trace.page_origins.push(PageOriginEvent { file, offset, bytes, unattributed: None, ..origin });
            trace.bios.push(bio);
        }
        trace
    }

    #[test]
    fn a_read_has_what_it_fetched_of_its_own_pages_and_beyond() {
        let known = |bytes, fetched, read_ahead| Some(CachedRead { bytes, fetched, read_ahead });
        assert_eq!(CachedRead::of(&read(100, (50, 150), &[])), known(100, 0, 0));
        // The rest of a page is no read-ahead.
        assert_eq!(CachedRead::of(&read(100, (50, 150), &[(0, 4_096)])), known(100, 100, 0));
        assert_eq!(CachedRead::of(&read(8_192, (0, 8_192), &[(4_096, 65_536)])), known(8_192, 4_096, 57_344));
    }

    #[test]
    fn a_read_without_known_pages_or_range_is_unknown() {
        let unknown = |trace: &Trace| PageCacheRead::of(trace) == Some(PageCacheRead::Unknown);
        assert!(unknown(&read(100, (50, 160), &[])), "another thread moved the position");
        assert!(unknown(&read(100, (0, 100), &[(0, 4_096), (0, 4_096)])), "a page was fetched twice");
        let mut lost = read(100, (0, 100), &[(0, 4_096)]);
        lost.page_origins.clear();
        assert!(unknown(&lost), "the origin is missing");
        let mut scattered = read(100, (0, 100), &[(0, 4_096)]);
        scattered.page_origins[0].unattributed = Some(Unattributed::NotConsecutive);
        assert!(unknown(&scattered), "the parts are missing");
    }

    #[test]
    fn other_reads_are_none() {
        assert_eq!(PageCacheRead::of(&read(0, (100, 100), &[])), None, "at the end of the file");
        assert_eq!(PageCacheRead::of(&read(-5, (0, 0), &[])), None, "failed");
        let mut overlay = read(100, (0, 100), &[]);
        let file = fixtures::file_id(12);
        let event = FileEvent { filesystem: "overlay".into(), ..FileEvent::bare(file, MonotonicNs(0), "/f") };
        overlay.names.file = Some(Arc::new(event.into()));
        assert_eq!(PageCacheRead::of(&overlay), None);
    }
}
