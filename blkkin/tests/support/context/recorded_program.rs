//! Recording of one of the programs, and the check that each call has the span that the program
//! encodes in its offset.

use std::path::Path;

use blkkin_tracer::{AttachKind, TracerConfig};

use super::Programs;
use crate::support::gated_process::GatedProcess;
use crate::support::live::eventually;
use crate::support::recording::{Recorder, Recording};

/// Threads of a program that takes their number as an argument.
pub(crate) const THREADS: u64 = 4;
/// Span of the warm-up calls, which the program makes until its slot has been found.
pub(crate) const WARM_UP: u64 = 1 << 40 | 1;
/// Ring size with room for all calls at once: nothing may be lost, however busy the machine is.
pub(crate) const RING: usize = 64 << 20;

/// Returns a ring size with room for a million calls where there are few CPUs, and at most 1 GiB in
/// total where there are more.
pub(crate) fn ring_for_a_million() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    ((1 << 30) / cpus.next_power_of_two()).clamp(RING, 512 << 20)
}

/// Returns the arguments of `writer.c`.
pub(crate) fn writer_args(
    programs: &Programs,
    name: &str,
    (spans, calls): (u64, u64),
    step: u64,
    next: &[String],
) -> Vec<String> {
    let go = programs.go().display().to_string();
    let library = programs.library(name.contains("loaded"));
    let mut args = vec![programs.program(), programs.program(), library, go];
    args.extend([THREADS, spans, calls, step].map(|number| number.to_string()));
    args.extend_from_slice(next);
    args
}

/// Records a program, and ends its warm-up after the first call with a context.
pub(crate) fn record_program(attach: Option<AttachKind>, args: &[String], go: &Path) -> Recording {
    let config = TracerConfig { attach, ring_bytes: Some(RING), ..TracerConfig::default() };
    record_with_config(&config, args, go)
}

/// Records a program and returns its output too.
pub(crate) fn record_with_output(config: &TracerConfig, args: &[String], go: &Path) -> (Recording, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut process = GatedProcess::program(args, &folder.path().join("out"));
    let recorder = Recorder::start(config, &[process.pid()]);
    process.release();
    let recording = finish(recorder, &mut process, go);
    (recording, process.output())
}

/// Records a program with another tracer configuration.
pub(crate) fn record_with_config(config: &TracerConfig, args: &[String], go: &Path) -> Recording {
    record_with_output(config, args, go).0
}

/// Ends the warm-up after the first call with a context, and waits for the program's end.
pub(crate) fn finish(recorder: Recorder, process: &mut GatedProcess, go: &Path) -> Recording {
    assert!(eventually(|| recorder.calls_with_context() > 0), "no context was found: {}", process.output());
    std::fs::write(go, "").unwrap();
    assert_eq!(process.run_to_exit(), 0, "{}", process.output());
    let recording = recorder.finish();
    recording.assert_balanced();
    assert_eq!(recording.stats.calls.dropped, 0, "{:#?}", recording.stats);
    recording
}

/// Asserts that each call has the span of its offset, or no context if its offset is 0. Returns the
/// number of calls with a span, without the warm-up.
pub(crate) fn assert_contexts(recording: &Recording) -> u64 {
    // Reads of the dynamic loader are longer.
    let calls = recording.calls_named("pread64").into_iter().filter(|call| call.args[2] == 1);
    let mut with_span = 0;
    for call in calls {
        let expected = call.args[3];
        let Some(context) = &call.context else {
            assert!(expected == 0 || expected == WARM_UP, "without a context: {call:#?}");
            continue;
        };
        assert_eq!(context.span.0, expected, "{call:#?} of {:#?}", recording.task_of(call));
        assert_eq!(context.trace.0, u128::from(!expected) << 64 | u128::from(expected), "{call:#?}");
        assert_eq!(u64::from(context.flags), expected & 1, "{call:#?}");
        with_span += u64::from(expected != WARM_UP);
    }
    with_span
}
