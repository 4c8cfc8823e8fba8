//! Endpoints of many requests between nodes with arbitrary clocks: no wrong match, and every
//! endpoint is counted.

use std::sync::mpsc;

use blkkin_wire::clock::{ClockAnchor, MonotonicNs, WallclockNs};
use blkkin_wire::fragment::FragmentOrigin;
use blkkin_wire::ids::{BootId, NodeId, Source, SpanId, StartEpoch, TraceId};
use blkkin_wire::remote_link::{NodeClock, RpcEndpointEvent};
use proptest::prelude::*;

use super::*;
use crate::fixtures;

/// A machine: its monotonic clock at time 0 of the test, its drift, and the error of its wall
/// clock.
#[derive(Clone, Copy, Debug)]
struct Machine {
    node: u128,
    zero: u64,
    ppm: i64,
    wrong: i64,
}

impl Machine {
    fn monotonic(&self, time: u64) -> u64 {
        let drift = i128::from(time) * i128::from(self.ppm) / 1_000_000;
        (i128::from(self.zero) + i128::from(time) + drift) as u64
    }

    /// Returns the clock as read when the test began.
    fn clock(&self) -> NodeClock {
        let source = Source { node: NodeId(self.node), boot: BootId(1), epoch: StartEpoch(self.node as u64) };
        let anchor = ClockAnchor {
            monotonic: MonotonicNs(self.zero),
            wallclock: WallclockNs(1_700_000_000_000_000_000_u64.wrapping_add_signed(self.wrong)),
            uncertainty: DurationNs(50),
            ..ClockAnchor::NONE
        };
        NodeClock { source, anchor }
    }
}

/// A request as it happened: sent, started, replied, received.
#[derive(Clone, Debug)]
struct Request {
    cookie: u64,
    unique: bool,
    times: [u64; 4],
    lost: [bool; 2],
}

fn endpoint(n: usize, request: &Request, side: RpcSide, machine: &Machine) -> LinkEndpoint {
    let [sent, started, replied, received] = request.times;
    let ((begin, end), high) = match side {
        RpcSide::Client => ((sent, received), 1_u128 << 64),
        RpcSide::Server => ((started, replied), 2_u128 << 64),
    };
    let times = (machine.monotonic(begin), machine.monotonic(end));
    let event = fixtures::rpc_endpoint(n as u64, side, request.cookie, times);
    LinkEndpoint {
        event: RpcEndpointEvent { unique: request.unique, ..event },
        trace: TraceId(high | n as u128),
        clock: machine.clock(),
        peer: None,
        image: None,
    }
}

/// Answers: new parents, and traces without a client.
#[derive(Default)]
struct Output(Vec<(TraceId, Reparented)>, Vec<TraceId>);

impl StageOutput for Output {
    fn fragment(&mut self, _: u32, _: u64, fragment: TraceFragment) {
        match fragment.remote_link {
            RemoteLink::Reparented(target) => self.0.push((fragment.trace, *target)),
            RemoteLink::Unlinked => self.1.push(fragment.trace),
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

fn record(first: u64, endpoints: &[LinkEndpoint]) -> Vec<u8> {
    let fragments = endpoints.iter().map(|endpoint| {
        TraceFragment::link_only(endpoint.trace, RemoteLink::Endpoint(endpoint.clone().into()))
    });
    let from = FragmentOrigin { stage: StageId::Join, partition: 1, incarnation: Incarnation(1) };
    v1::encode_fragments(&FragmentBatch { origin: from, first, fragments: fragments.collect() })
}

/// Runs the stage over the endpoints, with a save and restore where `restored` has a bit.
fn run(endpoints: &[LinkEndpoint], restored: u16) -> (LinkStage, Vec<(TraceId, Reparented)>) {
    let (stage, out, _) = run_with_bounds(endpoints, restored);
    (stage, out.0)
}

fn run_with_bounds(endpoints: &[LinkEndpoint], restored: u16) -> (LinkStage, Output, Vec<ClockBound>) {
    let (sender, bounds) = mpsc::channel();
    let on_clock_bound = Observer::new(move |bound| sender.send(*bound).unwrap());
    let config = LinkStageConfig { on_clock_bound, ..LinkStageConfig::new(3) };
    let (mut stage, mut out) = (LinkStage::new(Incarnation(1), config.clone()), Output::default());
    for (n, some) in endpoints.chunks(7).enumerate() {
        let bytes = record(n as u64 * 7, some);
        stage.apply(InputRecord { at: Some(LogTime(1_000 + n as u64)), bytes: &bytes }, &mut out);
        if restored >> (n % 16) & 1 == 1 {
            stage = LinkStage::restore(&stage.save().unwrap(), config.clone(), Incarnation(2)).unwrap();
        }
        let stats = stage.stats();
        assert_eq!(stats.received, stats.matched + stats.unmatched + stats.refused + stage.pending());
    }
    (stage, out, bounds.try_iter().collect())
}

fn machine(node: u128) -> impl Strategy<Value = Machine> {
    (0..1_u64 << 50, -50_i64..50, -3_600_000_000_000_i64..3_600_000_000_000)
        .prop_map(move |(zero, ppm, wrong)| Machine { node, zero, ppm, wrong })
}

/// Requests one after another in each of four slots. A cookie is the slot's number, or unique.
fn requests() -> impl Strategy<Value = Vec<Request>> {
    let one =
        (0..4_usize, any::<bool>(), [1_u64..200_000, 1..400_000, 1..200_000, 0..5_000], any::<[u8; 2]>());
    prop::collection::vec(one, 1..120).prop_map(|all| {
        let mut free = [0_u64; 4];
        let requests =
            all.into_iter().enumerate().map(|(n, (place, unique, [sending, work, reply, gap], lost))| {
                let sent = free[place] + gap;
                let times = [sent, sent + sending, sent + sending + work, sent + sending + work + reply];
                free[place] = times[3];
                let cookie = if unique { 100 + n as u64 } else { place as u64 };
                Request { cookie, unique, times, lost: lost.map(|byte| byte < 40) }
            });
        requests.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn endpoints_of_different_requests_never_match_with_any_loss_and_any_clocks(
        requests in requests(), client in machine(1), server in machine(2), order in prop::collection::vec(any::<u16>(), 1..64),
        restored in any::<u16>(),
    ) {
        let mut endpoints = Vec::new();
        for (n, request) in requests.iter().enumerate() {
            for (side, machine, lost) in
                [(RpcSide::Server, &server, request.lost[0]), (RpcSide::Client, &client, request.lost[1])]
            {
                // Each endpoint arrives after its request ended, up to a second later.
                let late = u64::from(order[(2 * n + side as usize) % order.len()]) * 16_000;
                if !lost {
                    endpoints.push((request.times[3] + late, endpoint(n, request, side, machine)));
                }
            }
        }
        endpoints.sort_by_key(|(time, _)| *time);
        let endpoints: Vec<_> = endpoints.into_iter().map(|(_, endpoint)| endpoint).collect();
        let (mut stage, mut out, bounds) = run_with_bounds(&endpoints, restored);
        stage.advance(LogTime(100_000), &mut out);
        let Output(reparented, unlinked) = out;
        // Every server endpoint has one answer.
        let mut answered: Vec<u128> = reparented.iter().map(|(trace, _)| trace).chain(&unlinked).map(|trace| trace.0).collect();
        answered.sort_unstable();
        let servers = endpoints.iter().filter(|endpoint| endpoint.event.side == RpcSide::Server);
        let mut servers: Vec<u128> = servers.map(|endpoint| endpoint.trace.0).collect();
        servers.sort_unstable();
        prop_assert_eq!(answered, servers);
        prop_assert_eq!(reparented.len() as u64 * 2, stage.stats().matched);
        for (trace, target) in &reparented {
            let n = trace.0 as u64 as usize;
            prop_assert_eq!(target.trace, TraceId(1 << 64 | n as u128), "the endpoint of another request");
            prop_assert_eq!(target.parent, SpanId(n as u64));
            // Expected shift: the difference of both wall clocks at one moment, in the middle of
            // the request.
            let time = requests[n].times[1];
            let wall = |machine: &Machine| {
                let anchor = machine.clock().anchor;
                i128::from(anchor.wallclock.0) + i128::from(machine.monotonic(time) - machine.zero)
            };
            let off = (wall(&client) - wall(&server) - i128::from(target.clock.shift)).unsigned_abs();
            // 100 ppm of the request's own length, and rounding.
            let drift = u128::from(requests[n].times[3] - requests[n].times[0]) / 10_000 + 2;
            prop_assert!(off <= u128::from(target.clock.error.0) + drift, "off by {off}: {target:?}");
        }
        // A unique cookie finds its counterpart, if that arrived.
        let whole = requests.iter().filter(|request| request.unique && request.lost == [false; 2]).count();
        let exact = reparented.iter().filter(|(_, target)| target.rule.starts_with("exact")).count();
        prop_assert_eq!(exact, whole);
        // Published clock bounds contain the true difference, at their time.
        prop_assert_eq!(bounds.len(), exact);
        for on_clock_bound in &bounds {
            let at = on_clock_bound.at.0 - client.zero;
            let wall = |machine: &Machine| {
                let anchor = machine.clock().anchor;
                i128::from(anchor.wallclock.0) + i128::from(machine.monotonic(at) - machine.zero)
            };
            let off = (wall(&server) - wall(&client) - i128::from(on_clock_bound.offset)).unsigned_abs();
            prop_assert!(off <= u128::from(on_clock_bound.error.0) + 2, "off by {off}: {on_clock_bound:?}");
        }
        for (_, bound) in stage.clocks().iter() {
            let at = bound.at - client.zero;
            let real = i128::from(server.monotonic(at)) - i128::from(client.monotonic(at));
            prop_assert!((bound.offset.low - 2..=bound.offset.high + 2).contains(&real), "{bound:?}, not {real}");
        }
    }

    /// With unique cookies, the result is a function of the endpoints, in whatever order they
    /// arrive.
    #[test]
    fn the_order_of_exact_endpoints_does_not_matter(
        requests in requests(), client in machine(1), server in machine(2), seed in any::<u64>(),
    ) {
        let mut endpoints = Vec::new();
        for (n, request) in requests.iter().filter(|request| request.unique).enumerate() {
            endpoints.push(endpoint(n, request, RpcSide::Client, &client));
            endpoints.push(endpoint(n, request, RpcSide::Server, &server));
        }
        let sorted = |endpoints: &[LinkEndpoint]| {
            let mut reparented = run(endpoints, 0).1;
            reparented.sort_by_key(|(trace, _)| *trace);
            reparented
        };
        let in_order = sorted(&endpoints);
        endpoints.sort_by_key(|endpoint| (endpoint.trace.sampling_hash() ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        prop_assert_eq!(in_order, sorted(&endpoints));
    }
}

const ONE: Machine = Machine { node: 1, zero: 5_000_000, ppm: 0, wrong: 0 };
const OTHER: Machine = Machine { node: 2, zero: 900_000_000, ppm: 0, wrong: 70_000_000_000 };

fn example(cookie: u64, sent: u64) -> Request {
    Request {
        cookie,
        unique: true,
        times: [sent, sent + 20_000, sent + 90_000, sent + 100_000],
        lost: [false; 2],
    }
}

#[test]
fn a_request_corrects_the_other_clock_within_the_network_delay() {
    let request = example(1, 1_000_000);
    let (_, reparented) = run(
        &[endpoint(1, &request, RpcSide::Server, &OTHER), endpoint(1, &request, RpcSide::Client, &ONE)],
        0,
    );
    // The server's wall clock is 70 s ahead. The request takes 20 µs and the reply 10, so centered
    // it is off by 5.
    let clock = reparented[0].1.clock;
    assert_eq!((clock.shift, clock.error), (-70_000_000_000 - 5_000, DurationNs(15_000)));
}

#[test]
fn a_server_endpoint_longer_than_or_outside_the_clients_is_refused() {
    let (request, next) = (example(1, 1_000_000), example(2, 2_000_000));
    let client = endpoint(1, &request, RpcSide::Client, &ONE);
    let mut server = endpoint(1, &request, RpcSide::Server, &OTHER);
    server.event.begin.0 -= 40_000;
    let (stage, reparented) = run(&[client.clone(), server], 0);
    assert_eq!(
        (reparented.len(), stage.stats().refused),
        (0, 2),
        "a server time of 110 µs does not fit into 100 µs"
    );
    let server = endpoint(1, &request, RpcSide::Server, &OTHER);
    let mut wrong = endpoint(2, &next, RpcSide::Server, &OTHER);
    (wrong.event.begin.0, wrong.event.end.0) = (wrong.event.begin.0 - 900_000, wrong.event.end.0 - 900_000);
    let (stage, reparented) = run(&[client, server, wrong, endpoint(2, &next, RpcSide::Client, &ONE)], 0);
    assert_eq!((reparented.len(), stage.stats().matched, stage.stats().refused), (1, 2, 2));
}

#[test]
fn a_server_that_ends_after_its_client_left_is_still_linked() {
    let request = example(1, 1_000_000);
    let mut client = endpoint(1, &request, RpcSide::Client, &ONE);
    // It waited for half of the time that the reply took.
    client.event.end.0 -= 50_000;
    let server = endpoint(1, &request, RpcSide::Server, &OTHER);
    let (stage, reparented) = run(&[server.clone(), client.clone()], 0);
    assert_eq!(
        (reparented.len(), stage.stats().refused),
        (0, 2),
        "the client reports that it had the reply by then"
    );
    client.event.no_reply = true;
    let (stage, reparented) = run(&[server.clone(), client.clone()], 0);
    let [(_, target)] = &reparented[..] else { panic!("{reparented:?}") };
    assert!(target.rule.ends_with(", which saw no answer"), "{}", target.rule);
    // From the moment of sending; the server started 20 µs later.
    assert_eq!((target.clock.shift, target.clock.error), (-70_000_020_000, DurationNs(u64::MAX)));
    assert_eq!(stage.clocks().iter().count(), 0, "a request without a reply teaches nothing");
    // With known clocks the start is checked: the server did not start before the request was sent.
    let (known, mut early) = (example(2, 2_000_000), server);
    early.event.begin.0 -= 200_000;
    let known = [endpoint(2, &known, RpcSide::Client, &ONE), endpoint(2, &known, RpcSide::Server, &OTHER)];
    let (stage, reparented) = run(&[&known[..], &[early, client]].concat(), 0);
    assert_eq!((reparented.len(), stage.stats().refused), (1, 2));
}

#[test]
fn the_clock_of_a_suspended_machine_is_learned_again() {
    let mut endpoints = Vec::new();
    for n in 0..40 {
        let request = example(n, 1_000_000 + n * 200_000);
        let machine = if n < 10 { OTHER } else { Machine { zero: OTHER.zero - 100_000_000, ..OTHER } };
        endpoints.push(endpoint(n as usize, &request, RpcSide::Client, &ONE));
        endpoints.push(endpoint(n as usize, &request, RpcSide::Server, &machine));
    }
    let (stage, reparented) = run(&endpoints, 0);
    assert_eq!(
        (reparented.len(), stage.stats().refused),
        (33, 14),
        "seven are refused until the eighth replaces the known interval"
    );
}

#[test]
fn one_machine_has_one_clock() {
    let request = example(1, 1_000_000);
    let two = Machine { wrong: 500, ..ONE };
    let (_, reparented) =
        run(&[endpoint(1, &request, RpcSide::Server, &two), endpoint(1, &request, RpcSide::Client, &ONE)], 0);
    assert_eq!((reparented[0].1.clock.shift, reparented[0].1.clock.error), (-500, DurationNs(0)));
}

#[test]
fn an_endpoint_times_out_and_a_repeated_cookie_without_known_clocks_does_not_match() {
    let again = Request { unique: false, ..example(1, 1_000_000) };
    let endpoints =
        [endpoint(1, &again, RpcSide::Server, &OTHER), endpoint(1, &again, RpcSide::Client, &ONE)];
    let (mut stage, reparented) = run(&endpoints, 0);
    assert_eq!((reparented.len(), stage.pending()), (0, 2));
    let tick = v1::encode_fragments(&FragmentBatch::tick());
    let mut out = Output::default();
    stage.apply(InputRecord { at: Some(LogTime(11_000)), bytes: &tick }, &mut out);
    assert_eq!((stage.pending(), stage.stats().unmatched), (2, 0));
    stage.apply(InputRecord { at: Some(LogTime(11_001)), bytes: &tick }, &mut out);
    assert_eq!((stage.pending(), stage.stats().unmatched, stage.stats().ticks), (0, 2, 2));
}
