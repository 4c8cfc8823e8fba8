//! Requests of a guest to an image with clusters in an order of its own: no wrong link, though QEMU reads and writes its
//! tables in blocks like the guest's.

use std::collections::HashSet;

use blkkin_wire::disk_request::{DiskOperation, DiskRequest};
use blkkin_wire::ids::SpanId;
use proptest::prelude::*;

use super::clusters::CLUSTER;
use super::disk_tests::{MS, Output, guest, parents, qemu, run, write};
use super::*;

/// Cluster of the image from which on QEMU's tables are.
const TABLES: u64 = 1 << 20;
/// Number from which on endpoints are QEMU's own.
const OWN: usize = 1 << 20;

fn read(start: u64, length: u32) -> DiskRequest {
    DiskRequest { operation: DiskOperation::Read, ..write(start, length) }
}

/// Operation of QEMU on this range of the image.
fn on_image(n: usize, range: DiskRequest, times: [u64; 2]) -> (u64, LinkEndpoint) {
    let (at, mut server) = qemu(n, range, times);
    server.in_clusters = true;
    (at, server)
}

/// Guest's request `n` of these, 10 ms after the one before, and QEMU's operation for it.
fn served(n: usize, of_guest: DiskRequest, in_image: DiskRequest) -> [(u64, LinkEndpoint); 2] {
    let at = n as u64 * 10 * MS;
    let (_, client) = guest(n, of_guest, [at, at + MS]);
    let (_, server) = on_image(n, in_image, [at + 300_000, at + 400_000]);
    [(10 * n as u64, client), (10 * n as u64 + 5, server)]
}

/// A request in an image, in clusters after those before or scattered.
#[derive(Clone, Debug)]
struct Request {
    range: DiskRequest,
    /// Issued, taken up, done, completed.
    times: [u64; 4],
    late: [u64; 2],
    /// True if the guest's cluster has a place.
    has_place: bool,
}

/// Number of the guest's clusters of which the places are in one block of QEMU's tables.
const OF_BLOCK: u64 = 512;

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let one = (
        (0..4_usize, 0..40_u64, 0..60_u64, 0..16_u64, any::<bool>()),
        [50_000_u64..200_000, 30_000..400_000, 50_000..200_000, 0..3_000_000],
        [0..1_500_u64, 0..1_500],
    );
    prop::collection::vec(one, 1..300).prop_map(|all| {
        let mut free = [0_u64; 4];
        let requests = all.into_iter().map(
            |((slot, group, cluster, block, writes), [before, work, after, gap], late)| {
                let issued = free[slot] + gap;
                let times = [issued, issued + before, issued + before + work, issued + before + work + after];
                free[slot] = times[3] + 1;
                let start = (group * OF_BLOCK + cluster) * CLUSTER + block * 8;
                let range = if writes { write(start, 8) } else { read(start, 8) };
                // A third of the clusters are never written.
                Request { range, times, late, has_place: writes || cluster % 3 != 0 }
            },
        );
        requests.collect()
    })
}

/// QEMU reads the block of its tables for a cluster before its data, or instead of them, if it has not read it yet.
fn endpoints_of(requests: &[Request], place: fn(u64) -> u64) -> Vec<(u64, LinkEndpoint)> {
    let (mut endpoints, mut known) = (Vec::new(), HashSet::new());
    let mut in_order: Vec<(usize, &Request)> = requests.iter().enumerate().collect();
    in_order.sort_by_key(|(_, request)| request.times[1]);
    for (n, request) in in_order {
        let (range, [issued, begun, done, completed]) = (request.range, request.times);
        let (arrival, cluster) = (completed / MS, range.start / CLUSTER);
        endpoints.push((arrival + request.late[0], guest(n, range, [issued, completed]).1));
        if request.has_place {
            let in_image = DiskRequest { start: place(cluster) * CLUSTER + range.start % CLUSTER, ..range };
            let server = on_image(n, in_image, [begun + 10_000, done]).1;
            endpoints.push((arrival + request.late[1], server));
        }
        let block = cluster / OF_BLOCK;
        if known.insert(block) {
            let table = read(TABLES * CLUSTER + block * 8, 8);
            let server = on_image(OWN + n, table, [begun, begun + 10_000]).1;
            endpoints.push((arrival + request.late[1], server));
        }
    }
    endpoints
}

fn assert_no_link_is_wrong(out: &Output) -> Result<(), TestCaseError> {
    for (trace, target) in &out.linked {
        prop_assert_eq!(target.parent, SpanId(trace.0 as u64), "the client of another request");
    }
    Ok(())
}

/// Returns the place of a scattered cluster.
fn scattered(cluster: u64) -> u64 {
    1_000 + cluster.wrapping_mul(7_919) % 65_536
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_link_is_wrong_in_clusters_one_after_another(requests in requests()) {
        let (_, out) = run(endpoints_of(&requests, |cluster| 1_000 + cluster));
        assert_no_link_is_wrong(&out)?;
    }

    #[test]
    fn no_link_is_wrong_in_scattered_clusters(requests in requests()) {
        let (_, out) = run(endpoints_of(&requests, scattered));
        assert_no_link_is_wrong(&out)?;
    }
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
    // The end of one cluster and the begin of the next.
    let third = served(3, write(6 * CLUSTER + 120, 16), write(71 * CLUSTER, 256));
    let (_, out) = run([first, second, third].concat());
    assert_eq!(parents(&out), [(1, 1), (2, 2), (3, 3)]);
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
    let at = 50 * MS;
    // QEMU gives the cluster of the image to another one of the guest's.
    let later = [of(10, 9), of(11, 9)].map(|both| both.map(|(at, endpoint)| (at + 5_000, endpoint)));
    let other = (5_300, guest(20, write(5 * CLUSTER + 80, 8), [100 * MS, 101 * MS]).1);
    let endpoints = [
        &[of(1, 5), of(2, 5)].concat()[..],
        &[(50, guest(5, discard, [at, at + MS]).1), other],
        &later.concat(),
    ];
    let (_, out) = run(endpoints.concat());
    assert_eq!(parents(&out), [(1, 1), (2, 2), (10, 10), (11, 11)]);
}

#[test]
fn a_flush_needs_no_place() {
    let endpoints = [
        guest(1, DiskRequest::FLUSH, [MS, 2 * MS]),
        on_image(2, DiskRequest::FLUSH, [MS + 100_000, MS + 200_000]),
    ];
    assert_eq!(parents(&run(endpoints.to_vec()).1), [(2, 1)]);
}
