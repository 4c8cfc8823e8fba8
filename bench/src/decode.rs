//! `decode`: throughput and latency of reading LTTng's streams on one thread, compared with
//! babeltrace2 on the same files.
//!
//! A C program of ust-bridge's tests emits the events, of two fields each, into blocking rings.
//! *Measured*: the reading thread's processor time for a live stream, and for its recording;
//! babeltrace2's for the recording; and the time from single events to the reader, 1 ms apart.
//! *Invariant*: a round counts only if all events were read.

#[path = "../../ust-bridge/tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use blkkin_lttng_live::clock::monotonic_ns;
use blkkin_lttng_live::event_view::EventView;
use blkkin_lttng_live::live::follow::{Follower, Step, Target};
use blkkin_lttng_live::live::reader::Settings;
use blkkin_lttng_live::trace_folder::TraceFolder;
use blkkin_ust_bridge::mapping::config::Mapping;
use blkkin_ust_bridge::mapping::mapper::Mapper;
use support::lab::Lab;

use crate::Setting;
use crate::frame::number::count;
use crate::frame::rounds::quantile;
use crate::frame::{BenchReport, Figure, RoundPolicy, Rounds};
use crate::process::{self, thread_time};

const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 1, min_rounds: 7, max_rounds: 7, time_limit: Duration::from_secs(300) };
/// Events of a round, for the throughput and for the latency.
const EVENTS: u64 = 1_000_000;
const SINGLE_EVENTS: u64 = 3_000;
/// Events that the reader waits for, so that it is attached to the session.
const FIRST_EVENTS: u64 = 100;
const LIVE_TIMER_US: u64 = 5_000;

/// Mapping of the program's small event, for the cost of mapping.
const TICK: &str = "[[rule]]\nevent = \"sample:tick\"\nis = \"event\"\nspan = \"n\"\nname_from = \"text\"\n";

/// Processor time of each way to read [`EVENTS`].
struct Throughput {
    live: Duration,
    stored: Duration,
    mapped: Duration,
    babeltrace: Duration,
}

/// Delays of single events in ms.
struct Latency {
    median: f64,
    p99: f64,
    max: f64,
    /// Processor time of the reader in % of one CPU.
    processor: f64,
}

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let lab = Lab::start().context("LTTng's daemons, its headers or babeltrace2 are missing")?;
    let measure = |()| Ok((throughput(&lab)?, latency(&lab)?));
    let rounds = POLICY.quick(setting.extent.is_quick()).run(&[()], measure, |_| false)?;
    let rounds: Vec<_> = rounds.into_iter().flatten().collect();
    let throughput = |name, time: fn(&Throughput) -> Duration| {
        let rate = rounds.iter().map(|(round, _)| EVENTS as f64 / time(round).as_secs_f64() / 1e6);
        Figure::of(name, &rate.collect::<Rounds>(), "M events/s a core")
    };
    let latency = |name, value: fn(&Latency) -> f64, unit| {
        Figure::of(name, &rounds.iter().map(|(_, round)| value(round)).collect::<Rounds>(), unit)
    };
    let resident = process::usage_now(std::process::id())?.1.most as f64 / f64::from(1 << 20);
    let figures = vec![
        throughput("live stream: decoded, merged and mapped", |round| round.live),
        throughput("stored trace: decoded and merged", |round| round.stored),
        throughput("stored trace: decoded, merged and mapped", |round| round.mapped),
        throughput("stored trace: babeltrace2, without printing", |round| round.babeltrace),
        latency("event to reader, median", |round| round.median, "ms"),
        latency("event to reader, p99", |round| round.p99, "ms"),
        latency("event to reader, maximum", |round| round.max, "ms"),
        latency("reading 1,000 events/s", |round| round.processor, "% of one CPU"),
        Figure::new("resident at most", resident, 0.0, "MiB").note("VmHWM of the whole benchmark"),
    ];
    let how = format!(
        "A C program emits {} events with a number and a text into blocking rings. One thread reads them from LTTng's relay, and then from the \
         recording. Rates are per second of that thread's processor time, and of all of babeltrace2's. For the latency, {} events are emitted \
         1 ms apart, with a live timer of {} ms. {} rounds.",
        count(EVENTS),
        count(SINGLE_EVENTS),
        LIVE_TIMER_US / 1_000,
        rounds.len(),
    );
    Ok(BenchReport { how, figures, ..BenchReport::default() })
}

fn throughput(lab: &Lab) -> Result<Throughput> {
    let traces = lab.traces();
    // Of earlier sessions; the relay makes the folders of a session.
    for host in fs::read_dir(&traces).into_iter().flatten() {
        fs::remove_dir_all(host?.path())?;
    }
    lab.live_session("fast", LIVE_TIMER_US, "--subbuf-size=256K --num-subbuf=16 --blocking-timeout=inf");
    let mut sample = lab.sample(&["tick", &EVENTS.to_string()]);
    sample.go();
    sample.end();
    // When the command returns, the relay has all data, and keeps it while the reader is attached.
    let mut follower = follower(lab, "fast");
    while !matches!(follower.step(&mut |_| {}), Step::Read(_)) {}
    lab.lttng("stop fast");
    let mut mapper = Mapper::new(Mapping::read(TICK)?);
    let mut span_events = 0;
    let before = thread_time();
    read_live(&mut follower, EVENTS, |view| mapper.map(view, &mut |_, _| span_events += 1))?;
    let live = thread_time() - before;
    ensure!(span_events == EVENTS, "{span_events} of {EVENTS} events were mapped");
    lab.lttng("destroy fast");
    while !matches!(follower.step(&mut |_| {}), Step::Ended | Step::Destroyed) {}

    let mut mapper = Mapper::new(Mapping::read(TICK)?);
    let stored = read_stored(&traces, |_| {})?;
    let mapped = read_stored(&traces, |view| mapper.map(view, &mut |_, _| {}))?;
    let mut babeltrace = Command::new("babeltrace2");
    babeltrace.arg("--output-format=dummy").arg(&traces).stdin(Stdio::null()).stdout(Stdio::null());
    let usage = process::wait(babeltrace.spawn().context("cannot start babeltrace2")?)?;
    ensure!(usage.status.success(), "babeltrace2 failed");
    Ok(Throughput { live, stored, mapped, babeltrace: usage.processor })
}

/// Measures single events from the trace point to the reader.
fn latency(lab: &Lab) -> Result<Latency> {
    lab.live_session("slow", LIVE_TIMER_US, "--subbuf-size=256K --num-subbuf=16");
    let mut follower = follower(lab, "slow");
    let mut sample = lab.sample(&["tick", &SINGLE_EVENTS.to_string(), "1000"]);
    let mut first = lab.sample(&["tick", &FIRST_EVENTS.to_string()]);
    first.go();
    while follower.stats().events < FIRST_EVENTS {
        follower.step(&mut |_| {});
    }
    sample.begin();
    let mut delays = Vec::new();
    let (before, started) = (thread_time(), Instant::now());
    read_live(&mut follower, FIRST_EVENTS + SINGLE_EVENTS, |view| {
        delays.push(monotonic_ns().saturating_sub(view.time_ns as u64) as f64 / 1e6);
    })?;
    let processor = 100.0 * (thread_time() - before).as_secs_f64() / started.elapsed().as_secs_f64();
    sample.done();
    sample.end();
    first.end();
    lab.lttng("destroy slow");
    let mut at = |part| quantile(&mut delays, part);
    Ok(Latency { median: at(0.5), p99: at(0.99), max: at(1.0), processor })
}

fn follower(lab: &Lab, session: &str) -> Follower {
    let settings = Settings::default();
    Follower::new(Target { address: lab.address(), session: session.to_owned(), settings })
}

/// Reads a live session until it had `events`.
fn read_live(follower: &mut Follower, events: u64, mut each: impl FnMut(&EventView<'_>)) -> Result<()> {
    while follower.stats().events < events {
        match follower.step(&mut each) {
            Step::Read(wait) | Step::Unreachable(_, wait) => std::thread::sleep(wait),
            other => bail!("the session ended early: {other:?}"),
        }
    }
    Ok(())
}

/// Reads a stored trace of [`EVENTS`], and returns the processor time.
fn read_stored(folder: &Path, mut each: impl FnMut(&EventView<'_>)) -> Result<Duration> {
    let before = thread_time();
    let mut trace = TraceFolder::open(folder)?;
    let mut events = 0;
    while let Some(view) = trace.next_event() {
        each(&view);
        events += 1;
    }
    ensure!(events == EVENTS && trace.problems.is_empty(), "{events} events, {:?}", trace.problems);
    Ok(thread_time() - before)
}
