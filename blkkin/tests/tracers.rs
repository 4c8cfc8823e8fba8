//! Tracing libraries of others that publish what their threads work for, as they are published: each call of their programs is below the
//! span that the library has made, in its trace, and none below another.
//!
//! The programs are `support/tracers/app.py` (dd-trace-py) and `App.java` (OpenTelemetry's API, dd-trace-java). `cargo xtask setup --tests`
//! fetches the libraries.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use blkkin_tracer::TracerConfig;

use support::context::recorded_program::{RING, WARM_UP};
use support::gated_process::GatedProcess;
use support::live::eventually;
use support::recording::{Recorder, Recording};
use support::tools::capture;
use support::{needs, or_skip};

/// Orders, each of which has one step.
const TURNS: usize = 500;
/// Nobody takes what they would send.
const ALONE: [&str; 4] = [
    "env",
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED=false",
    "DD_REMOTE_CONFIGURATION_ENABLED=false",
    "DD_TRACE_OTEL_CTX_ENABLED=true",
];

/// Where a folder of what is fetched is, by the variable that says it.
fn fetched(variable: &str) -> Result<PathBuf, String> {
    let folder = std::env::var_os(variable).map(PathBuf::from).filter(|folder| folder.is_dir());
    folder.ok_or_else(|| format!("{variable} names no folder: cargo xtask test fetches it"))
}

#[test]
fn each_call_of_a_program_in_python_is_below_the_span_of_its_tracing_library() {
    needs!("python3");
    let tracers = or_skip!(fetched("BLKKIN_TRACERS"));
    let path = format!("PYTHONPATH={}", tracers.join("python").display());
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/tracers/app.py");
    check("dd-trace-py", &[&path, "python3", &program.display().to_string()]);
}

#[test]
fn each_call_of_a_program_in_java_is_below_the_span_of_its_tracing_library() {
    needs!("java");
    let tracers = or_skip!(fetched("BLKKIN_TRACERS"));
    let compiler = or_skip!(fetched("BLKKIN_JAVA_JARS"));
    let jars: Vec<PathBuf> =
        std::fs::read_dir(tracers.join("java")).unwrap().map(|jar| jar.unwrap().path()).collect();
    let (agent, jars): (Vec<_>, Vec<_>) =
        jars.into_iter().map(|jar| jar.display().to_string()).partition(|jar| jar.contains("dd-java-agent"));
    let folder = tempfile::tempdir().unwrap();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/tracers/App.java");
    let path = format!("{}:{}", jars.join(":"), folder.path().display());
    let mut compile = Command::new("java");
    compile.args(["-cp", &format!("{}/*", compiler.display())]);
    compile.args(["org.eclipse.jdt.internal.compiler.batch.Main", "-17", "-cp", &path, "-d"]);
    capture(compile.arg(folder.path()).arg(program)).unwrap();
    let agent = format!("-javaagent:{}", agent[0]);
    let options = ["-Ddd.trace.otel.enabled=true", "-Ddd.profiling.enabled=true"];
    check("dd-trace-java", &["java", &agent, options[0], options[1], "-cp", &path, "App"]);
}

fn check(library: &str, program: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let [file, go, said] = ["file", "go", "said"].map(|name| folder.path().join(name).display().to_string());
    std::fs::write(&file, [0; 4096]).unwrap();
    let turns = TURNS.to_string();
    let words: Vec<&str> = ALONE.iter().chain(program).chain([&*file, &go, &turns].iter()).copied().collect();
    let mut actor = GatedProcess::program(&words, Path::new(&said));
    let config = TracerConfig { ring_bytes: Some(RING), ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[actor.pid()]);
    actor.release();
    let found = eventually(|| recorder.calls_with_context() > 0);
    assert!(found, "nothing was found, and {} publish: {}", recorder.publishing(), actor.output());
    assert!(
        eventually(|| !recorder.process_contexts().is_empty()),
        "it does not say who it is: {}",
        actor.output()
    );
    std::fs::write(&go, "").unwrap();
    assert_eq!(actor.run_to_exit(), 0, "{}", actor.output());
    let recording = recorder.finish();
    recording.assert_balanced();
    assert_eq!(recording.stats.calls.dropped, 0, "{:#?}", recording.stats);
    let (below, none) = judge(&recording, &told(&actor.output()));
    println!("{library}: {below} calls below their spans, {none} below none");
    assert_eq!((below, none), (3 * TURNS, 2 * TURNS));
}

/// Each span's trace, as the program says it.
fn told(said: &str) -> HashMap<u64, u128> {
    let span = |line: &str| {
        let (span, trace) = line.split_once(' ')?;
        Some((u64::from_str_radix(span, 16).ok()?, u128::from_str_radix(trace, 16).ok()?))
    };
    let spans: HashMap<u64, u128> = said.lines().filter_map(span).collect();
    assert_eq!(spans.len(), 2 * TURNS, "{said}");
    spans
}

/// How many calls are below the span that their offset names, and how many that name none are below none.
fn judge(recording: &Recording, told: &HashMap<u64, u128>) -> (usize, usize) {
    let (mut below, mut none) = (0, 0);
    let calls = recording.calls_named("pread64").into_iter().filter(|call| call.args[2] == 1);
    for call in calls.filter(|call| call.args[3] != WARM_UP) {
        match &call.context {
            None => {
                assert_eq!(call.args[3], 0, "below no span: {call:#?}");
                none += 1;
            }
            Some(context) => {
                assert_eq!(context.span.0 & (u64::MAX >> 1), call.args[3], "{call:#?}");
                assert_eq!(told.get(&context.span.0), Some(&context.trace.0), "{call:#?}");
                below += 1;
            }
        }
    }
    (below, none)
}
