//! Halves of many requests between nodes whose clocks are anything: no wrong match, none uncounted.

use blkkin_wire::clock::{ClockAnchor, MonotonicNs, WallclockNs};
use blkkin_wire::fragment::{FragmentBatch, FragmentOrigin};
use blkkin_wire::ids::{BootId, NodeId, Source, SpanId, StartEpoch, TraceId};
use blkkin_wire::remote_link::{NodeClock, RpcEndpointEvent};
use proptest::prelude::*;

use super::clocks::Apart;
use super::*;

/// A machine: its monotonic clock at time 0 of the test, how it drifts, and how wrong its wall clock is.
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

    /// Taken when the test began.
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

/// One request as it was: sent, taken, answered, and the answer there.
#[derive(Clone, Debug)]
struct Truth {
    cookie: u64,
    unique: bool,
    times: [u64; 4],
    lost: [bool; 2],
}

fn half(n: usize, truth: &Truth, side: RpcSide, machine: &Machine) -> LinkEndpoint {
    let [sent, taken, answered, there] = truth.times;
    let ((begin, end), high) = match side {
        RpcSide::Client => ((sent, there), 1_u128 << 64),
        RpcSide::Server => ((taken, answered), 2_u128 << 64),
    };
    let span = SpanId(n as u64);
    LinkEndpoint {
        event: RpcEndpointEvent {
            span,
            root: span,
            side,
            key: RpcKey { protocol: "nbd".into(), connection: "a>b".into(), cookie: truth.cookie },
            unique: truth.unique,
            no_reply: false,
            begin: MonotonicNs(machine.monotonic(begin)),
            end: MonotonicNs(machine.monotonic(end)),
        },
        trace: TraceId(high | n as u128),
        clock: machine.clock(),
    }
}

#[derive(Default)]
struct Moves(Vec<(TraceId, Reparented)>, Vec<Apart>);

impl Outlet for Moves {
    fn piece(&mut self, _: u32, _: u64, piece: TraceFragment) {
        let RemoteLink::Reparented(moved) = piece.remote_link else { panic!("{piece:?}") };
        self.0.push((piece.trace, *moved));
    }
    fn aside(&mut self, _: u32, _: u64, piece: TraceFragment) {
        panic!("{piece:?}");
    }
    fn dead(&mut self, why: String) {
        panic!("{why}");
    }
    fn apart(&mut self, clocks: &Apart) {
        self.1.push(*clocks);
    }
}

fn record(first: u64, halves: &[LinkEndpoint]) -> Vec<u8> {
    let pieces = halves
        .iter()
        .map(|half| TraceFragment::link_only(half.trace, RemoteLink::Endpoint(half.clone().into())));
    let from = FragmentOrigin { stage: Stage::Join, partition: 1, incarnation: Incarnation(1) };
    v1::encode_fragments(&FragmentBatch { origin: from, first, fragments: pieces.collect() })
}

/// What the stage makes of them, saved and read back as `restored` says.
fn run(halves: &[LinkEndpoint], restored: u16) -> (MeetStage, Vec<(TraceId, Reparented)>) {
    let (stage, out) = run_whole(halves, restored);
    (stage, out.0)
}

fn run_whole(halves: &[LinkEndpoint], restored: u16) -> (MeetStage, Moves) {
    let config = MeetStageConfig::new(3);
    let (mut stage, mut out) = (MeetStage::begin(Incarnation(1), config.clone()), Moves::default());
    for (n, some) in halves.chunks(7).enumerate() {
        let bytes = record(n as u64 * 7, some);
        stage.apply(Record { at: Some(LogTime(1_000 + n as u64)), bytes: &bytes }, &mut out);
        if restored >> (n % 16) & 1 == 1 {
            stage = MeetStage::restore(&stage.save().unwrap(), config.clone(), Incarnation(2)).unwrap();
        }
        let books = stage.books();
        assert_eq!(books.received, books.matched + books.alone + books.refused + stage.pending());
    }
    (stage, out)
}

fn machine(node: u128) -> impl Strategy<Value = Machine> {
    (0..1_u64 << 50, -50_i64..50, -3_600_000_000_000_i64..3_600_000_000_000)
        .prop_map(move |(zero, ppm, wrong)| Machine { node, zero, ppm, wrong })
}

/// Requests one after another in each of four places; a place's cookie is its number, or one that never comes again.
fn truths() -> impl Strategy<Value = Vec<Truth>> {
    let one =
        (0..4_usize, any::<bool>(), [1_u64..200_000, 1..400_000, 1..200_000, 0..5_000], any::<[u8; 2]>());
    prop::collection::vec(one, 1..120).prop_map(|all| {
        let mut free = [0_u64; 4];
        let truths =
            all.into_iter().enumerate().map(|(n, (place, unique, [there, work, back, gap], lost))| {
                let sent = free[place] + gap;
                let times = [sent, sent + there, sent + there + work, sent + there + work + back];
                free[place] = times[3];
                let cookie = if unique { 100 + n as u64 } else { place as u64 };
                Truth { cookie, unique, times, lost: lost.map(|byte| byte < 40) }
            });
        truths.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_half_meets_another_requests_whatever_was_lost_and_whatever_the_clocks_say(
        truths in truths(), asker in machine(1), answerer in machine(2), order in prop::collection::vec(any::<u16>(), 1..64),
        restored in any::<u16>(),
    ) {
        let mut halves = Vec::new();
        for (n, truth) in truths.iter().enumerate() {
            for (side, machine, lost) in
                [(RpcSide::Server, &answerer, truth.lost[0]), (RpcSide::Client, &asker, truth.lost[1])]
            {
                // Each comes when it was over, and up to a second later.
                let late = u64::from(order[(2 * n + side as usize) % order.len()]) * 16_000;
                if !lost {
                    halves.push((truth.times[3] + late, half(n, truth, side, machine)));
                }
            }
        }
        halves.sort_by_key(|(time, _)| *time);
        let halves: Vec<_> = halves.into_iter().map(|(_, half)| half).collect();
        let (stage, Moves(moves, aparts)) = run_whole(&halves, restored);
        prop_assert_eq!(moves.len() as u64 * 2, stage.books().matched);
        for (trace, moved) in &moves {
            let n = trace.0 as u64 as usize;
            prop_assert_eq!(moved.trace, TraceId(1 << 64 | n as u128), "another request's");
            prop_assert_eq!(moved.parent, SpanId(n as u64));
            // What the shift should be: both wall clocks of one moment, in the middle of the request.
            let time = truths[n].times[1];
            let wall = |machine: &Machine| {
                let anchor = machine.clock().anchor;
                i128::from(anchor.wallclock.0) + i128::from(machine.monotonic(time) - machine.zero)
            };
            let off = (wall(&asker) - wall(&answerer) - i128::from(moved.clock.shift)).unsigned_abs();
            // 100 ppm of the request's own length, and rounding.
            let drift = u128::from(truths[n].times[3] - truths[n].times[0]) / 10_000 + 2;
            prop_assert!(off <= u128::from(moved.clock.error.0) + drift, "off by {off}: {moved:?}");
        }
        // A name that never comes again finds its other end, if that came.
        let whole = truths.iter().filter(|truth| truth.unique && truth.lost == [false; 2]).count();
        let exact = moves.iter().filter(|(_, moved)| moved.rule.starts_with("exact")).count();
        prop_assert_eq!(exact, whole);
        // What is published of the clocks holds the truth, at the moment that it is of.
        prop_assert_eq!(aparts.len(), exact);
        for apart in &aparts {
            let at = apart.at.0 - asker.zero;
            let wall = |machine: &Machine| {
                let anchor = machine.clock().anchor;
                i128::from(anchor.wallclock.0) + i128::from(machine.monotonic(at) - machine.zero)
            };
            let off = (wall(&answerer) - wall(&asker) - i128::from(apart.offset)).unsigned_abs();
            prop_assert!(off <= u128::from(apart.error.0) + 2, "off by {off}: {apart:?}");
        }
        for (_, bound) in stage.clocks().iter() {
            let at = bound.at - asker.zero;
            let real = i128::from(answerer.monotonic(at)) - i128::from(asker.monotonic(at));
            prop_assert!((bound.offset.low - 2..=bound.offset.high + 2).contains(&real), "{bound:?}, not {real}");
        }
    }

    /// Of names that never come again the moves are a function of the halves, in whatever order these come.
    #[test]
    fn the_order_in_which_exact_halves_come_changes_nothing(
        truths in truths(), asker in machine(1), answerer in machine(2), seed in any::<u64>(),
    ) {
        let mut halves = Vec::new();
        for (n, truth) in truths.iter().filter(|truth| truth.unique).enumerate() {
            halves.push(half(n, truth, RpcSide::Client, &asker));
            halves.push(half(n, truth, RpcSide::Server, &answerer));
        }
        let sorted = |halves: &[LinkEndpoint]| {
            let mut moves = run(halves, 0).1;
            moves.sort_by_key(|(trace, _)| *trace);
            moves
        };
        let straight = sorted(&halves);
        halves.sort_by_key(|half| (half.trace.sampling_hash() ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        prop_assert_eq!(straight, sorted(&halves));
    }
}

const ONE: Machine = Machine { node: 1, zero: 5_000_000, ppm: 0, wrong: 0 };
const OTHER: Machine = Machine { node: 2, zero: 900_000_000, ppm: 0, wrong: 70_000_000_000 };

fn request(cookie: u64, sent: u64) -> Truth {
    Truth {
        cookie,
        unique: true,
        times: [sent, sent + 20_000, sent + 90_000, sent + 100_000],
        lost: [false; 2],
    }
}

#[test]
fn a_request_puts_the_other_clock_right_within_what_the_network_took() {
    let truth = request(1, 1_000_000);
    let (_, moves) =
        run(&[half(1, &truth, RpcSide::Server, &OTHER), half(1, &truth, RpcSide::Client, &ONE)], 0);
    // The wall clock of the other is 70 s ahead; 20 µs there and 10 back: in the middle it is off by 5.
    let clock = moves[0].1.clock;
    assert_eq!((clock.shift, clock.error), (-70_000_000_000 - 5_000, DurationNs(15_000)));
}

#[test]
fn an_end_that_took_longer_than_the_other_or_lies_outside_is_refused() {
    let (truth, next) = (request(1, 1_000_000), request(2, 2_000_000));
    let asked = half(1, &truth, RpcSide::Client, &ONE);
    let mut answered = half(1, &truth, RpcSide::Server, &OTHER);
    answered.event.begin.0 -= 40_000;
    let (stage, moves) = run(&[asked.clone(), answered], 0);
    assert_eq!((moves.len(), stage.books().refused), (0, 2), "80 µs do not fit into 100 beside 110");
    let answered = half(1, &truth, RpcSide::Server, &OTHER);
    let mut liar = half(2, &next, RpcSide::Server, &OTHER);
    (liar.event.begin.0, liar.event.end.0) = (liar.event.begin.0 - 900_000, liar.event.end.0 - 900_000);
    let (stage, moves) = run(&[asked, answered, liar, half(2, &next, RpcSide::Client, &ONE)], 0);
    assert_eq!((moves.len(), stage.books().matched, stage.books().refused), (1, 2, 2));
}

#[test]
fn who_answered_after_the_asker_had_left_is_below_what_was_asked() {
    let truth = request(1, 1_000_000);
    let mut asked = half(1, &truth, RpcSide::Client, &ONE);
    // It waited for half as long as the answer took.
    asked.event.end.0 -= 50_000;
    let answered = half(1, &truth, RpcSide::Server, &OTHER);
    let (stage, moves) = run(&[answered.clone(), asked.clone()], 0);
    assert_eq!((moves.len(), stage.books().refused), (0, 2), "it says that it had its answer by then");
    asked.event.no_reply = true;
    let (stage, moves) = run(&[answered.clone(), asked.clone()], 0);
    let [(_, moved)] = &moves[..] else { panic!("{moves:?}") };
    assert!(moved.rule.ends_with(", which saw no answer"), "{}", moved.rule);
    // From when it was sent on; it was taken 20 µs later.
    assert_eq!((moved.clock.shift, moved.clock.error), (-70_000_020_000, DurationNs(u64::MAX)));
    assert_eq!(stage.clocks().iter().count(), 0, "nothing is learned of such");
    // Where the clocks are known it is held to what is known: it was not taken before it was sent.
    let (known, mut early) = (request(2, 2_000_000), answered);
    early.event.begin.0 -= 200_000;
    let known = [half(2, &known, RpcSide::Client, &ONE), half(2, &known, RpcSide::Server, &OTHER)];
    let (stage, moves) = run(&[&known[..], &[early, asked]].concat(), 0);
    assert_eq!((moves.len(), stage.books().refused), (1, 2));
}

#[test]
fn a_clock_that_stood_still_is_learned_again() {
    let mut halves = Vec::new();
    for n in 0..40 {
        let truth = request(n, 1_000_000 + n * 200_000);
        let machine = if n < 10 { OTHER } else { Machine { zero: OTHER.zero - 100_000_000, ..OTHER } };
        halves.push(half(n as usize, &truth, RpcSide::Client, &ONE));
        halves.push(half(n as usize, &truth, RpcSide::Server, &machine));
    }
    let (stage, moves) = run(&halves, 0);
    assert_eq!((moves.len(), stage.books().refused), (33, 14), "seven until the eighth is believed");
}

#[test]
fn one_machine_has_one_clock() {
    let truth = request(1, 1_000_000);
    let two = Machine { wrong: 500, ..ONE };
    let (_, moves) =
        run(&[half(1, &truth, RpcSide::Server, &two), half(1, &truth, RpcSide::Client, &ONE)], 0);
    assert_eq!((moves[0].1.clock.shift, moves[0].1.clock.error), (-500, DurationNs(0)));
}

#[test]
fn a_half_waits_for_its_time_and_a_cookie_that_comes_again_without_known_clocks_meets_nobody() {
    let again = Truth { unique: false, ..request(1, 1_000_000) };
    let halves = [half(1, &again, RpcSide::Server, &OTHER), half(1, &again, RpcSide::Client, &ONE)];
    let (mut stage, moves) = run(&halves, 0);
    assert_eq!((moves.len(), stage.pending()), (0, 2));
    let tick = v1::encode_fragments(&FragmentBatch::tick());
    let mut out = Moves::default();
    stage.apply(Record { at: Some(LogTime(11_000)), bytes: &tick }, &mut out);
    assert_eq!((stage.pending(), stage.books().alone), (2, 0));
    stage.apply(Record { at: Some(LogTime(11_001)), bytes: &tick }, &mut out);
    assert_eq!((stage.pending(), stage.books().alone, stage.books().ticks), (0, 2, 2));
}
