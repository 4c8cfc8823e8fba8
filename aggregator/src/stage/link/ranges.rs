//! Ranges of requests to a disk, and the waiting endpoints that have them.

use std::collections::BTreeMap;

use blkkin_wire::disk_request::{DiskOperation, DiskRequest};

use super::clusters::CLUSTER;
use super::rests::may_be_rest;
use super::waiting::{Candidate, Place, Waiting};

/// Maximum length of a guest's request that QEMU splits, in sectors: 8 MiB. Linux' default maximum is 4 MiB.
const SPLIT_MAX: u64 = 16_384;
/// Sectors of the largest block to which QEMU rounds a request for direct I/O.
const BLOCK: u64 = 8;

/// Iterates over the guest's writes of which an operation may be on the rest of a cluster.
pub(super) fn writes_near(
    of: &BTreeMap<Place, Waiting>,
    rest: DiskRequest,
) -> impl Iterator<Item = Candidate<'_>> {
    let start = rest.start.saturating_sub(BLOCK);
    let length = (rest.end() + BLOCK - start) as u32;
    let writes = overlapping(of, DiskRequest { operation: DiskOperation::Write, start, length });
    writes.filter(move |(place, _)| may_be_rest(rest, DiskRequest::from_cookie(place.0)))
}

/// Iterates over the endpoints of this operation and range.
pub(super) fn of_range(
    of: &BTreeMap<Place, Waiting>,
    request: DiskRequest,
) -> impl Iterator<Item = Candidate<'_>> {
    of.range((request.cookie(), 0)..=(request.cookie(), u64::MAX))
}

/// Iterates over the endpoints of this operation whose range overlaps, by first sector.
pub(super) fn overlapping(
    of: &BTreeMap<Place, Waiting>,
    request: DiskRequest,
) -> impl Iterator<Item = Candidate<'_>> {
    let first = DiskRequest { start: request.start.saturating_sub(SPLIT_MAX), length: 0, ..request };
    let last = DiskRequest { start: request.end().min(DiskRequest::START_MAX), length: 0, ..request };
    let overlaps = move |place: &Place| DiskRequest::from_cookie(place.0).end() > request.start;
    of.range((first.cookie(), 0)..(last.cookie(), 0)).filter(move |(place, _)| overlaps(place))
}

pub(super) fn is_within(inner: DiskRequest, outer: DiskRequest) -> bool {
    inner.start >= outer.start && inner.end() <= outer.end()
}

/// Returns whether a range is another one rounded to whole blocks.
pub(super) fn is_rounded(part: DiskRequest, whole: DiskRequest) -> bool {
    (whole.start, whole.end()) == (part.start / BLOCK * BLOCK, part.end().next_multiple_of(BLOCK))
}

/// Returns what QEMU writes for a range where its clusters are new, if an operation has the begin or end of a cluster.
pub(super) fn filled_up(range: DiskRequest, operation: DiskRequest) -> DiskRequest {
    let start = match operation.start.is_multiple_of(CLUSTER) {
        true => range.start / CLUSTER * CLUSTER,
        false => range.start,
    };
    let end = match operation.end().is_multiple_of(CLUSTER) {
        true => range.end().next_multiple_of(CLUSTER),
        false => range.end(),
    };
    DiskRequest { start, length: (end - start) as u32, ..range }
}

/// Returns whether ranges, by first sector, are the whole without overlap.
pub(super) fn is_tiled(whole: DiskRequest, parts: impl Iterator<Item = DiskRequest>) -> bool {
    let mut next = whole.start;
    for part in parts {
        if part.start != next {
            return false;
        }
        next = part.end();
    }
    next == whole.end()
}
