//! Each bound of a partition at twice its size: the bytes that it then holds, and what was given
//! up.
//!
//! *In*: twice as many entries as a table has room for. *Out*: the memory of the stage, and the
//! count of its overflow. *Invariant*: what goes over a bound is counted under the table's name.

use blkkin_aggregator::stage::assemble::{AssembleStage, AssembleStageConfig};
use blkkin_aggregator::stage::join::{JoinStage, JoinStageConfig};
use blkkin_aggregator::stage::link::{LinkStage, LinkStageConfig};
use blkkin_aggregator::stage::sampling::SamplingRules;
use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{LayerEvent, PairEvent, SyscallEvent, TaskEvent};
use blkkin_wire::fragment::{FragmentBatch, FragmentOrigin, Incarnation, StageId, TraceFragment};
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::remote_link::{LinkEndpoint, NodeClock, RemoteLink, RpcEndpointEvent, RpcKey, RpcSide};
use blkkin_wire::stage::{InputRecord, LogTime, Stage, StageOutput};
use blkkin_wire::syscalls::SyscallId;
use blkkin_wire::v1;

use super::in_use;
use super::load::{self, DISK};

/// Entries in a record.
const CHUNK: u64 = 4_096;
/// Partitions among which a member divides the bytes of waiting traces.
const PARTITIONS: u32 = 64;

/// A bound that was tried.
pub(crate) struct Bound {
    pub(crate) table: &'static str,
    pub(crate) max: u64,
    pub(crate) offered: u64,
    /// Entries that were given up, as the stage counts them.
    pub(crate) given_up: u64,
    /// Memory of the stage.
    pub(crate) bytes: u64,
}

/// Tries all bounds, each in a stage of its own.
pub(crate) fn try_all() -> Vec<Bound> {
    vec![sources(), open_traces(), window(), names(), origins(), endpoints(), waiting_traces(PARTITIONS)]
}

/// Tries those that take seconds without optimisation. The others have unit tests with smaller
/// limits (`aggregator/src/join/tests/bounds.rs`, `aggregator/src/join/names.rs`).
pub(crate) fn try_quick() -> Vec<Bound> {
    vec![origins(), waiting_traces(16 * PARTITIONS)]
}

struct Discard;

impl StageOutput for Discard {
    fn fragment(&mut self, _: u32, _: u64, _: TraceFragment) {}
    fn side_output(&mut self, _: u32, _: u64, _: TraceFragment) {}
    fn dead_letter(&mut self, why: String) {
        panic!("{why}");
    }
}

fn offer<S: Stage>(
    config: S::Config,
    table: &'static str,
    max: u64,
    records: impl Iterator<Item = Vec<u8>>,
) -> Bound {
    let mut stage = S::new(Incarnation(1), config);
    for bytes in records {
        stage.apply(InputRecord { at: Some(LogTime(1)), bytes: &bytes }, &mut Discard);
    }
    // As after each save.
    stage.save().unwrap_or_else(|why| panic!("{why}"));
    let given_up = stage.overflows().iter().find(|(name, _)| *name == table).map_or(0, |(_, count)| *count);
    let before = in_use();
    drop(stage);
    Bound { table, max, offered: 2 * max, given_up, bytes: before.saturating_sub(in_use()) }
}

fn batch(sequence: u64, events: Vec<LayerEvent>, watermark: u64) -> Vec<u8> {
    let (source, watermark) = (load::source(1), MonotonicNs(watermark));
    v1::encode(&EventBatch { source, sequence, events, watermark, ..EventBatch::tick() })
}

/// Records of `CHUNK` events each.
fn batches(count: u64, watermark: u64, event: impl Fn(u64) -> LayerEvent) -> impl Iterator<Item = Vec<u8>> {
    (0..count / CHUNK).map(move |n| {
        let events = (n * CHUNK..(n + 1) * CHUNK).map(&event).collect();
        batch(n, events, watermark.min((n + 1) * CHUNK))
    })
}

fn pair(n: u64) -> LayerEvent {
    let ids = [0, 1, 2].map(|of| load::span(3 * n + of));
    LayerEvent::Pair(PairEvent::bare(ids, load::task(1), DISK, [n, n + 1].map(MonotonicNs)))
}

fn sources() -> Bound {
    let max = 4_096;
    let of = |node| {
        let begin = LayerEvent::Task(TaskEvent::bare(load::task(1), MonotonicNs(1), "database"));
        let batch = EventBatch {
            source: load::source(node),
            events: vec![begin, pair(node)],
            watermark: MonotonicNs(u64::MAX),
            ..EventBatch::tick()
        };
        v1::encode(&batch)
    };
    offer::<JoinStage>(JoinStageConfig::new(PARTITIONS), "sources", max, (0..2 * max).map(of))
}

fn open_traces() -> Bound {
    let max = 65_536;
    let records = batches(2 * max, u64::MAX, pair);
    offer::<JoinStage>(JoinStageConfig::new(PARTITIONS), "open traces", max, records)
}

fn window() -> Bound {
    let max = 262_144;
    let write = SyscallId::by_name("pwrite64").unwrap();
    let call = move |n| {
        let times = [n, n + 1].map(MonotonicNs);
        LayerEvent::Syscall(SyscallEvent::bare(load::span(n), load::task(1), write, times[0], times[1]))
    };
    offer::<JoinStage>(JoinStageConfig::new(PARTITIONS), "window", max, batches(2 * max, 0, call))
}

fn names() -> Bound {
    let max = 65_536;
    let task = |n| LayerEvent::Task(TaskEvent::bare(load::task(n), MonotonicNs(n), &format!("database-{n}")));
    let records = batches(2 * max, u64::MAX, task);
    offer::<JoinStage>(JoinStageConfig::new(PARTITIONS), "names", max, records)
}

fn fragments(origin: u64, first: u64, fragments: Vec<TraceFragment>) -> Vec<u8> {
    let origin = FragmentOrigin { stage: StageId::Join, partition: 0, incarnation: Incarnation(origin) };
    v1::encode_fragments(&FragmentBatch { origin, first, fragments })
}

fn origins() -> Bound {
    let max = 4_096;
    let trace = |n: u64| TraceFragment::link_only(TraceId(u128::from(n) + 1), RemoteLink::None);
    let records = (0..2 * max).map(|n| fragments(n, 0, vec![trace(n)]));
    let config = AssembleStageConfig::new(PARTITIONS, SamplingRules::default());
    offer::<AssembleStage>(config, "origins", max, records)
}

fn endpoints() -> Bound {
    let max = 65_536;
    let endpoint = |n: u64| {
        let key = RpcKey {
            protocol: "nbd".into(),
            connection: format!("10.0.{}.{}:41234>10.0.0.2:10809", n / 256 % 256, n % 256).into(),
            cookie: n,
        };
        let (span, times) = (SpanId(n + 1), [n, n + 1].map(MonotonicNs));
        let bare = RpcEndpointEvent::bare(span, RpcSide::Server, key, times);
        let event = RpcEndpointEvent { unique: true, ..bare };
        let clock = NodeClock { source: load::source(1), anchor: EventBatch::tick().anchor };
        let trace = load::source(1).trace_id(span);
        TraceFragment::link_only(
            trace,
            RemoteLink::Endpoint(LinkEndpoint { event, trace, clock, peer: None, image: None }.into()),
        )
    };
    let record = |n: u64| fragments(1, n * CHUNK, (n * CHUNK..(n + 1) * CHUNK).map(endpoint).collect());
    let records = (0..2 * max / CHUNK).map(record);
    offer::<LinkStage>(LinkStageConfig::new(PARTITIONS), "waiting endpoints", max, records)
}

/// Server traces while the link stage is down. The bound is in bytes: 512 MiB among all partitions.
fn waiting_traces(partitions: u32) -> Bound {
    let max = (512 << 20) / u64::from(partitions);
    let server = super::server_fragment();
    let config = AssembleStageConfig::new(partitions, SamplingRules::default());
    let encoded = fragments(1, 0, vec![server.clone()]).len() as u64;
    let count = 2 * max / encoded;
    let trace = |n: u64| {
        let trace = TraceId(u128::from(n) + 1);
        let spans = server.spans.iter().map(|span| blkkin_wire::span::Span { trace, ..span.clone() });
        TraceFragment { trace, spans: spans.collect(), ..server.clone() }
    };
    let records = (0..count).map(|n| fragments(1, n, vec![trace(n)]));
    offer::<AssembleStage>(config, "traces that await the link stage", max, records)
}
