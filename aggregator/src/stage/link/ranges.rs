//! Ranges of requests to a disk, and the waiting endpoints that have them.

use std::collections::BTreeMap;
use std::ops::Range;

use blkkin_wire::disk_request::{DiskOperation, DiskRequest};

use super::clusters::CLUSTER;
use super::rests::{BLOCK, may_be_rest};
use super::waiting::{Candidate, EndpointKey, Waiting};

/// Maximum length of a guest's request that QEMU splits, in sectors: 8 MiB. Linux' default maximum is 4 MiB.
const SPLIT_MAX: u64 = 16_384;

/// Iterates over the guest's writes of which an operation may be on the rest of a cluster.
pub(super) fn writes_near(
    of: &BTreeMap<EndpointKey, Waiting>,
    rest: DiskRequest,
) -> impl Iterator<Item = Candidate<'_>> {
    let start = rest.start.saturating_sub(BLOCK);
    let length = (rest.end() + BLOCK - start) as u32;
    let writes = overlapping(of, DiskRequest { operation: DiskOperation::Write, start, length });
    writes.filter(move |(place, _)| may_be_rest(rest, DiskRequest::from_cookie(place.0)))
}

/// Iterates over the endpoints of this operation and range.
pub(super) fn of_range(
    of: &BTreeMap<EndpointKey, Waiting>,
    request: DiskRequest,
) -> impl Iterator<Item = Candidate<'_>> {
    of.range((request.cookie(), 0)..=(request.cookie(), u64::MAX))
}

/// Iterates over the endpoints of this operation whose range overlaps, by first sector.
pub(super) fn overlapping(
    of: &BTreeMap<EndpointKey, Waiting>,
    request: DiskRequest,
) -> impl Iterator<Item = Candidate<'_>> {
    let begins = request.start.saturating_sub(SPLIT_MAX)..request.end();
    let overlaps = move |place: &EndpointKey| DiskRequest::from_cookie(place.0).end() > request.start;
    beginning_in(of, request.operation, begins).filter(move |(place, _)| overlaps(place))
}

/// Iterates over the endpoints of this operation that begin in a range of sectors.
pub(super) fn beginning_in(
    of: &BTreeMap<EndpointKey, Waiting>,
    operation: DiskOperation,
    begins: Range<u64>,
) -> impl Iterator<Item = Candidate<'_>> {
    let at = |start: u64| {
        let start = start.min(DiskRequest::START_MAX);
        (DiskRequest { operation, start, length: 0 }.cookie(), 0)
    };
    of.range(at(begins.start)..at(begins.end))
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
