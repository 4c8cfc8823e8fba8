//! Hundreds of instrumented programs on one node, coming and going, some of them killed: what each says it gave to LTTng is what is read
//! of it and what LTTng says it has discarded. And what they cost: descriptors of LTTng's daemons, and memory of the rings.
//!
//! *The one thing that nobody counts.* LTTng's library enables a new process's events, asks the session daemon about its channels, and
//! only then takes events (`lttng_session_enable` in src/lib/lttng-ust/lttng-events.c of lttng-ust v2.13.5): what is given to it between
//! the two is dropped without a word. On a busy machine that is a group or two of one in hundreds of processes. So a process's events
//! may lack in one place, before the first that was read of it; and how many they are, that one's number says.

#![allow(clippy::print_stderr, reason = "a test says what it measured")]

mod support;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use blkkin_ust_bridge::ctf::plan::Value;
use blkkin_ust_bridge::live::follow::{Follower, Step, Target};
use blkkin_ust_bridge::live::reader::{Counts, Settings};
use blkkin_ust_bridge::session::daemons::Daemons;
use blkkin_ust_bridge::session::keeper::{Keeper, Plan};
use blkkin_ust_bridge::view::View;
use support::lab::{Lab, until};

/// At once, of which a third is killed.
const STANDING: usize = 300;
/// Each second, for so long; of which a fifth is killed.
const COMING: u32 = 20;
const FOR: Duration = Duration::from_secs(15);
/// Between two groups of three events.
const EVERY_US: u64 = 20_000;
const OF_A_GROUP: u64 = 3;
/// Groups of one that ends by itself: of those who stand there, and of those who come.
const LONG: u64 = 1_000;
const SHORT: u64 = 40;
/// No more than the docs say of each program: of the session daemon, and of the consumer.
const DESCRIPTORS: [f64; 2] = [6.0, 0.0];

/// One of them.
struct Member {
    process: Child,
    account: PathBuf,
    begun: Instant,
}

/// What it has said of itself.
#[derive(Clone, Copy, Debug)]
struct Account {
    process: u64,
    given_most: u64,
    given_least: u64,
    unheard: u64,
    heard_after_us: u64,
}

impl Member {
    fn start(lab: &Lab, program: &Path, number: usize, groups: u64) -> Member {
        let account = lab.home.path().join(format!("{number}.account"));
        let mut command = lab.command("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program).arg(&account);
        command.args([EVERY_US, groups].map(|number| number.to_string()));
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts");
        Member { process, account, begun: Instant::now() }
    }

    /// None as long as it has not come so far.
    fn account(&self) -> Option<Account> {
        let bytes = fs::read(&self.account).ok()?;
        let number = |place: usize| {
            let bytes = bytes.get(place * 8..place * 8 + 8)?.try_into().ok()?;
            Some(u64::from_ne_bytes(bytes))
        };
        let process = number(0).filter(|process| *process != 0)?;
        Some(Account {
            process,
            given_most: number(1)?,
            given_least: number(2)?,
            unheard: number(3)?,
            heard_after_us: number(4)?,
        })
    }

    fn is_heard(&self) -> bool {
        self.account().is_some_and(|account| account.given_least > 0)
    }

    fn kill(&mut self) {
        self.process.kill().expect("it is there");
        self.process.wait().expect("it was started");
    }

    fn ends(&mut self) {
        assert!(self.process.wait().expect("it was started").success());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What was read of one process.
#[derive(Clone, Copy, Default)]
struct Told {
    events: u64,
    /// Of the first group's three events so many were not read.
    cut: u64,
    /// The first group that was read whole, or but for its begin.
    first: Option<u64>,
}

impl Told {
    fn hear(&mut self, name: &str, number: Option<u64>) {
        if self.events == 0 {
            self.cut = match name {
                "blkkin:begin" => 0,
                "blkkin:number" => 1,
                _ => 2,
            };
        }
        self.events += 1;
        self.first = self.first.or(number);
    }

    /// Given while its session was not started yet: the groups from the first that was given to the first that was read.
    fn unstarted(&self, account: &Account) -> u64 {
        let Some(first) = self.first else { return 0 };
        match self.cut {
            // The end of the group before it was read.
            2 => (first - account.unheard).saturating_sub(1) * OF_A_GROUP + 2,
            cut => (first - account.unheard) * OF_A_GROUP + cut,
        }
    }
}

/// What was read, by process; and whether a ring was found stuck.
struct Heard {
    told: HashMap<u64, Told>,
    counts: Counts,
    stuck: bool,
}

fn listen(target: Target, silent_max: Duration, over: &AtomicBool) -> Heard {
    let (mut follower, mut told, mut stuck) = (Follower::new(target), HashMap::<u64, Told>::new(), false);
    let mut count = |view: &View<'_>| {
        let context = view.stream().event_context.as_ref().expect("a context");
        let (index, _) = context.field("vpid").expect("of processes");
        let Some(Value::Signed(process)) = view.event.stream_context.at(index) else { panic!("a number") };
        let name = view.name();
        let number = match view.field("val") {
            Some(Value::Signed(number)) => Some(number as u64),
            _ => None,
        };
        told.entry(process as u64).or_default().hear(name, number);
    };
    loop {
        match follower.step(&mut count) {
            Step::Read(wait) | Step::Away(_, wait) => std::thread::sleep(wait),
            Step::Over => break,
            Step::Gone => panic!("the session was destroyed meanwhile"),
            Step::Refused(error) => panic!("{error}"),
        }
        stuck |= !over.load(Ordering::SeqCst) && follower.reader().silent(silent_max).next().is_some();
    }
    Heard { told, counts: follower.counts(), stuck }
}

fn descriptors(process: u32) -> u64 {
    fs::read_dir(format!("/proc/{process}/fd")).map_or(0, |entries| entries.count() as u64)
}

/// KiB of a process: what it holds in memory, its share of what others hold too; and what it has mapped of shared memory.
fn memory(process: u32) -> (u64, u64) {
    let maps = fs::read_to_string(format!("/proc/{process}/smaps")).unwrap_or_default();
    let (mut share, mut rings, mut is_ring) = (0, 0, false);
    for line in maps.lines() {
        let kib = |name: &str| {
            let number = line.strip_prefix(name)?.trim().strip_suffix(" kB")?;
            number.parse::<u64>().ok()
        };
        // `FROM-UNTIL rw-s …`: a mapping begins.
        if line.split(' ').next().is_some_and(|word| word.contains('-')) {
            is_ring = line.contains("/dev/shm/shm-ust-consumer");
        }
        share += kib("Pss:").unwrap_or(0);
        rings += kib("Size:").filter(|_| is_ring).unwrap_or(0);
    }
    (share, rings)
}

/// Of all its threads.
fn children(process: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let listed = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    let listed = listed.collect::<Vec<_>>().join(" ");
    listed.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

fn named(parent: u32, name: &str) -> Option<u32> {
    let comm = |process: &u32| fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    children(parent).into_iter().find(|process| comm(process).trim() == name)
}

/// The soft limit.
fn open_files(process: u32) -> u64 {
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).expect("it runs");
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("it has one");
    limit.split_whitespace().next().and_then(|soft| soft.parse().ok()).expect("a number")
}

/// Our own soft limit, which is inherited.
fn limit_descriptors(most: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write the structure, which outlives them.
    let done = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = most.min(limit.rlim_max);
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit)
    };
    assert_eq!(done, 0, "one may lower it");
}

fn program() -> Option<PathBuf> {
    let own = std::env::current_exe().expect("a name");
    let program = own.parent()?.parent()?.join("examples/crowd");
    program.is_file().then_some(program)
}

#[test]
fn what_hundreds_say_that_come_and_go_is_read_or_counted() {
    let Some(program) = program() else {
        eprintln!("skipped: crowd is not built: cargo build -p blkkin-ust --example crowd");
        return;
    };
    let Some(lab) = Lab::empty() else { return };
    // The usual one: who starts the daemons raises it for them.
    limit_descriptors(1024);
    let (tool, plan) = (lab.tool(), Plan::default());
    let (_daemons, relay) = Daemons::ensure(&tool, None, &lab.traces()).expect("they start");
    let daemon = named(std::process::id(), "lttng-sessiond").expect("it was started");
    let address = relay.live_address();
    let (keeper, _) = Keeper::create(tool, relay, plan).expect("it is made");
    let target = Target { address, session: keeper.name().to_owned(), settings: Settings::default() };
    let (over, silent_max) = (Arc::new(AtomicBool::new(false)), keeper.plan().silent_max());
    let told = Arc::clone(&over);
    let reader = std::thread::spawn(move || listen(target, silent_max, &told));

    // One, so that all is there which does not depend on how many they are.
    let mut members = vec![Member::start(&lab, &program, 0, LONG)];
    until("the first is heard", || members[0].is_heard());
    let consumer = named(daemon, "lttng-consumerd").expect("it has one");
    let figures = || ([daemon, consumer].map(descriptors), [daemon, consumer].map(memory));
    let (few, of_few) = figures();
    let begun = Instant::now();
    // A third stands there until it is killed.
    let of = |number: usize| if number.is_multiple_of(3) { 0 } else { LONG };
    members.extend((1..STANDING).map(|number| Member::start(&lab, &program, number, of(number))));
    until("all are heard", || members.iter().all(Member::is_heard));
    let took = begun.elapsed();
    let (many, of_many) = figures();
    let all_run = members.iter_mut().all(|member| matches!(member.process.try_wait(), Ok(None)));
    assert!(all_run, "at once: {took:?}");
    let each = [0, 1].map(|index| (many[index] - few[index]) as f64 / (STANDING - 1) as f64);
    eprintln!("{STANDING} heard after {took:?}; the session daemon may open {}", open_files(daemon));
    eprintln!(
        "descriptors of daemon and consumer: {few:?} with one program, {many:?} with all: {each:?} each"
    );
    eprintln!("their KiB, and KiB of rings that they map: {of_few:?} with one, {of_many:?} with all");
    eprintln!("of one program: {:?}", memory(members[1].process.id()));
    assert!(each[0] <= DESCRIPTORS[0] && each[1] <= DESCRIPTORS[1], "{each:?}");
    // A ring a processor, whoever writes to it; what describes its sub-buffers comes to it.
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
    let ring = (keeper.plan().subbuf_size >> 10) * u64::from(keeper.plan().num_subbuf);
    let rings = of_many[1].1;
    assert!((ring * cpus..=(ring + ring / 8) * cpus).contains(&rings), "{rings} KiB of {cpus} times {ring}");
    assert_eq!(of_few[1].1, rings, "however many there are");

    // Others come and go.
    let (begun, mut coming) = (Instant::now(), Vec::<Member>::new());
    let mut most = 0;
    for number in 0.. {
        let at = Duration::from_secs(1) * number / COMING;
        if at >= FOR {
            break;
        }
        std::thread::sleep(at.saturating_sub(begun.elapsed()));
        let groups = if number.is_multiple_of(5) { 0 } else { SHORT };
        coming.push(Member::start(&lab, &program, STANDING + number as usize, groups));
        let before = coming.len().saturating_sub(COMING as usize / 2);
        for (number, member) in coming.iter_mut().enumerate().take(before) {
            if number.is_multiple_of(5)
                && member.begun.elapsed() < Duration::from_secs(2)
                && member.is_heard()
            {
                member.kill();
            }
        }
        let running =
            coming.iter_mut().filter_map(|member| member.process.try_wait().ok()).filter(Option::is_none);
        most = most.max(running.count());
    }
    eprintln!("{} came within {:?}, {most} of them at a time", coming.len(), begun.elapsed());
    for (number, member) in coming.iter_mut().enumerate() {
        if number.is_multiple_of(5) { member.kill() } else { member.ends() }
    }
    for (number, member) in members.iter_mut().enumerate() {
        if number > 0 && of(number) == 0 { member.kill() } else { member.ends() }
    }
    over.store(true, Ordering::SeqCst);
    keeper.end().expect("it ends");
    let Heard { told, counts, stuck } = reader.join().expect("it reads");
    if stuck {
        eprintln!("skipped: a killed program left a ring stuck, which tests/session.rs is about");
        return;
    }

    let all: Vec<Account> = members.iter().chain(&coming).filter_map(Member::account).collect();
    let sum = |of: fn(&Account) -> u64| all.iter().map(of).sum::<u64>();
    let (least, most) = (sum(|account| account.given_least), sum(|account| account.given_most));
    let latest = all.iter().map(|account| account.heard_after_us).max().unwrap_or(0);
    let read = counts.events;
    eprintln!(
        "{} programs of {}: {least} to {most} events given, {read} read, {} discarded; {} groups before anybody listened, \
         the last to be heard after {latest} µs; {counts:?}",
        all.len(),
        members.len() + coming.len(),
        counts.lost.events,
        sum(|account| account.unheard)
    );
    assert_eq!((counts.broken, counts.gone), (0, 0), "{counts:?}");
    assert_eq!(told.values().map(|told| told.events).sum::<u64>(), read);
    let unstarted: u64 =
        all.iter().filter_map(|account| Some(told.get(&account.process)?.unstarted(account))).sum();
    eprintln!("{unstarted} were given while their session was not started yet");
    let accounted = read + counts.lost.events + unstarted;
    assert!((least..=most).contains(&accounted), "{accounted} of {least} to {most}");
    for account in &all {
        let told = told.get(&account.process).copied().unwrap_or_default();
        let read = told.events + told.unstarted(account);
        assert!(counts.lost.events > 0 || read <= account.given_most, "{read} of {account:?}");
        assert!(counts.lost.events > 0 || read >= account.given_least, "{read} of {account:?}");
    }
}
