//! A program at work, and whether each of its calls is below the span that it names itself, by its offset.

use std::path::Path;

use blkkin_tracer::{AttachKind, TracerConfig};

use super::Programs;
use crate::support::actor::Actor;
use crate::support::live::eventually;
use crate::support::recording::{Recorder, Recording};

/// Threads of a program that is told how many.
pub(crate) const THREADS: u64 = 4;
/// For this one there are calls until the place is known.
pub(crate) const AWAITED: u64 = 1 << 40 | 1;
/// With room for all calls at once: nothing may be missing, however busy the machine is.
pub(crate) const RING: usize = 64 << 20;

/// With room for a million calls at once where there are few CPUs, and no more than 1 GiB in all where there are some more.
pub(crate) fn ring_for_a_million() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    ((1 << 30) / cpus.next_power_of_two()).clamp(RING, 512 << 20)
}

/// As `writer.c` takes them.
pub(crate) fn words(
    programs: &Programs,
    name: &str,
    (spans, calls): (u64, u64),
    step: u64,
    next: &[String],
) -> Vec<String> {
    let go = programs.go().display().to_string();
    let library = programs.library(name.contains("loaded"));
    let mut words = vec![programs.program(), programs.program(), library, go];
    words.extend([THREADS, spans, calls, step].map(|number| number.to_string()));
    words.extend_from_slice(next);
    words
}

/// Follows a program, and lets it begin in earnest once a call of it was seen below a span.
pub(crate) fn follow(attach: Option<AttachKind>, words: &[String], go: &Path) -> Recording {
    let config = TracerConfig { attach, ring_bytes: Some(RING), ..TracerConfig::default() };
    follow_by(&config, words, go)
}

/// The same, and besides what the program says.
pub(crate) fn hear(config: &TracerConfig, words: &[String], go: &Path) -> (Recording, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut actor = Actor::program(words, &folder.path().join("out"));
    let recorder = Recorder::start(config, &[actor.pid()]);
    actor.release();
    let recording = finish(recorder, &mut actor, go);
    (recording, actor.said())
}

/// The same by another configuration.
pub(crate) fn follow_by(config: &TracerConfig, words: &[String], go: &Path) -> Recording {
    hear(config, words, go).0
}

/// Lets it begin in earnest once a call of it was seen below a span, and waits for its end.
pub(crate) fn finish(recorder: Recorder, actor: &mut Actor, go: &Path) -> Recording {
    assert!(eventually(|| recorder.in_contexts() > 0), "nothing was found: {}", actor.said());
    std::fs::write(go, "").unwrap();
    assert_eq!(actor.play(), 0, "{}", actor.said());
    let recording = recorder.finish();
    recording.assert_balanced();
    assert_eq!(recording.accounts.calls.dropped, 0, "{:#?}", recording.accounts);
    recording
}

/// Each call is below the span that its offset names, and one that names none below none. How many there are for spans.
pub(crate) fn judge(recording: &Recording) -> u64 {
    // The loader's are longer.
    let calls = recording.named("pread64").into_iter().filter(|call| call.args[2] == 1);
    let mut right = 0;
    for call in calls {
        let named = call.args[3];
        let Some(context) = &call.context else {
            assert!(named == 0 || named == AWAITED, "below no span: {call:#?}");
            continue;
        };
        assert_eq!(context.span.0, named, "{call:#?} of {:#?}", recording.task_of(call));
        assert_eq!(context.trace.0, u128::from(!named) << 64 | u128::from(named), "{call:#?}");
        assert_eq!(u64::from(context.flags), named & 1, "{call:#?}");
        right += u64::from(named != AWAITED);
    }
    right
}
