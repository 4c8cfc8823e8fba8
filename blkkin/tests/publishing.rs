//! Thread contexts that programs publish with blkkin-ust: each call is a child of the span that its
//! offset names, calls outside of a span have no parent, and each call has its thread's attributes.
//!
//! *Input*: `ust-provider/examples/publisher.rs`, without LTTng: tasks that move between the
//! threads of a tokio runtime at each await, and a thread pool that passes jobs on; also as a
//! static program for musl. The offset of a call identifies its span, and the program counts its
//! calls.

use std::path::{Path, PathBuf};

use blkkin_aggregator::trace::{Root, Trace};
use blkkin_tracer::{Filter, TracerConfig};
use blkkin_wire::process_context::{Attribute, AttributeValue};
use blkkin_wire::syscalls::SyscallId;

use crate::support::context::recorded_program::ring_for_a_million;
use crate::support::gated_process::GatedProcess;
use crate::support::live::eventually;
use crate::support::recording::Recorder;
use crate::support::{needs, or_skip};

/// Offset at which the program reads while it waits until its thread context is found.
const WARM_UP: u64 = 1 << 40;

/// Finds the program, which cargo builds into the folder of blkkin.
fn publisher() -> Result<PathBuf, String> {
    let path = Path::new(env!("CARGO_BIN_EXE_blkkin")).with_file_name("examples").join("publisher");
    let missing = || "publisher is not built: cargo build -p blkkin-ust --example publisher".to_owned();
    path.exists().then_some(path).ok_or_else(missing)
}

/// Finds the same program linked statically, with the TLS symbol exported.
fn static_publisher() -> Result<PathBuf, String> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let built = Path::new(env!("CARGO_BIN_EXE_blkkin")).ancestors().nth(2).unwrap().join(target);
    let path = built.join("debug/examples/publisher");
    let missing = || "no static publisher is built: `cargo xtask test` says why".to_owned();
    path.exists().then_some(path).ok_or_else(missing)
}

#[test]
fn each_call_of_tasks_that_move_between_threads_is_a_child_of_its_span() {
    check(publisher(), "hops", 28, Filter::default());
}

#[test]
fn each_call_of_a_thread_pool_is_a_child_of_its_span() {
    check(publisher(), "pool", 25, Filter::default());
}

#[test]
fn each_call_of_a_static_program_is_a_child_of_its_span() {
    check(static_publisher(), "hops", 2, Filter::default());
    check(static_publisher(), "pool", 2, Filter::default());
}

/// The program loads the library with the TLS slot while it runs, and the filter excludes mmap
/// calls.
#[test]
fn a_loaded_library_is_found_although_a_filter_excludes_mmap() {
    let pread = SyscallId::by_name("pread64").unwrap();
    check(publisher(), "pool", 1, Filter { syscalls: vec![pread], ..Filter::default() });
}

/// Runs `times` the program's own number of calls, and checks each.
fn check(publisher: Result<PathBuf, String>, kind: &str, times: u64, filter: Filter) {
    needs!();
    let publisher = or_skip!(publisher);
    let folder = tempfile::tempdir().unwrap();
    let [file, go, output] = ["file", "go", "output"].map(|name| folder.path().join(name));
    std::fs::write(&file, [0; 4096]).unwrap();
    let text_of = |path: &Path| path.display().to_string();
    let args = [
        "env",
        "BLKKIN_UST=0",
        &text_of(&publisher),
        kind,
        &text_of(&file),
        &text_of(&go),
        &times.to_string(),
    ];
    let mut process = GatedProcess::program(&args, &output);
    let config = TracerConfig { filter, ring_bytes: Some(ring_for_a_million()), ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[process.pid()]);
    process.release();
    assert!(eventually(|| recorder.calls_with_context() > 0), "no context was found: {}", process.output());
    let has_names = || recorder.process_contexts().iter().any(|output| !output.thread_keys.is_empty());
    assert!(eventually(has_names), "no process context was read: {}", process.output());
    let attribute =
        |key: &str, text: &str| Attribute { key: key.into(), value: AttributeValue::Text(text.into()) };
    let one = [attribute("service.name", "publisher"), attribute("service.instance.id", "one")];
    assert_eq!(recorder.process_contexts()[0].attributes, one);
    std::fs::write(&go, "").unwrap();
    assert_eq!(process.run_to_exit(), 0, "{}", process.output());
    let recording = recorder.finish();
    recording.assert_balanced();
    let stats = &recording.stats;
    assert_eq!(
        (stats.calls.dropped, stats.contexts_faulted, stats.contexts_invalid),
        (0, 0, 0),
        "{stats:#?}"
    );
    let (mut children, mut orphans) = (0, 0);
    // Reads of the loader are longer than one byte.
    for call in recording.calls_named("pread64").into_iter().filter(|call| call.args[2] == 1) {
        let span_id = call.args[3];
        match &call.context {
            None => {
                assert!(span_id == 0 || span_id == WARM_UP, "no parent: {call:#?}");
                orphans += u64::from(span_id == 0);
            }
            Some(context) => {
                assert_eq!(context.span.0, span_id, "{call:#?}");
                assert_eq!(context.trace.0, u128::from(!span_id) << 64 | u128::from(span_id), "{call:#?}");
                assert_eq!(u64::from(context.flags), span_id & 1, "{call:#?}");
                children += u64::from(span_id != WARM_UP);
            }
        }
        let attributes = call.attributes.as_ref().map(|attributes| {
            assert_eq!(
                (attributes.entries.len(), attributes.dropped_attributes_count, attributes.bytes_unread),
                (1, 0, 0),
                "{call:#?}"
            );
            (attributes.entries[0].key, attributes.entries[0].value.parse().unwrap())
        });
        let has_attributes = call.context.is_some() && span_id != WARM_UP;
        assert_eq!(attributes, has_attributes.then_some((0, span_id)), "{call:#?}");
    }
    let own = process.output();
    // The process context was read before all of these calls began.
    let is_own_call = |trace: &&Trace| {
        let Root::Call(call) = &trace.root else { return false };
        call.call.name() == "pread64" && call.args[2] == 1 && ![0, WARM_UP].contains(&call.args[3])
    };
    let names = |trace: &Trace| trace.names.process_context().map(|process| process.thread_keys.clone());
    let has_keys = |trace: &&Trace| names(trace) == Some(vec!["work.number".into()]);
    assert!(recording.traces.iter().filter(is_own_call).all(|trace| has_keys(&trace)));
    println!("{kind}: {children} calls with a parent, {orphans} without; the program counts: {own}");
    assert_eq!(format!("below {children} none {orphans}\n"), own);
    assert!(children >= 36_000 * times && orphans > 200, "too few calls");
}
