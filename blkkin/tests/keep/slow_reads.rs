//! Calls that are kept because they took long, by a fixed time and by a percentile.
//!
//! *Input*: a program that makes a known number of small and large direct reads. *Independent count*: its own clock
//! around each read, which includes whatever stopped the program next to the call.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use blkkin_aggregator::spans;
use blkkin_aggregator::trace::Root;
use blkkin_tracer::selection::keep::{KeepRule, KeptOperations, Percentile};
use blkkin_tracer::{AttachKind, TracerConfig};
use blkkin_wire::event::SyscallEvent;
use blkkin_wire::head_sampling::KeptFor;
use blkkin_wire::span::TagValue;

use super::{assert_conserved, assert_whole, config, slower};
use crate::support::direct::{self, BLOCK};
use crate::support::disk::Disk;
use crate::support::gated_process::GatedProcess;
use crate::support::missed_ends::{RUNS_MAX, until_complete};
use crate::support::monotonic::now;
use crate::support::recording::{Recording, record};
use crate::support::tools::is_guest;
use crate::support::{needs, or_skip};

/// Blocks of a large read: 2 MiB, which take several times as long as one on any machine, and fit into an operation's place.
pub(super) const LARGE: usize = 512;

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

/// Records `reads` reads of a disk. Returns the threshold from which they are kept, the offsets of the large reads that
/// are clearly slower by the program's own clock, and the recording.
///
/// The threshold is of a run before, and the machine may have another speed by now. So the runs are repeated until half
/// of the large reads are slow and half of all reads are not, by the program's clock.
pub(super) fn record_small_and_large(
    disk: &Disk,
    log: &Path,
    reads: u64,
    config: impl Fn(KeepRule) -> TracerConfig,
) -> (u64, Vec<u64>, Recording) {
    for _ in 0..RUNS_MAX {
        assert_eq!(read_small_and_large(disk.node(), 400, log), 0);
        let threshold = threshold(&reads_of(log));
        let recording = until_complete(|| {
            let mut process = GatedProcess::new(|| read_small_and_large(disk.node(), reads, log));
            record(&config(slower(KeptOperations::Reads, threshold)), &mut [&mut process])
        });
        // A small read may be as slow because something ran next to it, within the call or not.
        let all = reads_of(log);
        let large = all.iter().skip(9).step_by(10);
        let clearly_slow: Vec<u64> =
            large.filter(|read| read.ns > threshold * 5 / 4).map(|read| read.offset).collect();
        let slow = all.iter().filter(|read| read.ns >= threshold).count();
        if clearly_slow.len() as u64 >= reads / 20 && (slow as u64) < reads / 2 {
            return (threshold, clearly_slow, recording);
        }
        println!(
            "repeated, because {slow} reads took {threshold} ns, {} large ones clearly",
            clearly_slow.len()
        );
    }
    panic!("in none of {RUNS_MAX} runs the threshold parted the large reads from most others");
}

#[test]
fn slow_calls_are_kept_whole_and_others_are_not() {
    needs!("losetup");
    let reads: u64 = if is_guest() { 1_000 } else { 8_000 };
    let disk = or_skip!(Disk::raw((reads + LARGE as u64) * BLOCK as u64));
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    for attach in [AttachKind::TpBtf, AttachKind::RawTp] {
        let config = |rule| TracerConfig { attach: Some(attach), ..config(20, vec![rule]) };
        let (threshold, clearly_slow, recording) = record_small_and_large(&disk, &log, reads, config);
        assert_conserved(&recording);
        let kept = recording.calls_named("pread64");
        assert_whole(&recording, &kept);
        // One in a million is sampled.
        let slow = |call: &SyscallEvent| call.sampling.kept_for() == Some(KeptFor::Slow);
        assert!(kept.iter().all(|call| slow(call) == (call.exit.0 - call.enter.0 >= threshold)), "{kept:#?}");
        let sampled = kept.iter().filter(|call| !slow(call)).count();
        assert!(sampled <= 3, "{sampled} sampled");
        // The program's clock includes the kernel's time and whatever stopped the program next to it.
        let of_program: HashMap<u64, u64> =
            reads_of(&log).iter().map(|read| (read.offset, read.ns)).collect();
        let found: HashSet<u64> = kept.iter().filter(|call| slow(call)).map(|call| call.args[3]).collect();
        assert!(found.iter().all(|offset| of_program[offset] >= threshold));
        let missing = clearly_slow.iter().filter(|offset| !found.contains(offset)).count();
        println!(
            "{attach:?}: {reads} reads, threshold {threshold} ns: {} slow by the program's clock, {missing} of them \
             not kept, {} kept",
            clearly_slow.len(),
            kept.len()
        );
        assert!(missing <= clearly_slow.len() / 20, "{missing} of {}", clearly_slow.len());
        for trace in recording.traces.iter().filter(|trace| matches!(trace.root, Root::Call(_))) {
            let root = &spans::spans_of(trace)[0];
            let rule = root.tags.iter().find(|(name, _)| name == "blkkin.sampled.head_rule");
            let is_slow = rule.is_some_and(|(_, value)| *value == TagValue::Text("slow".into()));
            let of_slow = root.tags.iter().all(|(name, _)| name != "blkkin.sampled.head_one_in");
            assert_eq!(is_slow, of_slow, "{root:#?}");
        }
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
    let config = |rule| config(LOG2, vec![rule]);
    let (threshold, clearly_slow, recording) = record_small_and_large(&disk, &log, reads, config);
    assert_conserved(&recording);
    let kept = recording.calls_named("pread64");
    let (slow, sampled): (Vec<&SyscallEvent>, Vec<&SyscallEvent>) =
        kept.into_iter().partition(|call| call.sampling.kept_for().is_some());
    assert!(
        sampled.iter().all(|call| call.sampling.log2() == LOG2 && call.exit.0 - call.enter.0 < threshold)
    );
    let estimated = slow.len() as f64 + sampled.len() as f64 * f64::from(1 << LOG2);
    let fast = (reads - slow.len() as u64) as f64;
    let share = 1.0 / f64::from(1 << LOG2);
    let deviation = (fast * share * (1.0 - share)).sqrt() / share;
    println!("{} slow, {} sampled: {estimated} of {reads} reads", slow.len(), sampled.len());
    assert!((estimated - reads as f64).abs() <= 5.0 * deviation, "{estimated} of {reads}");
    assert!(slow.len() >= clearly_slow.len() * 19 / 20 && !sampled.is_empty());
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
