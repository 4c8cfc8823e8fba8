//! Requests of a guest with arbitrary clocks, merged, split and lost: no wrong link, and every endpoint is counted.

use blkkin_wire::clock::{ClockAnchor, ClockOffset, MonotonicNs, WallclockNs};
use blkkin_wire::disk_request::{DiskOperation, DiskRequest};
use blkkin_wire::ids::{BootId, NodeId, Pid, Source, SpanId, StartEpoch, TraceId};
use blkkin_wire::remote_link::{NodeClock, PeerClock, RpcEndpointEvent};
use proptest::prelude::*;

use super::*;

const HOST: NodeId = NodeId(2);
const GUEST: NodeId = NodeId(1);
/// Difference of the clocks at time 0: the host's is ahead.
const AHEAD: u64 = 7_000_000_000;
/// Half of a ping.
const PING: i64 = 2_500_000;
pub(super) const MS: u64 = 1_000_000;

/// A machine's clock by the time of the test, with this drift in ppm.
fn clock_of(node: NodeId, time: u64, ppm: i64) -> u64 {
    let ahead = if node == HOST { AHEAD } else { 0 };
    let drift = time as i64 / 1_000_000 * ppm;
    (1_000 * MS + ahead + time).wrapping_add_signed(drift)
}

pub(super) fn endpoint(
    n: usize,
    side: RpcSide,
    request: DiskRequest,
    [begin, end]: [u64; 2],
    ppm: i64,
) -> LinkEndpoint {
    let (node, of_side) = match side {
        RpcSide::Client => (GUEST, 1_u128 << 64),
        RpcSide::Server => (HOST, 2 << 64),
    };
    let times =
        [begin, end].map(|time| MonotonicNs(clock_of(node, time, if node == HOST { ppm } else { 0 })));
    let at = MonotonicNs(1_000 * MS);
    // The host's agent pinged at time 0.
    let offset = ClockOffset { at, low: AHEAD as i64 - PING, high: AHEAD as i64 + PING };
    let anchor =
        ClockAnchor { monotonic: at, wallclock: WallclockNs(1_700_000_000_000_000_000), ..ClockAnchor::NONE };
    let source = Source { node, boot: BootId(node.0), epoch: StartEpoch(node.0 as u64) };
    let key = request.key(HOST, Pid(4_400), "serial=root");
    LinkEndpoint {
        event: RpcEndpointEvent::bare(SpanId(n as u64), side, key, times),
        trace: TraceId(of_side | n as u128),
        clock: NodeClock { source, anchor },
        peer: (side == RpcSide::Client).then_some(PeerClock { node: HOST, boot: BootId(HOST.0), offset }),
        image: None,
    }
}

#[derive(Default)]
pub(super) struct Output {
    pub(super) linked: Vec<(TraceId, Reparented)>,
    unlinked: Vec<TraceId>,
}

impl StageOutput for Output {
    fn fragment(&mut self, _: u32, _: u64, fragment: TraceFragment) {
        match fragment.remote_link {
            RemoteLink::Reparented(target) => self.linked.push((fragment.trace, *target)),
            RemoteLink::Unlinked => self.unlinked.push(fragment.trace),
            _ => panic!("{fragment:?}"),
        }
    }
    fn side_output(&mut self, _: u32, _: u64, fragment: TraceFragment) {
        panic!("{fragment:?}");
    }
    fn dead_letter(&mut self, why: String) {
        panic!("{why}");
    }
}

/// Runs the stage over endpoints that arrive at these times (ms), with a save and restore in the middle.
pub(super) fn run(mut endpoints: Vec<(u64, LinkEndpoint)>) -> (LinkStage, Output) {
    endpoints.sort_by_key(|(at, _)| *at);
    let config = LinkStageConfig::new(3);
    let (mut stage, mut out) = (LinkStage::new(Incarnation(1), config.clone()), Output::default());
    let middle = endpoints.len() / 2;
    let servers = endpoints.iter().filter(|(_, endpoint)| endpoint.event.side == RpcSide::Server).count();
    for (n, (at, endpoint)) in endpoints.into_iter().enumerate() {
        stage.advance(LogTime(1_000 + at), &mut out);
        stage.add_endpoint(endpoint, &mut out);
        if n == middle {
            stage = LinkStage::restore(&stage.save().unwrap(), config.clone(), Incarnation(2)).unwrap();
        }
        let stats = stage.stats();
        assert_eq!(stats.received, stats.matched + stats.unmatched + stats.refused + stage.pending());
    }
    // Records of others go on, and with them the log's time.
    let last = stage.now.0;
    (1..30).for_each(|n| stage.advance(LogTime(last + n * 500), &mut out));
    stage.advance(LogTime(1_000_000), &mut out);
    let stats = stage.stats();
    assert_eq!((stats.received, stage.pending()), (stats.matched + stats.unmatched + stats.refused, 0));
    assert_eq!(out.linked.len() + out.unlinked.len(), servers, "each server has one answer");
    (stage, out)
}

pub(super) fn write(start: u64, length: u32) -> DiskRequest {
    DiskRequest { operation: DiskOperation::Write, start, length }
}

/// A request as it happened: issued, taken up by QEMU, done, completed; and how late (ms) its ends arrive.
#[derive(Clone, Debug)]
struct Request {
    range: DiskRequest,
    times: [u64; 4],
    late: [u64; 2],
    lost: [bool; 2],
}

/// Requests one after another in each of four slots. Those of a slot have one range, or each its own.
fn requests(loss: u8) -> impl Strategy<Value = Vec<Request>> {
    let one = (
        0..4_usize,
        any::<bool>(),
        [50_000_u64..200_000, 3_000..400_000, 50_000..200_000, 0..3_000_000],
        [0..1_500_u64, 0..1_500],
        any::<[u8; 2]>(),
    );
    prop::collection::vec(one, 1..150).prop_map(move |all| {
        let mut free = [0_u64; 4];
        let requests = all.into_iter().enumerate().map(
            |(n, (slot, repeats, [before, work, after, gap], late, lost))| {
                let issued = free[slot] + gap;
                let times = [issued, issued + before, issued + before + work, issued + before + work + after];
                free[slot] = times[3] + 1;
                let start = if repeats { 8 * slot as u64 } else { 1_000 + 8 * n as u64 };
                Request { range: write(start, 8), times, late, lost: lost.map(|byte| byte < loss) }
            },
        );
        requests.collect()
    })
}

fn endpoints_of(requests: &[Request], ppm: i64) -> Vec<(u64, LinkEndpoint)> {
    let both = requests.iter().enumerate().flat_map(|(n, request)| {
        let [issued, begun, done, completed] = request.times;
        let sides = [(RpcSide::Client, [issued, completed]), (RpcSide::Server, [begun, done])];
        let sides = sides.into_iter().zip(request.late).zip(request.lost).filter(|(_, lost)| !lost);
        sides.map(move |(((side, times), late), _)| {
            (completed / MS + late, endpoint(n, side, request.range, times, ppm))
        })
    });
    both.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn without_losses_no_link_is_wrong_and_each_range_of_its_own_has_one(requests in requests(0), ppm in -100_i64..100) {
        let (_, out) = run(endpoints_of(&requests, ppm));
        for (trace, target) in &out.linked {
            prop_assert_eq!(target.parent, SpanId(trace.0 as u64), "the client of another request");
        }
        let own = requests.iter().enumerate().filter(|(_, request)| request.range.start >= 1_000);
        for (n, _) in own {
            prop_assert!(out.linked.iter().any(|(trace, _)| *trace == TraceId(2 << 64 | n as u128)), "{n}");
        }
    }

    #[test]
    fn a_wrong_link_takes_two_lost_ends_of_one_range(requests in requests(50), ppm in -100_i64..100) {
        let (_, out) = run(endpoints_of(&requests, ppm));
        for (trace, target) in &out.linked {
            let (server, client) = (&requests[trace.0 as u64 as usize], &requests[target.parent.0 as usize]);
            prop_assert_eq!(server.range, client.range);
            prop_assert!(server.times == client.times || (server.lost[0] && client.lost[1]), "{:?} {:?}", server, client);
        }
    }
}

/// Endpoints of one guest request, or of one operation of QEMU, at 1 ms.
pub(super) fn guest(n: usize, request: DiskRequest, times: [u64; 2]) -> (u64, LinkEndpoint) {
    (0, endpoint(n, RpcSide::Client, request, times, 0))
}

pub(super) fn qemu(n: usize, request: DiskRequest, times: [u64; 2]) -> (u64, LinkEndpoint) {
    (300, endpoint(n, RpcSide::Server, request, times, 0))
}

pub(super) fn parents(out: &Output) -> Vec<(u64, u64)> {
    let mut parents: Vec<_> =
        out.linked.iter().map(|(trace, target)| (trace.0 as u64, target.parent.0)).collect();
    parents.sort_unstable();
    parents
}

#[test]
fn neighbours_that_qemu_merges_have_one_operation_below_the_first() {
    let times = [MS, 2 * MS];
    let endpoints = vec![
        guest(1, write(8, 8), [MS + 10, 2 * MS]),
        guest(2, write(16, 24), times),
        guest(3, write(40, 8), [MS + 20, 2 * MS]),
        // Another range, and another operation on the same one.
        guest(4, write(48, 8), times),
        guest(5, DiskRequest { operation: DiskOperation::Read, ..write(8, 40) }, times),
        qemu(6, write(8, 40), [MS + 100_000, MS + 200_000]),
    ];
    let (stage, out) = run(endpoints.clone());
    assert_eq!(parents(&out), [(6, 2)]);
    assert_eq!(&*out.linked[0].1.rule, Rule::Merged(3).text(false));
    assert_eq!((stage.stats().matched, stage.stats().unmatched), (4, 2));
    // One of them was lost.
    let (stage, out) = run(endpoints.into_iter().filter(|(_, one)| one.event.span != SpanId(3)).collect());
    assert_eq!((parents(&out), stage.stats().unmatched), (vec![], 5));
}

#[test]
fn a_request_that_qemu_splits_has_all_its_operations() {
    let endpoints = vec![
        guest(1, write(0, 2_048), [MS, 3 * MS]),
        qemu(2, write(0, 1_024), [MS + 100_000, MS + 200_000]),
        qemu(3, write(1_024, 1_024), [MS + 100_000, MS + 300_000]),
    ];
    let (stage, out) = run(endpoints);
    assert_eq!(parents(&out), [(2, 1), (3, 1)]);
    assert_eq!((stage.stats().matched, stage.stats().unmatched), (3, 0));
}

#[test]
fn a_part_of_a_block_has_the_operation_on_the_block() {
    let read = |start, length| DiskRequest { operation: DiskOperation::Read, ..write(start, length) };
    let block = qemu(9, read(8, 8), [MS + 100_000, MS + 200_000]);
    let (_, out) = run(vec![guest(1, read(10, 2), [MS, 2 * MS]), block.clone()]);
    assert_eq!(parents(&out), [(9, 1)]);
    // One of two, or another range.
    let two = [guest(1, read(10, 2), [MS, 2 * MS]), guest(2, read(12, 2), [MS, 2 * MS])];
    assert_eq!(parents(&run([&two[..], &[block]].concat()).1), []);
    let blocks = qemu(9, read(8, 16), [MS + 100_000, MS + 200_000]);
    assert_eq!(parents(&run(vec![guest(1, read(10, 2), [MS, 2 * MS]), blocks]).1), []);
}

#[test]
fn a_flush_serves_all_requests_that_were_issued_with_it() {
    let flush = DiskRequest::FLUSH;
    let served = [MS + 100_000, MS + 200_000];
    let together = [guest(1, flush, [MS, 2 * MS]), guest(2, flush, [MS, 2 * MS + 10])];
    let (stage, out) = run([&together[..], &[qemu(3, flush, served)]].concat());
    assert_eq!((parents(&out), stage.stats().matched), (vec![(3, 1)], 3));
    // It is unknown which of two it served.
    let apart = [guest(1, flush, [MS, 2 * MS]), guest(2, flush, [MS + 1, 2 * MS])];
    let (stage, out) = run([&apart[..], &[qemu(3, flush, served)]].concat());
    assert_eq!((parents(&out), stage.stats().refused), (vec![], 1));
}

/// Endpoints of a write with PREFLUSH and FUA from 10 to 110 ms, and of QEMU's three operations for it: numbers 10, 11
/// and 12.
fn commit_block() -> Vec<(u64, LinkEndpoint)> {
    let (block, flush, times) = (write(8, 8), DiskRequest::FLUSH, [10 * MS, 110 * MS]);
    vec![
        guest(1, block, times),
        guest(1, flush, times),
        guest(1, flush, times),
        qemu(10, flush, [11 * MS, 12 * MS]),
        qemu(11, block, [50 * MS, 51 * MS]),
        qemu(12, flush, [108 * MS, 109 * MS]),
    ]
}

#[test]
fn a_write_between_two_flushes_has_three_operations() {
    let (stage, out) = run(commit_block());
    assert_eq!(parents(&out), [(10, 1), (11, 1), (12, 1)]);
    assert_eq!((stage.stats().matched, stage.stats().unmatched), (6, 0));
    // They are not moved to the middle of the write, but as far as the ping allows.
    let exact = -(AHEAD as i64);
    for (trace, Reparented { clock, .. }) in &out.linked {
        assert!(
            clock.shift.abs_diff(exact) <= clock.error.0 && clock.error.0 <= 2 * PING as u64,
            "{trace:?} {clock:?}"
        );
    }
    // QEMU had nothing to flush before it.
    let without_first = commit_block().into_iter().filter(|(_, one)| one.event.span != SpanId(10));
    assert_eq!(parents(&run(without_first.collect()).1), [(11, 1), (12, 1)]);
}

#[test]
fn a_flush_during_such_a_write_has_its_own_operation() {
    let flush = DiskRequest::FLUSH;
    let inside = [guest(2, flush, [70 * MS, 80 * MS]), qemu(13, flush, [74 * MS, 76 * MS])];
    let all = [commit_block(), inside.to_vec()].concat();
    assert_eq!(parents(&run(all.clone()).1), [(10, 1), (11, 1), (12, 1), (13, 2)]);
    // If it was not recorded, it is unknown which two of three are the write's.
    let unrecorded = all.into_iter().filter(|(_, one)| one.event.span != SpanId(2));
    assert_eq!(parents(&run(unrecorded.collect()).1), [(11, 1)]);
}

#[test]
fn a_flush_before_the_data_serves_what_was_issued_with_it() {
    let together = guest(2, DiskRequest::FLUSH, [10 * MS, 13 * MS]);
    let (stage, out) = run([commit_block(), vec![together]].concat());
    assert_eq!(parents(&out), [(10, 1), (11, 1), (12, 1)]);
    assert_eq!((stage.stats().matched, stage.stats().unmatched), (7, 0));
    let (_, first) = out.linked.iter().find(|(trace, _)| trace.0 as u64 == 10).unwrap();
    assert_eq!(&*first.rule, Rule::Flush(2).text(false));
}

/// Request of a queue of the guest: a flush, or a write with flushes before and after it.
#[derive(Clone, Debug)]
struct Queued {
    queue: usize,
    is_write: bool,
    /// Pause before it, way to QEMU and between operations, duration of each operation: us.
    parts: [u64; 5],
    /// QEMU skips its first flush, because there is nothing to write, or the host misses it.
    is_skipped: bool,
}

fn queued() -> impl Strategy<Value = Queued> {
    let parts = [0..20_000_u64, 20..2_000, 100..8_000, 50..5_000, 100..8_000];
    (0..2_usize, any::<bool>(), parts, prop::bool::weighted(0.2))
        .prop_map(|(queue, is_write, parts, is_skipped)| Queued { queue, is_write, parts, is_skipped })
}

/// Requests of two queues, one after another in each. Returns their endpoints with those of QEMU; the number of QEMU's is
/// 1,000 + 10 times the request's, and more.
fn two_queues(requests: &[Queued], ppm: i64) -> Vec<(u64, LinkEndpoint)> {
    let (mut ends, mut all) = ([MS; 2], Vec::new());
    for (n, Queued { queue, is_write, parts, is_skipped }) in requests.iter().enumerate() {
        let [pause, way, flush, data, second] = parts.map(|part| part * 1_000);
        // No two are issued at the same moment, which the guest's block layer serves with one flush.
        let begin = ends[*queue] + pause + n as u64;
        let mut operations = vec![(DiskRequest::FLUSH, if *is_skipped { 0 } else { flush })];
        if *is_write {
            operations.extend([(write(8 * n as u64, 8), data), (DiskRequest::FLUSH, second)]);
        }
        let mut at = begin + way;
        for (k, (request, took)) in operations.iter().enumerate() {
            let number = 1_000 + 10 * n + k;
            if *took > 0 {
                all.push((300, endpoint(number, RpcSide::Server, *request, [at, at + took], ppm)));
            }
            at += took + way;
        }
        ends[*queue] = at;
        for (request, _) in operations {
            all.push((0, endpoint(n, RpcSide::Client, request, [begin, at], ppm)));
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_flush_is_linked_to_another_request(
        requests in prop::collection::vec(queued(), 1..30),
        ppm in -100_i64..100,
    ) {
        let (_, out) = run(two_queues(&requests, ppm));
        for (trace, target) in &out.linked {
            prop_assert_eq!((trace.0 as u64 - 1_000) / 10, target.parent.0, "{:?}", trace);
        }
        // One queue at a time leaves no choice but between requests closer than the clocks are known.
        if requests.iter().all(|request| request.queue == 0 && request.parts[0] >= 6_000) {
            prop_assert_eq!(out.unlinked.len(), 0);
        }
    }
}

#[test]
fn two_reads_of_one_range_at_one_time_leave_a_choice() {
    let read = DiskRequest { operation: DiskOperation::Read, ..write(8, 8) };
    let endpoints = vec![
        guest(1, read, [MS, 2 * MS]),
        guest(2, read, [MS, 2 * MS]),
        qemu(3, read, [MS + 100_000, MS + 200_000]),
        qemu(4, read, [MS + 100_000, MS + 200_000]),
    ];
    let (stage, out) = run(endpoints);
    assert_eq!((parents(&out), stage.stats().refused + stage.stats().unmatched), (vec![], 4));
}

#[test]
fn another_disk_or_an_unknown_clock_is_no_reason_for_a_link() {
    let (_, mut other) = qemu(2, write(8, 8), [MS + 100_000, MS + 200_000]);
    other.event.key = write(8, 8).key(HOST, Pid(4_400), "serial=data");
    let (_, out) = run(vec![guest(1, write(8, 8), [MS, 2 * MS]), (0, other)]);
    assert_eq!(parents(&out), []);
    let (_, mut unknown) = guest(1, write(8, 8), [MS, 2 * MS]);
    unknown.peer = None;
    let (_, out) = run(vec![(0, unknown), qemu(2, write(8, 8), [MS + 100_000, MS + 200_000])]);
    assert_eq!(parents(&out), []);
}

#[test]
fn a_ping_after_a_pause_replaces_what_was_learned() {
    let mut endpoints = Vec::new();
    for n in 0..20 {
        let (at, range) = (n as u64 * 10 * MS, write(8 * n as u64, 8));
        let (_, client) = guest(n, range, [at, at + MS]);
        let (_, server) = qemu(n, range, [at + 100_000, at + 200_000]);
        endpoints.extend([(3 * n as u64, client), (3 * n as u64, server)]);
    }
    // The guest was paused for a second, so its clock is a second behind.
    for n in 20..40 {
        let (at, range) = (n as u64 * 10 * MS, write(8 * n as u64, 8));
        let (_, mut client) = guest(n, range, [at, at + MS]);
        let offset = &mut client.peer.as_mut().unwrap().offset;
        (offset.low, offset.high) = (offset.low + 1_000 * MS as i64, offset.high + 1_000 * MS as i64);
        let (_, server) = qemu(n, range, [at + 1_000 * MS + 100_000, at + 1_000 * MS + 200_000]);
        endpoints.extend([(5_000 + 3 * n as u64, client), (5_000 + 3 * n as u64, server)]);
    }
    let (stage, out) = run(endpoints);
    assert_eq!(parents(&out), (0..40).map(|n| (n, n)).collect::<Vec<_>>());
    let (_, bound) = stage.clocks().iter().next().unwrap();
    assert!(bound.offset.low > i128::from(AHEAD + 900 * MS), "{bound:?}");
}

/// Two requests for one range follow each other faster than the ping's bound. Pairs that arrive meanwhile bound the
/// clocks to less than the time between them.
#[test]
fn a_choice_ends_when_other_pairs_bound_the_clocks() {
    let mut endpoints = Vec::new();
    for (n, at) in [MS, 3 * MS].into_iter().enumerate() {
        endpoints.extend([
            guest(n, write(8, 8), [at, at + 400_000]),
            qemu(n, write(8, 8), [at + 100_000, at + 200_000]),
        ]);
    }
    let (stage, out) = run(endpoints.clone());
    assert_eq!((parents(&out), stage.stats().refused), (vec![], 4));
    for n in 2..30 {
        let (at, range) = (n as u64 * 10 * MS, write(100 * n as u64, 8));
        let (_, client) = guest(n, range, [at, at + 400_000]);
        let (_, server) = qemu(n, range, [at + 100_000, at + 200_000]);
        endpoints.extend([client, server].map(|endpoint| (500 + 40 * n as u64, endpoint)));
    }
    // Records go on, and with them the log's time.
    for n in 100..150 {
        let (_, client) = guest(n, write(100 * n as u64, 8), [MS, 2 * MS]);
        endpoints.push((100 * (n as u64 - 82), client));
    }
    let (stage, out) = run(endpoints);
    assert_eq!(parents(&out), (0..30).map(|n| (n, n)).collect::<Vec<_>>());
    assert_eq!(stage.stats().refused, 0);
}
