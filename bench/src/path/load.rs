//! Simulated nodes of the cluster: events at a rate, sent like those of agents.
//!
//! Each node has a thread that uses the agent's batcher and producer. A node's tracer polls its
//! rings every 20 ms, so each 20 ms there is a batch of the events since then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use blkkin_bus::kafka::{BatcherConfig, EventBatcher, EventProducer, Record, Sent, Settings};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::event::{
    BioEvent, DeviceEvent, LayerEvent, OpenFile, PairEvent, RequestEvent, SyscallEvent, SyscallOutcome,
    TaskEvent, TaskRef,
};
use blkkin_wire::ids::{
    BootId, DeviceId, Fd, FileId, NameId, NodeId, Sector, Source, SpanId, StartEpoch, TaskId,
};
use blkkin_wire::syscalls::SyscallId;

use crate::process::now_us;

/// System call, bio and request, as the accounting counts them.
pub(super) const EVENTS_PER_REQUEST: u64 = 3;
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time from the entry of a system call to its return.
const SYSCALL_NS: u64 = 100_000;
const DISK: DeviceId = DeviceId { major: 259, minor: 0 };
const TASK: TaskRef = TaskRef { id: TaskId(1), version: 0 };
const FILE: FileId = FileId { device: DISK, ino: 12, generation: 1, name: NameId::NONE };

/// Running nodes.
pub(super) struct Nodes {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
    /// Events that each node has delivered; a pair counts as one.
    delivered: Arc<[AtomicU64]>,
}

impl Nodes {
    /// Starts this number of nodes with this total rate of requests.
    pub(super) fn start(settings: &Settings, nodes: u64, requests: u64) -> Nodes {
        let stop = Arc::new(AtomicBool::new(false));
        let delivered: Arc<[AtomicU64]> = (0..nodes).map(|_| AtomicU64::new(0)).collect();
        let node = |n| {
            let (settings, stop, delivered) = (settings.clone(), Arc::clone(&stop), Arc::clone(&delivered));
            let report_delivered = move |events| {
                if let Some(of_node) = delivered.get(n as usize - 1) {
                    of_node.store(events, Relaxed);
                }
            };
            std::thread::spawn(move || send(&settings, n, requests / nodes, &stop, report_delivered))
        };
        Nodes { threads: (1..=nodes).map(node).collect(), stop, delivered }
    }

    /// Returns the delivered events.
    pub(super) fn delivered(&self) -> u64 {
        // A pair is one event for the producer, and two in the accounting.
        self.delivered.iter().map(|of_node| of_node.load(Relaxed)).sum::<u64>() * EVENTS_PER_REQUEST / 2
    }

    /// Stops the nodes.
    pub(super) fn finish(self) -> Result<()> {
        self.stop.store(true, Relaxed);
        self.threads.into_iter().try_for_each(|thread| thread.join().ok().context("a node panicked")?)
    }
}

fn send(settings: &Settings, node: u64, rate: u64, stop: &AtomicBool, delivered: impl Fn(u64)) -> Result<()> {
    let producer = EventProducer::new(settings, NodeId(u128::from(node)))?;
    let mut batcher = EventBatcher::new(BatcherConfig::default(), 0);
    let started = Instant::now();
    // The clock of the events starts with the node; the anchor maps it to wall-clock time.
    let wallclock = WallclockNs(now_us() * 1_000);
    let anchor = ClockAnchor { wallclock, uncertainty: DurationNs(100), ..ClockAnchor::NONE };
    let source =
        Source { node: NodeId(u128::from(node)), boot: BootId(7), epoch: StartEpoch(wallclock.0 ^ node) };
    let (mut issued, mut events) = (0, initial_events());
    while !stop.load(Relaxed) {
        std::thread::sleep(POLL_INTERVAL);
        let now = started.elapsed();
        while issued < (now.as_secs_f64() * rate as f64) as u64 {
            issued += 1;
            // Evenly spaced: the events of this poll began since the last one.
            request(node, issued, SYSCALL_NS + issued * 1_000_000_000 / rate, &mut events);
        }
        let (watermark, events) = (MonotonicNs(now.as_nanos() as u64), std::mem::take(&mut events));
        let batch = EventBatch { source, anchor, events, watermark, ..EventBatch::tick() };
        for record in batcher.add(batch, Instant::now()).records {
            enqueue(&producer, record, stop)?;
        }
        delivered(producer.stats().delivered);
    }
    for record in batcher.take().records {
        enqueue(&producer, record, stop)?;
    }
    delivered(producer.finish(Duration::from_secs(20)).delivered);
    Ok(())
}

fn enqueue(producer: &EventProducer, record: Record, stop: &AtomicBool) -> Result<()> {
    match producer.send(record, || stop.load(Relaxed))? {
        Sent::Queued | Sent::Full(_) => Ok(()),
    }
}

fn span(node: u64, n: u64) -> SpanId {
    let mut z = (node << 48 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    SpanId(z ^ (z >> 31) | 1)
}

/// Adds a write of 4 KiB that ended at `exit`.
fn request(node: u64, n: u64, exit: u64, events: &mut Vec<LayerEvent>) {
    let [root, bio, request] = [3 * n, 3 * n + 1, 3 * n + 2].map(|n| span(node, n));
    let enter = exit - SYSCALL_NS;
    let pair =
        PairEvent::bare([root, bio, request], TASK, DISK, [enter + 2_000, exit - 5_000].map(MonotonicNs));
    let sector = Sector(8 * n);
    let bio = BioEvent { sector, ..pair.bio };
    let request = RequestEvent {
        start: MonotonicNs(enter + 3_000),
        issue: Some(MonotonicNs(enter + 4_000)),
        sector,
        tag: Some((n % 64) as u32),
        ..pair.request
    };
    let call = SyscallEvent {
        args: [3, 0x7f00_0000, 4096, n * 4096, 0, 0],
        outcome: SyscallOutcome::Returned(4096),
        file: Some(OpenFile { fd: Fd(3), file: FILE, position_before: None, position_after: None }),
        bios: 1,
        sleeps: 1,
        cpu_wait: DurationNs(n % 1_000).into(),
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

fn initial_events() -> Vec<LayerEvent> {
    let time = MonotonicNs(1);
    let task = TaskEvent::bare(TASK, time, "database");
    let device = DeviceEvent { time, device: DISK, name: "nvme0n1".into(), partition_of: None, disk: None };
    vec![LayerEvent::Device(device), LayerEvent::Task(task)]
}
