//! `ust`: cost of a call of blkkin-ust, while no session records and recorded.
//!
//! *Measured*: ns per call in a loop, less the empty loop, each subject in a process of its own:
//! with LTTng disabled (`BLKKIN_UST=0`); with LTTng's daemons but no session; in a session, by one
//! thread or two, with all roots or with one root per second, so that nearly all are dropped. With
//! two threads it is the slower one's time. The functions of the C library are measured by
//! `cost.c`, which the benchmark compiles.
//!
//! *Invariant*: the session overwrites its oldest events, so every event is recorded and none
//! discarded. Discarding is cheaper, and a reader would take CPU time.

#[path = "../../../ust-provider/tests/support/lttng.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "shared with the tests, and used in part")]
mod lttng;

use std::ffi::CStr;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use blkkin_ust::{RpcSide, ScopedSpan, SequentialSpans, Span, SpanContext, SpanKind};

use self::lttng::Lttng;
use crate::Setting;
use crate::calls::measure_ns;
use crate::frame::number::with_spread;
use crate::frame::{BenchReport, Figure, Goal, RoundPolicy, Rounds, Table};
use crate::process;

const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 1, min_rounds: 9, max_rounds: 9, time_limit: Duration::from_secs(400) };
/// Chunks of 1,000 calls.
const CHUNKS: &str = "100";
const CHUNKS_QUICK: &str = "8";
/// Goal in ns, which the description of the crate names.
const OFF_MAX: f64 = 1.0;

const CRATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../ust-provider");
const SERVICE: &CStr = c"nbd-server";
const CONNECTION: &CStr = c"unix:4ed9f5f3-1a44-4d0b-8ac6-1c5ad6d5f1a0:123456>123457";

#[derive(Clone, Copy, PartialEq)]
enum Subject {
    Disabled,
    /// The C library, with LTTng disabled.
    C,
    NoSession,
    /// Number of threads, and `BLKKIN_UST_ROOTS`.
    Recorded(&'static str, &'static str),
}

const SUBJECTS: [Subject; 7] = [
    Subject::Disabled,
    Subject::NoSession,
    Subject::Recorded("1", "0"),
    Subject::Recorded("2", "0"),
    Subject::Recorded("1", "1"),
    Subject::Recorded("2", "1"),
    Subject::C,
];

/// Label of a call, and its ns.
type Cost = (String, f64);

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let quick = setting.extent.is_quick();
    let chunks = if quick { CHUNKS_QUICK } else { CHUNKS };
    let program = std::env::current_exe().context("this program does not know where it is")?;
    let build = tempfile::tempdir()?;
    let c = compile(build.path())?;
    let lttng = Lttng::start().map_err(anyhow::Error::msg)?;
    let installed = lttng.install(&program);
    let measure = |subject| match subject {
        Subject::Disabled => costs(loop_of(&mut Command::new(&program), "1", chunks).env("BLKKIN_UST", "0")),
        Subject::C => costs(Command::new(&c).env("BLKKIN_UST", "0")),
        Subject::NoSession => costs(loop_of(&mut lttng.command(&installed), "1", chunks)),
        Subject::Recorded(threads, roots) => {
            let output = format!("--output={}", lttng.home().join("bench").display());
            lttng.lttng(&["create", "bench", "--snapshot", &output]);
            lttng.lttng(&["enable-channel", "-u", "c", "--overwrite", "--subbuf-size=1M", "--num-subbuf=4"]);
            lttng.lttng(&["enable-event", "-u", "-c", "c", "blkkin:*"]);
            lttng.lttng(&["start"]);
            let mut command = lttng.command(&installed);
            let found = costs(loop_of(&mut command, threads, chunks).env("BLKKIN_UST_ROOTS", roots));
            lttng.lttng(&["destroy", "bench"]);
            found
        }
    };
    let rounds = POLICY.quick(quick).run(&SUBJECTS, measure, |_| false)?;
    build_report(&rounds)
}

/// Adds the arguments of [`load`].
fn loop_of<'a>(command: &'a mut Command, threads: &str, chunks: &str) -> &'a mut Command {
    command.args(["load", "ust", threads, chunks])
}

/// Builds the C library as a user does, and the program that measures it.
fn compile(build: &Path) -> Result<PathBuf> {
    let mut make = Command::new("make");
    make.args(["-s", "-f"]).arg(format!("{CRATE}/c/Makefile")).arg(format!("BUILD={}", build.display()));
    process::run(make.env("BLKKIN_UST", "require"))?;
    let (source, program) = (build.join("cost.c"), build.join("cost"));
    std::fs::write(&source, include_str!("cost.c"))?;
    let mut cc = Command::new("cc");
    cc.args(["-O2", &format!("-I{CRATE}/c/include"), "-o"]).args([&program, &source]);
    process::run(cc.arg(build.join("libblkkin-ust.a")).args(["-ldl", "-lpthread"]))?;
    Ok(program)
}

/// Runs a process that prints a line for each call: label, tab, ns.
fn costs(command: &mut Command) -> Result<Vec<Cost>> {
    let output = process::run(command)?;
    let line = |line: &str| {
        let (label, ns) = line.split_once('\t')?;
        Some((label.to_owned(), ns.parse().ok()?))
    };
    output.lines().map(line).collect::<Option<_>>().with_context(|| format!("no cost in: {output}"))
}

/// Uses the span in place and ends it. A function would copy it to its argument.
macro_rules! ended {
    ($begun:expr) => {{
        let span = $begun;
        black_box(&span);
    }};
}

/// Measures the calls in this process, and prints them for [`costs`].
pub(crate) fn load(threads: usize, chunks: usize) {
    // Without LTTng it measures a process that is not recorded.
    let _ = blkkin_ust::init();
    let root = Span::root(SpanKind::Server, c"READ", SERVICE);
    let remote = SpanContext { trace_hi: 0, trace_lo: 1, span: 2, parent: 0, sampled: true };
    let empty = slowest(threads, chunks, || {
        black_box(&root);
    });
    let report = |label, ns: f64| println!("{label}\t{:.3}", (ns - empty).max(0.0));
    // Inlines each call into its loop.
    macro_rules! measure {
        ($label:literal, $call:expr) => {
            report($label, slowest(threads, chunks, || $call));
        };
    }
    measure!("number", black_box(&root).set_number(c"offset", black_box(4096)));
    measure!("text", black_box(&root).set_text(c"path", c"/srv/disk.raw"));
    measure!("event", black_box(&root).add_event(c"queued"));
    measure!("enter, leave", drop(black_box(&root).enter()));
    measure!("root, end", ended!(Span::root(SpanKind::Server, c"READ", SERVICE)));
    measure!("child, end", ended!(black_box(&root).child(SpanKind::Internal, c"pread")));
    measure!(
        "continued, end",
        ended!(Span::continued(black_box(remote), SpanKind::Server, c"READ", SERVICE))
    );
    measure!("scoped root, end", ended!(ScopedSpan::root(SpanKind::Server, c"READ", SERVICE)));
    measure!("a request of seven events", separate_events());
    measure!("sequence: enter, leave", SequentialSpans::new().enter(black_box(&root)));
    let continued = Span::continued(remote, SpanKind::Server, c"READ", SERVICE);
    // From here on a context was published in this process, so a span without one must hide it.
    measure!("published: enter, leave", drop(black_box(&continued).enter()));
    measure!("enter, leave, hiding a context", drop(black_box(&root).enter()));
}

/// Emits a server's events for one request.
fn separate_events() {
    let span = Span::root(SpanKind::Server, c"READ", SERVICE);
    span.rpc_endpoint(RpcSide::Server, c"nbd", CONNECTION, black_box(7), false);
    span.set_number(c"nbd.offset", black_box(4096));
    span.set_number(c"nbd.length", black_box(4096));
    drop(black_box(&span).enter());
}

/// Returns ns per call of the slowest thread.
fn slowest(threads: usize, chunks: usize, call: impl Fn() + Sync) -> f64 {
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(|| measure_ns(chunks, &call))).collect();
        all.into_iter().filter_map(|thread| thread.join().ok()).fold(f64::NAN, f64::max)
    })
}

fn build_report(rounds: &[Vec<Vec<Cost>>]) -> Result<BenchReport> {
    let of = |subject, label: &str| -> Result<Rounds> {
        let index = SUBJECTS.iter().position(|other| *other == subject).unwrap_or_default();
        let cost = |round: &Vec<Cost>| round.iter().find(|(name, _)| name == label).map(|(_, ns)| *ns);
        let found: Option<Vec<f64>> = rounds[index].iter().map(cost).collect();
        Ok(found.with_context(|| format!("no cost of {label}"))?.into_iter().collect())
    };
    let labels = |subject: usize| rounds[subject][0].iter().map(|(label, _)| label.as_str());
    let shown = |rounds: Rounds| with_spread(rounds.median(), rounds.spread());
    let columns = [
        "call",
        "BLKKIN_UST=0",
        "no session",
        "recorded",
        "recorded, two threads",
        "roots dropped",
        "roots dropped, two threads",
    ];
    let mut rust = Table::new("Rust, ns a call", &columns);
    for label in labels(0) {
        let cells = SUBJECTS[..6].iter().map(|subject| Ok(shown(of(*subject, label)?)));
        let cells: Vec<String> = cells.collect::<Result<_>>()?;
        rust.row([vec![label.to_owned()], cells].concat());
    }
    let mut c = Table::new("C, ns a call", &["call", "BLKKIN_UST=0"]);
    for label in labels(6) {
        c.row([label.to_owned(), shown(of(Subject::C, label)?)]);
    }
    let figure = |name, subject, label| Ok(Figure::of(name, &of(subject, label)?, "ns"));
    let recorded = Subject::Recorded("1", "0");
    let figures: Result<Vec<Figure>> = [
        figure("no session: annotating a span", Subject::NoSession, "number")
            .map(|figure| figure.goal(Goal::AtMost(OFF_MAX))),
        figure("no session: beginning and ending a root", Subject::NoSession, "root, end"),
        figure("no session: entering and leaving a span", Subject::NoSession, "enter, leave"),
        figure("the same of a published span", Subject::NoSession, "published: enter, leave"),
        figure("the same in C", Subject::C, "published: enter, leave"),
        figure("recorded: annotating a span", recorded, "number"),
        figure("recorded: beginning and ending a root", recorded, "root, end"),
        figure("recorded: a request of seven events", recorded, "a request of seven events"),
        figure("the same, dropped by sampling", Subject::Recorded("1", "1"), "a request of seven events"),
    ]
    .into_iter()
    .collect();
    let how = format!(
        "Loops of 1,000 calls, less the empty loop: medians of {} chunks in each process, and of {} processes, in turns. `enter` and `leave`, and a \
         span's begin and end, are two events; a request is a root with an endpoint and two numbers, entered and left. The sessions overwrite their \
         oldest events, so none is discarded. *Roots dropped*: one root per second is kept.",
        CHUNKS,
        rounds[0].len()
    );
    Ok(BenchReport { how, figures: figures?, tables: vec![rust, c], ..BenchReport::default() })
}
