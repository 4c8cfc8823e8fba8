//! Operations that are kept by a limit for one disk.
//!
//! *Input*: programs that do the same at two disks, of which one has a limit. *Independent count*: what the program
//! does, and the devices of the recorded bios.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use blkkin_tracer::selection::keep::{KeepRule, KeptOperations};
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::{BioEvent, Submitter, SyscallEvent};
use blkkin_wire::head_sampling::KeptFor;
use blkkin_wire::ids::{DeviceId, SpanId};

use super::slow_reads::{LARGE, record_small_and_large};
use super::{DEPTH, assert_conserved, assert_whole, config, read_by_libaio};
use crate::support::aio::Aio;
use crate::support::direct::{self, BLOCK};
use crate::support::disk::Disk;
use crate::support::gated_process::GatedProcess;
use crate::support::missed_ends::{RUNS_MAX, until_complete};
use crate::support::recording::{Recording, record};
use crate::support::tools::is_guest;
use crate::support::uring::{Mode, read_log, write_and_read};
use crate::support::{needs, or_skip};

/// Logarithm of the ratio: of a million operations one is sampled.
const LOG2: u8 = 20;
/// Operations at each disk that may be sampled.
const SAMPLED_MAX: usize = 3;

fn at(name: &str, disk: &Disk, ns: u64) -> KeepRule {
    KeepRule::SlowerThanAt(KeptOperations::named(name).unwrap(), disk.device(), DurationNs(ns))
}

/// Returns the roots of operations with I/O at this device.
fn roots_at(recording: &Recording, device: DeviceId) -> HashSet<SpanId> {
    recording.bios().filter(|bio| bio.device == device).map(|bio| bio.root).collect()
}

fn is_slow(call: &SyscallEvent) -> bool {
    call.sampling.kept_for() == Some(KeptFor::Slow)
}

/// Runs `work` at both disks, and asserts that of the calls of this name `count` at the first disk are kept, whole, and
/// none at the second one.
fn assert_calls_at_first(
    disks: &[Disk; 2],
    rules: Vec<KeepRule>,
    (name, count): (&str, u64),
    work: impl Fn(&Disk) -> i32,
) -> Recording {
    let recording = until_complete(|| {
        let mut process =
            GatedProcess::new(|| disks.iter().map(&work).find(|failed| *failed != 0).unwrap_or(0));
        record(&config(LOG2, rules.clone()), &mut [&mut process])
    });
    assert_conserved(&recording);
    let [first, second] = [0, 1].map(|at: usize| roots_at(&recording, disks[at].device()));
    let (kept, sampled): (Vec<_>, Vec<_>) =
        recording.calls_named(name).into_iter().partition(|call| is_slow(call));
    assert_eq!(kept.len() as u64, count, "{name}");
    assert!(kept.iter().all(|call| first.contains(&call.span) && !second.contains(&call.span)));
    assert!(sampled.len() <= 2 * SAMPLED_MAX, "{} sampled", sampled.len());
    assert_eq!(recording.stats.kept_slow, count);
    recording
}

#[test]
fn calls_with_io_at_a_disk_are_kept_by_its_limit() {
    needs!("losetup");
    let reads: u64 = if is_guest() { 200 } else { 2_000 };
    let [first, second, third] = [(); 3].map(|()| Disk::raw(1 << 20));
    let disks = [or_skip!(first), or_skip!(second)];
    let third = or_skip!(third);
    // No read is at the third disk, and none is a write.
    let rules = |limit| vec![at("read", &third, 1), at("write", &disks[0], 1), at("read", &disks[0], limit)];
    let read = |disk: &Disk| {
        let device = direct::open(disk.node());
        (0..reads).for_each(|n| direct::read_at(&device, n % 256 * BLOCK as u64).unwrap());
        0
    };
    let recording = assert_calls_at_first(&disks, rules(1), ("pread64", reads), read);
    assert_whole(&recording, &recording.calls_named("pread64"));
    assert_calls_at_first(&disks, rules(3_600_000_000_000), ("pread64", 0), read);
    let each = KeepRule::SlowerThanAt(KeptOperations::All, disks[0].device(), DurationNs(1));
    assert_calls_at_first(&disks, vec![each], ("pread64", reads), read);
}

/// The bios of reads of a partition have the number of the partition.
#[test]
fn io_at_a_partition_is_at_its_disk() {
    needs!("losetup");
    const READS: u64 = 200;
    let disk = or_skip!(Disk::raw(4 << 20));
    let node = or_skip!(disk.half());
    let recording = until_complete(|| {
        let mut process = GatedProcess::new(|| {
            let device = direct::open(&node);
            (0..READS).for_each(|n| direct::read_at(&device, n * BLOCK as u64).unwrap());
            0
        });
        record(&config(LOG2, vec![at("read", &disk, 1)]), &mut [&mut process])
    });
    assert_conserved(&recording);
    let kept = recording.calls_named("pread64");
    assert_eq!(kept.iter().filter(|call| is_slow(call)).count() as u64, READS);
    let of_partition = recording.bios().filter(|bio| bio.device != disk.device());
    assert!(of_partition.count() as u64 >= READS);
}

/// The call of a submission has no I/O of its own, and may have returned before.
#[test]
fn submissions_with_io_at_a_disk_are_kept_by_its_limit() {
    needs!("losetup");
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    if !["", "0", "1"].contains(&disabled.trim()) {
        crate::support::skip!("this kernel's io_uring is switched off");
    }
    let calls: u64 = if is_guest() { 50 } else { 500 };
    let [first, second] = [(); 2].map(|()| Disk::raw(1 << 22));
    let disks = [or_skip!(first), or_skip!(second)];
    let log = |disk: &Disk| disk.file("log");
    let batches = calls.min((1 << 22) / (DEPTH * BLOCK as u64));
    for mode in [Mode::Plain, Mode::Worker, Mode::Sqpoll] {
        let recording = until_complete(|| {
            let mut process = GatedProcess::new(|| {
                let run = |disk: &Disk| write_and_read(disk.node(), mode, batches, DEPTH, &log(disk));
                disks.iter().map(run).find(|failed| *failed != 0).unwrap_or(0)
            });
            record(&config(LOG2, vec![at("io_uring read", &disks[0], 1)]), &mut [&mut process])
        });
        assert_conserved(&recording);
        let [first, second] = [0, 1].map(|at: usize| roots_at(&recording, disks[at].device()));
        let submitted = read_log(&log(&disks[0]));
        let reads: HashSet<u64> =
            submitted.iter().filter(|one| !one.is_write).map(|one| one.user_data).collect();
        let kept = |roots: &HashSet<SpanId>| -> HashSet<u64> {
            let of_disk = recording.async_ios().filter(|io| roots.contains(&io.root()));
            of_disk.map(|io| io.user_data).collect()
        };
        let [at_first, at_second] = [kept(&first), kept(&second)];
        println!("{mode:?}: {} submissions kept, {} at the other disk", at_first.len(), at_second.len());
        assert!(!reads.is_empty() && reads.is_subset(&at_first), "{mode:?}");
        assert_eq!(
            recording.stats.kept_slow,
            if mode == Mode::Sqpoll { reads.len() as u64 } else { batches }
        );
        assert!(at_first.len() - reads.len() <= SAMPLED_MAX * DEPTH as usize, "{mode:?}");
        assert!(at_second.len() <= SAMPLED_MAX * DEPTH as usize, "{mode:?}");
    }
}

#[test]
fn iocbs_with_io_at_a_disk_are_kept_by_its_limit() {
    needs!("losetup");
    let calls: u64 = if is_guest() { 50 } else { 500 };
    let [first, second] = [(); 2].map(|()| Disk::raw(1 << 20));
    let disks = [or_skip!(first), or_skip!(second)];
    // The second rule is about the call itself, which returns before its reads end.
    for rule in ["libaio pread", "io_submit"] {
        let recording =
            assert_calls_at_first(&disks, vec![at(rule, &disks[0], 1)], ("io_submit", calls), |disk| {
                read_by_libaio(disk, calls)
            });
        let first = roots_at(&recording, disks[0].device());
        let submitted = recording.async_ios().filter(|io| first.contains(&io.root())).count();
        assert!(submitted as u64 >= calls * DEPTH, "{submitted}");
    }
}

/// Each call submits a small read of the first disk and a large one of the second: the time of the one is no reason at the
/// disk of the other.
#[test]
fn a_submission_is_compared_with_the_limit_of_its_own_disk() {
    needs!("losetup");
    let calls: u64 = if is_guest() { 100 } else { 1_000 };
    // With more requests the operation would outgrow its place.
    let bytes = LARGE / 2 * BLOCK;
    let [first, second] = [(); 2].map(|()| Disk::raw(2 * bytes as u64));
    let disks = [or_skip!(first), or_skip!(second)];
    let submissions_at = |limited: &Disk, limit: u64| {
        let recording = until_complete(|| {
            let mut process = GatedProcess::new(|| {
                let [first, second] = [0, 1].map(|at: usize| direct::open(disks[at].node()));
                let mut aio = Aio::new(2);
                for _ in 0..calls {
                    aio.read_each(&[(&first, 0, BLOCK), (&second, 0, bytes)]);
                    aio.wait_for(2, &[BLOCK, bytes]);
                }
                0
            });
            record(&config(LOG2, vec![at("libaio pread", limited, limit)]), &mut [&mut process])
        });
        assert_conserved(&recording);
        assert_eq!(recording.stats.kept_large, 0, "no operation outgrows its place");
        let slow = recording.calls_named("io_submit").into_iter().filter(|call| is_slow(call));
        let kept: HashSet<SpanId> = slow.map(|call| call.span).collect();
        let submitter = |bio: &BioEvent| match bio.submitter {
            Submitter::Span(span) => Some(span),
            Submitter::Kernel => None,
        };
        let at_limited: HashSet<SpanId> =
            recording.bios().filter(|bio| bio.device == limited.device()).filter_map(submitter).collect();
        let times: Vec<(SpanId, u64)> = recording
            .async_ios()
            .filter(|io| at_limited.contains(&io.span))
            .map(|io| (io.root(), io.end.0 - io.start.0))
            .collect();
        (kept, times)
    };
    // Each call is kept, so the times are those of all; the limit is between most small and most large reads.
    let median = |disk: &Disk| {
        let mut times: Vec<u64> = submissions_at(disk, 1).1.into_iter().map(|(_, ns)| ns).collect();
        assert_eq!(times.len() as u64, calls);
        times.sort_unstable();
        times[times.len() / 2]
    };
    for _ in 0..RUNS_MAX {
        let limit = median(&disks[0]).isqrt() * median(&disks[1]).isqrt();
        let [small, large] = [0, 1].map(|at: usize| {
            let (kept, times) = submissions_at(&disks[at], limit);
            let slow = times.iter().filter(|(_, ns)| *ns >= limit).map(|(root, _)| *root);
            assert_eq!(kept, slow.collect(), "each of these calls, and no other one");
            kept.len()
        });
        println!("{small} and {large} of {calls} calls kept, at a limit of {limit} ns");
        // The machine may have another speed than a moment ago.
        if small < large {
            return;
        }
    }
    panic!("in none of {RUNS_MAX} runs more large reads were slow than small ones");
}

/// A sync is one of the disk to which it writes.
#[test]
fn a_sync_is_kept_by_the_limit_of_its_disk() {
    needs!("losetup", "mkfs.ext4");
    let rounds: u64 = if is_guest() { 30 } else { 200 };
    let [first, second] = [(); 2].map(|()| Disk::ext4(64 << 20));
    let disks = [or_skip!(first), or_skip!(second)];
    let file = |disk: &Disk| disk.mount_point().join("page");
    disks.iter().for_each(|disk| fs::write(file(disk), [1; BLOCK]).unwrap());
    let sync = |disk: &Disk| sync_again_and_again(&file(disk), rounds);
    assert_calls_at_first(&disks, vec![at("sync", &disks[0], 1)], ("fdatasync", rounds), sync);
}

fn sync_again_and_again(path: &Path, rounds: u64) -> i32 {
    let file = File::options().write(true).open(path).unwrap();
    for round in 0..rounds {
        file.write_all_at(&[round as u8; BLOCK], 0).unwrap();
        // SAFETY: a descriptor.
        if unsafe { libc::fdatasync(file.as_raw_fd()) } != 0 {
            return 1;
        }
    }
    0
}

/// The limit decides as that of all disks does.
#[test]
fn calls_are_kept_from_the_limit_of_their_disk_on() {
    needs!("losetup");
    let reads: u64 = if is_guest() { 1_000 } else { 4_000 };
    let disk = or_skip!(Disk::raw((reads + 512) * BLOCK as u64));
    let folder = tempfile::tempdir().unwrap();
    let config = |rule| {
        let KeepRule::SlowerThan(operations, limit) = rule else { panic!("{rule:?}") };
        config(LOG2, vec![KeepRule::SlowerThanAt(operations, disk.device(), limit)])
    };
    let (threshold, clearly_slow, recording) =
        record_small_and_large(&disk, &folder.path().join("log"), reads, config);
    assert_conserved(&recording);
    let kept = recording.calls_named("pread64");
    assert_whole(&recording, &kept);
    assert!(kept.iter().all(|call| is_slow(call) == (call.exit.0 - call.enter.0 >= threshold)), "{kept:#?}");
    let found: HashSet<u64> = kept.iter().filter(|call| is_slow(call)).map(|call| call.args[3]).collect();
    let missing = clearly_slow.iter().filter(|offset| !found.contains(offset)).count();
    println!("{} clearly slow reads, {missing} of them not kept, {} kept", clearly_slow.len(), kept.len());
    assert!(missing <= clearly_slow.len() / 20, "{missing} of {}", clearly_slow.len());
}
