//! Hundreds of instrumented programs on one node, some of them killed.
//!
//! The test checks that the events that each program emitted are either read, or counted by LTTng
//! as discarded. It also checks their cost: descriptors of LTTng's daemons, and memory of the
//! rings.
//!
//! *One loss that is not counted.* LTTng's library enables a new process's events, asks the session
//! daemon about its channels, and only then accepts events (`lttng_session_enable` in
//! src/lib/lttng-ust/lttng-events.c of lttng-ust v2.13.5). Events in between are dropped without a
//! count. On a busy machine this affects a group or two of one in hundreds of processes. A
//! process's events may therefore be missing in one place, before its first event that was read.
//! The number in that event shows how many are missing. A process that was killed in that time has
//! no event that was read: it may have emitted no more than another one lost, or two groups.

#![allow(clippy::print_stderr, reason = "a test prints what it measured")]

mod support;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use blkkin_lttng_live::ctf::plan::Value;
use blkkin_lttng_live::event_view::EventView;
use blkkin_lttng_live::live::follow::{Follower, Step};
use blkkin_lttng_live::live::reader::{ReaderSettings, ReaderStats};
use blkkin_ust_bridge::session::lttng_daemons::LttngDaemons;
use blkkin_ust_bridge::session::supervisor::{SessionConfig, SessionSupervisor};
use support::lab::{Lab, until};

/// Limit of runs with a stuck ring, which LTTng-UST allows and no reader can prevent.
const STUCK_MAX: usize = 3;
/// Concurrent programs, of which a third is killed.
const LONG_LIVED: usize = 300;
/// Programs started per second, of which a fifth is killed, and the duration.
const STARTS_PER_SECOND: u32 = 20;
const START_PERIOD: Duration = Duration::from_secs(15);
/// Interval between two groups of three events.
const GROUP_INTERVAL_US: u64 = 20_000;
const EVENTS_PER_GROUP: u64 = 3;
/// Events of a process that LTTng's library may always drop before it accepts the first.
const DROPPED_AT_START: u64 = 2 * EVENTS_PER_GROUP;
/// Groups of a program that exits normally: of long-lived and of short-lived programs.
const GROUPS_LONG: u64 = 1_000;
const GROUPS_SHORT: u64 = 40;
/// Maximum number of descriptors per program in the session daemon and in the consumer, as
/// documented.
const DESCRIPTORS_MAX: [f64; 2] = [6.0, 0.0];

/// Running program.
struct Program {
    process: Child,
    report: PathBuf,
    started: Instant,
}

/// Report that a program writes about its own events.
#[derive(Clone, Copy, Debug)]
struct Report {
    process: u64,
    emitted_max: u64,
    emitted_min: u64,
    unobserved_groups: u64,
    observed_after_us: u64,
}

impl Program {
    fn start(lab: &Lab, program: &Path, number: usize, groups: u64) -> Program {
        let report = lab.home.path().join(format!("{number}.account"));
        let mut command = lab.command("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program).arg(&report);
        command.args([GROUP_INTERVAL_US, groups].map(|number| number.to_string()));
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("the program starts");
        Program { process, report, started: Instant::now() }
    }

    /// Returns the program's report; `None` if it has not written one yet.
    fn report(&self) -> Option<Report> {
        let bytes = fs::read(&self.report).ok()?;
        let number = |index: usize| {
            let bytes = bytes.get(index * 8..index * 8 + 8)?.try_into().ok()?;
            Some(u64::from_ne_bytes(bytes))
        };
        let process = number(0).filter(|process| *process != 0)?;
        Some(Report {
            process,
            emitted_max: number(1)?,
            emitted_min: number(2)?,
            unobserved_groups: number(3)?,
            observed_after_us: number(4)?,
        })
    }

    fn is_observed(&self) -> bool {
        self.report().is_some_and(|report| report.emitted_min > 0)
    }

    fn kill(&mut self) {
        self.process.kill().expect("the process runs");
        self.process.wait().expect("the process was started");
    }

    fn expect_exit(&mut self) {
        assert!(self.process.wait().expect("the process was started").success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Events that were read of one process.
#[derive(Clone, Copy, Default)]
struct ProcessReads {
    events: u64,
    /// Events of the first group that were not read.
    cut_events: u64,
    /// First group that was read, possibly without its begin.
    first: Option<u64>,
}

impl ProcessReads {
    fn record(&mut self, name: &str, number: Option<u64>) {
        if self.events == 0 {
            self.cut_events = match name {
                "blkkin:begin" => 0,
                "blkkin:number" => 1,
                _ => 2,
            };
        }
        self.events += 1;
        self.first = self.first.or(number);
    }

    /// Returns the number of events before the start of the session, from the first emitted to the
    /// first read group.
    fn before_session_start(&self, report: &Report) -> u64 {
        let Some(first) = self.first else { return 0 };
        match self.cut_events {
            // The end of the previous group was read.
            2 => (first - report.unobserved_groups).saturating_sub(1) * EVENTS_PER_GROUP + 2,
            cut_events => (first - report.unobserved_groups) * EVENTS_PER_GROUP + cut_events,
        }
    }
}

/// Events that were read, by process, and whether a ring was stuck.
struct SessionReads {
    reads: HashMap<u64, ProcessReads>,
    stats: ReaderStats,
    stuck: bool,
}

fn read_session(mut follower: Follower, inactivity_max: Duration, ended: &AtomicBool) -> SessionReads {
    let (mut reads, mut stuck) = (HashMap::<u64, ProcessReads>::new(), false);
    let mut count = |view: &EventView<'_>| {
        let context = view.stream().event_context.as_ref().expect("a context");
        let (index, _) = context.field("vpid").expect("a vpid field");
        let Some(Value::Signed(process)) = view.event.stream_context.at(index) else { panic!("a number") };
        let name = view.name();
        let number = match view.field("val") {
            Some(Value::Signed(number)) => Some(number as u64),
            _ => None,
        };
        reads.entry(process as u64).or_default().record(name, number);
    };
    loop {
        match follower.step(&mut count) {
            Step::Read(wait) | Step::Unreachable(_, wait) => std::thread::sleep(wait),
            Step::Ended => break,
            Step::Destroyed => panic!("the session was destroyed meanwhile"),
            Step::Refused(error) => panic!("{error}"),
        }
        stuck |= !ended.load(Ordering::SeqCst)
            && follower.reader().inactive_streams(inactivity_max).next().is_some();
    }
    SessionReads { reads, stats: follower.stats(), stuck }
}

fn descriptors(process: u32) -> u64 {
    fs::read_dir(format!("/proc/{process}/fd")).map_or(0, |entries| entries.count() as u64)
}

/// Returns a process's memory in KiB, with its share of shared pages, and the size of its mapped
/// rings.
fn memory(process: u32) -> (u64, u64) {
    let maps = fs::read_to_string(format!("/proc/{process}/smaps")).unwrap_or_default();
    let (mut share, mut rings, mut is_ring) = (0, 0, false);
    for line in maps.lines() {
        let kib = |name: &str| {
            let number = line.strip_prefix(name)?.trim().strip_suffix(" kB")?;
            number.parse::<u64>().ok()
        };
        // `FROM-UNTIL rw-s …` begins a mapping.
        if line.split(' ').next().is_some_and(|word| word.contains('-')) {
            is_ring = line.contains("/dev/shm/shm-ust-consumer");
        }
        share += kib("Pss:").unwrap_or(0);
        rings += kib("Size:").filter(|_| is_ring).unwrap_or(0);
    }
    (share, rings)
}

/// Returns the children of all threads.
fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let listed = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    let listed = listed.collect::<Vec<_>>().join(" ");
    listed.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

fn child_named(parent: u32, name: &str) -> Option<u32> {
    let comm = |process: &u32| fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    children(parent).into_iter().find(|process| comm(process).trim() == name)
}

/// Returns the soft limit of open files.
fn open_files(process: u32) -> u64 {
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).expect("the process runs");
    let limit =
        limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("the value exists");
    limit.split_whitespace().next().and_then(|soft| soft.parse().ok()).expect("a number")
}

/// Sets the soft limit of this process, which children inherit.
fn limit_descriptors(count: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write a local structure.
    let done = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = count.min(limit.rlim_max);
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit)
    };
    assert_eq!(done, 0, "the limit may be lowered");
}

fn program() -> Option<PathBuf> {
    let own = std::env::current_exe().expect("a name");
    let program = own.parent()?.parent()?.join("examples/crowd");
    program.is_file().then_some(program)
}

#[test]
fn events_of_hundreds_of_programs_are_read_or_counted() {
    let Some(program) = program() else {
        eprintln!("skipped: crowd is not built: cargo build -p blkkin-ust --example crowd");
        return;
    };
    for _ in 0..STUCK_MAX {
        let Some(lab) = Lab::empty() else { return };
        if run(&lab, &program) == Ring::Intact {
            return;
        }
        eprintln!("repeated, because a killed program left a ring stuck (tests/session.rs)");
    }
    panic!("a ring is stuck in each of {STUCK_MAX} runs");
}

/// State of the rings of a run.
#[derive(PartialEq, Eq)]
enum Ring {
    Intact,
    /// A program that was killed between two steps of a write blocks all later events of its ring.
    Stuck,
}

/// Asserts that each emitted event is read or counted, unless a ring is stuck.
fn run(lab: &Lab, program: &Path) -> Ring {
    // The usual limit, which blkkin raises for the daemons that it starts.
    limit_descriptors(1024);
    let (tool, config) = (lab.tool(), SessionConfig::default());
    let (_daemons, relay) = LttngDaemons::ensure(&tool, None, &lab.traces()).expect("the daemons start");
    let daemon = child_named(std::process::id(), "lttng-sessiond").expect("the process was started");
    let (supervisor, _) = SessionSupervisor::create(tool, relay, config).expect("the session is created");
    let follower = supervisor.follower(ReaderSettings::default());
    let (ended, inactivity_max) = (Arc::new(AtomicBool::new(false)), supervisor.config().inactivity_max());
    let reader_ended = Arc::clone(&ended);
    let reader = std::thread::spawn(move || read_session(follower, inactivity_max, &reader_ended));

    // One program, so that all costs that do not depend on the number of programs are included.
    let mut programs = vec![Program::start(lab, program, 0, GROUPS_LONG)];
    until("the first is observed", || programs[0].is_observed());
    let consumer = child_named(daemon, "lttng-consumerd").expect("the value exists");
    let measure = || ([daemon, consumer].map(descriptors), [daemon, consumer].map(memory));
    let (descriptors_of_one, memory_of_one) = measure();
    let started = Instant::now();
    // A third of the programs runs until it is killed.
    let of = |number: usize| if number.is_multiple_of(3) { 0 } else { GROUPS_LONG };
    programs.extend((1..LONG_LIVED).map(|number| Program::start(lab, program, number, of(number))));
    until("all are observed", || programs.iter().all(Program::is_observed));
    let elapsed = started.elapsed();
    let (descriptors_of_all, memory_of_all) = measure();
    let all_run = programs.iter_mut().all(|program| matches!(program.process.try_wait(), Ok(None)));
    assert!(all_run, "at once: {elapsed:?}");
    let each = [0, 1].map(|index| {
        (descriptors_of_all[index] - descriptors_of_one[index]) as f64 / (LONG_LIVED - 1) as f64
    });
    eprintln!("{LONG_LIVED} observed after {elapsed:?}; the session daemon may open {}", open_files(daemon));
    eprintln!(
        "descriptors of daemon and consumer: {descriptors_of_one:?} with one program, {descriptors_of_all:?} with all: {each:?} each"
    );
    eprintln!(
        "their KiB, and KiB of rings that they map: {memory_of_one:?} with one, {memory_of_all:?} with all"
    );
    eprintln!("of one program: {:?}", memory(programs[1].process.id()));
    assert!(each[0] <= DESCRIPTORS_MAX[0] && each[1] <= DESCRIPTORS_MAX[1], "{each:?}");
    // One ring per CPU for all writers, plus the descriptions of its sub-buffers.
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
    let ring = (supervisor.config().subbuf_size >> 10) * u64::from(supervisor.config().num_subbuf);
    let rings = memory_of_all[1].1;
    assert!((ring * cpus..=(ring + ring / 8) * cpus).contains(&rings), "{rings} KiB of {cpus} times {ring}");
    assert_eq!(memory_of_one[1].1, rings, "independent of the number of programs");

    // Short-lived programs start and exit.
    let (started, mut short_lived) = (Instant::now(), Vec::<Program>::new());
    let mut concurrent_max = 0;
    for number in 0.. {
        let at = Duration::from_secs(1) * number / STARTS_PER_SECOND;
        if at >= START_PERIOD {
            break;
        }
        std::thread::sleep(at.saturating_sub(started.elapsed()));
        let groups = if number.is_multiple_of(5) { 0 } else { GROUPS_SHORT };
        short_lived.push(Program::start(lab, program, LONG_LIVED + number as usize, groups));
        let before = short_lived.len().saturating_sub(STARTS_PER_SECOND as usize / 2);
        for (number, program) in short_lived.iter_mut().enumerate().take(before) {
            if number.is_multiple_of(5)
                && program.started.elapsed() < Duration::from_secs(2)
                && program.is_observed()
            {
                program.kill();
            }
        }
        let running = short_lived
            .iter_mut()
            .filter_map(|program| program.process.try_wait().ok())
            .filter(Option::is_none);
        concurrent_max = concurrent_max.max(running.count());
    }
    eprintln!(
        "{} started within {:?}, up to {concurrent_max} of them concurrent",
        short_lived.len(),
        started.elapsed()
    );
    for (number, program) in short_lived.iter_mut().enumerate() {
        if number.is_multiple_of(5) { program.kill() } else { program.expect_exit() }
    }
    for (number, program) in programs.iter_mut().enumerate() {
        if number > 0 && of(number) == 0 { program.kill() } else { program.expect_exit() }
    }
    ended.store(true, Ordering::SeqCst);
    supervisor.end().expect("the session is destroyed");
    let SessionReads { reads, stats, stuck } = reader.join().expect("the reader ends normally");
    if stuck {
        return Ring::Stuck;
    }

    let all: Vec<Report> = programs.iter().chain(&short_lived).filter_map(Program::report).collect();
    let sum = |of: fn(&Report) -> u64| all.iter().map(of).sum::<u64>();
    let (emitted_min, emitted_max) = (sum(|report| report.emitted_min), sum(|report| report.emitted_max));
    let latest_us = all.iter().map(|report| report.observed_after_us).max().unwrap_or(0);
    let read = stats.events;
    eprintln!(
        "{} programs of {}: {emitted_min} to {emitted_max} events emitted, {read} read, {} discarded; {} groups before the session was enabled, \
         the last observed after {latest_us} µs; {stats:?}",
        all.len(),
        programs.len() + short_lived.len(),
        stats.lost.events,
        sum(|report| report.unobserved_groups)
    );
    assert_eq!((stats.unreadable, stats.overwritten), (0, 0), "{stats:?}");
    assert_eq!(reads.values().map(|reads| reads.events).sum::<u64>(), read);
    let (mut before_session_start, mut dropped_max, mut unread) = (0, DROPPED_AT_START, Vec::new());
    for report in &all {
        match reads.get(&report.process) {
            Some(reads) => {
                let dropped = reads.before_session_start(report);
                (before_session_start, dropped_max) =
                    (before_session_start + dropped, dropped_max.max(dropped));
            }
            None if report.emitted_max > 0 => unread.push(report),
            None => {}
        }
    }
    eprintln!("{before_session_start} were emitted before their session was started, and all of {unread:?}");
    for report in &unread {
        assert!(report.emitted_min <= dropped_max, "nothing was read of {report:?}");
        before_session_start += report.emitted_max;
    }
    // The first events of a program may also be among those that a full ring discarded: then they are in both numbers.
    let known = read + stats.lost.events;
    let accounted_for = known + before_session_start;
    let surplus = if stats.lost.events > 0 { before_session_start } else { 0 };
    assert!(
        known <= emitted_max && (emitted_min..=emitted_max + surplus).contains(&accounted_for),
        "{known} and {before_session_start} of {emitted_min} to {emitted_max}"
    );
    for report in &all {
        let Some(reads) = reads.get(&report.process) else { continue };
        let read = reads.events + reads.before_session_start(report);
        assert!(stats.lost.events > 0 || read <= report.emitted_max, "{read} of {report:?}");
        assert!(stats.lost.events > 0 || read >= report.emitted_min, "{read} of {report:?}");
    }
    Ring::Intact
}
