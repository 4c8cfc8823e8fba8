//! Released tracing libraries that publish thread contexts: each call of their programs is a child
//! of the library's span, in its trace.
//!
//! *Input*: `support/tracers/app.py` (dd-trace-py) and `App.java` (OpenTelemetry's API,
//! dd-trace-java). `cargo xtask setup --tests` fetches the libraries. The program prints its spans
//! and trace ids, and the offset of a call names its span.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use blkkin_tracer::TracerConfig;

use crate::support::context::recorded_program::{RING, WARM_UP};
use crate::support::gated_process::GatedProcess;
use crate::support::live::eventually;
use crate::support::recording::{Recorder, Recording};
use crate::support::tools::capture;
use crate::support::{needs, or_skip};

/// Number of orders, each of which has one step.
const TURNS: usize = 500;
/// Environment in which the libraries send nothing.
const ENVIRONMENT: [&str; 4] = [
    "env",
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED=false",
    "DD_REMOTE_CONFIGURATION_ENABLED=false",
    "DD_TRACE_OTEL_CTX_ENABLED=true",
];

/// Returns the folder of fetched files that this variable names.
fn fetched(variable: &str) -> Result<PathBuf, String> {
    let folder = std::env::var_os(variable).map(PathBuf::from).filter(|folder| folder.is_dir());
    folder.ok_or_else(|| format!("{variable} names no folder: cargo xtask test fetches it"))
}

#[test]
fn each_call_in_python_is_a_child_of_the_tracing_librarys_span() {
    needs!("python3");
    let tracers = or_skip!(fetched("BLKKIN_TRACERS"));
    let path = format!("PYTHONPATH={}", tracers.join("python").display());
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/tracers/app.py");
    check("dd-trace-py", &[&path, "python3", &program.display().to_string()]);
}

#[test]
fn each_call_in_java_is_a_child_of_the_tracing_librarys_span() {
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
    let [file, go, output] =
        ["file", "go", "output"].map(|name| folder.path().join(name).display().to_string());
    std::fs::write(&file, [0; 4096]).unwrap();
    let turns = TURNS.to_string();
    let args: Vec<&str> =
        ENVIRONMENT.iter().chain(program).chain([&*file, &go, &turns].iter()).copied().collect();
    let mut process = GatedProcess::program(&args, Path::new(&output));
    let config = TracerConfig { ring_bytes: Some(RING), ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[process.pid()]);
    process.release();
    let found = eventually(|| recorder.calls_with_context() > 0);
    assert!(found, "no context was found, and {} publish: {}", recorder.publishing(), process.output());
    assert!(
        eventually(|| !recorder.process_contexts().is_empty()),
        "no process context was read: {}",
        process.output()
    );
    std::fs::write(&go, "").unwrap();
    assert_eq!(process.run_to_exit(), 0, "{}", process.output());
    let recording = recorder.finish();
    recording.assert_balanced();
    assert_eq!(recording.stats.calls.dropped, 0, "{:#?}", recording.stats);
    let (children, orphans) = count_calls(&recording, &trace_ids(&process.output()));
    println!("{library}: {children} calls with a parent, {orphans} without");
    assert_eq!((children, orphans), (3 * TURNS, 2 * TURNS));
}

/// Parses the trace id of each span from the program's output.
fn trace_ids(output: &str) -> HashMap<u64, u128> {
    let span = |line: &str| {
        let (span, trace) = line.split_once(' ')?;
        Some((u64::from_str_radix(span, 16).ok()?, u128::from_str_radix(trace, 16).ok()?))
    };
    let spans: HashMap<u64, u128> = output.lines().filter_map(span).collect();
    assert_eq!(spans.len(), 2 * TURNS, "{output}");
    spans
}

/// Asserts that each call is a child of the span that its offset names. Returns the number of calls
/// with a parent and without.
fn count_calls(recording: &Recording, trace_ids: &HashMap<u64, u128>) -> (usize, usize) {
    let (mut children, mut orphans) = (0, 0);
    let calls = recording.calls_named("pread64").into_iter().filter(|call| call.args[2] == 1);
    for call in calls.filter(|call| call.args[3] != WARM_UP) {
        match &call.context {
            None => {
                assert_eq!(call.args[3], 0, "no parent: {call:#?}");
                orphans += 1;
            }
            Some(context) => {
                assert_eq!(context.span.0 & (u64::MAX >> 1), call.args[3], "{call:#?}");
                assert_eq!(trace_ids.get(&context.span.0), Some(&context.trace.0), "{call:#?}");
                children += 1;
            }
        }
    }
    (children, orphans)
}
