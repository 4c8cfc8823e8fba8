//! Which call asked for which block I/O, where that is hardest to say: a scheduler merges what several programs asked
//! for, io_uring's workers ask in a program's place, and a journal writes what an fsync waits for.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::fs;
use std::path::Path;

use blkkin_tracer::{Detail, TracerConfig};
use blkkin_wire::event::{BioEvent, RequestEvent, Submitter};
use blkkin_wire::ids::SpanId;

use support::disk::Disk;
use support::gated_process::GatedProcess;
use support::live::eventually;
use support::queue::QueueSettings;
use support::recording::{RUNS_MAX, Recording, record, until_complete};
use support::single_process::c_path;
use support::{needs, or_skip};

const BLOCK: u64 = 4096;
/// So many blocks are written over and over: with as many requests in flight every neighbour is there to be merged with.
const SPAN: u64 = 64;
/// Many against the ends that [`until_complete`] forgives.
const WRITES: u64 = 6144;
const DEPTH: u64 = 32;
/// Requests that the device takes at once: the scheduler keeps the others, and may merge them.
const DEVICE_DEPTH: &str = "4";
const DISK: u64 = 8 << 20;

/// An unfollowed program writes the even blocks and a followed one the odd ones, so a sector says whose it is.
#[test]
fn bios_in_requests_of_others_are_their_own_calls() {
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
    let words = fio(disk.node(), &["--rw=write:4k", "--offset=4k", &format!("--io_size={}", WRITES * BLOCK)]);
    // Whether neighbours meet is the scheduler's matter: a run in which none did shows nothing.
    let mut taken =
        (0..RUNS_MAX).map(|_| carried_by_others(&until_complete(|| follow(&words, &disk)), &disk));
    assert!(taken.any(|taken| taken > 0), "nothing of ours was merged into the other's");
}

/// How many of the odd blocks' bios ended in requests of the other program; none of them is told otherwise than it was.
fn carried_by_others(recording: &Recording, disk: &Disk) -> usize {
    let bios = writes(recording, disk);
    assert_eq!(bios.len() as u64, WRITES);
    assert!(bios.iter().all(|bio| bio.sector.0 / 8 % 2 == 1 && u64::from(bio.bytes) == BLOCK));
    assert_below_submissions(recording, disk);
    let requests = requests(recording, disk);
    for bio in &bios {
        // Without a request of ours it travelled in one of the other's.
        let Some(carrier) = bio.request else { continue };
        let request = requests[&carrier];
        let (from, to) = (request.sector.0, request.sector.0 + u64::from(request.bytes) / 512);
        assert!(bio.sector.0 >= from && bio.sector.0 + 8 <= to, "{bio:#?} in {request:#?}");
    }
    for request in requests.values() {
        let begun_for = bios.iter().find(|bio| Some(bio.span) == request.parent);
        assert!(begun_for.is_some_and(|bio| bio.root == request.root), "{request:#?}");
        let carried = bios.iter().filter(|bio| bio.request == Some(request.span)).count();
        assert_eq!(carried, usize::from(request.bios), "{request:#?}");
    }
    let taken = bios.iter().filter(|bio| bio.request.is_none()).count();
    println!("{taken} of {} bios ended in requests of the other program", bios.len());
    taken
}

/// Every request that the kernel counted is seen, and those that were merged away are not missed.
#[test]
fn requests_merged_into_others_are_not_missed() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(DISK));
    let _queue = or_skip!(schedule(&disk));
    let words =
        fio(disk.node(), &["--rw=randwrite", "--norandommap", &format!("--io_size={}", WRITES * BLOCK)]);
    let mut counted = disk.statistics();
    let recording = until_complete(|| {
        let before = disk.statistics();
        let recording = follow(&words, &disk);
        counted = disk.statistics().since(before);
        recording
    });
    let bios = writes(&recording, &disk);
    assert_eq!(bios.len() as u64, WRITES);
    assert_below_submissions(&recording, &disk);
    let requests = requests(&recording, &disk);
    assert_eq!(requests.len() as u64, counted.requests);
    assert!(counted.requests < WRITES, "nothing was merged");
    assert!(bios.iter().all(|bio| bio.request.is_some_and(|carrier| requests.contains_key(&carrier))));
}

/// A batch of every second block and then of those between: each comes as a request of its own, is merged into the
/// one before it, and that into the one before, until one carries all.
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
        let mut actor = GatedProcess::new(|| write_in_one_batch(&target, &blocks));
        record(&TracerConfig::default(), &mut [&mut actor])
    });
    let bios = writes(&recording, &disk);
    assert_eq!(bios.len() as u64, 2 * PAIRS);
    assert_below_submissions(&recording, &disk);
    let requests: Vec<_> = requests(&recording, &disk).into_values().collect();
    let seen: Vec<_> =
        requests.iter().map(|request| (request.sector.0, u64::from(request.bytes), request.bios)).collect();
    assert_eq!(seen, [(0, 2 * PAIRS * BLOCK, 2 * PAIRS as u16)]);
    assert!(bios.iter().all(|bio| bio.request == Some(requests[0].span)));
    assert_eq!(bios.iter().filter(|bio| bio.first).count(), 1);
}

/// What io_uring hands to its workers is queued by threads that no fork hook announced: they are the program's, and
/// no call of it is open in them.
#[test]
fn workers_of_io_uring_are_the_programs() {
    needs!("fio", "losetup");
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    if !["", "0", "1"].contains(&disabled.trim()) {
        support::skip!("this kernel's io_uring is switched off");
    }
    let disk = or_skip!(Disk::raw(DISK));
    for (option, worker) in [("--force_async=1", "iou-wrk-"), ("--sqthread_poll=1", "iou-sqp-")] {
        let size = format!("--io_size={}", WRITES * BLOCK);
        let words =
            fio(disk.node(), &["--ioengine=io_uring", option, "--rw=randwrite", "--norandommap", &size]);
        let recording = until_complete(|| follow(&words, &disk));
        // A bio that may not wait for a tag comes back at once, without a request, and is asked for again.
        let (refused, bios): (Vec<&BioEvent>, Vec<&BioEvent>) =
            writes(&recording, &disk).into_iter().partition(|bio| bio.request.is_none());
        assert!(refused.iter().all(|bio| !bio.status.is_ok()), "{option}");
        assert_eq!(bios.len() as u64, WRITES, "{option}");
        let tasks: HashMap<_, _> = recording.tasks().map(|task| (task.task.id, task)).collect();
        // With a worker that polls there may be no other call than this.
        let asked: HashSet<_> =
            recording.calls_named("io_uring_setup").iter().map(|call| call.task.id).collect();
        let pids: HashSet<_> = asked.iter().map(|task| tasks[task].pid).collect();
        for bio in &bios {
            let queued_by = tasks[&bio.task.id];
            assert!(pids.contains(&queued_by.pid) && !asked.contains(&bio.task.id), "{queued_by:#?}");
            assert!(queued_by.comm.starts_with("iou-"), "{option}: {queued_by:#?}");
            assert!(queued_by.parent.is_some_and(|parent| tasks.contains_key(&parent)), "{queued_by:#?}");
            assert_eq!((bio.submitter, bio.root), (Submitter::Kernel, bio.span), "{option}: {bio:#?}");
        }
        let by_worker = bios.iter().filter(|bio| tasks[&bio.task.id].comm.starts_with(worker)).count();
        println!("{option}: {by_worker} of {WRITES} by {worker}*");
        assert!(by_worker > 0, "{option}");
        let requests = requests(&recording, &disk);
        assert!(bios.iter().all(|bio| bio.request.is_some_and(|carrier| requests.contains_key(&carrier))));
    }
}

/// An fsync whose data the journal wrote has no bio of its own, and is block I/O all the same.
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
        // Files that were not there, each time.
        let run: u32 = runs.next().unwrap();
        let names: Vec<_> =
            (0..FILES).map(|i| c_path(&disk.mount_point().join(format!("{run}-{i}")))).collect();
        let mut actor = GatedProcess::new(|| i32::from(!names.iter().all(synced)));
        record(&config, &mut [&mut actor])
    });
    let syncs = recording.calls_named("fsync");
    assert_eq!(syncs.len(), FILES, "{:?}", recording.counts());
    assert!(syncs.iter().all(|call| call.sync_tid.is_some()), "{syncs:#?}");
}

/// The disk gets a scheduler that merges, in front of a queue that is soon full.
fn schedule(disk: &Disk) -> Result<QueueSettings, String> {
    // Without a scheduler the number is the device's own, and it keeps that.
    let settings = [("scheduler", "none"), ("nr_requests", DEVICE_DEPTH), ("scheduler", "mq-deadline")];
    QueueSettings::set(disk, &settings)
}

/// fio on a few blocks, in one process that has no children.
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

fn follow(words: &[String], disk: &Disk) -> Recording {
    let mut actor = GatedProcess::program(words, &disk.file("fio.out"));
    record(&TracerConfig::default(), &mut [&mut actor])
}

fn writes<'a>(recording: &'a Recording, disk: &Disk) -> Vec<&'a BioEvent> {
    let device = disk.device();
    recording.bios().filter(|bio| bio.device == device && bio.op.is_write()).collect()
}

fn requests<'a>(recording: &'a Recording, disk: &Disk) -> HashMap<SpanId, &'a RequestEvent> {
    let device = disk.device();
    let ours = recording.requests().filter(|request| request.device == device && request.op.is_write());
    ours.map(|request| (request.span, request)).collect()
}

/// Each bio is its call's, each call has as many as it says, and each request is below one of these calls.
fn assert_below_submissions(recording: &Recording, disk: &Disk) {
    let calls: HashMap<SpanId, _> =
        recording.calls_named("io_submit").iter().map(|call| (call.span, *call)).collect();
    let mut counts: HashMap<SpanId, u32> = HashMap::new();
    for bio in writes(recording, disk) {
        assert_eq!(bio.submitter, Submitter::Span(bio.root), "{bio:#?}");
        let call = calls[&bio.root];
        assert!(call.enter <= bio.queue && bio.queue <= call.exit && bio.task.id == call.task.id, "{bio:#?}");
        *counts.entry(bio.root).or_default() += 1;
    }
    for call in calls.values() {
        assert_eq!(counts.get(&call.span).copied().unwrap_or(0), call.bios, "{call:#?}");
    }
    for request in requests(recording, disk).values() {
        assert!(calls.contains_key(&request.root), "{request:#?}");
    }
}

/// Writes these blocks directly by one io_submit, in this order, and waits for all of them.
fn write_in_one_batch(target: &CStr, blocks: &[u64]) -> i32 {
    /// `struct iocb` (include/uapi/linux/aio_abi.h), little endian.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Iocb {
        data: u64,
        key: u32,
        rw_flags: u32,
        opcode: u16,
        priority: i16,
        fd: u32,
        buffer: u64,
        bytes: u64,
        offset: i64,
        reserved: u64,
        flags: u32,
        eventfd: u32,
    }
    const PWRITE: u16 = 1;
    let page = vec![7u8; 2 * BLOCK as usize];
    let buffer = page.as_ptr().wrapping_add(page.as_ptr().align_offset(BLOCK as usize)) as u64;
    // SAFETY: a string, blocks and a page that outlive the calls.
    unsafe {
        let fd = libc::open(target.as_ptr(), libc::O_WRONLY | libc::O_DIRECT) as u32;
        let iocb = |block: &u64| Iocb {
            data: 0,
            key: 0,
            rw_flags: 0,
            opcode: PWRITE,
            priority: 0,
            fd,
            buffer,
            bytes: BLOCK,
            offset: (block * BLOCK) as i64,
            reserved: 0,
            flags: 0,
            eventfd: 0,
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
