//! Operations that are deferred until they end: kept by what they did, whole, or dropped without a trace.
//!
//! *Input*: programs that make a known number of calls that fail, of submissions by io_uring and libaio, and of buffered
//! writes with fsync. *Independent count*: what the program does, and its own clock around each call. Calls that take
//! long are in [`slow_reads`], and limits for single disks in [`at_disks`].

mod at_disks;
mod slow_reads;

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use blkkin_tracer::TracerConfig;
use blkkin_tracer::selection::keep::{KeepRule, KeptOperations};
use blkkin_wire::async_io::AsyncIoEvent;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::{SyscallEvent, SyscallOutcome};
use blkkin_wire::head_sampling::{HeadSampling, KeptFor};
use blkkin_wire::ids::SpanId;

use crate::support::aio::Aio;
use crate::support::direct::{self, BLOCK};
use crate::support::disk::Disk;
use crate::support::gated_process::GatedProcess;
use crate::support::missed_ends::until_complete;
use crate::support::monotonic::now;
use crate::support::recording::{Recording, record};
use crate::support::tools::is_guest;
use crate::support::uring::{Mode, read_in_batches, read_log, write_and_read};
use crate::support::{needs, or_skip};

const DEPTH: u64 = 4;

/// Returns a configuration that draws one operation in 2 to the power of `log2`.
fn config(log2: u8, keep: Vec<KeepRule>) -> TracerConfig {
    TracerConfig { head_sampling: HeadSampling::from_log2(log2), keep, ..TracerConfig::default() }
}

pub(crate) fn slower(operations: KeptOperations, ns: u64) -> KeepRule {
    KeepRule::SlowerThan(operations, DurationNs(ns))
}

/// Returns a rule that keeps each operation of this name.
fn each(name: &str) -> KeepRule {
    slower(KeptOperations::named(name).unwrap(), 1)
}

fn returned(call: &SyscallEvent) -> i64 {
    match call.outcome {
        SyscallOutcome::Returned(value) => value,
        SyscallOutcome::NoExit => panic!("{call:#?}"),
    }
}

/// Asserts that each call and submission is recorded, filtered or counted as dropped, and that each bio and
/// request that is recorded has its root.
fn assert_conserved(recording: &Recording) {
    let stats = &recording.stats;
    assert_eq!(
        stats.calls_entered,
        stats.calls.fired + stats.calls_filtered + stats.calls_unsampled,
        "{stats:#?}"
    );
    assert_eq!(
        (stats.bios_queued, stats.requests_started, stats.untracked),
        (stats.bios.fired, stats.requests.fired, 0),
        "{stats:#?}"
    );
    let roots: HashSet<SpanId> = recording
        .calls()
        .map(|call| call.span)
        .chain(recording.faults().map(|fault| fault.span))
        .chain(recording.async_ios().filter(|io| io.submitter.is_none()).map(|io| io.span))
        .chain(recording.commits().map(|commit| commit.span))
        .chain(recording.bios().filter(|bio| bio.root == bio.span).map(|bio| bio.span))
        .collect();
    assert!(recording.bios().all(|bio| roots.contains(&bio.root)));
    assert!(recording.requests().all(|request| roots.contains(&request.root)));
    let reasons = |reason| {
        let of_calls = recording.calls().filter(|call| call.sampling.kept_for() == Some(reason)).count();
        let own = |io: &&AsyncIoEvent| io.sampling.kept_for() == Some(reason);
        (of_calls + recording.async_ios().filter(own).count()) as u64
    };
    assert_eq!(
        [KeptFor::Slow, KeptFor::Failed, KeptFor::Large].map(reasons),
        [stats.kept_slow, stats.kept_failed, stats.kept_large],
        "{stats:#?}"
    );
}

/// Asserts that each of these calls has as many bios and requests as it counted.
fn assert_whole(recording: &Recording, calls: &[&SyscallEvent]) {
    let mut parts: HashMap<SpanId, (u32, u32)> = HashMap::new();
    for bio in recording.bios() {
        parts.entry(bio.root).or_default().0 += 1;
    }
    for request in recording.requests() {
        parts.entry(request.root).or_default().1 += 1;
    }
    for call in calls {
        let (bios, requests) = parts.get(&call.span).copied().unwrap_or_default();
        assert_eq!(bios, call.bios, "{call:#?}");
        assert!(requests > 0 && requests <= bios.max(1) * 4, "{requests} requests of {bios} bios: {call:#?}");
    }
}

#[test]
fn calls_that_fail_are_kept() {
    const READS: u64 = 2_000;
    needs!("losetup");
    let disk = or_skip!(Disk::raw(1 << 20));
    let recording = until_complete(|| {
        let mut process = GatedProcess::new(|| {
            let device = direct::open(disk.node());
            let mut failed = 0;
            for n in 0..READS {
                direct::read_at(&device, n % 256 * BLOCK as u64).unwrap();
                // Not at a multiple of a sector.
                failed += u64::from(n % 10 == 0 && direct::read_at(&device, 3).is_err());
            }
            i32::from(failed != READS / 10)
        });
        record(&config(20, vec![KeepRule::Failed]), &mut [&mut process])
    });
    assert_conserved(&recording);
    let kept = recording.calls_named("pread64");
    let failed = kept.iter().filter(|call| call.sampling.kept_for() == Some(KeptFor::Failed)).count() as u64;
    assert_eq!(failed, READS / 10);
    assert!(kept.iter().all(|call| (returned(call) < 0) == call.sampling.kept_for().is_some()));
    assert!(kept.len() as u64 <= READS / 10 + 3, "{} kept", kept.len());
}

/// More parts than there is room for: kept, and whole.
#[test]
fn an_operation_that_outgrows_its_place_is_kept() {
    const WRITES: u64 = 50;
    needs!("losetup");
    let disk = or_skip!(Disk::raw(64 << 20));
    let recording = until_complete(|| {
        let mut process = GatedProcess::new(|| {
            let device = direct::open(disk.node());
            for n in 0..WRITES {
                direct::write_at(&device, n * BLOCK as u64).unwrap();
            }
            direct::write_many(&device, 0, 32 << 20 >> 12).unwrap();
            0
        });
        record(&config(20, vec![KeepRule::Failed]), &mut [&mut process])
    });
    assert_conserved(&recording);
    let kept = recording.calls_named("pwrite64");
    let large: Vec<_> = kept.into_iter().filter(|call| call.sampling.kept_for().is_some()).collect();
    let [call] = large[..] else { panic!("{large:#?}") };
    assert_eq!((call.sampling.kept_for(), returned(call)), (Some(KeptFor::Large), 32 << 20));
    let requests = recording.requests().filter(|request| request.root == call.span).count();
    assert!(call.bios as usize + requests > 12, "{requests} requests: {call:#?}");
    assert_whole(&recording, &[call]);
}

/// A submission that is kept brings its call with it, which has returned before; of the calls whose submissions
/// are dropped nothing is there.
#[test]
fn submissions_of_io_uring_are_kept_with_their_calls() {
    needs!("losetup");
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    if !["", "0", "1"].contains(&disabled.trim()) {
        crate::support::skip!("this kernel's io_uring is switched off");
    }
    let calls = if is_guest() { 100 } else { 1_000 };
    let disk = or_skip!(Disk::raw(calls * DEPTH * BLOCK as u64));
    let log = disk.file("log");
    for mode in [Mode::Plain, Mode::Worker, Mode::Sqpoll] {
        let recording = until_complete(|| {
            let mut process = GatedProcess::new(|| write_and_read(disk.node(), mode, calls, DEPTH, &log));
            record(&config(20, vec![each("io_uring read")]), &mut [&mut process])
        });
        assert_conserved(&recording);
        let submitted = read_log(&log);
        let reads: HashSet<u64> =
            submitted.iter().filter(|one| !one.is_write).map(|one| one.user_data).collect();
        let kept: Vec<_> = recording.async_ios().filter(|io| reads.contains(&io.user_data)).collect();
        assert_eq!((kept.len(), reads.len() as u64), (reads.len(), calls * DEPTH), "{mode:?}");
        let others = recording.async_ios().count() - kept.len();
        assert!(others <= 3 * DEPTH as usize, "{others} writes: {mode:?}");
        let submitters: HashSet<_> = kept.iter().map(|io| io.root()).collect();
        if mode == Mode::Sqpoll {
            assert!(kept.iter().all(|io| io.sampling.kept_for() == Some(KeptFor::Slow)));
        } else {
            assert_eq!(submitters.len() as u64, calls, "{mode:?}");
            let with_call = recording.calls().filter(|call| submitters.contains(&call.span));
            let slow = with_call.filter(|call| call.sampling.kept_for() == Some(KeptFor::Slow)).count();
            assert_eq!(slow as u64, calls, "{mode:?}");
        }
        // A bio that would block is queued again by a worker, so a submission may have two.
        let bios: HashSet<_> = recording.bios().map(|bio| bio.root).collect();
        assert!(submitters.iter().all(|root| bios.contains(root)), "{mode:?}");
        let requests = recording.requests().filter(|request| submitters.contains(&request.root)).count();
        assert_eq!(requests, kept.len(), "{mode:?}");
        println!("{mode:?}: {} of {} submissions kept", kept.len(), submitted.len());
    }
}

/// A call that submits more than there is room for, and returns before the last ones end: its own record finds no
/// room, and has the reason all the same.
#[test]
fn a_call_with_many_submissions_is_kept_for_its_size() {
    const SUBMITTED: usize = 16;
    needs!("losetup");
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    if !["", "0", "1"].contains(&disabled.trim()) {
        crate::support::skip!("this kernel's io_uring is switched off");
    }
    let calls = if is_guest() { 20 } else { 500 };
    let disk = or_skip!(Disk::raw(1 << 20));
    for awaited in [0, SUBMITTED / 2 + 1, SUBMITTED] {
        let recording = until_complete(|| {
            let mut process = GatedProcess::new(|| read_in_batches(disk.node(), calls, SUBMITTED, awaited));
            record(&config(20, vec![KeepRule::Failed]), &mut [&mut process])
        });
        assert_conserved(&recording);
        let submitting: HashSet<SpanId> = recording.async_ios().map(|io| io.root()).collect();
        let kept: Vec<_> = recording.calls().filter(|call| submitting.contains(&call.span)).collect();
        let large = |call: &&&SyscallEvent| call.sampling.kept_for() == Some(KeptFor::Large);
        assert_eq!((kept.len(), kept.iter().filter(large).count()), (calls, calls), "{awaited} awaited");
        assert_eq!(recording.async_ios().count(), calls * SUBMITTED, "{awaited} awaited");
        let requests = recording.requests().filter(|request| submitting.contains(&request.root)).count();
        assert_eq!(requests, calls * SUBMITTED, "{awaited} awaited");
        // Other calls, which only wait, are dropped or sampled.
        assert!(recording.calls().all(|call| call.sampling.one_in() == 1 || call.sampling.log2() == 20));
    }
}

/// Reads a disk by `calls` calls of io_submit, each of which submits [`DEPTH`] reads.
fn read_by_libaio(disk: &Disk, calls: u64) -> i32 {
    let device = direct::open(disk.node());
    let mut aio = Aio::new(DEPTH as usize);
    for call in 0..calls {
        let offsets: Vec<u64> = (0..DEPTH).map(|slot| (call * DEPTH + slot) % 256 * BLOCK as u64).collect();
        aio.read(&device, &offsets, BLOCK);
        aio.wait(DEPTH as usize, BLOCK);
    }
    0
}

#[test]
fn iocbs_of_libaio_are_kept_with_their_calls() {
    needs!("losetup");
    let calls = if is_guest() { 100 } else { 1_000 };
    let disk = or_skip!(Disk::raw(1 << 20));
    for (rule, kept) in [(each("libaio pread"), calls), (each("libaio pwrite"), 0)] {
        let recording = until_complete(|| {
            let mut process = GatedProcess::new(|| read_by_libaio(&disk, calls));
            record(&config(20, vec![rule.clone()]), &mut [&mut process])
        });
        assert_conserved(&recording);
        let submits = recording.calls_named("io_submit");
        let slow: Vec<_> =
            submits.iter().copied().filter(|call| call.sampling.kept_for() == Some(KeptFor::Slow)).collect();
        assert_eq!(slow.len() as u64, kept);
        assert!(submits.len() - slow.len() <= 3);
        assert_eq!(recording.stats.kept_slow, kept);
        let roots: HashSet<SpanId> = slow.iter().map(|call| call.span).collect();
        assert_eq!(
            recording.async_ios().filter(|io| roots.contains(&io.root())).count() as u64,
            kept * DEPTH
        );
        assert_eq!(recording.bios().filter(|bio| roots.contains(&bio.root)).count() as u64, kept * DEPTH);
    }
}

/// A page that one program writes and syncs again and again: a kept fsync names no writer of before the previous
/// fsync, which may have been dropped.
#[test]
fn no_fsync_names_a_writer_of_before_a_dropped_one() {
    const LOG2: u8 = 2;
    needs!("losetup", "mkfs.ext4");
    let rounds: u64 = if is_guest() { 200 } else { 2_000 };
    let disk = or_skip!(Disk::ext4(64 << 20));
    let (path, folder) = (disk.mount_point().join("page"), tempfile::tempdir().unwrap());
    let log = folder.path().join("log");
    fs::write(&path, [1; BLOCK]).unwrap();
    for keep in [vec![], vec![slower(KeptOperations::All, 3_600_000_000_000)]] {
        let recording = until_complete(|| {
            let mut process = GatedProcess::new(|| {
                let file = File::options().write(true).open(&path).unwrap();
                let mut lines = String::with_capacity(rounds as usize * 40);
                for round in 0..rounds {
                    file.write_all_at(&[round as u8; BLOCK], 0).unwrap();
                    let begin = now();
                    // SAFETY: a descriptor.
                    if unsafe { libc::fdatasync(file.as_raw_fd()) } != 0 {
                        return 1;
                    }
                    lines.push_str(&format!("{begin} {}\n", now()));
                }
                i32::from(fs::write(&log, lines).is_err())
            });
            record(&config(LOG2, keep.clone()), &mut [&mut process])
        });
        let syncs: Vec<[u64; 2]> = fs::read_to_string(&log)
            .unwrap()
            .lines()
            .map(|line| {
                let (begin, end) = line.split_once(' ').unwrap();
                [begin, end].map(|time| time.parse().unwrap())
            })
            .collect();
        let kept: HashSet<SpanId> = recording.calls_named("fdatasync").iter().map(|call| call.span).collect();
        let (mut with_writer, mut without) = (0, 0);
        for origin in recording.page_origins().filter(|origin| kept.contains(&origin.root)) {
            for writer in &origin.writers {
                let between = |[begin, end]: &&[u64; 2]| *begin > writer.dirtied.0 && *end < origin.time.0;
                assert!(!syncs.iter().any(|sync| between(&sync)), "{writer:?} is no writer of {origin:#?}");
            }
            let count = if origin.writers.is_empty() { &mut without } else { &mut with_writer };
            *count += 1;
        }
        println!("{} of {rounds} fsyncs kept: {with_writer} with a writer, {without} without", kept.len());
        assert!(kept.len() as u64 > rounds / 8 && with_writer > 5 && without > with_writer);
        // No origin without its bio.
        let bios: HashSet<SpanId> = recording.bios().map(|bio| bio.span).collect();
        assert!(recording.page_origins().all(|origin| bios.contains(&origin.bio)));
    }
}
