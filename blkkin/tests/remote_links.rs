//! Remote links through a real Kafka broker and two aggregators, one of which is killed: each
//! request between two nodes becomes one trace.
//!
//! *Input*: synthetic batches of two nodes in which each call of the client has the same call of
//! the server, whose clock is an hour ahead. In a second test the link stage is down at first.
//! *Independent count*: the batches themselves, which
//! give the number of requests, the parent of each server span and its time to the nanosecond; and
//! the join stage alone, which gives the number of fragments.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use blkkin_bus::kafka::{EventProducer, Record, Settings};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::{MonotonicNs, WallclockNs};
use blkkin_wire::event::{LayerEvent, SyscallEvent};
use blkkin_wire::ids::{NodeId, SpanId, TraceId};
use blkkin_wire::remote_link::{RpcEndpointEvent, RpcKey, RpcSide};
use blkkin_wire::span::{Span, SpanKind};
use blkkin_wire::v1;

use crate::broker::Broker;
use crate::support::or_skip;
use crate::support::service::Service;
use crate::support::synthetic_batches;
use crate::support::traces;
use crate::support::traces::{TraceReader, total};

const CALLS: u64 = 4_000;
const PARTITIONS: u32 = 12;
const TIME_LIMIT: Duration = Duration::from_secs(180);
const HOUR: u64 = 3_600_000_000_000;
/// Few, so that the outage is most of the test's time.
const CALLS_OF_OUTAGE: u64 = 400;
/// Longer than two endpoints of one request are apart in `blkkin.links`: one thread feeds both
/// nodes in turn, and a busy machine delays it by some tenths of a second.
const AWAIT_CLIENT: &str = "2s";
/// Longer than the wait for a client, and than its default of 10 s.
const OUTAGE: Duration = Duration::from_secs(12);

fn aggregator(settings: &Settings, folder: &Path, name: &str) -> Service {
    // The coordinator removes a killed member after 6 s, on a slow machine much later. Meanwhile the
    // endpoints of its partitions are missing.
    stage(settings, folder, name, &["--await-client", "170s"])
}

fn stage(settings: &Settings, folder: &Path, name: &str, args: &[&str]) -> Service {
    let common = ["aggregator", "--brokers", &settings.brokers, "--save-every", "1s", "--metrics", "off"];
    Service::start(folder, name, &[&common[..], args].concat())
}

/// Returns the batches of two nodes. Each call of the first node is served by the same call of the
/// second, whose clock is an hour ahead.
fn node_batches(calls: u64) -> [Vec<EventBatch>; 2] {
    let mut client = synthetic_batches::batches(1, calls);
    let mut server = synthetic_batches::batches(2, calls);
    client.iter_mut().for_each(|batch| add_endpoints(batch, RpcSide::Client));
    server.iter_mut().for_each(|batch| {
        batch.anchor.wallclock = WallclockNs(batch.anchor.wallclock.0 + HOUR);
        add_endpoints(batch, RpcSide::Server);
    });
    [client, server]
}

fn add_endpoints(batch: &mut EventBatch, side: RpcSide) {
    let endpoint = |call: &SyscallEvent| {
        // Time on the network in each direction.
        let network = if side == RpcSide::Server { 20 } else { 0 };
        let times = [call.enter.0 + network, call.exit.0 - network].map(MonotonicNs);
        let key = RpcKey { protocol: "nbd".into(), connection: "a>b".into(), cookie: call.enter.0 };
        let event = RpcEndpointEvent { unique: true, ..RpcEndpointEvent::bare(call.span, side, key, times) };
        LayerEvent::RpcEndpoint(event.into())
    };
    let endpoint: Vec<_> = batch
        .events
        .iter()
        .filter_map(|event| if let LayerEvent::Syscall(call) = event { Some(endpoint(call)) } else { None })
        .collect();
    batch.events.extend(endpoint);
    batch.events.sort_by_key(LayerEvent::time);
}

/// Returns span and trace of each call of a node, by its time of entry.
fn calls(batches: &[EventBatch]) -> BTreeMap<u64, (SpanId, TraceId)> {
    let all = batches.iter().flat_map(|batch| batch.events.iter().map(move |event| (batch.source, event)));
    let calls = all.filter_map(|(source, event)| {
        let LayerEvent::Syscall(call) = event else { return None };
        Some((call.enter.0, (call.span, source.trace_id(call.span))))
    });
    calls.collect()
}

#[test]
fn server_spans_are_children_of_client_spans_also_when_an_aggregator_is_killed() {
    let broker = or_skip!(Broker::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let mut aggregators = ["one", "two"].map(|name| aggregator(&settings, folder.path(), name));
    traces::wait_for_topics(&settings, TIME_LIMIT);
    let node_batches = node_batches(CALLS);
    let expected = fragment_count(&node_batches);
    let mut reader = TraceReader::new(&settings, PARTITIONS as i32);
    std::thread::scope(|scope| {
        scope.spawn(|| feed(&settings, &node_batches));
        reader.read_until(TIME_LIMIT, |fragments| total(fragments) > expected / 4);
        // Kills one aggregator as a crash would.
        aggregators[0].kill();
        aggregators[0].restart();
    });
    reader.read(expected, TIME_LIMIT);
    let ended = aggregators.map(Service::finish);
    let output = ended.each_ref().map(|(_, output)| output.clone());
    assert_eq!(
        (ended.map(|(status, _)| status), total(&reader.fragments)),
        ([Some(0); 2], expected),
        "{output:?}"
    );
    let spans = reader.spans();
    assert_one_trace_each(&spans, &node_batches, &output);
    println!("{} spans of {CALLS} requests, each once in the client's trace", spans.len());
}

#[test]
fn traces_are_whole_also_when_the_link_stage_was_down_for_longer_than_a_client_is_awaited() {
    let broker = or_skip!(Broker::start());
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let start = |name: &str| {
        stage(&settings, folder.path(), name, &["--stage", name, "--await-client", AWAIT_CLIENT])
    };
    let (join, assemble) = (start("join"), start("assemble"));
    traces::wait_for_topics(&settings, TIME_LIMIT);
    let node_batches = node_batches(CALLS_OF_OUTAGE);
    let expected = fragment_count(&node_batches);
    let clients = fragment_count_of(&node_batches[0]);
    let mut reader = TraceReader::new(&settings, PARTITIONS as i32);
    feed(&settings, &node_batches);
    reader.read_until(TIME_LIMIT, |fragments| total(fragments) >= clients);
    // The time itself is what is tested.
    reader.read_until(OUTAGE, |_| false);
    let servers: BTreeSet<TraceId> = calls(&node_batches[1]).into_values().map(|(_, trace)| trace).collect();
    let alone = reader.spans().into_iter().find(|span| servers.contains(&span.trace));
    assert_eq!(alone, None, "a server's trace that was not moved to its client's");
    let link = start("link");
    reader.read(expected, TIME_LIMIT);
    let ended = [join, assemble, link].map(Service::finish);
    let output = ended.each_ref().map(|(_, output)| output.clone());
    assert_eq!(
        (ended.map(|(status, _)| status), total(&reader.fragments)),
        ([Some(0); 3], expected),
        "{output:?}"
    );
    assert_one_trace_each(&reader.spans(), &node_batches, &output);
}

fn assert_one_trace_each(spans: &[Span], node_batches: &[Vec<EventBatch>; 2], output: &[String]) {
    let (client_calls, server_calls) = (calls(&node_batches[0]), calls(&node_batches[1]));
    let traces: BTreeMap<TraceId, u64> =
        client_calls.iter().map(|(enter, (_, trace))| (*trace, *enter)).collect();
    let server_traces: BTreeMap<TraceId, SpanId> =
        server_calls.values().map(|(span, trace)| (*trace, *span)).collect();
    let mut roots = 0;
    for span in spans {
        assert!(!server_traces.contains_key(&span.trace), "not reparented: {span:?}\n{output:?}");
        let Some(enter) = traces.get(&span.trace) else { continue };
        let (client, server) = (client_calls[enter].0, server_calls[enter].0);
        if span.id != server {
            continue;
        }
        roots += 1;
        assert_eq!((span.parent, span.kind), (Some(client), SpanKind::Server), "{span:?}");
        // Corrected by an hour to the nanosecond, since both directions of the network took the
        // same time.
        assert_eq!(span.start.0, 1_700_000_000_000_000_000 + enter, "{span:?}");
    }
    assert_eq!(roots, client_calls.len());
    let parents: BTreeMap<SpanId, TraceId> = spans.iter().map(|span| (span.id, span.trace)).collect();
    for span in spans {
        let Some(parent) = span.parent.and_then(|parent| parents.get(&parent)) else { continue };
        assert_eq!(*parent, span.trace, "parent in another trace: {span:?}");
    }
}

/// Returns the number of fragments of the join stage; each must be emitted once.
fn fragment_count(node_batches: &[Vec<EventBatch>; 2]) -> usize {
    node_batches.iter().map(|batches| fragment_count_of(batches)).sum()
}

fn fragment_count_of(batches: &[EventBatch]) -> usize {
    use blkkin_aggregator::stage::join::{JoinStage, JoinStageConfig};
    use blkkin_wire::fragment::{Incarnation, TraceFragment};
    use blkkin_wire::stage::{InputRecord, Stage, StageOutput};

    #[derive(Default)]
    struct Count(usize);
    impl StageOutput for Count {
        fn fragment(&mut self, _: u32, _: u64, _: TraceFragment) {
            self.0 += 1;
        }
        fn side_output(&mut self, _: u32, _: u64, _: TraceFragment) {}
        fn dead_letter(&mut self, reason: String) {
            panic!("{reason}");
        }
    }
    let mut count = Count::default();
    let mut stage = JoinStage::new(Incarnation(1), JoinStageConfig::new(PARTITIONS));
    for batch in batches {
        stage.apply(InputRecord { at: None, bytes: &v1::encode(batch) }, &mut count);
    }
    assert_eq!(stage.pending(), 0);
    count.0
}

fn feed(settings: &Settings, node_batches: &[Vec<EventBatch>; 2]) {
    let producers = [1, 2].map(|node| EventProducer::new(settings, NodeId(node)).unwrap());
    for n in 0..node_batches[0].len().max(node_batches[1].len()) {
        for (batches, producer) in node_batches.iter().zip(&producers) {
            let Some(batch) = batches.get(n) else { continue };
            let record = Record { bytes: v1::encode(batch), events: batch.events.len() as u64 };
            producer.send(record, || false).unwrap();
        }
        std::thread::sleep(Duration::from_millis(150));
    }
    for producer in producers {
        assert_eq!(producer.finish(TIME_LIMIT).waiting(), 0);
    }
}
