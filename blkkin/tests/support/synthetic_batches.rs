//! Synthetic event batches of agents on several nodes, a deterministic function of the node and the
//! number of calls.
//!
//! They contain calls with and without I/O, journal commits with waiting calls, lost and late
//! records, and repeated batches.

use std::collections::BTreeMap;

use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::event::{
    BioEvent, BlockStatus, CommitEvent, DeviceEvent, FileEvent, LayerEvent, OpenFile, PairEvent,
    RequestEvent, SyscallEvent, SyscallOutcome, TaskEvent, TaskRef,
};
use blkkin_wire::ids::{
    BootId, DeviceId, Fd, FileId, NameId, NodeId, Sector, Source, SpanId, StartEpoch, TaskId,
};
use blkkin_wire::syscalls::SyscallId;

/// Nanoseconds from one call to the next. 10,000 calls are 100 s, longer than a trace may wait for
/// its records.
const STEP: u64 = 10_000_000;
const BATCH: usize = 500;
const DISK: DeviceId = DeviceId { major: 7, minor: 1 };
const TASK: TaskRef = TaskRef { id: TaskId(1), version: 0 };
const FILE: FileId = FileId { device: DISK, ino: 12, generation: 1, name: NameId::NONE };

/// Returns all batches of a node in order, some of them twice. The last watermark states that no
/// more events follow.
#[allow(dead_code, reason = "aggregator's tests use a part of this file")]
pub(crate) fn batches(node: u128, calls: u64) -> Vec<EventBatch> {
    batches_of_start(node, 0, calls)
}

/// Returns the batches of a start of the node's tracer. Starts differ in their ids.
pub(crate) fn batches_of_start(node: u128, start: u64, calls: u64) -> Vec<EventBatch> {
    let epoch = StartEpoch((start << 8) + node as u64 + 1);
    let source = Source { node: NodeId(node), boot: BootId(7), epoch };
    let (mut events, mut late) = (metadata(), Vec::new());
    for n in 1..=calls {
        call((start << 8) + node as u64, n, &mut events, &mut late);
    }
    // A stable sort: records that the kernel wrote at one time keep their order.
    events.sort_by_key(LayerEvent::time);
    let wallclock = WallclockNs(1_700_000_000_000_000_000);
    let anchor = ClockAnchor { wallclock, uncertainty: DurationNs(100), ..ClockAnchor::NONE };
    let batch = |sequence, events: Vec<LayerEvent>, watermark| {
        let watermark = MonotonicNs(watermark);
        EventBatch { source, sequence, anchor, events, watermark, ..EventBatch::tick() }
    };
    let mut batches = Vec::new();
    let mut sequence = 0;
    for events in events.chunks(BATCH) {
        // A watermark lags a little, as with real rings.
        let watermark = events.last().map_or(0, |event| event.time().0.saturating_sub(STEP));
        batches.push(batch(sequence, events.to_vec(), watermark));
        if sequence % 20 == 7 {
            batches.push(batch(sequence, events.to_vec(), watermark));
        }
        sequence += 1;
    }
    let end = (calls + 20_000) * STEP;
    batches.push(batch(sequence, late, end));
    batches.push(batch(sequence + 1, Vec::new(), u64::MAX));
    batches
}

/// Counts the events of batches.
#[allow(dead_code, reason = "aggregator's tests use a part of this file")]
pub(crate) fn event_count(batches: &[EventBatch]) -> usize {
    batches.iter().map(|batch| batch.events.len()).sum()
}

/// Returns the number of events and names that a join makes of these batches of all nodes: each batch once, and a pair as
/// two events.
#[allow(dead_code, reason = "aggregator's tests use a part of this file")]
pub(crate) fn joined_event_count(all: &[Vec<EventBatch>]) -> u64 {
    let once: BTreeMap<_, _> =
        all.iter().flatten().map(|batch| ((batch.source, batch.sequence), batch)).collect();
    let events = || once.values().flat_map(|batch| &batch.events);
    let pairs = events().filter(|event| matches!(event, LayerEvent::Pair(_))).count();
    assert!(pairs > 0);
    (events().count() + pairs) as u64
}

fn span(node: u64, n: u64) -> SpanId {
    let mut z = (node << 40 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    SpanId(z ^ (z >> 31) | 1)
}

fn call(node: u64, n: u64, events: &mut Vec<LayerEvent>, late: &mut Vec<LayerEvent>) {
    let start = 1_000 + n * STEP;
    let root = span(node, 4 * n);
    let (bio, request) = io(root, span(node, 4 * n + 1), span(node, 4 * n + 2), start, n);
    let written = |bios, exit| SyscallEvent {
        args: [3, 0x7f00, 4096, n * 4096, 0, 0],
        outcome: SyscallOutcome::Returned(4096),
        file: Some(OpenFile { fd: Fd(3), file: FILE, position_before: None, position_after: None }),
        bios,
        sleeps: bios,
        cpu_wait: DurationNs(n % 100).into(),
        ..SyscallEvent::bare(
            root,
            TASK,
            SyscallId::by_name("pwrite64").unwrap(),
            MonotonicNs(start),
            MonotonicNs(exit),
        )
    };
    match n % 8 {
        0 => {
            let times = [start + 10, start + 900].map(MonotonicNs);
            let commit = CommitEvent::bare(span(node, 4 * n + 3), TASK, DISK, n as u32, times);
            events.push(LayerEvent::Commit(commit));
            let sync = SyscallId::by_name("fdatasync").unwrap();
            let waits = SyscallEvent {
                call: sync,
                args: [3, 0, 0, 0, 0, 0],
                sync_tid: Some(n as u32),
                ..written(0, start + 950)
            };
            events.push(LayerEvent::Syscall(SyscallEvent { outcome: SyscallOutcome::Returned(0), ..waits }));
        }
        1..=3 => events.push(LayerEvent::Syscall(written(0, start + 300))),
        4 => events.extend([
            LayerEvent::Pair(PairEvent { bio, request }),
            LayerEvent::Syscall(written(1, start + 700)),
        ]),
        _ => {
            events.extend([LayerEvent::Request(request), LayerEvent::Syscall(written(1, start + 700))]);
            match n % 40 {
                // Lost.
                5 => {}
                // Too late for its trace.
                6 => late.push(LayerEvent::Bio(bio)),
                _ => events.push(LayerEvent::Bio(bio)),
            }
        }
    }
}

fn io(root: SpanId, bio: SpanId, request: SpanId, start: u64, n: u64) -> (BioEvent, RequestEvent) {
    let pair = PairEvent::bare([root, bio, request], TASK, DISK, [start + 50, start + 600].map(MonotonicNs));
    let (sector, status) = (Sector(8 * n), BlockStatus(if n.is_multiple_of(101) { 10 } else { 0 }));
    let issue = Some(MonotonicNs(start + 100));
    (BioEvent { sector, status, ..pair.bio }, RequestEvent { issue, sector, status, ..pair.request })
}

/// Returns metadata events, sent once at the beginning. A stage that forgets them gives all traces
/// different tags.
fn metadata() -> Vec<LayerEvent> {
    let time = MonotonicNs(1);
    let file = FileEvent::bare(FILE, time, "/srv/data/table");
    let task = TaskEvent::bare(TASK, time, "database");
    let device = DeviceEvent { time, device: DISK, name: "loop1".into(), partition_of: None, disk: None };
    vec![LayerEvent::Device(device), LayerEvent::File(file), LayerEvent::Task(task)]
}
