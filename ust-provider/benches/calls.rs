//! What a call costs, in ns: while nobody traces, with a session, and with a session and two threads.
//!
//! `cargo bench -p blkkin-ust`. Each figure is the smallest of several rounds: what the call takes when nothing else is in the
//! way. With a session means one that overwrites its oldest events, so that every one is recorded and none discarded.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench says what it measured, and fails by panicking"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

use blkkin_ust::{RpcSide, ScopedSpan, SequentialSpans, Span, SpanBatch, SpanContext, SpanKind};
use support::{Lttng, compile, library, succeed};

const SERVICE: &std::ffi::CStr = c"nbd-server";
/// Each is shorter than what a scheduler gives, so the smallest is one that nothing interrupted.
const ROUNDS: usize = 300;

fn main() {
    // `cargo bench` says --bench.
    match std::env::args().nth(1).as_deref() {
        Some("measure") => measure(),
        _ => compare(),
    }
}

/// Runs the measurement as a process of its own, without LTTng and with.
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
    let lttng = match Lttng::start() {
        Ok(lttng) => lttng,
        Err(why) => return println!("skipped: {why}"),
    };
    let program = lttng.install(&program);
    println!("connected, no session:");
    print!("{}", succeed(lttng.command(&program).args(["measure", "1"]).output().unwrap()));
    for threads in ["1", "2"] {
        lttng.lttng(&[
            "create",
            "bench",
            "--snapshot",
            &format!("--output={}", lttng.home().join("bench").display()),
        ]);
        lttng.lttng(&["enable-channel", "-u", "c", "--overwrite", "--subbuf-size=1M", "--num-subbuf=4"]);
        lttng.lttng(&["enable-event", "-u", "-c", "c", "blkkin:*"]);
        lttng.lttng(&["start"]);
        println!("recorded, threads: {threads}");
        print!("{}", succeed(lttng.command(&program).args(["measure", threads]).output().unwrap()));
        lttng.lttng(&["destroy", "bench"]);
    }
}

/// Somebody looks at it where it lies, then it ends. A function would have it copied to where it takes it.
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
    let came = SpanContext { trace_hi: 0, trace_lo: 1, span: 2, parent: 0, sampled: true };
    let empty = best(threads, calls, || {
        black_box(&root);
    });
    let say = |what: &str, events: u32, took: Duration| {
        let ns = (took.as_secs_f64() - empty.as_secs_f64()).max(0.0) * 1e9 / calls as f64;
        let each = if blkkin_ust::enabled() {
            format!(", {:6.1} an event", ns / f64::from(events))
        } else {
            String::new()
        };
        println!("  {what:34} {ns:7.2} ns{each}");
    };
    say("number", 1, best(threads, calls, || black_box(&root).set_number(c"offset", black_box(4096))));
    say("text", 1, best(threads, calls, || black_box(&root).set_text(c"path", c"/srv/disk.raw")));
    say("event", 1, best(threads, calls, || black_box(&root).add_event(c"queued")));
    say("enter, leave", 2, best(threads, calls, || drop(black_box(&root).enter())));
    say("root, end", 2, best(threads, calls, || ended!(Span::root(SpanKind::Server, c"READ", SERVICE))));
    say(
        "child, end",
        2,
        best(threads, calls, || ended!(black_box(&root).child(SpanKind::Internal, c"pread"))),
    );
    say(
        "continued, end",
        2,
        best(threads, calls, || {
            ended!(Span::continued(black_box(came), SpanKind::Server, c"READ", SERVICE));
        }),
    );
    say(
        "here: root, end",
        2,
        best(threads, calls, || ended!(ScopedSpan::root(SpanKind::Server, c"READ", SERVICE))),
    );
    say("a request, one by one", 7, best(threads, calls, one_by_one));
    say(
        "together: root, end",
        2,
        best(threads, calls, || {
            let mut batch = SpanBatch::new();
            let span = batch.root(SpanKind::Server, c"READ", SERVICE);
            batch.end(span);
        }),
    );
    say(
        "turns: take, rest",
        2,
        best(threads, calls, || {
            let mut current = SequentialSpans::new();
            current.enter(black_box(&root));
        }),
    );
    // While nobody traces it would be the moving of eight spans.
    if blkkin_ust::enabled() {
        let eight = best(threads, calls / 8, together);
        println!(
            "  {:34} {:7.2} ns",
            "a request of eight, together",
            eight.as_secs_f64() * 1e9 / calls as f64
        );
    }
    let carried = Span::continued(came, SpanKind::Server, c"READ", SERVICE);
    // From here on something was published in this process, so what is not must hide it.
    say("published: enter, leave", 2, best(threads, calls, || drop(black_box(&carried).enter())));
    say("enter, leave, of one that hides", 2, best(threads, calls, || drop(black_box(&root).enter())));
}

const CONNECTION: &std::ffi::CStr = c"unix:4ed9f5f3-1a44-4d0b-8ac6-1c5ad6d5f1a0:123456>123457";

/// What a server says of a request: seven events.
fn one_by_one() {
    let span = Span::root(SpanKind::Server, c"READ", SERVICE);
    span.rpc_endpoint(RpcSide::Server, c"nbd", CONNECTION, black_box(7), false);
    span.set_number(c"nbd.offset", black_box(4096));
    span.set_number(c"nbd.length", black_box(4096));
    drop(black_box(&span).enter());
}

/// The same of eight at once: eleven events.
fn together() {
    let mut batch = SpanBatch::new();
    let spans = [(); 8].map(|()| {
        let span = batch.root(SpanKind::Server, c"READ", SERVICE);
        batch.rpc_endpoint(&span, RpcSide::Server, c"nbd", CONNECTION, black_box(7), false);
        batch.set_number(&span, c"nbd.offset", black_box(4096));
        batch.set_number(&span, c"nbd.length", black_box(4096));
        span
    });
    batch.flush();
    let mut current = SequentialSpans::new();
    spans.iter().for_each(|span| current.enter(black_box(span)));
    current.exit();
    spans.into_iter().for_each(|span| batch.end(span));
}

/// The smallest of several rounds; on several threads, the slowest of them.
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
