//! Cost of each call in ns: while no session records, and with a session, one thread or two, and all
//! roots or nearly none.
//!
//! `cargo bench -p blkkin-ust`. Each figure is the minimum of several rounds, so it excludes
//! interruptions. The session overwrites its oldest events, so every event is recorded and none
//! discarded.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints what it measured, and fails by panicking"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

use blkkin_ust::{RpcSide, ScopedSpan, SequentialSpans, Span, SpanContext, SpanKind};
use support::{Lttng, compile, library, succeed};

const SERVICE: &std::ffi::CStr = c"nbd-server";
/// Number of rounds. Each is shorter than a scheduler's time slice, so the minimum was not
/// interrupted.
const ROUNDS: usize = 300;

fn main() {
    // `cargo bench` passes --bench.
    match std::env::args().nth(1).as_deref() {
        Some("measure") => measure(),
        _ => compare(),
    }
}

/// Runs the measurement in separate processes, without and with LTTng.
fn compare() {
    let program = std::env::current_exe().unwrap();
    println!("off:");
    print!(
        "{}",
        succeed(Command::new(&program).args(["measure", "1"]).env("BLKKIN_UST", "0").output().unwrap())
    );
    let build = tempfile::tempdir().unwrap();
    let c = compile(build.path(), &library(build.path()), "cost.c", "cost", &["-O2", "-Wno-pedantic"]);
    print!("{}", succeed(Command::new(c).env("BLKKIN_UST", "0").output().unwrap()));
    let Some(lttng) = Lttng::start_or_skip() else { return };
    let program = lttng.install(&program);
    println!("connected, no session:");
    print!("{}", succeed(lttng.command(&program).args(["measure", "1"]).output().unwrap()));
    // At one root per second, nearly all are dropped.
    for (threads, roots) in [("1", "0"), ("2", "0"), ("1", "1"), ("2", "1")] {
        lttng.lttng(&[
            "create",
            "bench",
            "--snapshot",
            &format!("--output={}", lttng.home().join("bench").display()),
        ]);
        lttng.lttng(&["enable-channel", "-u", "c", "--overwrite", "--subbuf-size=1M", "--num-subbuf=4"]);
        lttng.lttng(&["enable-event", "-u", "-c", "c", "blkkin:*"]);
        lttng.lttng(&["start"]);
        println!("recorded, threads: {threads}, BLKKIN_UST_ROOTS={roots}");
        let mut command = lttng.command(&program);
        command.args(["measure", threads]).env("BLKKIN_UST_ROOTS", roots);
        print!("{}", succeed(command.output().unwrap()));
        lttng.lttng(&["destroy", "bench"]);
    }
}

/// Uses the span in place and ends it. A function would copy it to its argument.
macro_rules! ended {
    ($begun:expr) => {{
        let span = $begun;
        black_box(&span);
    }};
}

fn measure() {
    let threads = std::env::args().nth(2).unwrap().parse().unwrap();
    let _ = blkkin_ust::init();
    let calls: u64 = if blkkin_ust::enabled() { 5_000 } else { 500_000 };
    let root = Span::root(SpanKind::Server, c"READ", SERVICE);
    let remote = SpanContext { trace_hi: 0, trace_lo: 1, span: 2, parent: 0, sampled: true };
    let empty = best(threads, calls, || {
        black_box(&root);
    });
    let report = |label: &str, events: u32, took: Duration| {
        let ns = (took.as_secs_f64() - empty.as_secs_f64()).max(0.0) * 1e9 / calls as f64;
        let each = if blkkin_ust::enabled() {
            format!(", {:6.1} an event", ns / f64::from(events))
        } else {
            String::new()
        };
        println!("  {label:34} {ns:7.2} ns{each}");
    };
    report("number", 1, best(threads, calls, || black_box(&root).set_number(c"offset", black_box(4096))));
    report("text", 1, best(threads, calls, || black_box(&root).set_text(c"path", c"/srv/disk.raw")));
    report("event", 1, best(threads, calls, || black_box(&root).add_event(c"queued")));
    report("enter, leave", 2, best(threads, calls, || drop(black_box(&root).enter())));
    report("root, end", 2, best(threads, calls, || ended!(Span::root(SpanKind::Server, c"READ", SERVICE))));
    report(
        "child, end",
        2,
        best(threads, calls, || ended!(black_box(&root).child(SpanKind::Internal, c"pread"))),
    );
    report(
        "continued, end",
        2,
        best(threads, calls, || {
            ended!(Span::continued(black_box(remote), SpanKind::Server, c"READ", SERVICE));
        }),
    );
    report(
        "scoped: root, end",
        2,
        best(threads, calls, || ended!(ScopedSpan::root(SpanKind::Server, c"READ", SERVICE))),
    );
    report("a request, separate events", 7, best(threads, calls, separate_events));
    report(
        "sequence: enter, exit",
        2,
        best(threads, calls, || {
            let mut current = SequentialSpans::new();
            current.enter(black_box(&root));
        }),
    );
    let continued = Span::continued(remote, SpanKind::Server, c"READ", SERVICE);
    // From here on a context was published in this process, so a span without one must hide it.
    report("published: enter, leave", 2, best(threads, calls, || drop(black_box(&continued).enter())));
    report("enter, leave, hiding a context", 2, best(threads, calls, || drop(black_box(&root).enter())));
}

const CONNECTION: &std::ffi::CStr = c"unix:4ed9f5f3-1a44-4d0b-8ac6-1c5ad6d5f1a0:123456>123457";

/// Events of a server for one request: seven.
fn separate_events() {
    let span = Span::root(SpanKind::Server, c"READ", SERVICE);
    span.rpc_endpoint(RpcSide::Server, c"nbd", CONNECTION, black_box(7), false);
    span.set_number(c"nbd.offset", black_box(4096));
    span.set_number(c"nbd.length", black_box(4096));
    drop(black_box(&span).enter());
}

/// Minimum of several rounds; with several threads, of the slowest one.
fn best(threads: usize, calls: u64, call: impl Fn() + Sync) -> Duration {
    let round = || {
        let begun = Instant::now();
        for _ in 0..calls {
            call();
        }
        begun.elapsed()
    };
    let once = || match threads {
        1 => round(),
        _ => std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(round)).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
        }),
    };
    (0..ROUNDS).map(|_| once()).min().unwrap()
}
