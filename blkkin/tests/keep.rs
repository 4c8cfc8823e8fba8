//! Operations that are deferred until they end: kept by what they did, whole, or dropped without a trace.
//!
//! *Input*: programs that make a known number of small and large direct reads, of calls that fail, of submissions
//! by io_uring and libaio, and of buffered writes with fsync. *Independent count*: what the program does, and its
//! own clock around each call.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use blkkin_aggregator::spans;
use blkkin_aggregator::trace::Root;
use blkkin_tracer::keep::{KeepRule, KeptOperations, Percentile};
use blkkin_tracer::{AttachKind, TracerConfig};
use blkkin_wire::async_io::AsyncIoEvent;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::{SyscallEvent, SyscallOutcome};
use blkkin_wire::head_sampling::{HeadSampling, KeptFor};
use blkkin_wire::ids::SpanId;
use blkkin_wire::span::TagValue;

use crate::support::aio::Aio;
use crate::support::direct::{self, BLOCK};
use crate::support::disk::Disk;
use crate::support::gated_process::GatedProcess;
use crate::support::missed_ends::until_complete;
use crate::support::monotonic::now;
use crate::support::recording::{Recording, record};
use crate::support::uring::{Mode, read_in_batches, read_log, write_and_read};
use crate::support::{needs, or_skip};

/// Blocks of a large read: 2 MiB, which take several times as long as one on any machine, and fit into an operation's place.
const LARGE: usize = 512;
const DEPTH: u64 = 4;

fn is_guest() -> bool {
    std::env::var_os("BLKKIN_GUEST").is_some()
}

/// Returns a configuration that draws one operation in 2 to the power of `log2`.
fn config(log2: u8, keep: Vec<KeepRule>) -> TracerConfig {
    TracerConfig { head_sampling: HeadSampling::from_log2(log2), keep, ..TracerConfig::default() }
}

fn slower(operations: KeptOperations, ns: u64) -> KeepRule {
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

/// Asserts that each call and submission is recorded, filtered or counted as left out, and that each bio and
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

/// A read as its program saw it.
struct Read {
    offset: u64,
    begin: u64,
    ns: u64,
    /// Times that the program lost its CPU until then.
    switches: u64,
}

/// Reads blocks of a device in turn, each tenth read a large one, and writes offset, begin and time of each to a file.
fn read_small_and_large(node: &Path, reads: u64, log: &Path) -> i32 {
    read_with_pauses(node, reads, log, Duration::ZERO)
}

/// Like [`read_small_and_large`], with a pause before each read.
fn read_with_pauses(node: &Path, reads: u64, log: &Path, pause: Duration) -> i32 {
    let device = direct::open(node);
    let mut large: Vec<direct::Block> = (0..LARGE).map(|_| direct::Block([0; BLOCK])).collect();
    let mut lines = String::with_capacity(reads as usize * 32);
    for n in 0..reads {
        let blocks = if n % 10 == 9 { LARGE } else { 1 };
        if !pause.is_zero() {
            sleep(pause);
        }
        let (begin, bytes) = (now(), blocks * BLOCK);
        // Each offset once.
        let offset = n * BLOCK as u64;
        // SAFETY: the blocks are consecutive, and outlive the call.
        let result =
            unsafe { libc::pread(device.as_raw_fd(), large.as_mut_ptr().cast(), bytes, offset as i64) };
        let end = now();
        if result != bytes as isize {
            return 1;
        }
        lines.push_str(&format!("{offset} {begin} {} {}\n", end - begin, involuntary_switches()));
    }
    i32::from(fs::write(log, lines).is_err())
}

/// Returns how often this thread has lost its CPU to another one.
fn involuntary_switches() -> i64 {
    // SAFETY: zeros are a valid value.
    let mut usage = unsafe { std::mem::zeroed::<libc::rusage>() };
    // SAFETY: `usage` outlives the call.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_nivcsw
}

fn reads_of(log: &Path) -> Vec<Read> {
    let line = |line: &str| {
        let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
        let [offset, begin, ns, switches] = numbers[..] else { panic!("{line}") };
        Read { offset, begin, ns, switches }
    };
    fs::read_to_string(log).unwrap().lines().map(line).collect()
}

/// Returns a time between most small reads and nearly all large ones, on whatever machine this is.
fn threshold(reads: &[Read]) -> u64 {
    let [mut small, mut large] = [Vec::new(), Vec::new()];
    for (n, read) in reads.iter().enumerate() {
        if n % 10 == 9 { &mut large } else { &mut small }.push(read.ns);
    }
    small.sort_unstable();
    large.sort_unstable();
    small[small.len() / 2].isqrt() * large[large.len() / 10].isqrt()
}

#[test]
fn slow_calls_are_kept_whole_and_others_are_not() {
    needs!("losetup");
    let reads: u64 = if is_guest() { 1_000 } else { 8_000 };
    let disk = or_skip!(Disk::raw((reads + LARGE as u64) * BLOCK as u64));
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    assert_eq!(read_small_and_large(disk.node(), 400, &log), 0);
    let threshold = threshold(&reads_of(&log));
    for attach in [AttachKind::TpBtf, AttachKind::RawTp] {
        let recording = until_complete(|| {
            let mut process = GatedProcess::new(|| read_small_and_large(disk.node(), reads, &log));
            let config = config(20, vec![slower(KeptOperations::Reads, threshold)]);
            record(&TracerConfig { attach: Some(attach), ..config }, &mut [&mut process])
        });
        assert_conserved(&recording);
        let kept = recording.calls_named("pread64");
        assert_whole(&recording, &kept);
        // One in a million is drawn.
        let slow = |call: &SyscallEvent| call.sampling.kept_for() == Some(KeptFor::Slow);
        assert!(kept.iter().all(|call| slow(call) == (call.exit.0 - call.enter.0 >= threshold)), "{kept:#?}");
        let drawn = kept.iter().filter(|call| !slow(call)).count();
        assert!(drawn <= 3, "{drawn} drawn");
        // The program's clock includes the kernel's time and whatever stopped the program next to it.
        let of_program: HashMap<u64, u64> =
            reads_of(&log).iter().map(|read| (read.offset, read.ns)).collect();
        let found: HashSet<u64> = kept.iter().filter(|call| slow(call)).map(|call| call.args[3]).collect();
        assert!(found.iter().all(|offset| of_program[offset] >= threshold));
        let clearly_slow: Vec<u64> =
            of_program.iter().filter(|(_, ns)| **ns > threshold * 5 / 4).map(|(offset, _)| *offset).collect();
        let missing = clearly_slow.iter().filter(|offset| !found.contains(offset)).count();
        println!(
            "{attach:?}: {reads} reads, threshold {threshold} ns: {} slow by the program's clock, {missing} of them \
             not kept, {} kept",
            clearly_slow.len(),
            kept.len()
        );
        assert!(clearly_slow.len() as u64 >= reads / 20 && missing <= clearly_slow.len() / 20);
        for trace in recording.traces.iter().filter(|trace| matches!(trace.root, Root::Call(_))) {
            let root = &spans::spans_of(trace)[0];
            let rule = root.tags.iter().find(|(name, _)| name == "blkkin.sampled.head_rule");
            let is_slow = rule.is_some_and(|(_, value)| *value == TagValue::Text("slow".into()));
            let of_slow = root.tags.iter().all(|(name, _)| name != "blkkin.sampled.head_one_in");
            assert_eq!(is_slow, of_slow, "{root:#?}");
        }
    }
}

/// The percentile follows the reads of the last minute. A reading of the histograms is at most some 1.2 s old.
#[test]
fn what_is_slower_than_a_percentile_is_kept() {
    const TENTH: u64 = 100_000_000;
    const READING_MAX: u64 = 1_500_000_000;
    needs!("losetup");
    let reads: u64 = 8_000;
    let disk = or_skip!(Disk::raw((reads + LARGE as u64) * BLOCK as u64));
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    // Of ten reads one is large, so the percentile is among the large ones.
    let rule = KeepRule::SlowerThanMost(KeptOperations::Reads, Percentile::parse("95").unwrap());
    let recording = until_complete(|| {
        let pause = Duration::from_micros(500);
        let mut process = GatedProcess::new(|| read_with_pauses(disk.node(), reads, &log, pause));
        record(&config(20, vec![rule.clone()]), &mut [&mut process])
    });
    assert_conserved(&recording);
    let kept = recording.calls_named("pread64");
    assert_whole(&recording, &kept);
    let slow: HashSet<u64> = kept
        .iter()
        .filter(|call| call.sampling.kept_for() == Some(KeptFor::Slow))
        .map(|call| call.args[3])
        .collect();
    let of_program = reads_of(&log);
    let first = of_program[0].begin;
    // The percentile of all reads that ended by each tenth of a second.
    let tenths = |read: &Read| (read.begin + read.ns - first) / TENTH + 1;
    let (mut times, mut percentiles) = (Vec::new(), vec![None]);
    for read in &of_program {
        for _ in percentiles.len() as u64..tenths(read) {
            times.sort_unstable();
            percentiles.push(times.get((times.len() * 95).div_ceil(100).saturating_sub(1)).copied());
        }
        times.push(read.ns);
    }
    let (mut kept_below, mut dropped_above, mut above) = (0, 0, 0);
    for [before, read] in of_program.array_windows() {
        let is_kept = slow.contains(&read.offset);
        // At first each read moves the percentile.
        if read.begin - first < 2 * READING_MAX {
            continue;
        }
        // Those that a reading of this time can have had.
        let at = tenths(read) as usize;
        let readings = &percentiles[at.saturating_sub((READING_MAX / TENTH) as usize)..at];
        let Some((least, most)) = readings.iter().flatten().min().zip(readings.iter().flatten().max()) else {
            panic!("no percentile after {} ns", read.begin - first);
        };
        // A bucket is 12.5 % wide, and the program's clock includes what is around the call.
        kept_below += usize::from(is_kept && read.ns < least * 9 / 10);
        // A program that loses its CPU next to the call has a longer time than the call.
        if read.ns > most * 5 / 4 && read.switches == before.switches {
            above += 1;
            dropped_above += usize::from(!is_kept);
        }
    }
    println!(
        "{reads} reads in {} ms: {} kept, {above} clearly above the percentile, {dropped_above} of them dropped",
        (of_program[of_program.len() - 1].begin - first) / 1_000_000,
        slow.len()
    );
    assert_eq!(kept_below, 0);
    assert!(slow.len() as u64 > reads / 200 && (slow.len() as u64) < reads / 10, "{} kept", slow.len());
    assert!(dropped_above <= above / 20 + 2, "{dropped_above} of {above} dropped");
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
        // Other calls, which only wait, are dropped or drawn.
        assert!(recording.calls().all(|call| call.sampling.one_in() == 1 || call.sampling.log2() == 20));
    }
}

#[test]
fn iocbs_of_libaio_are_kept_with_their_calls() {
    needs!("losetup");
    let calls = if is_guest() { 100 } else { 1_000 };
    let disk = or_skip!(Disk::raw(1 << 20));
    for (rule, kept) in [(each("libaio pread"), calls), (each("libaio pwrite"), 0)] {
        let recording = until_complete(|| {
            let mut process = GatedProcess::new(|| {
                let device = direct::open(disk.node());
                let mut aio = Aio::new(DEPTH as usize);
                for call in 0..calls {
                    let offsets: Vec<u64> =
                        (0..DEPTH).map(|slot| (call * DEPTH + slot) % 256 * BLOCK as u64).collect();
                    aio.read(&device, &offsets, BLOCK);
                    aio.wait(DEPTH as usize, BLOCK);
                }
                0
            });
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

/// The weights of the kept operations sum up to the number of all.
#[test]
fn weights_of_kept_operations_sum_up_to_all() {
    const LOG2: u8 = 3;
    needs!("losetup");
    let reads: u64 = if is_guest() { 1_000 } else { 8_000 };
    let disk = or_skip!(Disk::raw((reads + LARGE as u64) * BLOCK as u64));
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    assert_eq!(read_small_and_large(disk.node(), 400, &log), 0);
    let threshold = threshold(&reads_of(&log));
    let recording = until_complete(|| {
        let mut process = GatedProcess::new(|| read_small_and_large(disk.node(), reads, &log));
        record(&config(LOG2, vec![slower(KeptOperations::Reads, threshold)]), &mut [&mut process])
    });
    assert_conserved(&recording);
    let kept = recording.calls_named("pread64");
    let (slow, drawn): (Vec<&SyscallEvent>, Vec<&SyscallEvent>) =
        kept.into_iter().partition(|call| call.sampling.kept_for().is_some());
    assert!(drawn.iter().all(|call| call.sampling.log2() == LOG2 && call.exit.0 - call.enter.0 < threshold));
    let estimated = slow.len() as f64 + drawn.len() as f64 * f64::from(1 << LOG2);
    let fast = (reads - slow.len() as u64) as f64;
    let share = 1.0 / f64::from(1 << LOG2);
    let deviation = (fast * share * (1.0 - share)).sqrt() / share;
    println!("{} slow, {} drawn: {estimated} of {reads} reads", slow.len(), drawn.len());
    assert!((estimated - reads as f64).abs() <= 5.0 * deviation, "{estimated} of {reads}");
    assert!(slow.len() as u64 >= reads / 20 && !drawn.is_empty());
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
