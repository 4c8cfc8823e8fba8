//! Throughput and latency of reading a live stream and its recording on one thread, compared with
//! babeltrace2 on the same files.
//!
//! `cargo bench -p blkkin-ust-bridge`. The tests' C program emits the events into blocking rings,
//! so none is lost. Times are this process's CPU time and wall time.

#![allow(clippy::print_stdout, reason = "the benchmark prints its results")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use blkkin_lttng_live::clock::monotonic_ns;
use blkkin_lttng_live::event_view::EventView;
use blkkin_lttng_live::live::follow::{Follower, Step, Target};
use blkkin_lttng_live::live::reader::ReaderSettings;
use blkkin_lttng_live::trace_folder::TraceFolder;
use blkkin_ust_bridge::mapping::config::Mapping;
use blkkin_ust_bridge::mapping::mapper::Mapper;
use support::lab::Lab;

const EVENTS: u64 = 1_000_000;

/// Mapping of the program's small event, for the cost of mapping.
const TICK: &str = "[[rule]]\nevent = \"sample:tick\"\nis = \"event\"\nspan = \"n\"\nname_from = \"text\"\n";

fn main() {
    let Some(lab) = Lab::start() else { return };
    throughput(&lab);
    latency(&lab);
    many_processes(&lab);
    println!("largest resident memory: {}", peak_memory());
}

fn throughput(lab: &Lab) {
    lab.live_session("fast", 5000, "--subbuf-size=256K --num-subbuf=16 --blocking-timeout=inf");
    let mut sample = lab.sample(&["tick", &EVENTS.to_string()]);
    sample.go();
    sample.end();
    // When the command returns, the relay has all data, and keeps it while the reader is attached.
    let mut follower = follower(lab, "fast");
    while !matches!(follower.step(&mut |_| {}), Step::Read(_)) {}
    lab.lttng("stop fast");
    let (begun, cpu) = (Instant::now(), cpu_time());
    let mut mapper = Mapper::new(Mapping::read(TICK).expect("the mapping is valid"));
    let mut span_events = 0_u64;
    while follower.stats().events < EVENTS {
        match follower.step(&mut |view| mapper.map(view, &mut |_, _| span_events += 1)) {
            Step::Read(wait) => std::thread::sleep(wait),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(span_events, EVENTS);
    report("live, decoded, merged and mapped", begun.elapsed(), cpu_time() - cpu);
    lab.lttng("destroy fast");
    while !matches!(follower.step(&mut |_| {}), Step::Ended | Step::Destroyed) {}

    for turn in 0..3 {
        let (begun, cpu) = (Instant::now(), cpu_time());
        assert_eq!(read(&lab.traces(), |_| {}), EVENTS);
        report(&format!("stored, decoded and merged, {turn}"), begun.elapsed(), cpu_time() - cpu);
    }
    let mut mapper = Mapper::new(Mapping::read(TICK).expect("the mapping is valid"));
    let (begun, cpu) = (Instant::now(), cpu_time());
    read(&lab.traces(), |view| mapper.map(view, &mut |_, _| {}));
    report("stored, and mapped", begun.elapsed(), cpu_time() - cpu);

    let begun = Instant::now();
    let status = Command::new("babeltrace2").args(["--output-format=dummy"]).arg(lab.traces()).status();
    assert!(status.expect("babeltrace2 runs").success());
    report("babeltrace2, without printing", begun.elapsed(), children_time());
}

/// Measures the latency of single events, 1 ms apart, from the trace point to the reader.
fn latency(lab: &Lab) {
    lab.live_session("slow", 5000, "--subbuf-size=256K --num-subbuf=16");
    let mut follower = follower(lab, "slow");
    let mut sample = lab.sample(&["tick", "3000", "1000"]);
    // The first events wait until the session is attached.
    let mut first = lab.sample(&["tick", "100"]);
    first.go();
    while follower.stats().events < 100 {
        follower.step(&mut |_| {});
    }
    sample.begin();
    let (mut delays, cpu, begun) = (Vec::new(), cpu_time(), Instant::now());
    while follower.stats().events < 3100 {
        let mut note = |view: &EventView<'_>| delays.push(monotonic_ns().saturating_sub(view.time_ns as u64));
        match follower.step(&mut note) {
            Step::Read(wait) | Step::Unreachable(_, wait) => std::thread::sleep(wait),
            other => panic!("{other:?}"),
        }
    }
    let (cpu, wall) = (cpu_time() - cpu, begun.elapsed());
    sample.done();
    sample.end();
    first.end();
    delays.sort_unstable();
    let at = |part: f64| delays[((delays.len() - 1) as f64 * part) as usize] as f64 / 1e6;
    let late = follower.stats().late;
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

/// Reads a few events from each of many concurrent processes in one user's rings.
fn many_processes(lab: &Lab) {
    const PROCESSES: u64 = 300;
    lab.live_session("many", 5000, "--subbuf-size=256K --num-subbuf=16");
    let begun = Instant::now();
    let mut samples: Vec<_> = (0..PROCESSES).map(|_| lab.sample(&["tick", "100"])).collect();
    let registered = begun.elapsed();
    let mut follower = follower(lab, "many");
    samples.iter_mut().for_each(|sample| sample.begin());
    while follower.stats().events + follower.stats().lost.events < PROCESSES * 100 {
        match follower.step(&mut |_| {}) {
            Step::Read(wait) | Step::Unreachable(_, wait) => std::thread::sleep(wait),
            other => panic!("{other:?}"),
        }
    }
    let (counts, held) = (follower.stats(), follower.reader().bytes_held());
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
    let settings = ReaderSettings::default();
    Follower::new(Target { address: lab.address(), session: session.to_owned(), settings })
}

fn read(folder: &Path, mut each: impl FnMut(&EventView<'_>)) -> u64 {
    let mut trace_folder = TraceFolder::open(folder).expect("the folder exists");
    let mut events = 0;
    while let Some(view) = trace_folder.next_event() {
        each(&view);
        events += 1;
    }
    assert!(trace_folder.problems.is_empty(), "{:?}", trace_folder.problems);
    events
}

fn report(what: &str, wall: Duration, cpu: Duration) {
    let rate = |time: Duration| EVENTS as f64 / time.as_secs_f64() / 1e6;
    println!(
        "{what}: {:.2} M events/s of the wall, {:.2} M/s a core ({} ns an event)",
        rate(wall),
        rate(cpu),
        cpu.as_nanos() as u64 / EVENTS
    );
}

fn usage(target: libc::c_int) -> Duration {
    // SAFETY: an all-zero rusage is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes to a local variable.
    unsafe { libc::getrusage(target, &mut usage) };
    let time =
        |time: libc::timeval| Duration::from_micros(time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64);
    time(usage.ru_utime) + time(usage.ru_stime)
}

fn cpu_time() -> Duration {
    usage(libc::RUSAGE_THREAD)
}

/// Returns the CPU time of all ended children; only babeltrace2 runs for long.
fn children_time() -> Duration {
    usage(libc::RUSAGE_CHILDREN)
}

fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or("unknown".to_owned(), |line| line.trim().to_owned())
}
