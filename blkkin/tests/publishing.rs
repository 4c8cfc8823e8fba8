//! Programs that publish by blkkin-ust what their threads work for: each call below the span that its offset names, none below
//! another, and none below any where it names none; and of each what its thread says of the work.
//!
//! The programs are `ust-provider/examples/publisher.rs`: tasks that hop between the threads of a tokio runtime at each await, and a
//! pool of threads that hand jobs on; the same as a static program for musl. Nobody runs LTTng.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::path::{Path, PathBuf};

use blkkin_aggregator::trace::{Root, Trace};
use blkkin_tracer::{Filter, TracerConfig};
use blkkin_wire::process_context::{Attribute, AttributeValue};
use blkkin_wire::syscalls::SyscallId;

use support::context::recorded_program::ring_for_a_million;
use support::gated_process::GatedProcess;
use support::live::eventually;
use support::recording::Recorder;
use support::{needs, or_skip};

/// Below this one there are calls until the place is known.
const WARM_UP: u64 = 1 << 40;

/// The programs, built beside blkkin.
fn publisher() -> Result<PathBuf, String> {
    let path = Path::new(env!("CARGO_BIN_EXE_blkkin")).with_file_name("examples").join("publisher");
    let missing = || "publisher is not built: cargo build -p blkkin-ust --example publisher".to_owned();
    path.exists().then_some(path).ok_or_else(missing)
}

/// The same program, static, and told to export the slot.
fn static_publisher() -> Result<PathBuf, String> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let built = Path::new(env!("CARGO_BIN_EXE_blkkin")).ancestors().nth(2).unwrap().join(target);
    let path = built.join("debug/examples/publisher");
    let missing = || "no static publisher is built: `cargo xtask test` says why".to_owned();
    path.exists().then_some(path).ok_or_else(missing)
}

#[test]
fn each_call_of_tasks_that_hop_between_threads_is_below_its_own_span() {
    check(publisher(), "hops", 28, Filter::default());
}

#[test]
fn each_call_of_a_thread_pool_is_below_its_own_span() {
    check(publisher(), "pool", 25, Filter::default());
}

#[test]
fn each_call_of_a_static_program_is_below_its_own_span() {
    check(static_publisher(), "hops", 2, Filter::default());
    check(static_publisher(), "pool", 2, Filter::default());
}

/// The slot is in a library that the program loads when it runs already, and what is mapped is none of the calls that are asked for.
#[test]
fn what_is_loaded_is_found_also_where_a_filter_leaves_mappings_out() {
    let pread = SyscallId::by_name("pread64").unwrap();
    check(publisher(), "pool", 1, Filter { syscalls: vec![pread], ..Filter::default() });
}

/// `times` as many as the program's own number.
fn check(publisher: Result<PathBuf, String>, kind: &str, times: u64, filter: Filter) {
    needs!();
    let publisher = or_skip!(publisher);
    let folder = tempfile::tempdir().unwrap();
    let [file, go, said] = ["file", "go", "said"].map(|name| folder.path().join(name));
    std::fs::write(&file, [0; 4096]).unwrap();
    let at = |path: &Path| path.display().to_string();
    let words = ["env", "BLKKIN_UST=0", &at(&publisher), kind, &at(&file), &at(&go), &times.to_string()];
    let mut actor = GatedProcess::program(&words, &said);
    let config = TracerConfig { filter, ring_bytes: Some(ring_for_a_million()), ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[actor.pid()]);
    actor.release();
    assert!(eventually(|| recorder.calls_with_context() > 0), "nothing was found: {}", actor.output());
    let has_names = || recorder.process_contexts().iter().any(|said| !said.thread_keys.is_empty());
    assert!(eventually(has_names), "it does not say who it is: {}", actor.output());
    let attribute =
        |key: &str, text: &str| Attribute { key: key.into(), value: AttributeValue::Text(text.into()) };
    let one = [attribute("service.name", "publisher"), attribute("service.instance.id", "one")];
    assert_eq!(recorder.process_contexts()[0].attributes, one);
    std::fs::write(&go, "").unwrap();
    assert_eq!(actor.run_to_exit(), 0, "{}", actor.output());
    let recording = recorder.finish();
    recording.assert_balanced();
    let books = &recording.stats;
    assert_eq!(
        (books.calls.dropped, books.contexts_faulted, books.contexts_invalid),
        (0, 0, 0),
        "{books:#?}"
    );
    let (mut below, mut none) = (0, 0);
    // The loader's are longer.
    for call in recording.calls_named("pread64").into_iter().filter(|call| call.args[2] == 1) {
        let named = call.args[3];
        match &call.context {
            None => {
                assert!(named == 0 || named == WARM_UP, "below no span: {call:#?}");
                none += u64::from(named == 0);
            }
            Some(context) => {
                assert_eq!(context.span.0, named, "{call:#?}");
                assert_eq!(context.trace.0, u128::from(!named) << 64 | u128::from(named), "{call:#?}");
                assert_eq!(u64::from(context.flags), named & 1, "{call:#?}");
                below += u64::from(named != WARM_UP);
            }
        }
        let said = call.attributes.as_ref().map(|said| {
            assert_eq!(
                (said.entries.len(), said.dropped_attributes_count, said.bytes_unread),
                (1, 0, 0),
                "{call:#?}"
            );
            (said.entries[0].key, said.entries[0].value.parse().unwrap())
        });
        let says = call.context.is_some() && named != WARM_UP;
        assert_eq!(said, says.then_some((0, named)), "{call:#?}");
    }
    let own = actor.output();
    // Who it is was known before all of these began.
    let called = |trace: &&Trace| {
        let Root::Call(call) = &trace.root else { return false };
        call.call.name() == "pread64" && call.args[2] == 1 && ![0, WARM_UP].contains(&call.args[3])
    };
    let names = |trace: &Trace| trace.names.process.as_ref().map(|process| process.thread_keys.clone());
    let named = |trace: &&Trace| names(trace) == Some(vec!["work.number".into()]);
    assert!(recording.traces.iter().filter(called).all(|trace| named(&trace)));
    println!("{kind}: {below} calls below their spans, {none} below none; the program says: {own}");
    assert_eq!(format!("below {below} none {none}\n"), own);
    assert!(below >= 36_000 * times && none > 200, "it does too little");
}
