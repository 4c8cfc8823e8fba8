//! Parents of block I/O in the hard cases: a scheduler merges bios of several programs into one
//! request, workers of io_uring submit for a program, and a journal writes what an fsync waits for.
//!
//! *Input*: fio and hand-made submissions on a loop device with a merging scheduler. The sector of
//! a bio identifies its program, and `/sys/block/*/stat` gives the number of requests.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::fs;
use std::path::Path;

use blkkin_tracer::{Detail, TracerConfig};
use blkkin_wire::event::{BioEvent, RequestEvent, Submitter};
use blkkin_wire::ids::SpanId;

use crate::support;
use crate::support::aio::Iocb;
use crate::support::disk::Disk;
use crate::support::gated_process::GatedProcess;
use crate::support::live::eventually;
use crate::support::missed_ends::{RUNS_MAX, until_complete};
use crate::support::queue::QueueSettings;
use crate::support::recording::{Recording, record, record_one};
use crate::support::single_process::c_path;
use crate::support::{needs, or_skip};

const BLOCK: u64 = 4096;
/// Number of blocks, which are written repeatedly. With `DEPTH` requests in flight every neighbour
/// is there to be merged with.
const SPAN: u64 = 64;
/// Many more than the missed completions that [`until_complete`] tolerates.
const WRITES: u64 = 6144;
const DEPTH: u64 = 32;
/// Requests that the device accepts at once; the scheduler keeps the others and may merge them.
const DEVICE_DEPTH: &str = "4";
const DISK: u64 = 8 << 20;

/// An untraced program writes the even blocks and a traced one the odd ones, so the sector
/// identifies the program.
#[test]
fn bios_merged_into_requests_of_others_keep_their_call() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(DISK));
    let _queue = or_skip!(schedule(&disk));
    let unmerged = disk.statistics();
    let mut other = GatedProcess::program(
        &fio(disk.node(), &["--rw=write:4k", "--offset=0", "--time_based", "--runtime=600"]),
        &disk.file("other.out"),
    );
    other.release();
    assert!(eventually(|| disk.statistics() != unmerged), "the other program writes nothing");
    let args = fio(disk.node(), &["--rw=write:4k", "--offset=4k", &format!("--io_size={}", WRITES * BLOCK)]);
    // Merging is up to the scheduler; a run without a merge proves nothing.
    let mut merged =
        (0..RUNS_MAX).map(|_| merged_into_others(&until_complete(|| trace(&args, &disk)), &disk));
    assert!(merged.any(|merged| merged > 0), "no traced bio was merged into the other program's requests");
}

/// Returns the number of odd-block bios that ended in the other program's requests, and asserts
/// that no bio has a wrong parent.
fn merged_into_others(recording: &Recording, disk: &Disk) -> usize {
    let bios = writes(recording, disk);
    assert_eq!(bios.len() as u64, WRITES);
    assert!(bios.iter().all(|bio| bio.sector.0 / 8 % 2 == 1 && u64::from(bio.bytes) == BLOCK));
    assert_children_of_submissions(recording, disk);
    let requests = requests(recording, disk);
    for bio in &bios {
        // A bio without a traced request was merged into a request of the other program.
        let Some(request_span) = bio.request else { continue };
        let request = requests[&request_span];
        let (from, to) = (request.sector.0, request.sector.0 + u64::from(request.bytes) / 512);
        assert!(bio.sector.0 >= from && bio.sector.0 + 8 <= to, "{bio:#?} in {request:#?}");
    }
    for request in requests.values() {
        let originating_bio = bios.iter().find(|bio| Some(bio.span) == request.parent);
        assert!(originating_bio.is_some_and(|bio| bio.root == request.root), "{request:#?}");
        let bios_merged = bios.iter().filter(|bio| bio.request == Some(request.span)).count();
        assert_eq!(bios_merged, usize::from(request.bios), "{request:#?}");
    }
    let merged = bios.iter().filter(|bio| bio.request.is_none()).count();
    println!("{merged} of {} bios ended in requests of the other program", bios.len());
    merged
}

/// Every request that the kernel counts is recorded, and requests that were merged away are not
/// expected.
#[test]
fn requests_that_were_merged_away_are_not_expected() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(DISK));
    let _queue = or_skip!(schedule(&disk));
    let args =
        fio(disk.node(), &["--rw=randwrite", "--norandommap", &format!("--io_size={}", WRITES * BLOCK)]);
    let mut counted = disk.statistics();
    let recording = until_complete(|| {
        let before = disk.statistics();
        let recording = trace(&args, &disk);
        counted = disk.statistics().since(before);
        recording
    });
    let bios = writes(&recording, &disk);
    assert_eq!(bios.len() as u64, WRITES);
    assert_children_of_submissions(&recording, &disk);
    let requests = requests(&recording, &disk);
    assert_eq!(requests.len() as u64, counted.requests);
    assert!(counted.requests < WRITES, "nothing was merged");
    assert!(
        bios.iter().all(|bio| bio.request.is_some_and(|request_span| requests.contains_key(&request_span)))
    );
}

/// Batch of every second block, followed by the blocks between. Each block starts as a separate
/// request, and merges leave one request with all of them.
#[test]
fn a_batch_of_requests_that_become_one() {
    const PAIRS: u64 = 8;
    needs!("losetup");
    let disk = or_skip!(Disk::raw(DISK));
    let _queue = or_skip!(schedule(&disk));
    let target = c_path(disk.node());
    let even = (0..PAIRS).map(|i| 2 * i);
    let blocks: Vec<u64> = even.clone().chain(even.map(|block| block + 1)).collect();
    let recording = until_complete(|| {
        let mut process = GatedProcess::new(|| write_in_one_batch(&target, &blocks));
        record_one(&mut process)
    });
    let bios = writes(&recording, &disk);
    assert_eq!(bios.len() as u64, 2 * PAIRS);
    assert_children_of_submissions(&recording, &disk);
    let requests: Vec<_> = requests(&recording, &disk).into_values().collect();
    let recorded: Vec<_> =
        requests.iter().map(|request| (request.sector.0, u64::from(request.bytes), request.bios)).collect();
    assert_eq!(recorded, [(0, 2 * PAIRS * BLOCK, 2 * PAIRS as u16)]);
    assert!(bios.iter().all(|bio| bio.request == Some(requests[0].span)));
    assert_eq!(bios.iter().filter(|bio| bio.first).count(), 1);
}

/// Workers of io_uring, for which no fork event exists, submit bios for the program. They belong to
/// its process, and each bio to the submission that asked for its block.
#[test]
fn workers_of_io_uring_belong_to_the_program() {
    needs!("fio", "losetup");
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    if !["", "0", "1"].contains(&disabled.trim()) {
        support::skip!("this kernel's io_uring is switched off");
    }
    let disk = or_skip!(Disk::raw(DISK));
    for (option, worker) in [("--force_async=1", "iou-wrk-"), ("--sqthread_poll=1", "iou-sqp-")] {
        let size = format!("--io_size={}", WRITES * BLOCK);
        let args =
            fio(disk.node(), &["--ioengine=io_uring", option, "--rw=randwrite", "--norandommap", &size]);
        let recording = until_complete(|| trace(&args, &disk));
        // A bio that may not wait for a tag fails at once, without a request, and is submitted
        // again.
        let (refused, bios): (Vec<&BioEvent>, Vec<&BioEvent>) =
            writes(&recording, &disk).into_iter().partition(|bio| bio.request.is_none());
        assert!(refused.iter().all(|bio| !bio.status.is_ok()), "{option}");
        assert_eq!(bios.len() as u64, WRITES, "{option}");
        let tasks: HashMap<_, _> = recording.tasks().map(|task| (task.task.id, task)).collect();
        // With a polling worker this may be the only call.
        let callers: HashSet<_> =
            recording.calls_named("io_uring_setup").iter().map(|call| call.task.id).collect();
        let pids: HashSet<_> = callers.iter().map(|task| tasks[task].pid).collect();
        let submissions: HashMap<Submitter, _> =
            recording.async_ios().map(|io| (Submitter::Span(io.span), io)).collect();
        for bio in &bios {
            let queued_by = tasks[&bio.task.id];
            assert!(pids.contains(&queued_by.pid) && !callers.contains(&bio.task.id), "{queued_by:#?}");
            assert!(queued_by.comm.starts_with("iou-"), "{option}: {queued_by:#?}");
            assert!(queued_by.parent.is_some_and(|parent| tasks.contains_key(&parent)), "{queued_by:#?}");
            let io = submissions.get(&bio.submitter).expect("the bio's submission");
            assert_eq!((bio.root, io.root()), (io.root(), bio.root), "{option}: {bio:#?}");
            assert_eq!(io.offset, Some((bio.sector.0 * 512) as i64), "{option}: {io:#?}");
        }
        let by_worker = bios.iter().filter(|bio| tasks[&bio.task.id].comm.starts_with(worker)).count();
        println!("{option}: {by_worker} of {WRITES} by {worker}*");
        assert!(by_worker > 0, "{option}");
        let requests = requests(&recording, &disk);
        assert!(
            bios.iter()
                .all(|bio| bio.request.is_some_and(|request_span| requests.contains_key(&request_span)))
        );
    }
}

/// An fsync whose data the journal wrote has no bio of its own, and still counts as block I/O.
#[test]
fn an_fsync_served_by_the_journal_is_kept_as_block_io() {
    const FILES: usize = 5;
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(16 << 20));
    let config = TracerConfig { detail: Detail::Requests, ..TracerConfig::default() };
    let synced = |name: &CString| {
        // SAFETY: a string that outlives the call.
        unsafe {
            let fd = libc::open(name.as_ptr(), libc::O_WRONLY | libc::O_CREAT, 0o600);
            libc::fsync(fd) == 0 && libc::close(fd) == 0
        }
    };
    let mut runs = 0..;
    let recording = until_complete(|| {
        // New files in each run.
        let run: u32 = runs.next().unwrap();
        let names: Vec<_> =
            (0..FILES).map(|i| c_path(&disk.mount_point().join(format!("{run}-{i}")))).collect();
        let mut process = GatedProcess::new(|| i32::from(!names.iter().all(synced)));
        record(&config, &mut [&mut process])
    });
    let syncs = recording.calls_named("fsync");
    assert_eq!(syncs.len(), FILES, "{:?}", recording.counts());
    assert!(syncs.iter().all(|call| call.sync_tid.is_some()), "{syncs:#?}");
}

/// Sets a scheduler that merges, in front of a short device queue.
fn schedule(disk: &Disk) -> Result<QueueSettings, String> {
    // Without a scheduler the number is the depth of the device, which keeps it.
    let settings = [("scheduler", "none"), ("nr_requests", DEVICE_DEPTH), ("scheduler", "mq-deadline")];
    QueueSettings::set(disk, &settings)
}

/// Builds fio's command on a few blocks, in one process without children.
fn fio(target: &Path, more: &[&str]) -> Vec<String> {
    let name = format!("--filename={}", target.display());
    let (size, depth, block) =
        (format!("--size={}", SPAN * BLOCK), format!("--iodepth={DEPTH}"), format!("--bs={BLOCK}"));
    let fixed = [
        "fio",
        "--name=t",
        "--thread",
        "--ioengine=libaio",
        "--direct=1",
        "--allow_file_create=0",
        "--eta=never",
        &name,
        &size,
        &depth,
        &block,
    ];
    fixed.iter().chain(more).map(|word| (*word).to_owned()).collect()
}

fn trace(args: &[String], disk: &Disk) -> Recording {
    let mut process = GatedProcess::program(args, &disk.file("fio.out"));
    record_one(&mut process)
}

fn writes<'a>(recording: &'a Recording, disk: &Disk) -> Vec<&'a BioEvent> {
    let device = disk.device();
    recording.bios().filter(|bio| bio.device == device && bio.op.is_write()).collect()
}

fn requests<'a>(recording: &'a Recording, disk: &Disk) -> HashMap<SpanId, &'a RequestEvent> {
    let device = disk.device();
    let writes = recording.requests().filter(|request| request.device == device && request.op.is_write());
    writes.map(|request| (request.span, request)).collect()
}

/// Asserts that each bio belongs to the submission of its block, and each call has its number of
/// submissions. Each request must be a descendant of one of these calls.
fn assert_children_of_submissions(recording: &Recording, disk: &Disk) {
    let calls: HashMap<SpanId, _> =
        recording.calls_named("io_submit").iter().map(|call| (call.span, *call)).collect();
    let submissions: HashMap<Submitter, _> =
        recording.async_ios().map(|io| (Submitter::Span(io.span), io)).collect();
    let mut counts: HashMap<SpanId, u32> = HashMap::new();
    for io in submissions.values() {
        *counts.entry(io.submitter.unwrap()).or_default() += 1;
    }
    for bio in writes(recording, disk) {
        let io = submissions[&bio.submitter];
        assert_eq!((io.root(), io.offset), (bio.root, Some((bio.sector.0 * 512) as i64)), "{bio:#?} {io:#?}");
        assert_eq!(io.bios, 1, "{io:#?}");
        let call = calls[&bio.root];
        assert!(call.enter <= bio.queue && bio.queue <= call.exit && bio.task.id == call.task.id, "{bio:#?}");
        assert!(io.start <= bio.queue && bio.end == io.end, "{bio:#?} {io:#?}");
    }
    for call in calls.values() {
        assert_eq!(counts.get(&call.span).copied().unwrap_or(0), call.bios, "{call:#?}");
    }
    for request in requests(recording, disk).values() {
        assert!(calls.contains_key(&request.root), "{request:#?}");
    }
}

/// Writes these blocks with direct I/O in one io_submit, in this order, and waits for all of them.
fn write_in_one_batch(target: &CStr, blocks: &[u64]) -> i32 {
    const PWRITE: u16 = 1;
    let page = vec![7u8; 2 * BLOCK as usize];
    let buffer = page.as_ptr().wrapping_add(page.as_ptr().align_offset(BLOCK as usize)) as u64;
    // SAFETY: a string, blocks and a page that outlive the calls.
    unsafe {
        let fd = libc::open(target.as_ptr(), libc::O_WRONLY | libc::O_DIRECT) as u32;
        let iocb = |block: &u64| Iocb {
            opcode: PWRITE,
            fd,
            buffer,
            bytes: BLOCK,
            offset: (block * BLOCK) as i64,
            ..Iocb::default()
        };
        let batch: Vec<Iocb> = blocks.iter().map(iocb).collect();
        let pointers: Vec<*const Iocb> = batch.iter().map(|iocb| &raw const *iocb).collect();
        // `struct io_event` is four words.
        let (mut context, mut events) = (0u64, vec![[0u64; 4]; blocks.len()]);
        let all = blocks.len() as i64;
        let nothing = std::ptr::null::<libc::timespec>();
        let done = libc::syscall(libc::SYS_io_setup, all, &raw mut context) == 0
            && libc::syscall(libc::SYS_io_submit, context, all, pointers.as_ptr()) == all
            && libc::syscall(libc::SYS_io_getevents, context, all, all, events.as_mut_ptr(), nothing) == all
            && events.iter().all(|event| event[2] == BLOCK);
        i32::from(!done)
    }
}
