//! Bios that write to loop devices, and the ranges of the devices' files that they write.
//!
//! *In*: the range, when a bio is queued (`kprobe-ebpf/src/block/loop_file.rs`). *Out*: the range again,
//! when the bio ends and the driver has written the file. *Invariant*: bios in flight are bounded; one
//! whose end is never seen is forgotten, and its file's pages then have one writer less.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::ids::{FileId, SpanId};

/// Maximum number of bios in flight: of 512 devices with 128 requests each. 7 MiB.
const IN_FLIGHT_MAX: usize = 65_536;

/// A bio that was queued at a loop device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoopBio {
    /// Root span of its trace.
    pub(super) root: SpanId,
    pub(super) file: FileId,
    /// Bytes of the file that it writes.
    pub(super) range: Range<u64>,
    pub(super) queued: MonotonicNs,
    /// False: it discards the range.
    pub(super) writes: bool,
}

/// Bios of loop devices in flight.
#[derive(Debug, Default)]
pub(super) struct LoopBios {
    bios: HashMap<SpanId, LoopBio>,
    /// Spans in the order in which they were queued. Some have ended.
    order: VecDeque<SpanId>,
}

impl LoopBios {
    /// Notes a bio that was queued.
    pub(super) fn begin(&mut self, span: SpanId, bio: LoopBio) {
        self.bios.insert(span, bio);
        self.order.push_back(span);
        while self.order.len() > IN_FLIGHT_MAX {
            self.order.pop_front().and_then(|oldest| self.bios.remove(&oldest));
        }
    }

    /// Returns whether a bio that was queued before `end` may still write into one of these ranges.
    pub(super) fn may_write(&self, file: FileId, ranges: &[Range<u64>], end: MonotonicNs) -> bool {
        let overlaps = |bio: &LoopBio| {
            ranges.iter().any(|range| range.start < bio.range.end && bio.range.start < range.end)
        };
        self.bios.values().any(|bio| bio.file == file && bio.queued < end && overlaps(bio))
    }

    /// Returns the bio of this span, which has ended, if it was one of a loop device.
    pub(super) fn end(&mut self, span: SpanId) -> Option<LoopBio> {
        if self.bios.is_empty() {
            return None;
        }
        let bio = self.bios.remove(&span);
        while self.order.front().is_some_and(|span| !self.bios.contains_key(span)) {
            self.order.pop_front();
        }
        bio
    }
}

#[cfg(test)]
mod tests {
    use blkkin_wire::ids::{DeviceId, NameId};

    use super::*;

    fn bio() -> LoopBio {
        let device = DeviceId { major: 8, minor: 1 };
        let file = FileId { device, ino: 7, generation: 1, name: NameId::NONE };
        LoopBio { root: SpanId(9), file, range: 4_096..4_608, queued: MonotonicNs(1), writes: true }
    }

    #[test]
    fn a_bio_ends_once_with_its_range() {
        let mut bios = LoopBios::default();
        bios.begin(SpanId(1), bio());
        bios.begin(SpanId(2), bio());
        assert_eq!(bios.end(SpanId(3)), None);
        assert_eq!(bios.end(SpanId(2)).map(|bio| bio.range), Some(4_096..4_608));
        assert_eq!(bios.end(SpanId(2)), None);
        assert!(bios.end(SpanId(1)).is_some());
        assert!(bios.bios.is_empty() && bios.order.is_empty());
    }

    #[test]
    fn a_bio_may_write_its_own_range_until_it_ends() {
        let mut bios = LoopBios::default();
        bios.begin(SpanId(1), bio());
        let (file, later) = (bio().file, MonotonicNs(2));
        let other = FileId { ino: 8, ..file };
        let own = [bio().range];
        assert!(bios.may_write(file, &[0..10, 4_607..4_608], later));
        assert!(!bios.may_write(file, &[0..4_096, 4_608..9_000], later), "behind and before it");
        assert!(!bios.may_write(other, &own, later));
        assert!(!bios.may_write(file, &own, MonotonicNs(1)), "queued afterwards");
        bios.end(SpanId(1));
        assert!(!bios.may_write(file, &own, later));
    }

    #[test]
    fn the_oldest_bios_are_forgotten_when_their_ends_are_missed() {
        let mut bios = LoopBios::default();
        for span in 1..=IN_FLIGHT_MAX as u64 + 10 {
            bios.begin(SpanId(span), bio());
        }
        assert_eq!((bios.bios.len(), bios.order.len()), (IN_FLIGHT_MAX, IN_FLIGHT_MAX));
        assert_eq!((bios.end(SpanId(10)), bios.end(SpanId(11)).is_some()), (None, true));
    }
}
