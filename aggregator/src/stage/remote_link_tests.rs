//! Operations over three nodes, through all stages with several partitions: one trace, in whatever
//! order records are read.

use std::collections::{BTreeMap, VecDeque};

use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::{ClockAnchor, MonotonicNs, WallclockNs};
use blkkin_wire::event::LayerEvent;
use blkkin_wire::fragment::{FragmentBatch, FragmentOrigin, Incarnation, StageId, TraceFragment};
use blkkin_wire::ids::{NodeId, Source, SpanId, TraceId};
use blkkin_wire::remote_link::{RpcEndpointEvent, RpcKey, RpcSide};
use blkkin_wire::span::{Span, SpanKind, TagValue};
use blkkin_wire::stage::{InputRecord, LogTime, Stage, StageOutput};
use blkkin_wire::v1;
use proptest::prelude::*;

use super::assemble::{AssembleStage, AssembleStageConfig};
use super::join::{JoinStage, JoinStageConfig};
use super::link::{LinkStage, LinkStageConfig};
use super::sampling::SamplingRules;
use crate::fixtures::{self, ANCHOR, SOURCE, batch};

const PARTITIONS: u32 = 3;

#[derive(Default)]
struct Output(Vec<(bool, u32, u64, TraceFragment)>);

impl StageOutput for Output {
    fn fragment(&mut self, partition: u32, number: u64, fragment: TraceFragment) {
        self.0.push((false, partition, number, fragment));
    }
    fn side_output(&mut self, partition: u32, number: u64, fragment: TraceFragment) {
        self.0.push((true, partition, number, fragment));
    }
    fn dead_letter(&mut self, why: String) {
        panic!("{why}");
    }
}

/// Unread records of a partition with their log times.
type Log = VecDeque<(LogTime, Vec<u8>)>;

/// A cluster in memory: the unread records of the partitions of links and spans.
struct Cluster {
    links: Vec<Log>,
    spans: Vec<Log>,
    /// No member runs the link stage: its records stay unread.
    link_is_away: bool,
    links_stages: Vec<LinkStage>,
    assembles: Vec<AssembleStage>,
    traces: Vec<TraceFragment>,
    now: u64,
}

impl Cluster {
    fn new() -> Cluster {
        let all = || 0..PARTITIONS;
        let rules = AssembleStageConfig::new(PARTITIONS, SamplingRules::default());
        Cluster {
            links: all().map(|_| VecDeque::new()).collect(),
            spans: all().map(|_| VecDeque::new()).collect(),
            link_is_away: false,
            links_stages: all()
                .map(|n| LinkStage::new(Incarnation(n.into()), LinkStageConfig::new(PARTITIONS)))
                .collect(),
            assembles: all().map(|n| AssembleStage::new(Incarnation(n.into()), rules.clone())).collect(),
            traces: Vec::new(),
            now: 1_000,
        }
    }

    /// Writes a stage's output, one record for each fragment.
    fn write(&mut self, stage: StageId, partition: u32, out: Output) {
        for (side_output, to, first, fragment) in out.0 {
            let from = FragmentOrigin { stage, partition, incarnation: Incarnation(partition.into()) };
            let record = || {
                let fragments = vec![fragment.clone()];
                (LogTime(self.now), v1::encode_fragments(&FragmentBatch { origin: from, first, fragments }))
            };
            match (stage, side_output) {
                (StageId::Join, true) => self.links[to as usize].push_back(record()),
                (StageId::Assemble, false) => self.traces.push(fragment),
                _ => self.spans[to as usize].push_back(record()),
            }
        }
    }

    fn join(&mut self, node: u32, batch: &EventBatch) {
        let mut stage = JoinStage::new(Incarnation(node.into()), JoinStageConfig::new(PARTITIONS));
        let mut out = Output::default();
        stage.apply(InputRecord { at: None, bytes: &v1::encode(batch) }, &mut out);
        assert!(stage.join_stats().balances());
        self.write(StageId::Join, node, out);
    }

    /// Reads the next record of one of the partitions that have one. Returns false if there is
    /// none.
    fn step(&mut self, choice: usize) -> bool {
        let all = self.links.iter().chain(&self.spans).enumerate();
        let skipped = if self.link_is_away { PARTITIONS as usize } else { 0 };
        let ready = all.filter(|(_, log)| !log.is_empty()).map(|(n, _)| n).filter(|n| *n >= skipped);
        let ready: Vec<usize> = ready.collect();
        let Some(&n) = ready.get(choice % ready.len().max(1)) else { return false };
        self.now += 1;
        let mut out = Output::default();
        let partition = n as u32 % PARTITIONS;
        let place = partition as usize;
        let log = if n < PARTITIONS as usize { &mut self.links } else { &mut self.spans };
        let Some((at, bytes)) = log[place].pop_front() else { return false };
        let record = InputRecord { at: Some(at), bytes: &bytes };
        let stage = if n < PARTITIONS as usize {
            self.links_stages[place].apply(record, &mut out);
            StageId::Link
        } else {
            let rules = AssembleStageConfig::new(PARTITIONS, SamplingRules::default());
            self.assembles[place].apply(record, &mut out);
            let saved = self.assembles[place].save().unwrap();
            self.assembles[place] = AssembleStage::restore(&saved, rules, Incarnation(99)).unwrap();
            let stats = self.assembles[place].stats();
            let known = stats.sampled
                + stats.dropped
                + stats.reparents
                + stats.unlinks
                + stats.reparented
                + stats.misplaced
                + stats.without_trace_id;
            assert_eq!(stats.received, known + self.assembles[place].pending());
            StageId::Assemble
        };
        self.write(stage, partition, out);
        true
    }

    fn settle(&mut self, choices: &[u8]) {
        let mut n = 0;
        while self.step(choices.get(n % choices.len().max(1)).copied().unwrap_or(0).into()) {
            n += 1;
        }
    }

    /// Advances the log's time beyond all timeouts.
    fn wait(&mut self) {
        self.advance(20_000);
    }

    /// Advances the log's time by `ms`, with a tick in each partition.
    fn advance(&mut self, ms: u64) {
        self.now += ms;
        let tick = (LogTime(self.now), v1::encode_fragments(&FragmentBatch::tick()));
        self.links.iter_mut().chain(&mut self.spans).for_each(|log| log.push_back(tick.clone()));
        self.settle(&[0]);
    }

    fn spans(&self) -> BTreeMap<SpanId, Span> {
        self.traces
            .iter()
            .flat_map(|fragment| fragment.spans.iter().map(|span| (span.id, span.clone())))
            .collect()
    }
}

fn source(node: u64) -> Source {
    Source { node: NodeId(node.into()), ..SOURCE }
}

fn rpc_endpoint(span: u64, root: u64, side: RpcSide, cookie: u64, times: (u64, u64)) -> LayerEvent {
    let event = fixtures::rpc_endpoint(span, side, cookie, times);
    let key = RpcKey { connection: format!("{cookie}>").into(), ..event.key };
    LayerEvent::RpcEndpoint(RpcEndpointEvent { root: SpanId(root), key, unique: true, ..event }.into())
}

/// A node's write: a call, its bio, its request. The call may serve a remote client, and the
/// request may have a remote server.
fn node(n: u64, answers: Option<u64>, asks: Option<u64>) -> EventBatch {
    let (call, bio, request) = (n * 10 + 1, n * 10 + 2, n * 10 + 3);
    // Each node's clock began at another time, and each node's interval is within its client's.
    let at = |time: u64| n * 1_000_000 + time + n * 10;
    let (begin, end) = (at(0), at(1_000 - 20 * n));
    let (below, done) = fixtures::bio_and_request(call, bio, request, (begin + 2, end - 2));
    let mut events = vec![
        LayerEvent::Bio(below),
        LayerEvent::Request(done),
        LayerEvent::Syscall(fixtures::call_with(call, (begin, end), 1)),
    ];
    events.extend(
        asks.map(|cookie| rpc_endpoint(request, call, RpcSide::Client, cookie, (begin + 3, end - 3))),
    );
    events.extend(answers.map(|cookie| rpc_endpoint(call, call, RpcSide::Server, cookie, (begin, end))));
    let anchor = ClockAnchor {
        monotonic: MonotonicNs(n * 1_000_000),
        wallclock: WallclockNs(ANCHOR.wallclock.0 + n * 3_600_000_000_000),
        ..ANCHOR
    };
    EventBatch { source: source(n), anchor, ..batch(0, events, u64::MAX) }
}

/// A server daemon: its span and a part of it, which ends first.
fn daemon(n: u64, answers: u64) -> EventBatch {
    let at = n * 1_000_000 + 100;
    let events = vec![
        fixtures::daemon_span_event(n * 10 + 2, Some(n * 10 + 1), (at + 10, at + 20)),
        rpc_endpoint(n * 10 + 1, n * 10 + 1, RpcSide::Server, answers, (at, at + 50)),
        fixtures::daemon_span_event(n * 10 + 1, None, (at, at + 50)),
    ];
    let anchor = ClockAnchor { monotonic: MonotonicNs(n * 1_000_000), ..ANCHOR };
    EventBatch { source: source(n), anchor, ..batch(0, events, u64::MAX) }
}

#[test]
fn parts_of_a_daemon_span_are_reparented_with_it() {
    for first in [1, 2] {
        let mut cluster = Cluster::new();
        let mut client = || cluster.join(1, &node(1, None, Some(2)));
        if first == 1 {
            client();
        }
        cluster.join(2, &daemon(2, 2));
        cluster.settle(&[0, 1, 2]);
        if first == 2 {
            assert_eq!(cluster.spans().len(), 0, "parts wait for their root, and the root for its client");
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
    fn an_operation_over_three_nodes_is_one_trace_in_any_order_of_reading(
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
        prop_assert_eq!(cluster.traces.iter().map(|fragment| fragment.spans.len()).sum::<usize>(), 9, "each span once");
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
        prop_assert_eq!(tag(31, "blkkin.parent.evidence"), text("exact: nbd connection and cookie"));
        // Reparented twice: its clock is 2 h ahead of the clock of the trace, and each of two
        // requests leaves 13 ns.
        let shift = tag(31, "blkkin.clock.shift.ns");
        prop_assert!(matches!(shift[..], [TagValue::Number(ns)] if (ns + 7_200_000_000_000).abs() < 100), "{shift:?}");
        prop_assert_eq!(tag(31, "blkkin.clock.error.ns"), vec![TagValue::Number(14)]);
        prop_assert!(tag(11, "blkkin.clock.shift.ns").is_empty());
    }
}

#[test]
fn a_server_without_a_known_client_keeps_its_trace() {
    let mut cluster = Cluster::new();
    cluster.join(2, &node(2, Some(2), None));
    cluster.settle(&[0]);
    assert_eq!(cluster.traces.len(), 0, "it waits");
    cluster.wait();
    let own: Vec<TraceId> = cluster.traces.iter().map(|fragment| fragment.trace).collect();
    assert_eq!(own, [source(2).trace_id(SpanId(21))]);
    // The client's endpoint arrives after the server's timed out: the server's trace stays where it
    // is.
    cluster.join(1, &node(1, None, Some(2)));
    cluster.settle(&[0]);
    cluster.wait();
    assert_eq!(cluster.spans().len(), 6);
    assert!(cluster.spans()[&SpanId(21)].parent.is_none());
    assert_eq!(cluster.links_stages.iter().map(|stage| stage.stats().unmatched).sum::<u64>(), 2);
}

#[test]
fn an_operation_is_one_trace_also_when_the_link_stage_was_away_for_hours() {
    let mut cluster = Cluster::new();
    cluster.link_is_away = true;
    cluster.join(0, &node(1, None, Some(2)));
    cluster.join(1, &node(2, Some(2), Some(3)));
    cluster.join(2, &daemon(3, 3));
    // 1,000 times longer than an endpoint waits for its client.
    (0..100).for_each(|_| cluster.advance(100_000));
    assert_eq!(cluster.spans().len(), 3, "the client's alone");
    cluster.link_is_away = false;
    cluster.settle(&[0]);
    let traces: Vec<TraceId> = cluster.spans().values().map(|span| span.trace).collect();
    assert_eq!(traces, [source(1).trace_id(SpanId(11)); 8]);
}

#[test]
fn reparent_loops_are_emitted_and_counted() {
    let mut cluster = Cluster::new();
    let (one, other) = (source(1).trace_id(SpanId(11)), source(2).trace_id(SpanId(21)));
    let moved = |trace: TraceId, to, n| {
        let clock = Default::default();
        let moved =
            blkkin_wire::remote_link::Reparented { trace: to, parent: SpanId(1), rule: "x".into(), clock };
        let fragment = TraceFragment {
            trace,
            spans: Vec::new(),
            kind: blkkin_wire::fragment::FragmentKind::First,
            complete: false,
            sampled: None,
            sampled_by_application: false,
            remote_link: blkkin_wire::remote_link::RemoteLink::Reparented(moved.into()),
        };
        (false, trace.partition(PARTITIONS), n, fragment)
    };
    // Written by hand: no two endpoints can produce a loop.
    cluster.write(StageId::Link, 0, Output(vec![moved(one, other, 0), moved(other, one, 1)]));
    cluster.join(1, &node(1, None, None));
    cluster.settle(&[0]);
    assert_eq!(cluster.spans().len(), 3);
    assert_eq!(cluster.assembles.iter().map(|stage| stage.stats().reparent_loops).sum::<u64>(), 1);
}
