//! Requests from one node to another through Kafka and two aggregators, one of them killed: each is one trace.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

#[path = "../../bus/tests/support/mod.rs"]
mod broker;
mod common;
#[path = "support/nodes.rs"]
#[allow(dead_code, reason = "each test uses what it needs")]
mod nodes;
#[path = "support/service.rs"]
mod service;
#[path = "support/traces.rs"]
mod traces;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{EventProducer, Record, STATE, Settings};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::{MonotonicNs, WallclockNs};
use blkkin_wire::event::{LayerEvent, SyscallEvent};
use blkkin_wire::ids::{NodeId, SpanId, TraceId};
use blkkin_wire::remote_link::{RpcEndpointEvent, RpcKey, RpcSide};
use blkkin_wire::span::{Span, SpanKind};
use blkkin_wire::v1;

use broker::Broker;
use service::Service;
use traces::{TraceReader, total};

const CALLS: u64 = 4_000;
const PARTITIONS: u32 = 12;
const PATIENCE: Duration = Duration::from_secs(180);
const HOUR: u64 = 3_600_000_000_000;

fn aggregator(settings: &Settings, folder: &Path, name: &str) -> Service {
    let words = ["aggregator", "--brokers", &settings.brokers, "--save-every", "1s", "--metrics", "off"];
    // A member that was killed is missed after 6 s; on a slow machine much later.
    Service::start(folder, name, &[&words[..], &["--await-client", "170s"]].concat())
}

/// Two nodes; each call of the first is answered by the same call of the second, whose clock is an hour ahead.
fn worlds() -> [Vec<EventBatch>; 2] {
    let mut asker = nodes::batches(1, CALLS);
    let mut answerer = nodes::batches(2, CALLS);
    asker.iter_mut().for_each(|batch| meet(batch, RpcSide::Client));
    answerer.iter_mut().for_each(|batch| {
        batch.anchor.wallclock = WallclockNs(batch.anchor.wallclock.0 + HOUR);
        meet(batch, RpcSide::Server);
    });
    [asker, answerer]
}

fn meet(batch: &mut EventBatch, side: RpcSide) {
    let met = |call: &SyscallEvent| {
        // What the network took there and back.
        let network = if side == RpcSide::Server { 20 } else { 0 };
        let meeting = RpcEndpointEvent {
            span: call.span,
            root: call.span,
            side,
            key: RpcKey { protocol: "nbd".into(), connection: "a>b".into(), cookie: call.enter.0 },
            unique: true,
            no_reply: false,
            begin: MonotonicNs(call.enter.0 + network),
            end: MonotonicNs(call.exit.0 - network),
        };
        LayerEvent::RpcEndpoint(meeting.into())
    };
    let met: Vec<_> = batch
        .events
        .iter()
        .filter_map(|event| if let LayerEvent::Syscall(call) = event { Some(met(call)) } else { None })
        .collect();
    batch.events.extend(met);
    batch.events.sort_by_key(LayerEvent::time);
}

/// When each call of a node began, by its span.
fn calls(batches: &[EventBatch]) -> BTreeMap<u64, (SpanId, TraceId)> {
    let all = batches.iter().flat_map(|batch| batch.events.iter().map(move |event| (batch.source, event)));
    let calls = all.filter_map(|(source, event)| {
        let LayerEvent::Syscall(call) = event else { return None };
        Some((call.enter.0, (call.span, source.trace_id(call.span))))
    });
    calls.collect()
}

#[test]
fn who_answered_is_shown_below_who_asked_also_when_an_aggregator_is_killed() {
    let broker = match Broker::start() {
        Ok(broker) => broker,
        Err(why) => return println!("skipped: {why}"),
    };
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    let mut two = ["one", "two"].map(|name| aggregator(&settings, folder.path(), name));
    let begun = Instant::now();
    while settings.partitions(STATE).is_err() {
        assert!(begun.elapsed() < PATIENCE, "no topics");
        std::thread::sleep(Duration::from_millis(100));
    }
    let worlds = worlds();
    let wanted = pieces_of(&worlds);
    let mut reader = TraceReader::new(&settings, PARTITIONS as i32);
    std::thread::scope(|scope| {
        scope.spawn(|| feed(&settings, &worlds));
        reader.read_until(PATIENCE, |pieces| total(pieces) > wanted / 4);
        // As a crash would.
        two[0].kill();
        two[0].start_again();
    });
    reader.read(wanted, PATIENCE);
    let ended = two.map(Service::finish);
    let said = ended.each_ref().map(|(_, said)| said.clone());
    assert_eq!((ended.map(|(status, _)| status), total(&reader.pieces)), ([Some(0); 2], wanted), "{said:?}");
    let spans = reader.pieces.keys().flat_map(|bytes| v1::decode_fragments(bytes).unwrap().fragments);
    let spans: Vec<Span> = spans.flat_map(|piece| piece.spans).collect();
    assert_one_trace_each(&spans, &worlds, &said);
    println!("{} spans of {CALLS} requests, each once in the trace that asked", spans.len());
}

fn assert_one_trace_each(spans: &[Span], worlds: &[Vec<EventBatch>; 2], said: &[String; 2]) {
    let (asked, answered) = (calls(&worlds[0]), calls(&worlds[1]));
    let traces: BTreeMap<TraceId, u64> = asked.iter().map(|(enter, (_, trace))| (*trace, *enter)).collect();
    let own: BTreeMap<TraceId, SpanId> = answered.values().map(|(span, trace)| (*trace, *span)).collect();
    let mut roots = 0;
    for span in spans {
        assert!(!own.contains_key(&span.trace), "not moved: {span:?}\n{said:?}");
        let Some(enter) = traces.get(&span.trace) else { continue };
        let (asker, answerer) = (asked[enter].0, answered[enter].0);
        if span.id != answerer {
            continue;
        }
        roots += 1;
        assert_eq!((span.parent, span.kind), (Some(asker), SpanKind::Server), "{span:?}");
        // An hour less, to the ns: the network took as long there as back.
        assert_eq!(span.start.0, 1_700_000_000_000_000_000 + enter, "{span:?}");
    }
    assert_eq!(roots, CALLS as usize);
    let parents: BTreeMap<SpanId, TraceId> = spans.iter().map(|span| (span.id, span.trace)).collect();
    for span in spans {
        let Some(parent) = span.parent.and_then(|parent| parents.get(&parent)) else { continue };
        assert_eq!(*parent, span.trace, "torn apart: {span:?}");
    }
}

/// How many pieces the first stage makes of them: each is to come out once.
fn pieces_of(worlds: &[Vec<EventBatch>; 2]) -> usize {
    use blkkin_aggregator::stage::join::{JoinStage, JoinStageConfig};
    use blkkin_aggregator::stage::{Outlet, Record};
    use blkkin_wire::fragment::{Incarnation, TraceFragment};

    #[derive(Default)]
    struct Count(usize);
    impl Outlet for Count {
        fn piece(&mut self, _: u32, _: u64, _: TraceFragment) {
            self.0 += 1;
        }
        fn aside(&mut self, _: u32, _: u64, _: TraceFragment) {}
        fn dead(&mut self, why: String) {
            panic!("{why}");
        }
    }
    let mut count = Count::default();
    for batches in worlds {
        let mut stage = JoinStage::begin(Incarnation(1), JoinStageConfig::new(PARTITIONS));
        for batch in batches {
            stage.apply(Record { at: None, bytes: &v1::encode(batch) }, &mut count);
        }
        assert_eq!(stage.pending(), 0);
    }
    count.0
}

fn feed(settings: &Settings, worlds: &[Vec<EventBatch>; 2]) {
    let producers = [1, 2].map(|node| EventProducer::new(settings, NodeId(node)).unwrap());
    for n in 0..worlds[0].len().max(worlds[1].len()) {
        for (batches, producer) in worlds.iter().zip(&producers) {
            let Some(batch) = batches.get(n) else { continue };
            let record = Record { bytes: v1::encode(batch), events: batch.events.len() as u64 };
            producer.send(record, || false).unwrap();
        }
        std::thread::sleep(Duration::from_millis(150));
    }
    for producer in producers {
        assert_eq!(producer.finish(PATIENCE).waiting(), 0);
    }
}
