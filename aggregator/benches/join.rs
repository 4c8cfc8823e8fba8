//! ns an event for the join: 1 M events, of which 60 % are calls without bios and 40 % belong to calls with one bio
//! and its request. Prints one line; the fastest of several rounds, since whatever else runs only adds.
#![allow(clippy::print_stdout, reason = "its output is what it is for")]

use std::time::Instant;

use blkkin_aggregator::join::{JoinConfig, Joiner};
use blkkin_wire::batch::{Accounts, EventBatch};
use blkkin_wire::calls::CallId;
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::event::{
    BioEvent, BlockOp, BlockStatus, CallEvent, Ending, FileEvent, Kept, LayerEvent, OpenFile, RequestEvent,
    Submitter, TaskChange, TaskEvent, TaskRef,
};
use blkkin_wire::ids::{
    BootId, CgroupId, DeviceId, Fd, FileId, NodeId, Pid, Sector, Source, SpanId, StartEpoch, TaskId, Tid, Uid,
};

const EVENTS: usize = 1_000_000;
/// What a tracer that drains every 10 ms at 400,000 events/s sends at a time.
const BATCH: usize = 4_096;
const ROUNDS: usize = 7;
/// ns from one call's begin to the next.
const STEP: u64 = 2_000;
const TASKS: u64 = 16;
const FILES: u64 = 256;
const DISK: DeviceId = DeviceId { major: 7, minor: 0 };

fn main() {
    let best = (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min);
    println!("join: {best:.1} ns/event, {:.2} M events/s, {EVENTS} events", 1e3 / best);
}

/// ns an event. Events are made a batch at a time, as a decoder makes them, and traces are dropped as a consumer
/// would drop them, both outside of what is measured.
fn round() -> f64 {
    let mut joiner = Joiner::new(JoinConfig::default());
    let (mut spent, mut traces, mut out) = (0_u128, 0, Vec::new());
    let (mut n, mut sequence, mut events) = (0, 0, names().collect::<Vec<_>>());
    let mut made = 0;
    while made < EVENTS {
        while events.len() < BATCH {
            n += 1;
            events.extend(next(n));
        }
        made += events.len();
        // Events of one `n` end before those of the next begin.
        let batch = batch(sequence, std::mem::take(&mut events), MonotonicNs((n + 1) * STEP));
        sequence += 1;
        let start = Instant::now();
        joiner.apply(batch, &mut out);
        spent += start.elapsed().as_nanos();
        traces += out.len() as u64;
        out.clear();
    }
    joiner.finish(&mut out);
    assert_eq!(joiner.accounts().traces_complete, traces + out.len() as u64, "{:?}", joiner.accounts());
    spent as f64 / made as f64
}

/// Of 11 calls two have a bio and its request: 9 + 2 × 3 events, 60 % and 40 %.
fn next(n: u64) -> Vec<LayerEvent> {
    match n % 11 {
        0 | 5 => direct(n, n * STEP).into(),
        _ => vec![LayerEvent::Call(call(n, n * STEP, 0))],
    }
}

fn batch(sequence: u64, events: Vec<LayerEvent>, watermark: MonotonicNs) -> EventBatch {
    let source = Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) };
    let (monotonic, wallclock) = (MonotonicNs(0), WallclockNs(1_700_000_000_000_000_000));
    let anchor = ClockAnchor { monotonic, wallclock, uncertainty: DurationNs(100) };
    EventBatch { source, sequence, anchor, events, watermark, accounts: Accounts::default() }
}

fn names() -> impl Iterator<Item = LayerEvent> {
    let tasks = (0..TASKS).map(|n| {
        LayerEvent::Task(TaskEvent {
            time: MonotonicNs(1),
            task: task(n),
            parent: None,
            change: TaskChange::Seen,
            tid: Tid(100 + n as u32),
            pid: Pid(100),
            ppid: Pid(1),
            uid: Uid(0),
            cgroup: CgroupId(1),
            comm: "fio".into(),
            exe: Some(file(0)),
            kernel_thread: false,
        })
    });
    let files = (0..FILES).map(|n| {
        LayerEvent::File(FileEvent {
            time: MonotonicNs(1),
            file: file(n),
            path: format!("/srv/data/file.{n}").into(),
            kept: Kept::Whole,
            filesystem: "ext4".into(),
            device_file: None,
            mode: 0o100_644,
        })
    });
    tasks.chain(files)
}

fn direct(n: u64, time: u64) -> [LayerEvent; 3] {
    let (root, bio, request) = (span(n, 0), span(n, 1), span(n, 2));
    let (device, sector, bytes, op) = (DISK, Sector(n * 8), 4096, BlockOp(1));
    let (status, task, queue) = (BlockStatus(0), task(n % TASKS), MonotonicNs(time + 100));
    let request = RequestEvent {
        span: request,
        parent: Some(bio),
        root,
        task,
        start: queue,
        issue: Some(MonotonicNs(time + 200)),
        complete: MonotonicNs(time + 900),
        device,
        sector,
        bytes,
        op,
        status,
        bios: 1,
        tag: Some(1),
        requeued: false,
        flush_sequence: false,
    };
    let bio = BioEvent {
        span: bio,
        submitter: Submitter::Span(root),
        root,
        task,
        request: Some(request.span),
        first: true,
        split: false,
        queue,
        end: MonotonicNs(time + 910),
        device,
        sector,
        bytes,
        op,
        status,
    };
    [LayerEvent::Request(request), LayerEvent::Bio(bio), LayerEvent::Call(call(n, time, 1))]
}

fn call(n: u64, time: u64, bios: u32) -> CallEvent {
    let file = file(n % FILES);
    CallEvent {
        span: span(n, 0),
        task: task(n % TASKS),
        call: CallId::by_name("pwrite64").expect("invariant: in the table"),
        args: [3, 0x7f00_0000, 4096, n * 4096, 0, 0],
        enter: MonotonicNs(time),
        exit: MonotonicNs(time + 1_000),
        ending: Ending::Returned(4096),
        file: Some(OpenFile { fd: Fd(3), file, position_before: None, position_after: None }),
        second_file: None,
        paths: [None, None],
        paths_kept: Kept::Whole,
        bios,
        sleeps: bios,
        sync_tid: None,
    }
}

/// Mixed as the kernel's are.
fn span(n: u64, layer: u64) -> SpanId {
    let mut z = (n << 2 | layer).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    SpanId(z ^ (z >> 31))
}

fn task(n: u64) -> TaskRef {
    TaskRef { id: TaskId(span(n, 3).0), version: 0 }
}

fn file(n: u64) -> FileId {
    FileId { device: DISK, ino: 1000 + n, generation: 1 }
}
