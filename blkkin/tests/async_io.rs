//! Asynchronous I/O: each submission of io_uring is a span, from its submission to its completion,
//! with its bios below it.
//!
//! *Witness*: the program's own log of the numbers that it gave its submissions, of their offsets,
//! and of its clock around them; the offset is also the block's content, and the sector of the bio. Second:
//! fio's latency log, by offset.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::sync::Arc;
use std::thread;

use blkkin_aggregator::spans;
use blkkin_aggregator::trace::Root;
use blkkin_tracer::{Filter, TracerConfig};
use blkkin_wire::async_io::{AsyncDescriptor, AsyncIoEvent, AsyncIoOutcome};
use blkkin_wire::event::{BioEvent, Submitter};
use blkkin_wire::ids::SpanId;

use crate::support;
use crate::support::disk::{Disk, stat_columns};
use crate::support::fio::asynchronous_reads;
use crate::support::gated_process::GatedProcess;
use crate::support::missed_ends::{RUNS_MAX, until_complete};
use crate::support::recording::{Recording, record, record_one};
use crate::support::tools::is_guest;
use crate::support::uring::{
    Mode, Submission, can_poll, discard, read_log, read_multishot, read_without_completions, write_and_read,
};
use crate::support::{needs, or_skip};

const DEPTH: u64 = 4;
const DISK: u64 = 500 * DEPTH * 4096;

/// Returns the number of calls with `DEPTH` writes, and as many with reads. A guest is emulated, and
/// slow.
fn batches() -> u64 {
    if is_guest() { 50 } else { 500 }
}

/// Returns the number of submissions of a run.
fn all() -> u64 {
    2 * batches() * DEPTH
}

#[test]
fn requests_of_a_call_are_its_children() {
    needs!("losetup");
    let (recording, log) = or_skip!(run(Mode::Plain, DEPTH));
    let calls: HashMap<SpanId, _> =
        recording.calls_named("io_uring_enter").iter().map(|call| (call.span, *call)).collect();
    for io in recording.async_ios() {
        let call = calls[&io.submitter.unwrap()];
        assert!(call.enter < io.start && io.start < call.exit && io.end < call.exit, "{io:#?} {call:#?}");
        assert!(matches!(io.descriptor, Some(AsyncDescriptor::Descriptor(_))), "{io:#?}");
        assert_eq!(io.ring_flags & 0b11, 0, "{io:#?}");
    }
    assert_eq!(log.len() as u64, all());
    // What would block the call is queued for a worker, which submits it again. The kernel decides on it:
    // of a batch of four, three or none, as the device was set up.
    let tasks: HashMap<_, _> = recording.tasks().map(|task| (task.task.id, task)).collect();
    let events: HashMap<SpanId, &AsyncIoEvent> = recording.async_ios().map(|io| (io.span, io)).collect();
    let mut by_workers = HashSet::new();
    for bio in recording.bios() {
        let Submitter::Span(submitter) = bio.submitter else { continue };
        let Some(io) = events.get(&submitter) else { continue };
        let by_worker = tasks[&bio.task.id].comm.starts_with("iou-wrk-");
        assert_eq!(io.queued.is_some_and(|queued| queued <= bio.queue), by_worker, "{bio:#?} {io:#?}");
        by_workers.extend(by_worker.then_some(submitter));
    }
    let queued: HashSet<SpanId> =
        recording.async_ios().filter(|io| io.queued.is_some()).map(|io| io.span).collect();
    println!("{} of {} queued", queued.len(), all());
    assert_eq!(by_workers, queued);
}

/// A call with one request: the program's clock brackets the call, so it is a bound of the latency.
#[test]
fn the_latency_is_that_of_the_program() {
    needs!("losetup");
    let (recording, log) = or_skip!(run(Mode::Plain, 1));
    let own: HashMap<u64, Submission> = log.iter().map(|entry| (entry.user_data, *entry)).collect();
    let mut differences: Vec<u64> = recording
        .async_ios()
        .map(|io| {
            let own = own[&io.user_data];
            assert!(own.before_ns < io.start.0 && io.end.0 < own.after_ns, "{io:#?} {own:?}");
            (own.after_ns - own.before_ns) - io.end.since(io.start).0
        })
        .collect();
    differences.sort_unstable();
    let median = differences[differences.len() / 2];
    println!("median difference to the program's clock: {median} ns of {} submissions", differences.len());
    // The call's way in and out, and the wake-up of a program that waits: 3 to 8 us on a shared machine,
    // 70 us emulated. The limit is that of a wrong clock or a wrong end, not of a busy machine.
    let limit = if is_guest() { 500_000 } else { 50_000 };
    assert!(median < limit, "{median} ns");
}

#[test]
fn requests_of_a_poll_thread_are_roots() {
    needs!("losetup");
    let (recording, _) = or_skip!(run(Mode::Sqpoll, DEPTH));
    for io in recording.async_ios() {
        assert!(io.submitter.is_none() && io.is_submitted_by_poll_thread(), "{io:#?}");
    }
    let roots = recording.traces.iter().filter(|trace| matches!(trace.root, Root::AsyncIo));
    let mut spans_of_roots = 0;
    for trace in roots {
        let spans = spans::spans_of(trace);
        assert!(spans[0].parent.is_none() && spans[0].name.starts_with("io_uring "), "{spans:#?}");
        assert_eq!(spans[1].parent, Some(spans[0].id), "{spans:#?}");
        spans_of_roots += 1;
    }
    assert_eq!(spans_of_roots, all());
}

#[test]
fn requests_of_workers_are_children_of_their_call() {
    needs!("losetup");
    let (recording, _) = or_skip!(run(Mode::Worker, DEPTH));
    let tasks: HashMap<_, _> = recording.tasks().map(|task| (task.task.id, task)).collect();
    let workers = recording.bios().filter(|bio| tasks[&bio.task.id].comm.starts_with("iou-wrk-")).count();
    println!("{workers} bios by workers");
    assert!(workers > 0);
    let queued = recording.async_ios().filter(|io| io.queued.is_some()).count() as u64;
    assert_eq!(queued, all());
}

/// With a filter of devices a call is recorded if it queued a bio there. A request whose bios a worker
/// queues is a root then, because its call may not be recorded.
#[test]
fn requests_of_workers_have_a_root_with_a_filter_of_devices() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(DISK));
    let log = disk.file("log");
    let filter = Filter { devices: vec![disk.device()], ..Filter::default() };
    let config = TracerConfig { filter, ..TracerConfig::default() };
    let recording = until_complete(|| {
        let mut process =
            GatedProcess::new(|| write_and_read(disk.node(), Mode::Worker, batches(), DEPTH, &log));
        record(&config, &mut [&mut process])
    });
    let events: HashMap<SpanId, &AsyncIoEvent> = recording.async_ios().map(|io| (io.span, io)).collect();
    assert_eq!(events.len() as u64, all());
    assert!(recording.traces.iter().all(|trace| !matches!(trace.root, Root::Missing)));
    for bio in recording.bios().filter(|bio| bio.device == disk.device()) {
        let Submitter::Span(submitter) = bio.submitter else { panic!("{bio:#?}") };
        assert_eq!(bio.root, events[&submitter].root(), "{bio:#?}");
    }
}

/// A request that posts no completion ends without one: never by that of an operation which uses its
/// memory after it.
#[test]
fn requests_without_completion_have_no_end() {
    const READS: u64 = 200;
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(64 << 20));
    let path = disk.mount_point().join("file");
    fs::write(&path, [0; 4096]).unwrap();
    let mut process = GatedProcess::new(|| read_without_completions(&File::open(&path).unwrap(), READS));
    let recording = record_one(&mut process);
    let events: Vec<&AsyncIoEvent> = recording.async_ios().collect();
    println!("{} of {READS} requests", events.len());
    // The last one stays open.
    assert!(events.len() as u64 >= READS / 2, "{events:#?}");
    assert!(events.iter().all(|io| io.outcome == AsyncIoOutcome::NoEnd && io.file.is_none()), "{events:#?}");
}

#[test]
fn linked_requests_are_seen_once_each() {
    needs!("losetup");
    let (recording, _) = or_skip!(run(Mode::Linked, DEPTH));
    let linked = recording.async_ios().filter(|io| io.is_linked()).count() as u64;
    assert_eq!(linked, all() / DEPTH * (DEPTH - 1));
}

#[test]
fn registered_files_and_buffers_are_known() {
    needs!("losetup");
    let (recording, _) = or_skip!(run(Mode::Registered, DEPTH));
    for io in recording.async_ios() {
        assert_eq!(io.descriptor, Some(AsyncDescriptor::Registered(0)), "{io:#?}");
        assert!(io.operation().name.ends_with("_fixed"), "{io:#?}");
    }
}

/// Records the program of this mode, and compares each submission with the program's log.
fn run(mode: Mode, depth: u64) -> Result<(Recording, Vec<Submission>), String> {
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    if !["", "0", "1"].contains(&disabled.trim()) {
        return Err("this kernel's io_uring is switched off".to_owned());
    }
    let disk = Disk::raw(DISK)?;
    let log = disk.file("log");
    let recording = until_complete(|| {
        let mut process =
            GatedProcess::new(|| write_and_read(disk.node(), mode, all() / 2 / depth, depth, &log));
        record_one(&mut process)
    });
    let log = read_log(&log);
    assert_each_once(&recording, &log);
    assert_bios(&recording, &disk);
    Ok((recording, log))
}

/// Asserts that each submission of the program is one event, within the program's own times.
fn assert_each_once(recording: &Recording, log: &[Submission]) {
    let mut events: HashMap<u64, &AsyncIoEvent> = HashMap::new();
    for io in recording.async_ios() {
        assert!(events.insert(io.user_data, io).is_none(), "seen twice: {io:#?}");
    }
    assert_eq!((events.len() as u64, log.len() as u64), (all(), all()));
    let mut spans = HashSet::new();
    for own in log {
        let io = events[&own.user_data];
        assert_eq!(io.offset, Some(own.offset as i64), "{io:#?}");
        assert_eq!((io.length, io.outcome), (Some(4096), AsyncIoOutcome::Returned(4096)), "{io:#?}");
        assert!(io.operation().name.contains(if own.is_write { "write" } else { "read" }), "{io:#?}");
        assert!(
            own.before_ns < io.start.0 && io.start < io.end && io.end.0 < own.after_ns,
            "{io:#?} {own:?}"
        );
        assert!(io.file.is_some() && spans.insert(io.span), "{io:#?}");
    }
    let in_traces: usize = recording.traces.iter().map(|trace| trace.async_ios.len()).sum();
    assert_eq!(in_traces as u64, all());
}

/// Asserts that each bio is below the submission of its block, and each submission has its bios.
fn assert_bios(recording: &Recording, disk: &Disk) {
    let events: HashMap<SpanId, &AsyncIoEvent> = recording.async_ios().map(|io| (io.span, io)).collect();
    let mut counts: HashMap<SpanId, u32> = HashMap::new();
    let device = disk.device();
    let bios: Vec<&BioEvent> = recording.bios().filter(|bio| bio.device == device).collect();
    for bio in &bios {
        let Submitter::Span(submitter) = bio.submitter else { panic!("{bio:#?}") };
        let io = events[&submitter];
        assert_eq!(bio.root, io.root(), "{bio:#?} {io:#?}");
        assert_eq!(Some((bio.sector.0 * 512) as i64), io.offset, "{bio:#?} {io:#?}");
        assert!(io.start <= bio.queue && bio.end <= io.end, "{bio:#?} {io:#?}");
        *counts.entry(submitter).or_default() += 1;
    }
    println!("{} bios of {} submissions", bios.len(), events.len());
    assert!(events.values().all(|io| counts.get(&io.span) == Some(&io.bios)));
}

#[test]
fn polled_requests_are_known() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(DISK));
    if !can_poll(disk.node()) {
        support::skip!("this device cannot be polled for completions");
    }
    drop(disk);
    let (recording, _) = or_skip!(run(Mode::Polled, DEPTH));
    assert!(recording.async_ios().all(AsyncIoEvent::is_polled));
}

/// Blocks that are discarded by the device's own command.
const DISCARDS: u64 = 100;

#[test]
fn commands_of_a_device_have_their_bios() {
    needs!("losetup");
    let disk = or_skip!(disk_with_commands());
    let refused = check_commands(&disk);
    println!("{refused} bios refused");
}

/// The kernel freezes the queue for each change of its length. A bio that must not wait for it ends
/// at once, and a worker submits the command again.
#[test]
fn a_command_that_would_block_has_the_bio_of_each_attempt() {
    needs!("losetup");
    let disk = or_skip!(disk_with_commands());
    let length = format!("/sys/block/{}/queue/nr_requests", disk.name());
    // The thread ends with this test, also if it panics.
    let test = Arc::new(());
    let running = Arc::downgrade(&test);
    let changes = thread::spawn(move || {
        for turn in (0_u32..).take_while(|_| running.strong_count() > 0) {
            fs::write(&length, (64 + turn % 2).to_string()).unwrap();
        }
    });
    let refused = (0..RUNS_MAX).map(|_| check_commands(&disk)).find(|refused| *refused > 0);
    drop(test);
    changes.join().unwrap();
    println!("{refused:?} bios refused");
    assert!(refused.is_some(), "no bio was refused in {RUNS_MAX} runs");
}

/// Returns a disk, or why no command can discard its blocks.
fn disk_with_commands() -> Result<Disk, String> {
    let disk = Disk::raw(DISK)?;
    match discard(disk.node(), 1) {
        0 => Ok(disk),
        error if error == -libc::EOPNOTSUPP || error == -libc::EINVAL => {
            Err("this kernel has no discard by io_uring (Linux 6.12 and later)".to_owned())
        }
        error => panic!("{error}"),
    }
}

/// Asserts that each command has one bio that the device executed, and before it those that were
/// refused because they would have blocked. Returns the number of the refused.
fn check_commands(disk: &Disk) -> usize {
    let before = discards(disk);
    let mut runs = 0;
    let recording = until_complete(|| {
        runs += 1;
        let mut process = GatedProcess::new(|| discard(disk.node(), DISCARDS));
        record_one(&mut process)
    });
    assert_eq!(discards(disk) - before, runs * DISCARDS, "the kernel's own count");
    let events: HashMap<SpanId, &AsyncIoEvent> = recording.async_ios().map(|io| (io.span, io)).collect();
    let numbers: HashSet<u64> = events.values().map(|io| io.user_data).collect();
    assert_eq!((events.len() as u64, numbers), (DISCARDS, (0..DISCARDS).collect()));
    for io in events.values() {
        assert_eq!(io.operation().name, "io_uring uring_cmd");
        assert_eq!(io.outcome, AsyncIoOutcome::Returned(0), "{io:#?}");
    }
    let device = disk.device();
    let mut counts: HashMap<SpanId, [u32; 2]> = HashMap::new();
    for bio in recording.bios().filter(|bio| bio.device == device) {
        let Submitter::Span(submitter) = bio.submitter else { panic!("{bio:#?}") };
        let io = events[&submitter];
        let [executed, refused] = counts.entry(submitter).or_default();
        match bio.status.name() {
            "ok" => *executed += 1,
            "would block" => *refused += 1,
            _ => panic!("{bio:#?}"),
        }
        // A worker waits where the call must not.
        let by_worker = io.queued.is_some_and(|queued| queued <= bio.queue);
        assert_eq!(bio.request.is_some(), bio.status.is_ok(), "{bio:#?}");
        assert!(!by_worker || bio.status.is_ok(), "{bio:#?} {io:#?}");
        assert_eq!((bio.sector.0, bio.bytes), (8 * io.user_data, 4096), "{bio:#?} {io:#?}");
        assert!(io.start <= bio.queue && bio.end <= io.end, "{bio:#?} {io:#?}");
    }
    for io in events.values() {
        let [executed, refused] = counts[&io.span];
        assert_eq!((executed, executed + refused), (1, io.bios), "{io:#?}");
    }
    counts.values().map(|[_, refused]| *refused as usize).sum()
}

/// Returns the number of discards that the device has completed, by its own count.
fn discards(disk: &Disk) -> u64 {
    stat_columns(disk.name())[11]
}

/// The kernel reads again and again only from what can be polled (`io_read_mshot` in
/// io_uring/rw.c), so no storage request is one of a multishot request.
#[test]
fn files_and_disks_have_no_multishot_requests() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    let answer = read_multishot(&file);
    if answer == -libc::EINVAL {
        support::skip!("this kernel has no multishot reads (Linux 6.7 and later)");
    }
    assert_eq!(answer, -libc::EBADFD);
    let disk = or_skip!(Disk::raw(DISK));
    assert_eq!(read_multishot(&fs::File::open(disk.node()).unwrap()), -libc::EBADFD);
}

/// Iocbs of libaio, one and several in a call: from the first bio to the end of the last one.
#[test]
fn iocbs_of_libaio_are_children_of_their_call() {
    const BYTES: usize = 4096;
    needs!("losetup");
    for depth in [1, 16] {
        let disk = or_skip!(Disk::raw(DISK));
        let calls = batches() as usize / depth;
        let recording = until_complete(|| {
            let mut process = GatedProcess::new(|| read_iocbs(&disk, depth, calls, BYTES));
            record_one(&mut process)
        });
        let offsets: HashSet<i64> = recording.async_ios().map(|io| io.offset.unwrap()).collect();
        assert_eq!((offsets.len(), recording.async_ios().count()), (depth * calls, depth * calls));
        for io in recording.async_ios() {
            assert_eq!(io.operation().name, "libaio pread", "{io:#?}");
            assert_eq!((io.outcome, io.length), (AsyncIoOutcome::Ended, Some(BYTES as u32)), "{io:#?}");
            assert!(io.file.is_some() && io.bios == 1, "{io:#?}");
        }
        for call in recording.calls_named("io_submit") {
            let own = recording.async_ios().filter(|io| io.submitter == Some(call.span));
            assert_eq!((own.count(), call.bios as usize), (depth, depth));
        }
        assert_bios(&recording, &disk);
    }
}

fn read_iocbs(disk: &Disk, depth: usize, calls: usize, bytes: usize) -> i32 {
    let device = support::direct::open(disk.node());
    let mut aio = support::aio::Aio::new(depth);
    for call in 0..calls {
        let offset = |slot: usize| ((call * depth + slot) * 7 % (calls * depth) * bytes) as u64;
        aio.read(&device, &(0..depth).map(offset).collect::<Vec<_>>(), bytes);
        aio.wait(depth, bytes);
    }
    0
}

/// fio reads each block once, and logs the latency of each by its clock: from before the submission until it
/// has the completion.
#[test]
fn the_latency_of_each_offset_is_within_that_of_fio() {
    needs!("fio", "losetup");
    // The limit is that of `the_latency_is_that_of_the_program`. Deeper, a completion also waits in the ring
    // until fio has handled those before it.
    for (engine, depth, limit_ns) in [
        ("io_uring", 1, Some(50_000)),
        ("libaio", 1, Some(50_000)),
        ("io_uring", 8, None),
        ("libaio", 8, None),
    ] {
        let disk = or_skip!(Disk::raw(DISK));
        let log = disk.file("fio");
        let more = [
            "--log_offset=1".to_owned(),
            "--clocksource=clock_gettime".to_owned(),
            format!("--iodepth={depth}"),
            format!("--write_lat_log={}", log.display()),
        ];
        let args = asynchronous_reads(engine, disk.node(), DISK, &disk.file("fio.out"), &more);
        let recording = until_complete(|| {
            let mut process = GatedProcess::program(&args, &disk.file("program.out"));
            record_one(&mut process)
        });
        let by_fio = latencies_by_fio(&fs::read_to_string(log.with_file_name("fio_lat.1.log")).unwrap());
        let blocks = (DISK / 4096) as usize;
        assert_eq!((by_fio.len(), recording.async_ios().count()), (blocks, blocks), "{engine} at {depth}");
        let mut differences: Vec<u64> = recording
            .async_ios()
            .map(|io| {
                let latency = io.end.since(io.start).0;
                let by_fio = by_fio[&io.offset.unwrap()];
                by_fio.checked_sub(latency).unwrap_or_else(|| panic!("{by_fio} ns by fio: {io:#?}"))
            })
            .collect();
        differences.sort_unstable();
        let median = differences[differences.len() / 2];
        println!("{engine} at {depth}: fio's latency is {median} ns longer at the median of {blocks} reads");
        assert!(limit_ns.is_none_or(|limit| median < limit), "{median} ns");
    }
}

/// Parses lines `TIME_MS, LATENCY_NS, DIRECTION, BYTES, OFFSET, PRIORITY`. Returns latencies by offset.
fn latencies_by_fio(log: &str) -> HashMap<i64, u64> {
    let line = |line: &str| {
        let columns: Vec<i64> = line.split(", ").map(|column| column.parse().unwrap_or(0)).collect();
        (columns[4], columns[1] as u64)
    };
    log.lines().map(line).collect()
}
