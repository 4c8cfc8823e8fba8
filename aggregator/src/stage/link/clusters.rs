//! Places of a guest's clusters in an image that has them in an order of its own (qcow2).
//!
//! *In*: pairs of a guest's request and an operation of QEMU, each the other's only candidate, with equal ranges within
//! a cluster. *Out*: the range of the guest's disk behind a range of the image.
//!
//! QEMU maps clusters whole, so a byte has the same offset in the cluster of both (docs/interop/qcow2.rst in QEMU: L2
//! tables). One pair proves nothing: QEMU also reads its tables, in blocks like those of a guest, and a read of a cluster
//! without a place has no operation of its own. So a place is certain only by several pairs. A write always has an
//! operation of its own, so its pair counts for two.
//!
//! *Invariant*: a place is certain if pairs of different requests within [`PAIRS_WITHIN_MS`] that count for
//! [`CERTAIN`] have it, or a place nearby with the same distance between image and guest: QEMU places clusters that
//! are written one after another so. Certain places are one to one.
//!
//! *The time*: QEMU keeps a block of its tables for 600 s after the last use (`cache-clean-interval`), so a guest that
//! reads a cluster without a place again and again does not make it read the same block again and again.
//!
//! *Cluster size*: 64 KiB, QEMU's default. In an image with larger ones the places of 64 KiB have the invariant too.
//! The host's agent names no disk with smaller ones (`tracer/src/enrich/machine_disks.rs`).
//!
//! *Rejected*: the tables in the image (QEMU writes them at a flush, so they lack what was written since then; the
//! host's agent would read all of them, 8 bytes for each 64 KiB, to find the guest's place for an image's one).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use blkkin_wire::disk_request::{DiskOperation, DiskRequest};
use blkkin_wire::stage::LogTime;
use serde::{Deserialize, Serialize};

const SECTOR: u64 = 512;
/// Sectors of a cluster.
pub(super) const CLUSTER: u64 = 128;
/// Time in ms of the log within which one pair confirms another.
const PAIRS_WITHIN_MS: u64 = 60_000;
/// Maximum number of sectors of an operation of which the clusters are looked up: 8 MiB. Linux sends a disk at most 4 MiB
/// at once, unless it is configured otherwise (`max_sectors_kb`).
const LONGEST: u64 = 16_384;
/// Weight of a certain place: two writes, a write and a read, or three reads.
const CERTAIN: u8 = 3;
const WRITE: u8 = 2;
const READ: u8 = 1;
/// Weight of the place of another cluster with the same distance, and number of places from which on it counts: on a
/// small disk it has the same distance by chance.
const NEIGHBOUR: u8 = 1;
const NEIGHBOURS_FROM: usize = 1_000;
/// Weight of others by which one of several pairs is preferred.
const PREFERRED: u8 = 2;
/// Distance in clusters within which one place supports another.
const NEAR: u64 = 4;
/// Distance within which as many as [`MANY`] certain places support another.
const FAR: u64 = 512;
const MANY: usize = 8;

/// Places by cluster of the image.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct ClusterMap {
    by_host: BTreeMap<u64, ClusterLocation>,
    /// Clusters of guest and image.
    by_guest: BTreeSet<(u64, u64)>,
    /// Cluster of the image from which on the next one is given up.
    next_evicted: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ClusterLocation {
    guest: u64,
    /// Weight of its pairs, up to [`CERTAIN`].
    weight: u8,
    /// Requests of the last two pairs, and time of the last one. A place with more pairs is certain.
    requests: [u64; 2],
    at: LogTime,
}

/// A guest's request and the only operation of QEMU that can have served it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    /// Range of the operation in the image.
    pub(super) host: DiskRequest,
    /// Range in the guest's disk, with the same offset in its first cluster, or to be rounded to whole clusters.
    pub(super) guest: DiskRequest,
    /// Number of the request.
    pub(super) request: u64,
    /// Time of the log.
    pub(super) at: LogTime,
}

/// Returns the clusters of a range. An empty one, which no agent sends, has the cluster of its begin.
pub(super) fn clusters(range: DiskRequest) -> RangeInclusive<u64> {
    range.start / CLUSTER..=(range.end().max(range.start + 1) - 1) / CLUSTER
}

/// Returns whether an operation is so long that its clusters are neither looked up nor learned.
pub(super) fn is_too_long(range: DiskRequest) -> bool {
    u64::from(range.length) > LONGEST
}

/// Returns a range relative to its first cluster: what guest and image have in common.
pub(super) fn within_cluster(range: DiskRequest) -> DiskRequest {
    DiskRequest { start: range.start % CLUSTER, ..range }
}

/// Returns the whole clusters of a range, none if they are too long for a request: QEMU writes them where the guest
/// writes a part of a cluster that has no place yet.
pub(super) fn rounded(range: DiskRequest) -> Option<DiskRequest> {
    let start = range.start / CLUSTER * CLUSTER;
    let length = range.end().next_multiple_of(CLUSTER) - start;
    DiskRequest::of_bytes(range.operation, start * SECTOR, length * SECTOR)
}

impl ClusterLocation {
    fn is_certain(&self) -> bool {
        self.weight >= CERTAIN
    }
}

impl Pair {
    fn weight(&self) -> u8 {
        if self.host.operation == DiskOperation::Write { WRITE } else { READ }
    }

    /// Returns whether a place has the same distance between image and guest, is of another request, and is certain or
    /// not too old.
    fn agrees(&self, (host, place): (&u64, &ClusterLocation)) -> bool {
        let distance = clusters(self.guest).start().wrapping_sub(*clusters(self.host).start());
        place.guest.wrapping_sub(*host) == distance
            && (place.is_certain()
                || (!place.requests.contains(&self.request)
                    && self.at.0.saturating_sub(place.at.0) <= PAIRS_WITHIN_MS))
    }
}

impl ClusterMap {
    /// Returns the guest's range for a range of the image; none if the place of one of its clusters is not certain, or
    /// if they do not follow each other in the guest.
    pub(super) fn guest_range(&self, range: DiskRequest) -> Option<DiskRequest> {
        if is_too_long(range) {
            return None;
        }
        if let Some(range) = range.at_guests_offsets() {
            return Some(range);
        }
        let places = clusters(range).map(|host| self.by_host.get(&host).filter(|place| place.is_certain()));
        let places: Vec<u64> = places.map(|place| place.map(|place| place.guest)).collect::<Option<_>>()?;
        let first = *places.first()?;
        let follow = places.iter().zip(first..).all(|(place, expected)| *place == expected);
        let start = first * CLUSTER + range.start % CLUSTER;
        let guest =
            || DiskRequest::of_bytes(range.operation, start * SECTOR, u64::from(range.length) * SECTOR);
        if follow { guest() } else { None }
    }

    /// Returns whether enough pairs of other requests agree with this one to prefer it to others.
    pub(super) fn prefers(&self, pair: &Pair) -> bool {
        self.weight_of_others(pair) >= PREFERRED
    }

    /// Returns the weight of pairs of other requests that agree with this one, up to [`CERTAIN`].
    fn weight_of_others(&self, pair: &Pair) -> u8 {
        let own = *clusters(pair.host).start();
        let agreeing = |distance: u64| {
            let range = own.saturating_sub(distance)..=own.saturating_add(distance);
            self.by_host.range(range).filter(|place| pair.agrees(*place)).map(|(_, place)| place)
        };
        let of_own = self.by_host.get_key_value(&own).filter(|place| pair.agrees(*place));
        let (weight, counted) =
            of_own.map_or((0, pair.request), |(_, place)| (place.weight, place.requests[1]));
        // A request may cover several clusters.
        let requests = |places: &mut dyn Iterator<Item = &ClusterLocation>, max: usize| {
            let mut found = vec![counted];
            for place in places {
                if !found.contains(&place.requests[1]) {
                    found.push(place.requests[1]);
                }
                if found.len() > max {
                    break;
                }
            }
            found.len() - 1
        };
        // One neighbour may have the same distance by chance, whatever its pairs count for.
        let neighbours = match self.by_host.len() >= NEIGHBOURS_FROM {
            true => requests(&mut agreeing(NEAR), CERTAIN.into()) as u8,
            false => 0,
        };
        let near = weight + neighbours * NEIGHBOUR;
        let are_many = || requests(&mut agreeing(FAR).filter(|place| place.is_certain()), MANY) == MANY;
        if near < CERTAIN && are_many() { CERTAIN } else { near.min(CERTAIN) }
    }

    /// Adds a pair. Returns the clusters of the image that have a certain place now and had none.
    pub(super) fn learn(&mut self, pair: &Pair) -> Vec<u64> {
        let hosts = clusters(pair.host);
        let is_certain = pair.weight() + self.weight_of_others(pair) >= CERTAIN;
        let mut learned: Vec<(u64, u64)> = Vec::new();
        if is_certain {
            let nearby = hosts.start().saturating_sub(NEAR)..=hosts.end() + NEAR;
            let agreeing = self.by_host.range(nearby).filter(|place| pair.agrees(*place));
            learned.extend(agreeing.map(|(host, place)| (*host, place.guest)));
        }
        learned.extend(hosts.zip(*clusters(pair.guest).start()..));
        // A pair does not take a certain place away, unless it is certain too, and counts once.
        let is_known = |(host, guest): &(u64, u64)| {
            self.by_host.get(host).is_some_and(|known| match known.is_certain() {
                true => !is_certain || known.guest == *guest,
                false => !is_certain && known.guest == *guest && known.requests.contains(&pair.request),
            })
        };
        learned.retain(|place| !is_known(place));
        learned.sort_unstable();
        learned.dedup();
        for (host, guest) in &learned {
            let before = self.by_host.get_key_value(host).filter(|place| pair.agrees(*place));
            let (before, last) =
                before.map_or((0, pair.request), |(_, place)| (place.weight, place.requests[1]));
            let weight = if is_certain { CERTAIN } else { before + pair.weight() };
            let requests = [last, pair.request];
            self.set(*host, ClusterLocation { guest: *guest, weight, requests, at: pair.at });
        }
        if is_certain { learned.into_iter().map(|(host, _)| host).collect() } else { Vec::new() }
    }

    fn set(&mut self, host: u64, place: ClusterLocation) {
        self.forget(host);
        if place.is_certain() {
            self.forget_range(place.guest..=place.guest);
        }
        self.by_guest.insert((place.guest, host));
        self.by_host.insert(host, place);
    }

    fn forget(&mut self, host: u64) {
        if let Some(place) = self.by_host.remove(&host) {
            self.by_guest.remove(&(place.guest, host));
        }
    }

    fn forget_range(&mut self, guest: RangeInclusive<u64>) {
        let places = self.by_guest.range((*guest.start(), 0)..=(*guest.end(), u64::MAX));
        let hosts: Vec<u64> = places.map(|(_, host)| *host).collect();
        hosts.into_iter().for_each(|host| self.forget(host));
    }

    /// Forgets the places of an image.
    pub(super) fn forget_layer(&mut self, layer: u32) {
        let of_layer = |host: &&u64| {
            let first = DiskRequest { operation: DiskOperation::Read, start: **host * CLUSTER, length: 0 };
            first.layer() == layer
        };
        let hosts: Vec<u64> = self.by_host.keys().filter(of_layer).copied().collect();
        hosts.into_iter().for_each(|host| self.forget(host));
    }

    /// Forgets one place, in turn.
    pub(super) fn evict(&mut self) {
        let next = self.by_host.range(self.next_evicted..).next().or(self.by_host.first_key_value());
        if let Some(host) = next.map(|(host, _)| *host) {
            self.next_evicted = host + 1;
            self.forget(host);
        }
    }

    /// Returns the number of places.
    pub(super) fn len(&self) -> usize {
        self.by_host.len()
    }

    /// Forgets the places of an operation that served no request there.
    pub(super) fn forget_host(&mut self, range: DiskRequest) {
        let hosts: Vec<u64> = self.by_host.range(clusters(range)).map(|(host, _)| *host).collect();
        hosts.into_iter().for_each(|host| self.forget(host));
    }

    /// Forgets the places of clusters that the guest discards: QEMU may give them to others.
    pub(super) fn forget_guest(&mut self, range: DiskRequest) {
        self.forget_range(clusters(range));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Write of this many sectors from a sector of a cluster on.
    fn range(cluster: u64, sector: u64, length: u32) -> DiskRequest {
        DiskRequest { operation: DiskOperation::Write, start: cluster * CLUSTER + sector, length }
    }

    /// Adds the pair of a request of its own.
    fn learn(map: &mut ClusterMap, host: DiskRequest, guest: DiskRequest, at: u64) -> Vec<u64> {
        let request =
            map.next_evicted + map.by_host.values().map(|place| place.requests[1] + 1).max().unwrap_or(0);
        map.learn(&Pair { host, guest, request, at: LogTime(at) })
    }

    /// Returns a map with places far away, enough for neighbours to count.
    fn large() -> ClusterMap {
        let mut map = ClusterMap::default();
        for n in 0..NEIGHBOURS_FROM as u64 {
            learn(&mut map, range(1_000_000 + 100 * n, 0, 8), range(2_000_000 + 7 * n, 0, 8), 0);
        }
        map
    }

    #[test]
    fn a_place_is_certain_by_two_pairs() {
        let mut map = ClusterMap::default();
        assert_eq!(learn(&mut map, range(70, 8, 8), range(3, 8, 8), 0), []);
        assert_eq!(map.guest_range(range(70, 8, 8)), None);
        // Another place for the same cluster takes the first one's.
        assert_eq!(learn(&mut map, range(70, 8, 8), range(9, 8, 8), 0), []);
        assert_eq!(learn(&mut map, range(70, 0, 8), range(3, 0, 8), 0), []);
        assert_eq!(learn(&mut map, range(70, 16, 8), range(3, 16, 8), 0), [70]);
        assert_eq!(map.guest_range(range(70, 100, 28)), Some(range(3, 100, 28)));
        assert_eq!(map.guest_range(range(70, 100, 29)), None);
    }

    #[test]
    fn a_place_is_certain_by_three_reads_or_a_write_and_a_read() {
        let read =
            |cluster, sector| DiskRequest { operation: DiskOperation::Read, ..range(cluster, sector, 8) };
        let mut map = large();
        let learned = [0, 8, 16].map(|sector| learn(&mut map, read(70, sector), read(3, sector), 0).len());
        assert_eq!(learned, [0, 0, 1]);
        let mut map = large();
        let of_request = |request| Pair { host: read(70, 0), guest: read(3, 0), request, at: LogTime(0) };
        let learned = [1, 2, 1, 2, 3].map(|request| map.learn(&of_request(request)).len());
        assert_eq!(learned, [0, 0, 0, 0, 1]);
        let mut map = large();
        learn(&mut map, read(70, 0), read(3, 0), 0);
        learn(&mut map, read(71, 0), read(4, 0), 0);
        assert_eq!(learn(&mut map, range(72, 0, 8), range(5, 0, 8), 0), [70, 71, 72]);
    }

    #[test]
    fn a_pair_of_long_ago_confirms_nothing() {
        let mut map = ClusterMap::default();
        learn(&mut map, range(70, 8, 8), range(3, 8, 8), 0);
        assert_eq!(learn(&mut map, range(70, 8, 8), range(3, 8, 8), PAIRS_WITHIN_MS + 1), []);
        assert_eq!(learn(&mut map, range(70, 8, 8), range(3, 8, 8), PAIRS_WITHIN_MS + 1), [70]);
    }

    #[test]
    fn places_nearby_of_one_distance_support_each_other() {
        let mut map = large();
        assert_eq!(learn(&mut map, range(70, 0, 8), range(3, 0, 8), 0), []);
        assert_eq!(learn(&mut map, range(75, 0, 8), range(8, 0, 8), 0), []);
        assert_eq!(learn(&mut map, range(74, 0, 8), range(8, 0, 8), 0), []);
        assert_eq!(learn(&mut map, range(74, 0, 8), range(7, 0, 8), 0), [70, 74, 75]);
        assert_eq!(map.guest_range(range(74, 5, 200)), Some(range(7, 5, 200)));
        // The guest's cluster 7 is elsewhere now, so 74 has no place any more.
        learn(&mut map, range(200, 0, 8), range(7, 0, 8), 0);
        assert_eq!(learn(&mut map, range(200, 8, 8), range(7, 8, 8), 0), [200]);
        assert_eq!(map.guest_range(range(74, 0, 8)), None);
        map.forget_guest(range(7, 0, 300));
        assert_eq!(
            [200, 75, 70].map(|host| map.guest_range(range(host, 0, 8)).is_some()),
            [false, false, true]
        );
        map.forget_host(range(70, 0, 8));
        assert_eq!((map.len(), map.by_guest.len()), (NEIGHBOURS_FROM, NEIGHBOURS_FROM));
    }

    #[test]
    fn many_places_of_one_distance_support_one_far_away() {
        let mut map = large();
        let learned: Vec<usize> =
            (0..9).map(|n| learn(&mut map, range(70 + n, 0, 8), range(n, 0, 8), 0).len()).collect();
        assert_eq!(learned, [0, 2, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(learn(&mut map, range(500, 0, 8), range(430, 0, 8), 0), [500]);
        assert_eq!(learn(&mut map, range(500 + FAR, 0, 8), range(430 + FAR, 0, 8), 0), []);
        assert_eq!(learn(&mut map, range(510, 0, 8), range(441, 0, 8), 0), []);
    }

    #[test]
    fn a_request_counts_once_for_all_its_clusters() {
        let read =
            |cluster, length| DiskRequest { operation: DiskOperation::Read, ..range(cluster, 0, length) };
        let mut map = large();
        assert_eq!(learn(&mut map, read(70, 1_280), read(3, 1_280), 0), []);
        assert_eq!(learn(&mut map, read(72, 8), read(5, 8), 0), []);
        assert_eq!(learn(&mut map, read(73, 8), read(6, 8), 0).len(), 8);
    }

    #[test]
    fn a_place_is_given_up_in_turn() {
        let mut map = ClusterMap::default();
        for n in 0..10 {
            learn(&mut map, range(10 * n, 0, 8), range(n * n, 0, 8), 0);
        }
        (0..4).for_each(|_| map.evict());
        assert_eq!((map.len(), map.by_guest.len(), map.by_host.first_key_value().unwrap().0), (6, 6, &40));
    }

    #[test]
    fn a_range_is_rounded_to_whole_clusters() {
        assert_eq!(rounded(range(3, 8, 8)), Some(range(3, 0, 128)));
        assert_eq!(rounded(range(3, 127, 2)), Some(range(3, 0, 256)));
        assert_eq!(rounded(range(3, 0, 1 << 21)), Some(range(3, 0, 1 << 21)));
        assert_eq!(within_cluster(range(3, 127, 2)), range(0, 127, 2));
    }
}
