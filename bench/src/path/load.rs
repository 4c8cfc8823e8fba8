//! The other nodes of the cluster: events as their agents would send them, at a rate.
//!
//! Made up and sent by the agent's own parts (gatherer, producer) from one thread a node: a node's tracer drains each
//! 20 ms, so each 20 ms there is a batch of what happened meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use blkkin_bus::kafka::{BatcherConfig, EventBatcher, EventProducer, Record, Sent, Settings};
use blkkin_wire::batch::{EventBatch, SourceStats};
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::event::{
    BioEvent, BlockOp, BlockStatus, DeviceEvent, LayerEvent, OpenFile, PairEvent, RequestEvent, Submitter,
    SyscallEvent, SyscallOutcome, TaskChange, TaskEvent, TaskRef,
};
use blkkin_wire::ids::{
    BootId, CgroupId, DeviceId, Fd, FileId, NodeId, Pid, Sector, Source, SpanId, StartEpoch, TaskId, Tid, Uid,
};
use blkkin_wire::syscalls::SyscallId;

use crate::process::now_us;

/// A call, its bio and its request: what the books count.
pub(super) const EVENTS_A_REQUEST: u64 = 3;
const DRAIN_EVERY: Duration = Duration::from_millis(20);
/// From the entry of a call to its return.
const TAKES: u64 = 100_000;
const DISK: DeviceId = DeviceId { major: 259, minor: 0 };
const TASK: TaskRef = TaskRef { id: TaskId(1), version: 0 };
const FILE: FileId = FileId { device: DISK, ino: 12, generation: 1 };

/// Nodes at work.
pub(super) struct Nodes {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
    /// What the cluster has of each, in halves of a pair.
    delivered: Arc<[AtomicU64]>,
}

impl Nodes {
    /// So many, with so many requests a second together.
    pub(super) fn start(settings: &Settings, nodes: u64, requests: u64) -> Nodes {
        let stop = Arc::new(AtomicBool::new(false));
        let delivered: Arc<[AtomicU64]> = (0..nodes).map(|_| AtomicU64::new(0)).collect();
        let node = |n| {
            let (settings, stop, delivered) = (settings.clone(), Arc::clone(&stop), Arc::clone(&delivered));
            let told = move |events| {
                if let Some(of_node) = delivered.get(n as usize - 1) {
                    of_node.store(events, Relaxed);
                }
            };
            std::thread::spawn(move || send(&settings, n, requests / nodes, &stop, told))
        };
        Nodes { threads: (1..=nodes).map(node).collect(), stop, delivered }
    }

    /// Events that the cluster has of them.
    pub(super) fn delivered(&self) -> u64 {
        // A pair is one event to the producer, and two to the books.
        self.delivered.iter().map(|of_node| of_node.load(Relaxed)).sum::<u64>() * EVENTS_A_REQUEST / 2
    }

    /// Ends them.
    pub(super) fn finish(self) -> Result<()> {
        self.stop.store(true, Relaxed);
        self.threads.into_iter().try_for_each(|thread| thread.join().ok().context("a node panicked")?)
    }
}

fn send(settings: &Settings, node: u64, rate: u64, stop: &AtomicBool, delivered: impl Fn(u64)) -> Result<()> {
    let producer = EventProducer::new(settings, NodeId(u128::from(node)))?;
    let mut gatherer = EventBatcher::new(BatcherConfig::default(), 0);
    let begun = Instant::now();
    // The clock of the events begins with the node; its anchor says what that is.
    let wallclock = WallclockNs(now_us() * 1_000);
    let anchor = ClockAnchor { wallclock, uncertainty: DurationNs(100), ..ClockAnchor::NONE };
    let source =
        Source { node: NodeId(u128::from(node)), boot: BootId(7), epoch: StartEpoch(wallclock.0 ^ node) };
    let (mut made, mut events) = (0, names());
    while !stop.load(Relaxed) {
        std::thread::sleep(DRAIN_EVERY);
        let now = begun.elapsed();
        while made < (now.as_secs_f64() * rate as f64) as u64 {
            made += 1;
            // Evenly: what is drained now began since the last time.
            request(node, made, TAKES + made * 1_000_000_000 / rate, &mut events);
        }
        let (watermark, accounts) = (MonotonicNs(now.as_nanos() as u64), SourceStats::default());
        let events = std::mem::take(&mut events);
        let batch = EventBatch {
            source,
            sequence: 0,
            anchor,
            events,
            watermark,
            stats: accounts,
            crashed_runs: Vec::new(),
        };
        for record in gatherer.add(batch, Instant::now()).records {
            hand_over(&producer, record, stop)?;
        }
        delivered(producer.stats().delivered);
    }
    for record in gatherer.take().records {
        hand_over(&producer, record, stop)?;
    }
    delivered(producer.finish(Duration::from_secs(20)).delivered);
    Ok(())
}

fn hand_over(producer: &EventProducer, record: Record, stop: &AtomicBool) -> Result<()> {
    match producer.send(record, || stop.load(Relaxed))? {
        Sent::Queued | Sent::Full(_) => Ok(()),
    }
}

fn span(node: u64, n: u64) -> SpanId {
    let mut z = (node << 48 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    SpanId(z ^ (z >> 31) | 1)
}

/// A write of 4 KiB that ended at this time.
fn request(node: u64, n: u64, exit: u64, events: &mut Vec<LayerEvent>) {
    let [root, bio, request] = [3 * n, 3 * n + 1, 3 * n + 2].map(|n| span(node, n));
    let enter = exit - TAKES;
    let (queue, end) = (MonotonicNs(enter + 2_000), MonotonicNs(exit - 5_000));
    let (op, status, sector) = (BlockOp(1), BlockStatus(0), Sector(8 * n));
    let bio = BioEvent {
        span: bio,
        submitter: Submitter::Span(root),
        root,
        task: TASK,
        request: Some(request),
        first: true,
        split: false,
        queue,
        end,
        device: DISK,
        sector,
        bytes: 4096,
        op,
        status,
    };
    let request = RequestEvent {
        span: request,
        parent: Some(bio.span),
        root,
        task: TASK,
        start: MonotonicNs(enter + 3_000),
        insert: None,
        issue: Some(MonotonicNs(enter + 4_000)),
        complete: end,
        device: DISK,
        sector,
        bytes: 4096,
        op,
        status,
        bios: 1,
        tag: Some((n % 64) as u32),
        plugged: false,
        requeued: false,
        flush_sequence: false,
    };
    let call = SyscallEvent {
        args: [3, 0x7f00_0000, 4096, n * 4096, 0, 0],
        outcome: SyscallOutcome::Returned(4096),
        file: Some(OpenFile { fd: Fd(3), file: FILE, position_before: None, position_after: None }),
        bios: 1,
        sleeps: 1,
        cpu_wait: Some(DurationNs(n % 1_000)),
        ..SyscallEvent::bare(
            root,
            TASK,
            SyscallId::by_name("pwrite64").expect("invariant: the table has it"),
            MonotonicNs(enter),
            MonotonicNs(exit),
        )
    };
    events.extend([LayerEvent::Pair(PairEvent { bio, request }), LayerEvent::Syscall(call)]);
}

fn names() -> Vec<LayerEvent> {
    let time = MonotonicNs(1);
    let task = TaskEvent {
        time,
        task: TASK,
        parent: None,
        change: TaskChange::Discovered,
        tid: Tid(100),
        pid: Pid(100),
        ppid: Pid(1),
        uid: Uid(1000),
        cgroup: CgroupId(1),
        comm: "database".into(),
        exe: None,
        kernel_thread: false,
        ns_ids: None,
    };
    let device = DeviceEvent { time, device: DISK, name: "nvme0n1".into(), partition_of: None };
    vec![LayerEvent::Device(device), LayerEvent::Task(task)]
}
