//! Match of both endpoints of a request, across partitions and stages.
//!
//! *In*: the two endpoints and the spans of a request, written in any order by two join partitions.
//! *Out*: the traces as a reader accepts them. *Invariant*: the server's span is in the client's
//! trace, once, below the client's span; and no other link exists.
//!
//! The real [`LinkStage`] and [`AssembleStage`] run in the real runner, with a partition of links and
//! two of spans: the request of the link goes to the server's partition, and the server's spans go
//! from there to the client's.

use std::rc::Rc;
use std::time::Duration;

use blkkin_aggregator::stage::assemble::{AssembleStage, AssembleStageConfig};
use blkkin_aggregator::stage::link::{LinkStage, LinkStageConfig};
use blkkin_aggregator::stage::sampling::SamplingRules;
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs};
use blkkin_wire::fragment::{FragmentBatch, FragmentOrigin, Incarnation, StageId, TraceFragment};
use blkkin_wire::ids::{BootId, NodeId, Source, SpanId, StartEpoch, TraceId};
use blkkin_wire::remote_link::{LinkEndpoint, NodeClock, RemoteLink, RpcEndpointEvent, RpcKey, RpcSide};
use blkkin_wire::span::Span;
use blkkin_wire::v1;

use super::super::runner::RunnerConfig;
use super::process::spawn;
use super::scenario::{Scenario, Simulation};
use super::search::{Searched, search};
use super::world::{Faults, Fed, Group, ProcessState, World};
use crate::kafka::codec::{Codec as _, Traces};
use crate::kafka::dedup::{DuplicateDetector, DuplicateState};
use crate::kafka::settings;

const LINKS: &str = "links";
const SPANS: &str = "spans";
const TRACES: &str = "traces";
/// Partitions of spans and of traces.
const PARTITIONS: u32 = 2;
/// Spans of the client and of the server.
const CLIENT: SpanId = SpanId(11);
const SERVER: SpanId = SpanId(22);

/// Returns the first trace id of a partition.
fn trace(partition: u32) -> TraceId {
    (1..).map(TraceId).find(|id| id.partition(PARTITIONS) == partition).expect("each partition has traces")
}

fn endpoint(side: RpcSide) -> RemoteLink {
    let (node, span, trace, begin, end) = match side {
        RpcSide::Client => (1, CLIENT, trace(0), 1_000, 9_000),
        RpcSide::Server => (2, SERVER, trace(1), 3_000, 5_000),
    };
    let source = Source { node: NodeId(node), boot: BootId(1), epoch: StartEpoch(1) };
    let key = RpcKey { protocol: "nbd".into(), connection: "a:1>b:2".into(), cookie: 7 };
    let bare = RpcEndpointEvent::bare(span, side, key, [begin, end].map(MonotonicNs));
    let event = RpcEndpointEvent { unique: true, ..bare };
    let clock = NodeClock { source, anchor: ClockAnchor::NONE };
    RemoteLink::Endpoint(Box::new(LinkEndpoint { event, trace, clock, peer: None, image: None }))
}

fn span(trace: TraceId, id: SpanId) -> Span {
    Span { name: "pread64".into(), service: "a".into(), duration: DurationNs(1), ..Span::bare(trace, id) }
}

/// Returns a record of the join partition of one node, its first in that output partition.
fn fed(topic: &'static str, partition: i32, node: u32, fragment: TraceFragment) -> Fed {
    let origin = FragmentOrigin { stage: StageId::Join, partition: node, incarnation: Incarnation(1) };
    let payload = v1::encode_fragments(&FragmentBatch { origin, first: 0, fragments: vec![fragment] });
    Fed { topic, partition, payload, written: 0 }
}

fn feed() -> Vec<Fed> {
    let (client, server) = (trace(0), trace(1));
    let with_span = |trace, id, link| TraceFragment {
        spans: vec![span(trace, id)],
        complete: true,
        ..TraceFragment::link_only(trace, link)
    };
    vec![
        fed(SPANS, 0, 0, with_span(client, CLIENT, RemoteLink::None)),
        fed(LINKS, 0, 0, TraceFragment::link_only(client, endpoint(RpcSide::Client))),
        fed(LINKS, 0, 1, TraceFragment::link_only(server, endpoint(RpcSide::Server))),
        fed(SPANS, 1, 1, with_span(server, SERVER, RemoteLink::PendingParent)),
    ]
}

/// Returns the fragments of a partition that a reader accepts.
fn accepted(world: &World, topic: &str, partition: i32) -> Result<Vec<TraceFragment>, String> {
    let (mut detector, mut accepted) = (DuplicateDetector::default(), Vec::new());
    for entry in world.log(topic, partition) {
        let bytes = entry.payload.as_deref().unwrap_or_default();
        let mut batch = v1::decode_fragments(bytes).map_err(|why| why.to_string())?;
        if let DuplicateState::New { duplicates, missing } = detector.classify(Traces::numbers(&batch)) {
            if missing > 0 {
                return Err(format!("{missing} fragments of {topic} are missing"));
            }
            Traces::skip(&mut batch, duplicates);
            accepted.extend(batch.fragments);
        }
    }
    Ok(accepted)
}

/// Returns trace, id and parent of each accepted span.
fn spans(world: &World) -> Result<Vec<(TraceId, SpanId, Option<SpanId>)>, String> {
    let mut spans = Vec::new();
    for partition in 0..PARTITIONS as i32 {
        let fragments = accepted(world, TRACES, partition)?;
        let all = fragments.into_iter().flat_map(|fragment| fragment.spans);
        spans.extend(all.map(|span| (span.trace, span.id, span.parent)));
    }
    spans.sort_unstable();
    Ok(spans)
}

fn expected() -> [(TraceId, SpanId, Option<SpanId>); 2] {
    [(trace(0), CLIENT, None), (trace(0), SERVER, Some(CLIENT))]
}

fn check(world: &World) -> Option<String> {
    let spans = match spans(world) {
        Ok(spans) => spans,
        Err(why) => return Some(why),
    };
    let mut distinct = spans.clone();
    distinct.dedup();
    if distinct != spans || spans.iter().any(|span| !expected().contains(span)) {
        return Some(format!("accepted: {spans:?}"));
    }
    for partition in 0..PARTITIONS as i32 {
        for fragment in accepted(world, SPANS, partition).ok()? {
            if let RemoteLink::Reparented(target) = &fragment.remote_link
                && (fragment.trace, target.trace, target.parent) != (trace(1), trace(0), CLIENT)
            {
                return Some(format!("a wrong link: {fragment:?}"));
            }
        }
    }
    None
}

fn config(input: &str, output: &str, side_output: &str) -> RunnerConfig {
    RunnerConfig {
        input: input.to_owned(),
        output: output.to_owned(),
        side_output: side_output.to_owned(),
        group: settings::Group { name: input.to_owned(), member: None },
        save_every: Duration::from_secs(1),
        tick_after: Duration::from_secs(36_000),
        forget: false,
    }
}

fn searched(faults: Faults, killed: usize, fed_first: usize, states_max: usize) -> Searched {
    let link = |world: &_, slot| {
        spawn::<LinkStage>(world, slot, config(LINKS, SPANS, SPANS), LinkStageConfig::new(PARTITIONS))
    };
    let assemble = |world: &_, slot| {
        let rules = AssembleStageConfig::new(PARTITIONS, SamplingRules::default());
        spawn::<AssembleStage>(world, slot, config(SPANS, TRACES, SPANS), rules)
    };
    let scenario = Scenario {
        stages: vec![StageId::Link, StageId::Assemble],
        spawn: vec![Rc::new(link), Rc::new(assemble)],
        check: Rc::new(check),
        missing: Rc::new(|world| match spans(world) {
            Ok(all) if all == expected() => None,
            other => Some(format!("at the end: {other:?}")),
        }),
    };
    let world = || {
        let process = |(group, topic): (usize, &str)| ProcessState {
            group,
            topic: topic.to_owned(),
            ..ProcessState::default()
        };
        let mut world = World {
            groups: [1, PARTITIONS as i32].map(|partitions| Group { partitions, ..Group::default() }).into(),
            processes: [(0, LINKS), (1, SPANS)].map(process).into(),
            feed: feed(),
            faults,
            coarse: true,
            // A state is longer than its records, so it is due after a minute.
            pause: Duration::from_secs(61),
            killable: vec![killed],
            ..World::default()
        };
        (0..fed_first).for_each(|n| world.feed(n));
        world
    };
    search(|| Simulation::new(&scenario, world()), states_max)
}

const KILL: Faults =
    Faults { kills: 1, evictions: 0, lost_replies: 0, late_commits: 0, flushes: 0, duplicates: 0 };
const DUPLICATE: Faults = Faults { kills: 0, duplicates: 1, ..KILL };
/// Slots of the two stages.
const LINK: usize = 0;
const ASSEMBLE: usize = 1;

fn holds(faults: Faults, killed: usize, fed_first: usize) {
    let searched = searched(faults, killed, fed_first, 2_000_000);
    assert!(searched.finding.is_none(), "{:#?}", searched.finding);
}

#[test]
fn both_endpoints_match_in_any_order() {
    holds(Faults::default(), LINK, 1);
}

#[test]
fn both_endpoints_match_when_a_stage_is_killed_or_a_record_is_repeated() {
    for (faults, killed) in [(KILL, LINK), (KILL, ASSEMBLE), (DUPLICATE, LINK)] {
        holds(faults, killed, 3);
    }
}

#[test]
#[ignore = "takes minutes"]
fn both_endpoints_match_in_any_order_with_a_fault() {
    for (faults, killed) in [(KILL, LINK), (KILL, ASSEMBLE), (DUPLICATE, LINK)] {
        holds(faults, killed, 0);
    }
}
