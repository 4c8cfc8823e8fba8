//! Requests over three nodes, through all stages, each partition by itself: one trace, whatever comes first.

use std::collections::{BTreeMap, VecDeque};

use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::{ClockAnchor, MonotonicNs, WallclockNs};
use blkkin_wire::event::LayerEvent;
use blkkin_wire::fragment::{FragmentBatch, FragmentOrigin, Incarnation, Stage, TraceFragment};
use blkkin_wire::ids::{NodeId, Source, SpanId, TraceId};
use blkkin_wire::remote_link::{RpcEndpointEvent, RpcKey, RpcSide};
use blkkin_wire::span::{Span, SpanKind, TagValue};
use blkkin_wire::v1;
use proptest::prelude::*;

use super::assemble::{AssembleStage, AssembleStageConfig};
use super::join::{JoinStage, JoinStageConfig};
use super::meet::{MeetStage, MeetStageConfig};
use super::rules::Rules;
use super::{LogTime, Outlet, Record};
use crate::join::tests::make::{self, ANCHOR, SOURCE, batch};

const PARTITIONS: u32 = 3;

#[derive(Default)]
struct Out(Vec<(bool, u32, u64, TraceFragment)>);

impl Outlet for Out {
    fn piece(&mut self, partition: u32, number: u64, piece: TraceFragment) {
        self.0.push((false, partition, number, piece));
    }
    fn aside(&mut self, partition: u32, number: u64, piece: TraceFragment) {
        self.0.push((true, partition, number, piece));
    }
    fn dead(&mut self, why: String) {
        panic!("{why}");
    }
}

/// A cluster in memory: what lies in partitions of links and spans and nobody has read.
struct Cluster {
    links: Vec<VecDeque<Vec<u8>>>,
    spans: Vec<VecDeque<Vec<u8>>>,
    meets: Vec<MeetStage>,
    assembles: Vec<AssembleStage>,
    traces: Vec<TraceFragment>,
    now: u64,
}

impl Cluster {
    fn new() -> Cluster {
        let all = || 0..PARTITIONS;
        let rules = AssembleStageConfig::new(PARTITIONS, Rules::default());
        Cluster {
            links: all().map(|_| VecDeque::new()).collect(),
            spans: all().map(|_| VecDeque::new()).collect(),
            meets: all()
                .map(|n| MeetStage::begin(Incarnation(n.into()), MeetStageConfig::new(PARTITIONS)))
                .collect(),
            assembles: all().map(|n| AssembleStage::begin(Incarnation(n.into()), rules.clone())).collect(),
            traces: Vec::new(),
            now: 1_000,
        }
    }

    /// What a stage has said, each piece a record.
    fn said(&mut self, stage: Stage, partition: u32, out: Out) {
        for (aside, to, first, piece) in out.0 {
            let from = FragmentOrigin { stage, partition, incarnation: Incarnation(partition.into()) };
            let record = || {
                v1::encode_fragments(&FragmentBatch { origin: from, first, fragments: vec![piece.clone()] })
            };
            match (stage, aside) {
                (Stage::Join, true) => self.links[to as usize].push_back(record()),
                (Stage::Assemble, false) => self.traces.push(piece),
                _ => self.spans[to as usize].push_back(record()),
            }
        }
    }

    fn join(&mut self, node: u32, batch: &EventBatch) {
        let mut stage = JoinStage::begin(Incarnation(node.into()), JoinStageConfig::new(PARTITIONS));
        let mut out = Out::default();
        stage.apply(Record { at: None, bytes: &v1::encode(batch) }, &mut out);
        assert!(stage.accounts().balances());
        self.said(Stage::Join, node, out);
    }

    /// Reads the next record of one of the partitions that have one; false when there is none.
    fn step(&mut self, choice: usize) -> bool {
        let all = self.links.iter().chain(&self.spans).enumerate();
        let ready: Vec<usize> = all.filter(|(_, log)| !log.is_empty()).map(|(n, _)| n).collect();
        let Some(&n) = ready.get(choice % ready.len().max(1)) else { return false };
        self.now += 1;
        let (at, mut out) = (Some(LogTime(self.now)), Out::default());
        let partition = n as u32 % PARTITIONS;
        let place = partition as usize;
        let log = if n < PARTITIONS as usize { &mut self.links } else { &mut self.spans };
        let Some(bytes) = log[place].pop_front() else { return false };
        let record = Record { at, bytes: &bytes };
        let stage = if n < PARTITIONS as usize {
            self.meets[place].apply(record, &mut out);
            Stage::Link
        } else {
            let rules = AssembleStageConfig::new(PARTITIONS, Rules::default());
            self.assembles[place].apply(record, &mut out);
            let saved = self.assembles[place].save().unwrap();
            self.assembles[place] = AssembleStage::restore(&saved, rules, Incarnation(99)).unwrap();
            let books = self.assembles[place].books();
            let known =
                books.kept + books.left_out + books.moves + books.moved + books.misplaced + books.nameless;
            assert_eq!(books.received, known + self.assembles[place].pending());
            Stage::Assemble
        };
        self.said(stage, partition, out);
        true
    }

    fn settle(&mut self, choices: &[u8]) {
        let mut n = 0;
        while self.step(choices.get(n % choices.len().max(1)).copied().unwrap_or(0).into()) {
            n += 1;
        }
    }

    /// Nobody has said anything for long.
    fn wait(&mut self) {
        self.now += 20_000;
        for log in self.links.iter_mut().chain(&mut self.spans) {
            log.push_back(v1::encode_fragments(&FragmentBatch::tick()));
        }
        self.settle(&[0]);
    }

    fn spans(&self) -> BTreeMap<SpanId, Span> {
        self.traces.iter().flat_map(|piece| piece.spans.iter().map(|span| (span.id, span.clone()))).collect()
    }
}

fn source(node: u64) -> Source {
    Source { node: NodeId(node.into()), ..SOURCE }
}

fn meeting(span: u64, root: u64, side: RpcSide, cookie: u64, (begin, end): (u64, u64)) -> LayerEvent {
    let connection = format!("{cookie}>").into();
    let met = RpcEndpointEvent {
        span: SpanId(span),
        root: SpanId(root),
        side,
        key: RpcKey { protocol: "nbd".into(), connection, cookie },
        unique: true,
        no_reply: false,
        begin: MonotonicNs(begin),
        end: MonotonicNs(end),
    };
    LayerEvent::RpcEndpoint(met.into())
}

/// A node's write: a call, its bio, its request. It may have been asked for, and its request may be another node's work.
fn node(n: u64, answers: Option<u64>, asks: Option<u64>) -> EventBatch {
    let (call, bio, request) = (n * 10 + 1, n * 10 + 2, n * 10 + 3);
    // Each node's clock has begun at another time, and lies inside the one before.
    let at = |time: u64| n * 1_000_000 + time + n * 10;
    let (begin, end) = (at(0), at(1_000 - 20 * n));
    let (below, done) = make::direct(call, bio, request, (begin + 2, end - 2));
    let mut events = vec![
        LayerEvent::Bio(below),
        LayerEvent::Request(done),
        LayerEvent::Syscall(make::call_with(call, (begin, end), 1)),
    ];
    events.extend(asks.map(|cookie| meeting(request, call, RpcSide::Client, cookie, (begin + 3, end - 3))));
    events.extend(answers.map(|cookie| meeting(call, call, RpcSide::Server, cookie, (begin, end))));
    let anchor = ClockAnchor {
        monotonic: MonotonicNs(n * 1_000_000),
        wallclock: WallclockNs(ANCHOR.wallclock.0 + n * 3_600_000_000_000),
        ..ANCHOR
    };
    EventBatch { source: source(n), anchor, ..batch(0, events, u64::MAX) }
}

/// A daemon that answers: its operation and a part of it, which ends first.
fn daemon(n: u64, answers: u64) -> EventBatch {
    let at = n * 1_000_000 + 100;
    let events = vec![
        make::operation(n * 10 + 2, Some(n * 10 + 1), (at + 10, at + 20)),
        meeting(n * 10 + 1, n * 10 + 1, RpcSide::Server, answers, (at, at + 50)),
        make::operation(n * 10 + 1, None, (at, at + 50)),
    ];
    let anchor = ClockAnchor { monotonic: MonotonicNs(n * 1_000_000), ..ANCHOR };
    EventBatch { source: source(n), anchor, ..batch(0, events, u64::MAX) }
}

#[test]
fn the_parts_of_what_a_daemon_does_go_where_it_is_shown() {
    for first in [1, 2] {
        let mut cluster = Cluster::new();
        let mut asker = || cluster.join(1, &node(1, None, Some(2)));
        if first == 1 {
            asker();
        }
        cluster.join(2, &daemon(2, 2));
        cluster.settle(&[0, 1, 2]);
        if first == 2 {
            assert_eq!(cluster.spans().len(), 0, "parts wait for their root, and that for who asked");
            cluster.join(1, &node(1, None, Some(2)));
            cluster.settle(&[2, 0, 1]);
        }
        let spans = cluster.spans();
        let of = |span: u64| (spans[&SpanId(span)].trace, spans[&SpanId(span)].parent.map(|id| id.0));
        let trace = source(1).trace_id(SpanId(11));
        assert_eq!([of(11), of(21), of(22)], [(trace, None), (trace, Some(13)), (trace, Some(21))]);
        assert_eq!((spans.len(), &*spans[&SpanId(21)].name), (5, "nbd read"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_request_over_three_nodes_is_one_trace_whatever_is_read_first(
        order in Just(vec![1_u64, 2, 3]).prop_shuffle(), choices in prop::collection::vec(any::<u8>(), 1..40),
        between in any::<[u8; 3]>(),
    ) {
        let mut cluster = Cluster::new();
        for (n, steps) in order.into_iter().zip(between) {
            let (answers, asks) = ((n > 1).then_some(n), (n < 3).then_some(n + 1));
            cluster.join(n as u32 % PARTITIONS, &node(n, answers, asks));
            (0..steps % 8).all(|step| cluster.step(step.into()));
        }
        cluster.settle(&choices);
        let spans = cluster.spans();
        let trace = source(1).trace_id(SpanId(11));
        prop_assert_eq!(spans.len(), 9);
        prop_assert_eq!(cluster.traces.iter().map(|piece| piece.spans.len()).sum::<usize>(), 9, "each once");
        prop_assert!(spans.values().all(|span| span.trace == trace));
        let parents = spans.values().map(|span| (span.id.0, span.parent.map(|id| id.0)));
        let expected = [
            (11, None), (12, Some(11)), (13, Some(12)),
            (21, Some(13)), (22, Some(21)), (23, Some(22)),
            (31, Some(23)), (32, Some(31)), (33, Some(32)),
        ];
        prop_assert_eq!(parents.collect::<BTreeMap<_, _>>(), BTreeMap::from(expected));
        for (child, parent) in expected.into_iter().filter_map(|(child, parent)| Some((child, parent?))) {
            let (child, parent) = (&spans[&SpanId(child)], &spans[&SpanId(parent)]);
            prop_assert!(parent.start <= child.start, "no child begins before its parent");
            prop_assert!(child.start.0 + child.duration.0 <= parent.start.0 + parent.duration.0);
        }
        prop_assert_eq!(spans[&SpanId(31)].kind, SpanKind::Server);
        let tag = |span: u64, key: &str| {
            let tags = &spans[&SpanId(span)].tags;
            tags.iter().filter(|(tag, _)| tag == key).map(|(_, value)| value.clone()).collect::<Vec<_>>()
        };
        let provisional = source(3).trace_id(SpanId(31)).to_string();
        let text = |words: &str| vec![TagValue::Text(words.to_owned().into())];
        prop_assert_eq!(tag(31, "blkkin.trace.own"), text(&provisional));
        prop_assert_eq!(tag(31, "blkkin.link"), text("exact: nbd connection and cookie"));
        // Moved twice: its clock is 2 h ahead of that by which it is shown, and each of two requests leaves 13 ns.
        let shift = tag(31, "blkkin.clock.shift.ns");
        prop_assert!(matches!(shift[..], [TagValue::Number(ns)] if (ns + 7_200_000_000_000).abs() < 100), "{shift:?}");
        prop_assert_eq!(tag(31, "blkkin.clock.error.ns"), vec![TagValue::Number(14)]);
        prop_assert!(tag(11, "blkkin.clock.shift.ns").is_empty());
    }
}

#[test]
fn who_was_asked_by_nobody_known_keeps_its_own_trace_and_what_comes_late_stays_with_it() {
    let mut cluster = Cluster::new();
    cluster.join(2, &node(2, Some(2), None));
    cluster.settle(&[0]);
    assert_eq!(cluster.traces.len(), 0, "it waits");
    cluster.wait();
    let own: Vec<TraceId> = cluster.traces.iter().map(|piece| piece.trace).collect();
    assert_eq!(own, [source(2).trace_id(SpanId(21))]);
    // The asker's half comes when the other has been given up: nothing is torn apart.
    cluster.join(1, &node(1, None, Some(2)));
    cluster.settle(&[0]);
    cluster.wait();
    assert_eq!(cluster.spans().len(), 6);
    assert!(cluster.spans()[&SpanId(21)].parent.is_none());
    assert_eq!(cluster.meets.iter().map(|meet| meet.books().alone).sum::<u64>(), 2);
}

#[test]
fn who_goes_in_circles_is_given_out_and_counted() {
    let mut cluster = Cluster::new();
    let (one, other) = (source(1).trace_id(SpanId(11)), source(2).trace_id(SpanId(21)));
    let moved = |trace: TraceId, to, n| {
        let clock = Default::default();
        let moved =
            blkkin_wire::remote_link::Reparented { trace: to, parent: SpanId(1), rule: "x".into(), clock };
        let piece = TraceFragment {
            trace,
            spans: Vec::new(),
            kind: blkkin_wire::fragment::FragmentKind::First,
            complete: false,
            sampled: None,
            sampled_by_application: false,
            remote_link: blkkin_wire::remote_link::RemoteLink::Reparented(moved.into()),
        };
        (false, trace.partition(PARTITIONS), n, piece)
    };
    // By hand: two halves cannot say so.
    cluster.said(Stage::Link, 0, Out(vec![moved(one, other, 0), moved(other, one, 1)]));
    cluster.join(1, &node(1, None, None));
    cluster.settle(&[0]);
    assert_eq!(cluster.spans().len(), 3);
    assert_eq!(cluster.assembles.iter().map(|stage| stage.books().circles).sum::<u64>(), 1);
}
