//! Requests of a guest to an image with clusters in an order of its own: no wrong link, though QEMU reads and writes its
//! tables in blocks like the guest's.

use std::collections::{HashMap, HashSet};

use blkkin_wire::disk_request::{DiskOperation, DiskRequest};
use blkkin_wire::ids::{SpanId, TraceId};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::clusters::CLUSTER;
use super::disk_tests::{MS, Output, guest, parents, qemu, run, write};
use super::*;

/// Cluster of the image from which on QEMU's tables are.
const TABLES: u64 = 1 << 20;
/// Number from which on endpoints are QEMU's own.
const OWN: usize = 1 << 30;
/// Difference between the numbers of one request's operations.
pub(super) const PART: usize = 1 << 20;

pub(super) fn read(start: u64, length: u32) -> DiskRequest {
    DiskRequest { operation: DiskOperation::Read, ..write(start, length) }
}

/// Operation of QEMU on this range of the image.
pub(super) fn on_image(n: usize, range: DiskRequest, times: [u64; 2]) -> (u64, LinkEndpoint) {
    let (at, mut server) = qemu(n, range, times);
    server.image = Some(7);
    (at, server)
}

/// Guest's request `n` of these, 10 ms after the one before, and QEMU's operation for it.
pub(super) fn served(n: usize, of_guest: DiskRequest, in_image: DiskRequest) -> [(u64, LinkEndpoint); 2] {
    let at = n as u64 * 10 * MS;
    let (_, client) = guest(n, of_guest, [at, at + MS]);
    let (_, server) = on_image(n, in_image, [at + 300_000, at + 400_000]);
    [(10 * n as u64, client), (10 * n as u64 + 5, server)]
}

/// Guest's request `n`, as it happened.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) range: DiskRequest,
    /// Issued, taken up, done, completed.
    pub(super) times: [u64; 4],
    pub(super) late: [u64; 2],
    pub(super) lost: [bool; 2],
}

/// Number of the guest's clusters of which the places are in one block of QEMU's tables.
const OF_BLOCK: u64 = 512;

/// Requests one after another in each of four slots: blocks of a cluster, and ranges of some clusters. `spread`: groups of
/// clusters with a block of QEMU's tables each.
pub(super) fn requests(spread: u64, loss: u8) -> impl Strategy<Value = Vec<Request>> {
    let one = (
        (0..4_usize, 0..spread, 0..60_u64, 0..16_u64, any::<[u8; 4]>()),
        [50_000_u64..200_000, 30_000..400_000, 50_000..200_000, 0..3_000_000],
        [0..1_500_u64, 0..1_500],
    );
    prop::collection::vec(one, 1..300).prop_map(move |all| {
        let mut free = [0_u64; 4];
        let requests = all.into_iter().map(
            |(
                (slot, group, cluster, block, [kind, length, lost, also_lost]),
                [before, work, after, gap],
                late,
            )| {
                let issued = free[slot] + gap;
                let times = [issued, issued + before, issued + before + work, issued + before + work + after];
                free[slot] = times[3] + 1;
                let first = (group * OF_BLOCK + cluster) * CLUSTER;
                let (start, length) = match length % 8 {
                    0 => (first, 128),
                    1 => (first + block * 8, 8 + 8 * u32::from(length)),
                    _ => (first + block * 8, 8),
                };
                let operation = match kind % 16 {
                    0 => DiskOperation::Discard,
                    kind if kind % 2 == 0 => DiskOperation::Write,
                    _ => DiskOperation::Read,
                };
                let range = DiskRequest { operation, ..write(start, length) };
                Request { range, times, late, lost: [lost < loss, also_lost < loss] }
            },
        );
        requests.collect()
    })
}

/// QEMU's image: where the guest's clusters are.
struct Image {
    places: HashMap<u64, u64>,
    used: HashSet<u64>,
    /// Places that discards have freed, the last one first.
    free: Vec<u64>,
    /// Blocks of the tables that QEMU has read.
    tables: HashSet<u64>,
    place: fn(u64) -> u64,
}

impl Image {
    /// Returns a cluster that no other one of the guest has had.
    fn unused(&mut self, cluster: u64) -> u64 {
        let places = std::iter::successors(Some((self.place)(cluster)), |place| Some(place + 100_000));
        let place = places.into_iter().find(|place| !self.used.contains(place)).unwrap();
        self.used.insert(place);
        place
    }

    /// Returns the operations on the image for a request, in order, each on clusters that follow each other.
    fn operations(&mut self, range: DiskRequest) -> Vec<DiskRequest> {
        let mut operations: Vec<DiskRequest> = Vec::new();
        for cluster in super::clusters::clusters(range) {
            let first = range.start.max(cluster * CLUSTER);
            let part = DiskRequest {
                start: first,
                length: (range.end().min((cluster + 1) * CLUSTER) - first) as u32,
                ..range
            };
            let is_new = !self.places.contains_key(&cluster);
            match (range.operation, is_new) {
                (DiskOperation::Discard, false) if part.length == 128 => {
                    self.free.extend(self.places.remove(&cluster));
                }
                (DiskOperation::Write, true) => {
                    let place = self.free.pop().unwrap_or_else(|| self.unused(cluster));
                    self.places.insert(cluster, place);
                }
                _ => {}
            }
            let Some(place) = self.places.get(&cluster) else { continue };
            // A new cluster is filled up.
            let part = match is_new {
                true => DiskRequest { start: place * CLUSTER, length: 128, ..part },
                false => DiskRequest { start: place * CLUSTER + first % CLUSTER, ..part },
            };
            match operations.last_mut() {
                Some(last) if last.end() == part.start => last.length += part.length,
                _ => operations.push(part),
            }
        }
        operations
    }
}

/// Returns the endpoints. QEMU reads the block of its tables for a cluster before its data, or instead of them, if it has
/// not read it yet. `table`: sectors of such a block.
fn endpoints_of(requests: &[Request], place: fn(u64) -> u64, table: u32) -> Vec<(u64, LinkEndpoint)> {
    let mut image = Image {
        places: HashMap::new(),
        used: HashSet::new(),
        free: Vec::new(),
        tables: HashSet::new(),
        place,
    };
    // A part of the clusters has been written before.
    for cluster in (0..OF_BLOCK * 40).step_by(3) {
        let place = image.unused(cluster);
        image.places.insert(cluster, place);
    }
    let mut in_order: Vec<(usize, &Request)> = requests.iter().enumerate().collect();
    in_order.sort_by_key(|(_, request)| request.times[1]);
    let mut endpoints = Vec::new();
    for (n, request) in in_order {
        let (range, [issued, begun, done, completed]) = (request.range, request.times);
        let arrival = completed / MS;
        if !request.lost[0] {
            endpoints.push((arrival + request.late[0], guest(n, range, [issued, completed]).1));
        }
        let block = range.start / CLUSTER / OF_BLOCK;
        if image.tables.insert(block) {
            let table = read(TABLES * CLUSTER + block * u64::from(table), table);
            let server = on_image(OWN + n, table, [begun, begun + 10_000]).1;
            endpoints.push((arrival + request.late[1], server));
        }
        for (part, operation) in image.operations(range).into_iter().enumerate() {
            if !request.lost[1] {
                let server = on_image(n + PART * part, operation, [begun + 10_000, done]).1;
                endpoints.push((arrival + request.late[1], server));
            }
        }
    }
    endpoints
}

/// Returns how many operations are below their own request, and how many below another one.
pub(super) fn right_and_wrong(out: &Output) -> (usize, usize) {
    let is_right = |(trace, target): &&(TraceId, Reparented)| {
        let server = trace.0 as u64 as usize;
        server < OWN && target.parent == SpanId((server % PART) as u64)
    };
    let right = out.linked.iter().filter(is_right).count();
    (right, out.linked.len() - right)
}

/// Returns the place of a scattered cluster.
pub(super) fn scattered(cluster: u64) -> u64 {
    1_000 + cluster.wrapping_mul(7_919) % 65_536
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_link_is_wrong_in_clusters_one_after_another(requests in requests(40, 0), blocks: bool) {
        let table = if blocks { 8 } else { 128 };
        let (_, out) = run(endpoints_of(&requests, |cluster| 1_000 + cluster, table));
        prop_assert_eq!(right_and_wrong(&out).1, 0);
    }

    #[test]
    fn no_link_is_wrong_in_scattered_clusters(requests in requests(40, 0), blocks: bool) {
        let (_, out) = run(endpoints_of(&requests, scattered, if blocks { 8 } else { 128 }));
        prop_assert_eq!(right_and_wrong(&out).1, 0);
    }
}

/// A tenth of 60 clusters is read without having a place, and all are used within a second: then pairs agree by chance.
#[test]
fn few_links_are_wrong_where_chance_is_largest() {
    let mut runner = TestRunner::deterministic();
    let (mut right, mut wrong) = (0, 0);
    for _ in 0..200 {
        let requests = requests(1, 0).new_tree(&mut runner).unwrap().current();
        let (_, out) = run(endpoints_of(&requests, scattered, 8));
        let of_run = right_and_wrong(&out);
        (right, wrong) = (right + of_run.0, wrong + of_run.1);
    }
    assert!(right > 1_000 && wrong * 1_000 <= right, "{right} right, {wrong} wrong");
}

#[test]
fn each_request_in_clusters_one_after_another_has_its_operation() {
    let requests = (0..64).map(|n| {
        let (guest, image) = (n / 4 * CLUSTER + n % 4 * 8, (1_000 + n / 4) * CLUSTER + n % 4 * 8);
        served(n as usize, write(guest, 8), write(image, 8))
    });
    let (stage, out) = run(requests.flatten().collect());
    assert_eq!(parents(&out), (0..64).map(|n| (n, n)).collect::<Vec<_>>());
    assert_eq!(stage.stats().matched, 128);
    let rule = Rule::Same.text(true);
    assert!(out.linked.iter().all(|(_, target)| *target.rule == *rule) && rule != Rule::Same.text(false));
}

#[test]
fn a_cluster_that_was_met_once_has_no_place() {
    let [first, second] = [(5, 8), (20, 16)].map(|(cluster, sector)| {
        served(
            cluster as usize,
            write(cluster * CLUSTER + sector, 8),
            write(scattered(cluster) * CLUSTER + sector, 8),
        )
    });
    let (stage, out) = run([first, second].concat());
    assert_eq!((parents(&out), stage.stats().unmatched), (vec![], 4));
}

#[test]
fn an_operation_that_fills_up_a_new_cluster_has_the_request() {
    let first = served(1, write(5 * CLUSTER + 8, 8), write(70 * CLUSTER, 128));
    let second = served(2, write(5 * CLUSTER + 24, 8), write(70 * CLUSTER + 24, 8));
    // Blocks of both clusters.
    let third = served(3, write(5 * CLUSTER + 120, 16), write(70 * CLUSTER, 256));
    let fourth = served(4, write(6 * CLUSTER + 24, 8), write(71 * CLUSTER + 24, 8));
    let (_, out) = run([first, second, third, fourth].concat());
    assert_eq!(parents(&out), [(1, 1), (2, 2), (3, 3), (4, 4)]);
    assert_eq!(*out.linked[0].1.rule, *Rule::Rounded.text(true));
}

#[test]
fn a_request_in_two_places_has_both_operations() {
    let known = [(5, 70), (6, 90)].into_iter().enumerate().flat_map(|(n, (guest, image))| {
        let of = |m: usize| {
            let sector = 8 * m as u64;
            let (guest, image) = (write(guest * CLUSTER + sector, 8), write(image * CLUSTER + sector, 8));
            served(10 * n + m, guest, image)
        };
        [of(1), of(2)].concat()
    });
    let at = 1_000 * MS;
    let split = [
        (3_000, guest(50, write(6 * CLUSTER - 8, 16), [at, at + MS]).1),
        (3_000, on_image(51, write(71 * CLUSTER - 8, 8), [at + 300_000, at + 400_000]).1),
        (3_000, on_image(52, write(90 * CLUSTER, 8), [at + 310_000, at + 400_000]).1),
    ];
    let (_, out) = run(known.chain(split).collect());
    assert_eq!(parents(&out), [(1, 1), (2, 2), (11, 11), (12, 12), (51, 50), (52, 50)]);
}

#[test]
fn a_discarded_cluster_has_no_place_any_more() {
    let of = |n: usize, guest: u64| {
        let sector = 8 * n as u64;
        served(n, write(guest * CLUSTER + sector, 8), write(70 * CLUSTER + sector, 8))
    };
    let discard = DiskRequest { operation: DiskOperation::Discard, ..write(5 * CLUSTER, 128) };
    // QEMU gives the cluster of the image to another one of the guest's.
    let later = [of(10, 9), of(11, 9)].map(|both| both.map(|(at, endpoint)| (at + 30_000, endpoint)));
    let (_, discard) = guest(5, discard, [50 * MS, 51 * MS]);
    let (_, other) = guest(20, write(5 * CLUSTER + 80, 8), [100 * MS, 101 * MS]);
    let early = [of(1, 5), of(2, 5)].concat();
    let others = vec![(6_000, discard), (30_300, other)];
    let (_, out) = run([early.clone(), others.clone(), later.concat()].concat());
    assert_eq!(parents(&out), [(1, 1), (2, 2), (10, 10), (11, 11)]);
    // The discard arrives before a place is known.
    let others = others.into_iter().map(|(at, endpoint)| (at % 30_000 % 5_950, endpoint)).collect();
    assert_eq!(parents(&run([early, others].concat()).1), []);
}

#[test]
fn a_flush_needs_no_place() {
    let endpoints = [
        guest(1, DiskRequest::FLUSH, [MS, 2 * MS]),
        on_image(2, DiskRequest::FLUSH, [MS + 100_000, MS + 200_000]),
    ];
    assert_eq!(parents(&run(endpoints.to_vec()).1), [(2, 1)]);
}

#[test]
fn ranges_that_no_agent_sends_are_linked_to_nothing() {
    let longest = read(0, (1 << 22) - 1);
    let ranges = [read(0, 0), read((1 << 40) - 1, 0), read((1 << 40) - 1, (1 << 22) - 1), longest];
    let endpoints = ranges.into_iter().enumerate().flat_map(|(n, range)| {
        let discard = DiskRequest { operation: DiskOperation::Discard, ..range };
        let [one, two] = [range, discard].map(|range| served(2 * n, range, range));
        [one, two].concat()
    });
    assert_eq!(parents(&run(endpoints.collect()).1), []);
}

#[test]
fn each_operation_without_a_guests_request_is_given_up_once_on_many_disks() {
    let of_disk = |n: usize| {
        let (at, mut server) = on_image(n, write(70 * CLUSTER, 8), [MS, 2 * MS]);
        server.event.key.connection = format!("disk {n}").into();
        (at + 10 * n as u64, server)
    };
    let (stage, _) = run((0..1_100).map(of_disk).collect());
    assert_eq!((stage.stats().unmatched, stage.pending()), (1_100, 0));
}

/// A host's agent names no disk so, but another record may.
#[test]
fn operations_on_a_raw_image_and_on_clusters_of_one_disk_are_all_given_up() {
    let on_raw = |n: usize, sector| qemu(n, write(sector, 8), [MS, 2 * MS]);
    let endpoints = vec![
        on_raw(1, 8),
        on_image(2, write(70 * CLUSTER, 8), [MS, 2 * MS]),
        on_raw(3, 16),
        on_image(4, write(80 * CLUSTER, 8), [MS, 2 * MS]),
    ];
    let (stage, _) = run(endpoints);
    assert_eq!((stage.stats().unmatched, stage.pending()), (4, 0));
}
