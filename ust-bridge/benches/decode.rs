//! How fast a live stream and its recording are read, on one thread, beside babeltrace2 on the same files.
//!
//! `cargo bench -p blkkin-ust-bridge`: events are made by the tests' C program with blocking rings, so none is lost; times are of
//! this process' own CPU, and of the wall.

#![allow(clippy::print_stdout, reason = "its output is what it is for")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use blkkin_ust_bridge::clock::monotonic_ns;
use blkkin_ust_bridge::live::follow::{Follower, Step, Target};
use blkkin_ust_bridge::live::reader::Settings;
use blkkin_ust_bridge::mapping::config::Mapping;
use blkkin_ust_bridge::mapping::mapper::Mapper;
use blkkin_ust_bridge::stored::Stored;
use blkkin_ust_bridge::view::View;
use support::lab::Lab;

const EVENTS: u64 = 1_000_000;

/// A mapping of the program's small event, for what mapping costs.
const TICK: &str = "[[rule]]\nevent = \"sample:tick\"\nis = \"event\"\nspan = \"n\"\nname_from = \"text\"\n";

fn main() {
    let Some(lab) = Lab::start() else { return };
    throughput(&lab);
    latency(&lab);
    many(&lab);
    println!("largest resident memory: {}", peak_memory());
}

fn throughput(lab: &Lab) {
    lab.live_session("fast", 5000, "--subbuf-size=256K --num-subbuf=16 --blocking-timeout=inf");
    let mut sample = lab.sample(&["tick", &EVENTS.to_string()]);
    sample.go();
    sample.end();
    // All of it is at the relay when the command has returned; the relay keeps it while we are attached.
    let mut follower = follower(lab, "fast");
    while !matches!(follower.step(&mut |_| {}), Step::Read(_)) {}
    lab.lttng("stop fast");
    let (begun, cpu) = (Instant::now(), cpu_time());
    let mut mapper = Mapper::new(Mapping::read(TICK).expect("it is a mapping"));
    let mut facts = 0_u64;
    while follower.counts().events < EVENTS {
        match follower.step(&mut |view| mapper.map(view, &mut |_, _| facts += 1)) {
            Step::Read(wait) => std::thread::sleep(wait),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(facts, EVENTS);
    say("live, decoded, merged and mapped", begun.elapsed(), cpu_time() - cpu);
    lab.lttng("destroy fast");
    while !matches!(follower.step(&mut |_| {}), Step::Over | Step::Gone) {}

    for turn in 0..3 {
        let (begun, cpu) = (Instant::now(), cpu_time());
        assert_eq!(read(&lab.traces(), |_| {}), EVENTS);
        say(&format!("stored, decoded and merged, {turn}"), begun.elapsed(), cpu_time() - cpu);
    }
    let mut mapper = Mapper::new(Mapping::read(TICK).expect("it is a mapping"));
    let (begun, cpu) = (Instant::now(), cpu_time());
    read(&lab.traces(), |view| mapper.map(view, &mut |_, _| {}));
    say("stored, and mapped", begun.elapsed(), cpu_time() - cpu);

    let begun = Instant::now();
    let status = Command::new("babeltrace2").args(["--output-format=dummy"]).arg(lab.traces()).status();
    assert!(status.expect("babeltrace2 runs").success());
    say("babeltrace2, without printing", begun.elapsed(), children_time());
}

/// Events one by one, 1 ms apart: how long each takes from its trace point to the reader.
fn latency(lab: &Lab) {
    lab.live_session("slow", 5000, "--subbuf-size=256K --num-subbuf=16");
    let mut follower = follower(lab, "slow");
    let mut sample = lab.sample(&["tick", "3000", "1000"]);
    // The first ones wait until the session is attached to.
    let mut first = lab.sample(&["tick", "100"]);
    first.go();
    while follower.counts().events < 100 {
        follower.step(&mut |_| {});
    }
    sample.begin();
    let (mut delays, cpu, begun) = (Vec::new(), cpu_time(), Instant::now());
    while follower.counts().events < 3100 {
        let mut note = |view: &View<'_>| delays.push(monotonic_ns().saturating_sub(view.time_ns as u64));
        match follower.step(&mut note) {
            Step::Read(wait) | Step::Away(_, wait) => std::thread::sleep(wait),
            other => panic!("{other:?}"),
        }
    }
    let (cpu, wall) = (cpu_time() - cpu, begun.elapsed());
    sample.done();
    sample.end();
    first.end();
    delays.sort_unstable();
    let at = |part: f64| delays[((delays.len() - 1) as f64 * part) as usize] as f64 / 1e6;
    let late = follower.counts().late;
    println!(
        "latency at 5 ms: median {:.1} ms, p99 {:.1} ms, most {:.1} ms; {late} late",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    println!(
        "following 1,000 events/s takes {:.1} % of a core",
        100.0 * cpu.as_secs_f64() / wall.as_secs_f64()
    );
    lab.lttng("destroy --no-wait slow");
}

/// Many processes at once in one user's rings, each with a few events.
fn many(lab: &Lab) {
    const PROCESSES: u64 = 300;
    lab.live_session("many", 5000, "--subbuf-size=256K --num-subbuf=16");
    let begun = Instant::now();
    let mut samples: Vec<_> = (0..PROCESSES).map(|_| lab.sample(&["tick", "100"])).collect();
    let registered = begun.elapsed();
    let mut follower = follower(lab, "many");
    samples.iter_mut().for_each(|sample| sample.begin());
    while follower.counts().events + follower.counts().lost.events < PROCESSES * 100 {
        match follower.step(&mut |_| {}) {
            Step::Read(wait) | Step::Away(_, wait) => std::thread::sleep(wait),
            other => panic!("{other:?}"),
        }
    }
    let (counts, held) = (follower.counts(), follower.reader().bytes_held());
    println!(
        "{PROCESSES} processes, registered within {registered:.1?}: {} events read, {} lost, {} late; {held} bytes of packets held",
        counts.events, counts.lost.events, counts.late
    );
    samples.into_iter().for_each(|mut sample| {
        sample.done();
        sample.end();
    });
    lab.lttng("destroy --no-wait many");
}

fn follower(lab: &Lab, session: &str) -> Follower {
    let settings = Settings::default();
    Follower::new(Target { address: lab.address(), session: session.to_owned(), settings })
}

fn read(folder: &Path, mut each: impl FnMut(&View<'_>)) -> u64 {
    let mut stored = Stored::open(folder).expect("it is there");
    let mut events = 0;
    while let Some(view) = stored.next_event() {
        each(&view);
        events += 1;
    }
    assert!(stored.troubles.is_empty(), "{:?}", stored.troubles);
    events
}

fn say(what: &str, wall: Duration, cpu: Duration) {
    let rate = |time: Duration| EVENTS as f64 / time.as_secs_f64() / 1e6;
    println!(
        "{what}: {:.2} M events/s of the wall, {:.2} M/s a core ({} ns an event)",
        rate(wall),
        rate(cpu),
        cpu.as_nanos() as u64 / EVENTS
    );
}

fn usage(whose: libc::c_int) -> Duration {
    // SAFETY: an all-zero rusage is a valid one.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it writes to `usage`, which is ours.
    unsafe { libc::getrusage(whose, &mut usage) };
    let time =
        |time: libc::timeval| Duration::from_micros(time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64);
    time(usage.ru_utime) + time(usage.ru_stime)
}

fn cpu_time() -> Duration {
    usage(libc::RUSAGE_THREAD)
}

/// Of all children that have ended: only babeltrace2 works for long.
fn children_time() -> Duration {
    usage(libc::RUSAGE_CHILDREN)
}

fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or("unknown".to_owned(), |line| line.trim().to_owned())
}
