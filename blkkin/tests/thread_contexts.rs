//! Thread contexts of programs in C and C++, in large numbers: a million calls under ten thousand
//! spans, each a child of its own span, and none of a span that has ended.
//!
//! *Input*: `support/context/writer.c`, `tasks.cc`, `threads.c` and `async_reads.c`. The offset of a
//! call names its span, and the programs count their calls. Rust is in `publishing.rs`; released
//! tracing libraries are in `tracers.rs`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use blkkin_aggregator::spans;
use blkkin_aggregator::trace::Root;
use blkkin_tracer::TracerConfig;
use blkkin_wire::batch::SourceStats;
use blkkin_wire::event::SyscallEvent;

use crate::support::context::Programs;
use crate::support::context::recorded_program::{
    assert_contexts, record_with_output, ring_for_a_million, writer_args,
};
use crate::support::disk::Disk;
use crate::support::gated_process::GatedProcess;
use crate::support::live::eventually;
use crate::support::recording::{Recorder, Recording};
use crate::support::{needs, or_skip};
use tempfile::TempDir;

const SPANS: u64 = 10_000;
/// Offset of the last calls of `threads.c`.
const STAYED: u64 = 1 << 41;

fn config() -> TracerConfig {
    TracerConfig { ring_bytes: Some(ring_for_a_million()), ..TracerConfig::default() }
}

/// Counts the one-byte calls outside of any span.
fn calls_without_parent(recording: &Recording) -> u64 {
    let calls = recording.calls_named("pread64").into_iter().filter(|call| call.args[2] == 1);
    calls.filter(|call| call.context.is_none() && call.args[3] == 0).count() as u64
}

fn assert_nothing_failed(recording: &Recording) {
    let SourceStats { contexts_faulted, contexts_invalid, .. } = recording.stats;
    assert_eq!((contexts_faulted, contexts_invalid), (0, 0), "{:#?}", recording.stats);
}

/// C, with two threads at once for each span.
#[test]
fn each_call_of_threads_in_c_is_a_child_of_its_span() {
    const CALLS: u64 = 50;
    needs!();
    let programs = or_skip!(Programs::of("own"));
    let args = writer_args(&programs, "own", (SPANS, CALLS), 1, &[]);
    let (recording, _) = record_with_output(&config(), &args, &programs.go());
    let children = assert_contexts(&recording);
    println!("C: {children} calls of {} spans, {} without a parent", SPANS, calls_without_parent(&recording));
    assert_eq!(children, 2 * SPANS * CALLS + 4);
    assert_nothing_failed(&recording);
}

/// C++ tasks that move between threads, exceptions that leave a span, and threads that are started
/// inside of one.
#[test]
fn each_call_of_cpp_tasks_that_move_between_threads_is_a_child_of_its_span() {
    const HOPS: u64 = 17;
    needs!();
    let programs = or_skip!(Programs::of("tasks"));
    let (program, go) = (programs.program(), programs.go());
    let args = [program.clone(), program, go.display().to_string()];
    let numbers = [SPANS, HOPS].map(|number| number.to_string());
    let args: Vec<String> = args.into_iter().chain(numbers).collect();
    let (recording, own) = record_with_output(&config(), &args, &go);
    let (children, orphans) = (assert_contexts(&recording), calls_without_parent(&recording));
    println!(
        "C++: {children} calls of {} spans, {orphans} without; the program counts: {own}",
        SPANS * (HOPS + 2)
    );
    assert_eq!(format!("below {children} none {orphans}\n"), own);
    assert!(children >= 1_000_000 && orphans > 2 * HOPS * SPANS, "too few calls");
    assert_nothing_failed(&recording);
}

/// A thread's old data is used for no other thread: neither its TLS slot, which the next thread
/// gets, nor its freed record.
#[test]
fn a_thread_that_reuses_memory_has_no_parent_from_the_thread_before() {
    const THREADS: u64 = 2_000;
    const CALLS: u64 = 5;
    needs!();
    for name in ["threads-own", "threads-loaded-module", "threads-musl-loaded-module"] {
        let programs = match Programs::of(name) {
            Err(why) if name.contains("musl") => {
                println!("without musl: {why}");
                continue;
            }
            programs => or_skip!(programs),
        };
        let program = ThreadsProgram::start(&programs, name, THREADS);
        program.begin();
        program.await_last_calls();
        let (recording, own) = program.end();
        assert_eq!(
            (assert_contexts(&recording), calls_without_parent(&recording)),
            (THREADS * CALLS, 2 * THREADS),
            "{name}"
        );
        assert_nothing_failed(&recording);
        let reused: u64 = own.trim().parse().unwrap();
        println!("{name}: {reused} of {THREADS} threads had the TLS slot of the thread before");
        assert!(reused > THREADS / 2, "{name}: {reused}");
    }
}

/// A process that unloads its library no longer counts as a publisher.
#[test]
fn a_process_without_its_library_is_not_counted() {
    needs!();
    let programs = or_skip!(Programs::of("threads-loaded-module"));
    let program = ThreadsProgram::start(&programs, "threads-loaded-module", 3);
    assert!(eventually(|| program.recorder.publishing() == 1), "it is not counted");
    program.begin();
    program.await_last_calls();
    assert!(eventually(|| program.recorder.publishing() == 0), "it is still counted");
    program.end();
}

/// A run of `threads.c`.
struct ThreadsProgram {
    go: PathBuf,
    process: GatedProcess,
    recorder: Recorder,
    _output: TempDir,
}

impl ThreadsProgram {
    fn start(programs: &Programs, name: &str, threads: u64) -> ThreadsProgram {
        let (program, go) = (programs.program(), programs.go());
        let library = programs.library(name.contains("loaded"));
        let args = [program.clone(), program, library, go.display().to_string(), threads.to_string()];
        let output = tempfile::tempdir().unwrap();
        let mut process = GatedProcess::program(&args, &output.path().join("out"));
        let recorder = Recorder::start(&config(), &[process.pid()]);
        process.release();
        assert!(
            eventually(|| recorder.calls_with_context() > 0),
            "no context was found: {}",
            process.output()
        );
        ThreadsProgram { go, process, recorder, _output: output }
    }

    fn begin(&self) {
        std::fs::write(&self.go, "").unwrap();
    }

    /// Waits for the calls that the program makes after it has unloaded its library.
    fn await_last_calls(&self) {
        assert!(
            eventually(|| self.recorder.calls_outside(STAYED) > 0),
            "it does not end: {}",
            self.process.output()
        );
    }

    fn end(mut self) -> (Recording, String) {
        std::fs::remove_file(&self.go).unwrap();
        assert_eq!(self.process.run_to_exit(), 0, "{}", self.process.output());
        let recording = self.recorder.finish();
        recording.assert_balanced();
        assert_eq!(recording.stats.calls.dropped, 0, "{:#?}", recording.stats);
        assert!(recording.calls().all(|call| call.args[3] != STAYED || call.context.is_none()));
        (recording, self.process.output())
    }
}

/// Requests that are submitted in one span and complete in the next belong to the first. The call
/// that submits them is a child of the first span, the call that waits for them of the second.
#[test]
fn io_submitted_in_a_span_is_a_child_of_it_after_the_span_ended() {
    const BYTES: u64 = 64 << 10;
    const READS: u64 = 4;
    const TURNS: u64 = 100;
    needs!("losetup");
    for (kind, submits, waits) in
        [("aio", "io_submit", "io_getevents"), ("uring", "io_uring_enter", "io_uring_enter")]
    {
        let disk = or_skip!(Disk::raw(TURNS * READS * BYTES));
        let programs = or_skip!(Programs::of("async-reads"));
        let (node, go) = (disk.node().display().to_string(), programs.go());
        let args = [programs.program(), node, go.display().to_string(), kind.to_owned()];
        let numbers = [TURNS, BYTES].map(|number| number.to_string());
        let args: Vec<String> = args.into_iter().chain(numbers).collect();
        let (recording, _) = record_with_output(&config(), &args, &go);
        assert_nothing_failed(&recording);
        let is_submission = |call: &SyscallEvent| call.args[1] == READS;
        let waited =
            recording.calls_named(waits).into_iter().filter(|call| call.args[1] != READS || kind == "aio");
        let waited: BTreeSet<u64> = waited.map(|call| call.context.as_ref().unwrap().span.0).collect();
        assert_eq!(waited, (1..=TURNS).map(|turn| 2 * turn + 1).collect(), "{kind}");
        let (mut turns, mut bytes, mut later) = (BTreeSet::new(), 0, 0);
        for trace in &recording.traces {
            let Root::Call(call) = &trace.root else { continue };
            if call.call.name() != submits || !is_submission(call) {
                // The loader's reads of a library that left memory are of another device.
                let of_disk = trace.requests.iter().any(|request| request.device == disk.device());
                assert!(!of_disk || call.call.name() == "pread64", "{kind}: {call:#?}");
                continue;
            }
            let span = call.context.as_ref().unwrap().span.0;
            assert_eq!(span % 2, 0, "{kind}: {call:#?}");
            turns.insert(span / 2);
            let spans = spans::spans_of(trace);
            assert!(spans.iter().all(|one| one.trace.0 == u128::from(!span) << 64 | u128::from(span)));
            for request in &trace.requests {
                assert_eq!(request.sector.0 * 512 / (READS * BYTES) + 1, span / 2, "{kind}: {request:#?}");
                bytes += u64::from(request.bytes);
                later += u64::from(request.complete > call.exit);
            }
        }
        println!(
            "{kind}: {bytes} bytes of {TURNS} spans, {later} requests completed after their call returned"
        );
        assert_eq!(turns, (1..=TURNS).collect(), "{kind}");
        assert_eq!(bytes, TURNS * READS * BYTES, "{kind}");
        assert!(later > 0, "{kind}");
    }
}
