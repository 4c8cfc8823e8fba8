//! Requests of a guest to a qcow2 image with a backing file: no wrong link, though QEMU reads the backing file for the
//! guest's writes too.

use std::collections::{HashMap, HashSet};

use blkkin_wire::disk_request::{DiskOperation, DiskRequest};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::cluster_tests::{PART, Request, on_image, read, requests, right_and_wrong, scattered, served};
use super::clusters::{CLUSTER, clusters};
use super::disk_tests::{MS, guest, parents, run, write};
use super::*;

/// A guest's disk: the image that the guest writes, and the backing file, which has all clusters.
struct Images {
    /// Places of the clusters that the guest has written.
    written: HashMap<u64, u64>,
    /// Clusters that read as zeroes, because the guest has discarded them.
    zero: HashSet<u64>,
    is_raw: bool,
    place: fn(u64) -> u64,
}

impl Images {
    /// Returns a range of the backing file.
    fn below(&self, range: DiskRequest) -> DiskRequest {
        let offset = if self.is_raw { 0 } else { 5_000 * CLUSTER };
        DiskRequest { start: range.start + offset, ..range }.in_image(1, !self.is_raw).unwrap()
    }

    /// Returns QEMU's operations for a request, in order.
    fn operations(&mut self, range: DiskRequest) -> Vec<DiskRequest> {
        if let Some(merged) = self.merged(range) {
            return merged;
        }
        let mut operations: Vec<DiskRequest> = Vec::new();
        for cluster in clusters(range) {
            let whole = DiskRequest { start: cluster * CLUSTER, length: CLUSTER as u32, ..range };
            let start = range.start.max(whole.start);
            let part = DiskRequest { start, length: (range.end().min(whole.end()) - start) as u32, ..range };
            let place = self.written.get(&cluster).map(|place| place * CLUSTER);
            let of_cluster = match (range.operation, place) {
                (DiskOperation::Discard, _) => {
                    self.written.remove(&cluster);
                    self.zero.insert(cluster);
                    Vec::new()
                }
                (_, Some(place)) => vec![DiskRequest { start: place + part.start % CLUSTER, ..part }],
                (DiskOperation::Read, None) if self.zero.contains(&cluster) => Vec::new(),
                (DiskOperation::Read, None) => vec![self.below(part)],
                _ => {
                    let place = (self.place)(cluster);
                    self.written.insert(cluster, place);
                    let mut filled = self.filled(whole, part);
                    // QEMU writes the rest on its own if the request begins in a cluster before it.
                    let before = operations.iter_mut().rfind(|last| last.operation == range.operation);
                    match before.filter(|last| last.end() == place * CLUSTER) {
                        Some(last) => {
                            last.length += part.length;
                            let rest = u64::from(part.length)..CLUSTER;
                            filled.extend((!rest.is_empty()).then(|| DiskRequest {
                                start: place * CLUSTER + rest.start,
                                length: (rest.end - rest.start) as u32,
                                ..range
                            }));
                        }
                        None => filled.push(DiskRequest { start: place * CLUSTER, ..whole }),
                    }
                    filled
                }
            };
            for next in of_cluster {
                let follows = |last: &DiskRequest| {
                    last.end() == next.start
                        && last.operation == next.operation
                        && range.operation == next.operation
                };
                match operations.last_mut().filter(|last| follows(last)) {
                    Some(last) => last.length += next.length,
                    None => operations.push(next),
                }
            }
        }
        operations
    }

    /// Returns the operations for a short write in two new clusters that follow each other in the image: QEMU reads and
    /// writes both at once.
    fn merged(&mut self, range: DiskRequest) -> Option<Vec<DiskRequest>> {
        let (first, last) = (*clusters(range).start(), *clusters(range).end());
        let are_new =
            [first, last].iter().all(|one| !self.written.contains_key(one) && !self.zero.contains(one));
        let follow = (self.place)(last) == (self.place)(first) + 1;
        if range.operation != DiskOperation::Write
            || range.length > 32
            || last != first + 1
            || !are_new
            || !follow
        {
            return None;
        }
        self.written.extend([first, last].map(|cluster| (cluster, (self.place)(cluster))));
        let both = |start, operation| DiskRequest { operation, start, length: 2 * CLUSTER as u32 };
        let read = self.below(both(first * CLUSTER, DiskOperation::Read));
        Some(vec![read, both((self.place)(first) * CLUSTER, DiskOperation::Write)])
    }

    /// Returns what QEMU reads of the backing file to write a part of a new cluster.
    fn filled(&self, whole: DiskRequest, part: DiskRequest) -> Vec<DiskRequest> {
        if self.zero.contains(&(whole.start / CLUSTER)) {
            return Vec::new();
        }
        let (before, behind) = (part.start - whole.start, whole.end() - part.end());
        let ranges = match part.length <= 32 && before > 0 && behind > 0 {
            true => vec![(whole.start, CLUSTER)],
            false => vec![(whole.start, before), (part.end(), behind)],
        };
        let reads = ranges.into_iter().filter(|(_, length)| *length > 0);
        reads.map(|(start, length)| self.below(read(start, length as u32))).collect()
    }
}

/// Returns the endpoints of guest and host.
fn endpoints_of(requests: &[Request], is_raw: bool, place: fn(u64) -> u64) -> Vec<(u64, LinkEndpoint)> {
    let mut images = Images { written: HashMap::new(), zero: HashSet::new(), is_raw, place };
    let mut in_order: Vec<(usize, &Request)> = requests.iter().enumerate().collect();
    in_order.sort_by_key(|(_, request)| request.times[1]);
    let mut endpoints = Vec::new();
    for (n, request) in in_order {
        let [issued, begun, done, completed] = request.times;
        let arrival = completed / MS;
        if !request.lost[0] {
            endpoints.push((arrival + request.late[0], guest(n, request.range, [issued, completed]).1));
        }
        for (part, operation) in images.operations(request.range).into_iter().enumerate() {
            if request.lost[1] {
                continue;
            }
            let server = on_image(n + PART * part, operation, [begun + 10_000, done]).1;
            endpoints.push((arrival + request.late[1], server));
        }
    }
    endpoints
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_link_is_wrong_with_a_backing_file(requests in requests(1, 0), is_raw: bool, in_order: bool) {
        let place = if in_order { |cluster| 1_000 + cluster } else { scattered };
        let (_, out) = run(endpoints_of(&requests, is_raw, place));
        prop_assert_eq!(right_and_wrong(&out).1, 0);
    }
}

/// Of a request that is not recorded, the operation can be next to another one's part.
#[test]
fn few_links_are_wrong_where_one_request_in_a_hundred_is_lost() {
    let mut runner = TestRunner::deterministic();
    let (mut right, mut wrong, mut filled) = (0, 0, 0);
    for run_number in 0..200 {
        let requests = requests(1, 3).new_tree(&mut runner).unwrap().current();
        let place = if run_number % 2 == 0 { |cluster| 1_000 + cluster } else { scattered };
        let (_, out) = run(endpoints_of(&requests, run_number % 4 < 2, place));
        let of_run = right_and_wrong(&out);
        (right, wrong) = (right + of_run.0, wrong + of_run.1);
        let rule = Rule::Filled.text(true);
        filled += out.linked.iter().filter(|(_, target)| *target.rule == *rule).count();
    }
    assert!(right > 10_000 && filled > 1_000 && wrong * 1_000 <= right, "{right}, {wrong}, {filled}");
}

#[test]
fn a_read_of_a_raw_backing_file_has_its_request_at_once() {
    let range = read(5 * CLUSTER + 8, 8);
    let (_, out) = run(served(1, range, range.in_image(1, false).unwrap()).to_vec());
    assert_eq!(parents(&out), [(1, 1)]);
    assert_eq!(*out.linked[0].1.rule, *Rule::Same.text(true));
}

#[test]
fn what_qemu_reads_to_fill_up_a_cluster_has_the_write() {
    let [first, last] = [write(5 * CLUSTER + 40, 8), write(6 * CLUSTER + 32, 96)];
    let below = |start, length| read(start, length).in_image(1, false).unwrap();
    let at = |n: u64| [n * 10 * MS, n * 10 * MS + MS];
    let within = |n: u64| [n * 10 * MS + 300_000, n * 10 * MS + 400_000];
    let endpoints = vec![
        guest(1, first, at(1)),
        on_image(11, below(5 * CLUSTER, 128), within(1)),
        guest(2, last, at(2)),
        on_image(12, below(6 * CLUSTER, 32), within(2)),
        // Of another write's cluster.
        on_image(13, below(7 * CLUSTER + 8, 8), within(2)),
    ];
    let (_, out) = run(endpoints.clone());
    assert_eq!(parents(&out), [(11, 1), (12, 2)]);
    assert!(out.linked.iter().all(|(_, target)| *target.rule == *Rule::Filled.text(true)));
    // It may be for a read of the guest as well.
    let doubtful = [endpoints, vec![guest(3, read(5 * CLUSTER, 256), at(1))]].concat();
    assert_eq!(parents(&run(doubtful).1), [(12, 2)]);
}

#[test]
fn the_places_of_a_backing_file_are_its_own() {
    let of = |n: usize, layer, guest: u64, image: u64| {
        let sector = 8 * (n as u64 % 8);
        let in_image = read(image * CLUSTER + sector, 8).in_image(layer, true).unwrap();
        served(n, read(guest * CLUSTER + sector, 8), in_image)
    };
    let both = (0..4).flat_map(|n| [of(2 * n, 0, 5, 70), of(2 * n + 1, 1, 9, 70)].concat());
    let (_, out) = run(both.collect());
    assert_eq!(parents(&out), (0..8).map(|n| (n, n)).collect::<Vec<_>>());
}
