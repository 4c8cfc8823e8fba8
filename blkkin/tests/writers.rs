//! Programs of several kinds that say which span each of their threads works for, in the numbers that are asked of a tracer: a million calls
//! under ten thousand spans, each below its own, and none below one that is over.
//!
//! The programs are `support/context/writer.c`, `tasks.cc`, `threads.c` and `later.c`; Rust's are in `publishing.rs`, and tracing libraries of
//! others in `tracers.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::collections::BTreeSet;
use std::path::PathBuf;

use blkkin_aggregator::trace::Root;
use blkkin_aggregator::translate;
use blkkin_tracer::TracerConfig;
use blkkin_wire::batch::SourceStats;
use blkkin_wire::event::SyscallEvent;

use support::context::Programs;
use support::context::recorded_program::{
    assert_contexts, record_with_output, ring_for_a_million, writer_args,
};
use support::disk::Disk;
use support::gated_process::GatedProcess;
use support::live::eventually;
use support::recording::{Recorder, Recording};
use support::{needs, or_skip};
use tempfile::TempDir;

const SPANS: u64 = 10_000;
/// Where `threads.c` calls at last.
const STAYED: u64 = 1 << 41;

fn config() -> TracerConfig {
    TracerConfig { ring_bytes: Some(ring_for_a_million()), ..TracerConfig::default() }
}

/// Calls of a byte each for no span.
fn below_none(recording: &Recording) -> u64 {
    let calls = recording.calls_named("pread64").into_iter().filter(|call| call.args[2] == 1);
    calls.filter(|call| call.context.is_none() && call.args[3] == 0).count() as u64
}

fn assert_nothing_failed(recording: &Recording) {
    let SourceStats { contexts_faulted, contexts_invalid, .. } = recording.stats;
    assert_eq!((contexts_faulted, contexts_invalid), (0, 0), "{:#?}", recording.stats);
}

/// In C, two threads at once for each span.
#[test]
fn each_call_of_threads_in_c_is_below_its_own_span() {
    const CALLS: u64 = 50;
    needs!();
    let programs = or_skip!(Programs::of("own"));
    let words = writer_args(&programs, "own", (SPANS, CALLS), 1, &[]);
    let (recording, _) = record_with_output(&config(), &words, &programs.go());
    let below = assert_contexts(&recording);
    println!("C: {below} calls below {} spans, {} below none", SPANS, below_none(&recording));
    assert_eq!(below, 2 * SPANS * CALLS + 4);
    assert_nothing_failed(&recording);
}

/// In C++, tasks that hop between threads, exceptions that leave a span, threads that are started inside of one.
#[test]
fn each_call_of_tasks_in_cpp_that_hop_between_threads_is_below_its_own_span() {
    const HOPS: u64 = 17;
    needs!();
    let programs = or_skip!(Programs::of("tasks"));
    let (program, go) = (programs.program(), programs.go());
    let words = [program.clone(), program, go.display().to_string()];
    let numbers = [SPANS, HOPS].map(|number| number.to_string());
    let words: Vec<String> = words.into_iter().chain(numbers).collect();
    let (recording, own) = record_with_output(&config(), &words, &go);
    let (below, none) = (assert_contexts(&recording), below_none(&recording));
    println!(
        "C++: {below} calls below {} spans, {none} below none; the program says: {own}",
        SPANS * (HOPS + 2)
    );
    assert_eq!(format!("below {below} none {none}\n"), own);
    assert!(below >= 1_000_000 && none > 2 * HOPS * SPANS, "it does too little");
    assert_nothing_failed(&recording);
}

/// What a thread has left in memory is nobody's: neither its slot, which the next thread is given, nor its record, which is no more.
#[test]
fn a_thread_that_has_anothers_memory_is_below_no_span_of_the_others() {
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
        let player = Player::start(&programs, name, THREADS);
        player.begin();
        player.await_last_calls();
        let (recording, own) = player.end();
        assert_eq!(
            (assert_contexts(&recording), below_none(&recording)),
            (THREADS * CALLS, 2 * THREADS),
            "{name}"
        );
        assert_nothing_failed(&recording);
        let again: u64 = own.trim().parse().unwrap();
        println!("{name}: {again} of {THREADS} threads had their slot where the one before had its own");
        assert!(again > THREADS / 2, "{name}: {again}");
    }
}

/// Whoever has unloaded its library publishes no more, and is not counted any more.
#[test]
fn a_process_without_its_library_is_not_counted() {
    needs!();
    let programs = or_skip!(Programs::of("threads-loaded-module"));
    let player = Player::start(&programs, "threads-loaded-module", 3);
    assert!(eventually(|| player.recorder.publishing() == 1), "it is not counted");
    player.begin();
    player.await_last_calls();
    assert!(eventually(|| player.recorder.publishing() == 0), "it is still counted");
    player.end();
}

/// `threads.c` at work.
struct Player {
    go: PathBuf,
    actor: GatedProcess,
    recorder: Recorder,
    _said: TempDir,
}

impl Player {
    fn start(programs: &Programs, name: &str, threads: u64) -> Player {
        let (program, go) = (programs.program(), programs.go());
        let library = programs.library(name.contains("loaded"));
        let words = [program.clone(), program, library, go.display().to_string(), threads.to_string()];
        let said = tempfile::tempdir().unwrap();
        let mut actor = GatedProcess::program(&words, &said.path().join("out"));
        let recorder = Recorder::start(&config(), &[actor.pid()]);
        actor.release();
        assert!(eventually(|| recorder.calls_with_context() > 0), "nothing was found: {}", actor.output());
        Player { go, actor, recorder, _said: said }
    }

    fn begin(&self) {
        std::fs::write(&self.go, "").unwrap();
    }

    /// It calls there once it has unloaded its library.
    fn await_last_calls(&self) {
        assert!(
            eventually(|| self.recorder.calls_outside(STAYED) > 0),
            "it does not end: {}",
            self.actor.output()
        );
    }

    fn end(mut self) -> (Recording, String) {
        std::fs::remove_file(&self.go).unwrap();
        assert_eq!(self.actor.run_to_exit(), 0, "{}", self.actor.output());
        let recording = self.recorder.finish();
        recording.assert_balanced();
        assert_eq!(recording.stats.calls.dropped, 0, "{:#?}", recording.stats);
        assert!(recording.calls().all(|call| call.args[3] != STAYED || call.context.is_none()));
        (recording, self.actor.output())
    }
}

/// What is asked for in one span and done in the next is the first one's: bios and requests below the call that asked for them, and
/// the call that waits for them below the other.
#[test]
fn what_is_submitted_in_a_span_is_below_it_though_it_ends_in_another() {
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
        let words = [programs.program(), node, go.display().to_string(), kind.to_owned()];
        let numbers = [TURNS, BYTES].map(|number| number.to_string());
        let words: Vec<String> = words.into_iter().chain(numbers).collect();
        let (recording, _) = record_with_output(&config(), &words, &go);
        assert_nothing_failed(&recording);
        let asked = |call: &SyscallEvent| call.args[1] == READS;
        let waited =
            recording.calls_named(waits).into_iter().filter(|call| call.args[1] != READS || kind == "aio");
        let waited: BTreeSet<u64> = waited.map(|call| call.context.as_ref().unwrap().span.0).collect();
        assert_eq!(waited, (1..=TURNS).map(|turn| 2 * turn + 1).collect(), "{kind}");
        let (mut turns, mut bytes, mut later) = (BTreeSet::new(), 0, 0);
        for trace in &recording.traces {
            let Root::Call(call) = &trace.root else { continue };
            if call.call.name() != submits || !asked(call) {
                assert!(trace.requests.is_empty() || call.call.name() == "pread64", "{kind}: {call:#?}");
                continue;
            }
            let span = call.context.as_ref().unwrap().span.0;
            assert_eq!(span % 2, 0, "{kind}: {call:#?}");
            turns.insert(span / 2);
            let spans = translate::spans(trace);
            assert!(spans.iter().all(|one| one.trace.0 == u128::from(!span) << 64 | u128::from(span)));
            for request in &trace.requests {
                assert_eq!(request.sector.0 * 512 / (READS * BYTES) + 1, span / 2, "{kind}: {request:#?}");
                bytes += u64::from(request.bytes);
                later += u64::from(request.complete > call.exit);
            }
        }
        println!(
            "{kind}: {bytes} bytes of {TURNS} spans, {later} requests done when their call had returned"
        );
        assert_eq!(turns, (1..=TURNS).collect(), "{kind}");
        assert_eq!(bytes, TURNS * READS * BYTES, "{kind}");
        assert!(later > 0, "{kind}");
    }
}
