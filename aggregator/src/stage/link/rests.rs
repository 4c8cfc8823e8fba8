//! Operations on the rest of a cluster of which a guest writes a part.
//!
//! *In*: an operation of QEMU on an image with clusters or a backing file, and a write of the guest. *Out*: whether the
//! one is, or may be, on the rest of the other's cluster.
//!
//! If the image does not have the cluster, QEMU reads the rest from the backing file and writes it with the part
//! (`perform_cow` in QEMU's block/qcow2-cluster.c). It reads all of one or two clusters if there is a rest on both sides of
//! a part of up to 16 KiB. It writes the rest on its own if the request begins before the new clusters, or ends behind them.
//!
//! *Invariant*: a rest is within a cluster of 64 KiB in which the write begins or ends, and it is next to the write or
//! around it. In an image with larger clusters a rest may be longer. So a link is made only by [`is_rest`], and another
//! link is in doubt by [`may_be_rest`].

use std::ops::Range;

use blkkin_wire::disk_request::{DiskOperation, DiskRequest};

use super::clusters::CLUSTER;

/// Sectors of the largest block to which QEMU rounds a request for direct I/O.
pub(super) const BLOCK: u64 = 8;
/// Sectors of the longest part around which QEMU reads the whole cluster.
const AROUND_MAX: u32 = 32;

/// Returns whether an operation is on the rest of a write's cluster, if that has 64 KiB.
pub(super) fn is_rest(rest: DiskRequest, write: DiskRequest) -> bool {
    let (first, last) = (begin_of(write.start), begin_of(write.end()));
    let is_before = write.start != first && rest.start == first && ends_at(rest, write.start);
    let is_behind = write.end() != last && rest.end() == last + CLUSTER && begins_at(rest, write.end());
    match rest.operation {
        DiskOperation::Read => {
            let is_inside = rest.start < write.start && write.end() < rest.end();
            let end = begin_of(write.end().saturating_sub(1)) + CLUSTER;
            let is_whole = rest.start == first && rest.end() == end;
            is_before || is_behind || is_whole && is_inside && write.length <= AROUND_MAX
        }
        // A write within one cluster is written with the rest.
        DiskOperation::Write => is_before && write.end() > first + CLUSTER || is_behind && write.start < last,
        _ => false,
    }
}

/// Returns whether an operation may be on the rest of a write's cluster, of whatever length.
pub(super) fn may_be_rest(rest: DiskRequest, write: DiskRequest) -> bool {
    let (begins, ends) = (rest.start.is_multiple_of(CLUSTER), rest.end().is_multiple_of(CLUSTER));
    let is_next = begins && ends_at(rest, write.start) || ends && begins_at(rest, write.end());
    match rest.operation {
        DiskOperation::Read => is_next || begins && rest.start <= write.start && write.end() <= rest.end(),
        DiskOperation::Write => is_next && begin_of(write.start) != begin_of(write.end().saturating_sub(1)),
        _ => false,
    }
}

/// Returns the first sectors that a rest of a write's cluster may have, as ranges.
pub(super) fn begins_of_rests(write: DiskRequest) -> [Range<u64>; 2] {
    let first = begin_of(write.start);
    [first..first + 1, write.end().saturating_sub(BLOCK - 1)..write.end() + 1]
}

fn begin_of(sector: u64) -> u64 {
    sector / CLUSTER * CLUSTER
}

fn ends_at(rest: DiskRequest, sector: u64) -> bool {
    (sector..sector + tolerance(rest)).contains(&rest.end())
}

fn begins_at(rest: DiskRequest, sector: u64) -> bool {
    (rest.start..rest.start + tolerance(rest)).contains(&sector)
}

/// Returns the number of sectors that one end of an operation may have.
fn tolerance(rest: DiskRequest) -> u64 {
    if rest.operation == DiskOperation::Read { BLOCK } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(operation: DiskOperation, [start, end]: [u64; 2]) -> DiskRequest {
        DiskRequest { operation, start, length: (end - start) as u32 }
    }

    #[test]
    fn a_rest_is_next_to_the_part_in_its_cluster() {
        let read = |rest, part| is_rest(of(DiskOperation::Read, rest), of(DiskOperation::Write, part));
        // The part is at the end, at the begin, and in the middle of the cluster.
        assert!(read([128, 160], [160, 256]) && read([192, 256], [128, 192]) && read([128, 256], [160, 168]));
        // QEMU rounds to blocks, and the part may have parts of other clusters.
        assert!(read([128, 168], [161, 400]) && read([184, 256], [1, 190]));
        assert!(read([128, 384], [250, 260]) && !read([128, 384], [128, 260]));
        // Other clusters, a part of the rest, no rest, a long part in the middle.
        assert!(
            !read([0, 160], [160, 256]) && !read([192, 384], [128, 192]) && !read([128, 384], [160, 168])
        );
        assert!(!read([136, 160], [160, 256]) && !read([192, 248], [128, 192]));
        assert!(!read([128, 256], [256, 264]) && !read([128, 256], [120, 128]));
        assert!(!read([128, 256], [136, 200]));
    }

    #[test]
    fn a_rest_is_written_alone_only_for_a_part_of_several_clusters() {
        let written = |rest, part| is_rest(of(DiskOperation::Write, rest), of(DiskOperation::Write, part));
        assert!(written([192, 256], [100, 192]) && written([128, 160], [160, 260]));
        assert!(!written([192, 256], [128, 192]) && !written([128, 160], [160, 256]));
        assert!(!written([184, 256], [100, 190]) && !written([128, 256], [100, 160]));
        let may_be = |rest, part| may_be_rest(of(DiskOperation::Write, rest), of(DiskOperation::Write, part));
        assert!(
            may_be([256, 384], [100, 256])
                && !may_be([256, 384], [128, 256])
                && !may_be([256, 384], [248, 256])
        );
    }

    #[test]
    fn each_rest_may_be_one_and_is_found_by_its_begin() {
        for operation in [DiskOperation::Read, DiskOperation::Write] {
            for (start, end) in (96..300_u64).flat_map(|start| (start + 1..=300).map(move |end| (start, end)))
            {
                let write = of(DiskOperation::Write, [start, end]);
                for rest in [[128, start], [128, 256], [end, 256], [end, 384]] {
                    if rest[0] >= rest[1] {
                        continue;
                    }
                    let rest = of(operation, rest);
                    let is_found = begins_of_rests(write).iter().any(|starts| starts.contains(&rest.start));
                    assert!(
                        !is_rest(rest, write) || may_be_rest(rest, write) && is_found,
                        "{rest:?} {write:?}"
                    );
                }
            }
        }
    }
}
