//! The kernel's own trace of a disk, of the same run, says what we say: every bio, request, merge, split, insertion, issue
//! and completion, by number, and each request's time with the device.
//!
//! What blktrace's letters are in our records: Q a bio; G a request that was begun; X a bio that was split once more;
//! I a request that was inserted; D its issue; C its completion. Each Q and X is a piece that a request carries, but for
//! bios that were refused before there was one; a piece takes a request of its own (G) or joins another's (M, F), and a
//! request that was merged into another (M too) hands its pieces over. So with N requests that were completed, M + F =
//! pieces − N, and G − N requests were merged.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::Path;

use blkkin_aggregator::phases;
use blkkin_tracer::{Filter, TracerConfig};
use blkkin_wire::event::RequestEvent;

use support::actor::Actor;
use support::blktrace::{Actions, Witness};
use support::disk::Disk;
use support::recording::{Recording, until_whole};
use support::tools::kernel;
use support::{needs, needs_guest, or_skip};

const DISK: u64 = 64 << 20;
/// Both read the clock at the same hook, one after the other.
const APART_NS: u64 = 5_000;
/// Between the two looks an interrupt may come, or the host take the CPU away: of so many requests one may be further apart.
const TORN_APART: usize = 50;

const ENGINES: &[&[&str]] = &[
    &["--ioengine=psync", "--numjobs=2", "--offset_increment=8M"],
    &["--ioengine=libaio", "--iodepth=32", "--iodepth_batch=16", "--iodepth_batch_complete_min=16"],
    &["--ioengine=io_uring", "--iodepth=32", "--iodepth_batch=16", "--iodepth_batch_complete_min=16"],
];
const PATTERNS: &[&[&str]] = &[
    // Neighbours: what is plugged together is merged.
    &["--rw=read", "--bs=4k", "--size=3M"],
    &["--rw=write", "--bs=4k", "--size=3M"],
    &["--rw=randread", "--bs=4k", "--size=8M", "--number_ios=600"],
    // From a sector to more than the device takes at once.
    &["--rw=randrw", "--bsrange=512-1m", "--size=8M", "--number_ios=200"],
];
const SCHEDULERS: &[&str] = &["none", "mq-deadline"];

#[test]
fn every_engine_pattern_and_scheduler_is_counted_as_by_blktrace() {
    needs!("fio", "losetup");
    let (mut seen, mut apart) = (BTreeMap::<char, u64>::new(), [Vec::new(), Vec::new()]);
    for scheduler in SCHEDULERS {
        for engine in ENGINES {
            for pattern in PATTERNS {
                let run = or_skip!(Run::of(scheduler, [*engine, *pattern].concat()));
                run.agrees();
                add(&mut apart, run.apart());
                run.actions
                    .counts
                    .iter()
                    .for_each(|(action, count)| *seen.entry(*action).or_default() += count);
            }
        }
    }
    assert_all_near(apart);
    // All that can be told apart has been there.
    assert!("QGMXIDC".chars().all(|action| seen.get(&action).is_some_and(|count| *count >= 100)), "{seen:?}");
}

#[test]
fn other_schedulers_and_discards_are_counted_as_by_blktrace() {
    needs!("fio", "losetup");
    let (mut runs, mut apart) = (0, [Vec::new(), Vec::new()]);
    for scheduler in ["none", "mq-deadline", "kyber", "bfq"] {
        for pattern in [PATTERNS[1], &["--rw=trim", "--bs=64k", "--size=8M"]] {
            let arguments = [ENGINES[1], pattern].concat();
            // A kernel may have been built without one.
            match Run::of(scheduler, arguments) {
                Ok(run) => {
                    run.agrees();
                    add(&mut apart, run.apart());
                }
                Err(why) => {
                    println!("not with {scheduler}: {why}");
                    continue;
                }
            }
            runs += 1;
        }
    }
    assert_all_near(apart);
    assert!(runs >= 4, "a kernel has none and mq-deadline at least");
}

/// What each scheduler makes of neighbours and of what has to be split, in other kernels and by each kind; these have all four.
#[test]
fn each_scheduler_of_a_guest_is_counted_as_by_blktrace() {
    needs_guest!();
    let second = ["--name=u", "--offset=16m"];
    for scheduler in ["none", "mq-deadline", "kyber", "bfq"] {
        let arguments = [ENGINES[1], PATTERNS[1], &second, ENGINES[1], PATTERNS[3]].concat();
        let run = Run::of(scheduler, arguments).unwrap();
        run.agrees();
        let inserted = run.recording.requests().filter(|request| request.insert.is_some()).count();
        assert!(scheduler == "none" || inserted >= 100, "{inserted} went through {scheduler}");
        // How near to each other is nothing that an emulated clock could say.
        let [at_device, in_scheduler] = run.apart();
        assert_eq!(at_device.len(), run.recording.requests().count());
        println!("{} times at the device, {} in {scheduler}", at_device.len(), in_scheduler.len());
    }
}

/// What both said of one run of fio.
struct Run {
    what: String,
    recording: Recording,
    actions: Actions,
}

impl Run {
    fn of(scheduler: &str, arguments: Vec<&str>) -> Result<Run, String> {
        let disk = Disk::raw(DISK)?;
        let queue = format!("/sys/block/{}/queue", disk.name());
        fs::write(format!("{queue}/scheduler"), scheduler).map_err(|error| error.to_string())?;
        let taken = fs::read_to_string(format!("{queue}/max_hw_sectors_kb")).unwrap();
        let most = taken.trim().parse::<u64>().unwrap().min(128);
        fs::write(format!("{queue}/max_sectors_kb"), most.to_string()).map_err(|error| error.to_string())?;
        let target = format!("--filename={}", disk.node().display());
        // What stands before a name holds for every job.
        let words = ["fio", "--direct=1", "--randrepeat=1", "--allow_file_create=0", &target, "--name=t"];
        let words = [&words[..], &arguments[..]].concat();
        // With what the kernel does there of its own, which blktrace sees too.
        let filter = Filter { devices: vec![disk.device()], ..Filter::default() };
        let config = TracerConfig { kernel_origin: true, filter, ..TracerConfig::default() };
        let mut actions = Err("no run".to_owned());
        let recording = until_whole(|| {
            let folder = disk.beside("blktrace");
            let _ = fs::remove_dir_all(&folder);
            let trace = Witness::start(disk.node(), disk.device(), &folder);
            let recording = record_one(&config, &words, &disk.beside("fio.out"));
            actions = trace.map(Witness::finish);
            recording
        });
        let what = format!("{scheduler}: {}", arguments.join(" "));
        Ok(Run { what, recording, actions: actions? })
    }

    fn agrees(&self) {
        let Run { what, recording, actions } = self;
        let (bios, requests): (Vec<_>, Vec<_>) = (recording.bios().collect(), recording.requests().collect());
        let pieces: u64 = requests.iter().map(|request| u64::from(request.bios)).sum();
        let count =
            |of: fn(&RequestEvent) -> bool| requests.iter().filter(|request| of(request)).count() as u64;
        // io_uring asks without waiting first: a bio that would have to be split is refused, and asked for again by a worker.
        let refused = bios.iter().filter(|bio| bio.request.is_none()).count() as u64;
        let [bios, completed] = [bios.len(), requests.len()].map(|length| length as u64);
        let books = &recording.accounts;
        let merged_away = books.requests_merged;
        let (inserted, issued) = (count(|request| request.insert.is_some()), count(|r| r.issue.is_some()));
        println!(
            "{what}: {bios} bios, {refused} of them refused, {completed} requests, {inserted} inserted, {merged_away} merged away; {:?}",
            actions.counts
        );
        let both = |a, b| actions.count(a) + actions.count(b);
        let begun = books.requests_started + merged_away;
        // Before 6.5 a request that is merged into another on its way into the scheduler is never seen.
        let unseen = if kernel() < (6, 5) { actions.count('G').saturating_sub(begun) } else { 0 };
        assert!(unseen <= both('M', 'F'), "{what}: {unseen}, {:?}", actions.counts);
        let ours = [bios, begun + unseen, pieces - completed, issued, completed, 0, 0];
        let theirs = [
            actions.count('Q'),
            actions.count('G'),
            both('M', 'F'),
            actions.count('D'),
            actions.count('C'),
            actions.count('R'),
            actions.count('A'),
        ];
        assert_eq!(ours, theirs, "{what}: {:?}", actions.counts);
        assert_eq!(pieces + refused, both('Q', 'X'), "{what}: {:?}", actions.counts);
        // Of one that was merged into another after it was inserted there is no record.
        let insertions = actions.count('I');
        assert!((inserted..=inserted + merged_away).contains(&insertions), "{what}: {:?}", actions.counts);
    }

    /// How far their times and ours are apart, of each request: with the device, and of those that were in a scheduler there.
    fn apart(&self) -> [Vec<u64>; 2] {
        let (mut device, mut scheduler) = (self.actions.device_ns.clone(), self.actions.scheduler_ns.clone());
        let mut in_order: Vec<_> = self.recording.requests().collect();
        in_order.sort_by_key(|request| request.issue);
        let (mut at_device, mut in_scheduler) = (Vec::new(), Vec::new());
        for request in in_order {
            let place = (request.sector.0, u64::from(request.bytes) / 512);
            let took = device.get_mut(&place).and_then(VecDeque::pop_front);
            let took = took.unwrap_or_else(|| panic!("{}: they have no {place:?}", self.what));
            at_device.push(phases::device(request).unwrap().0.abs_diff(took));
            if let Some(ours) = phases::scheduler(request) {
                let took = scheduler.get_mut(&place).and_then(VecDeque::pop_front);
                in_scheduler.extend(took.map(|took| ours.0.abs_diff(took)));
            }
        }
        [at_device, in_scheduler]
    }
}

fn add(sums: &mut [Vec<u64>; 2], more: [Vec<u64>; 2]) {
    sums.iter_mut().zip(more).for_each(|(sum, more)| sum.extend(more));
}

fn assert_all_near([at_device, in_scheduler]: [Vec<u64>; 2]) {
    assert_near("at the device", at_device);
    assert_near("in the scheduler", in_scheduler);
}

/// Nearly all are as near as two looks at one clock are.
fn assert_near(place: &str, mut apart: Vec<u64>) {
    apart.sort_unstable();
    let far = apart.iter().filter(|apart| **apart > APART_NS).count();
    let median = apart[apart.len() / 2];
    println!(
        "{} times {place}: {median} ns apart in the median, {far} further than {APART_NS} ns",
        apart.len()
    );
    assert!(far * TORN_APART <= apart.len(), "{:?}", &apart[apart.len() - far..]);
}

fn record_one(config: &TracerConfig, words: &[&str], output: &Path) -> Recording {
    support::recording::record(config, &mut [&mut Actor::program(words, output)])
}
