//! For which span of its own a program calls: what its threads publish by OpenTelemetry's thread context, against what each call
//! says itself, by its offset.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use blkkin_tracer::{AttachKind, TracerConfig};
use tempfile::TempDir;

use support::actor::Actor;
use support::live::eventually;
use support::recording::{Recorder, Recording};
use support::{needs, or_skip};

const THREADS: u64 = 4;
/// Spans, and calls by each of the two threads that work for one: 100,000 calls, and 10,000 where the way to the slot is the matter.
const MANY: (u64, u64) = (1_000, 50);
const SOME: (u64, u64) = (500, 10);

/// How a program comes to its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// It has it itself.
    Own,
    /// A library that it is linked with, with such words to the compiler.
    Linked(&'static [&'static str]),
    /// A library that it loads.
    Loaded(&'static [&'static str]),
}

/// A program and what it needs.
struct Writer {
    folder: TempDir,
    library: Option<PathBuf>,
}

impl Writer {
    fn build(slot: Slot) -> Writer {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("thread.h", include_str!("support/context/thread.h")),
            ("slot.c", include_str!("support/context/slot.c")),
            ("writer.c", include_str!("support/context/writer.c")),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let gcc = |words: &[&str]| {
            let output = Command::new("gcc").current_dir(folder.path()).args(words).output().unwrap();
            assert!(output.status.success(), "gcc: {}", String::from_utf8_lossy(&output.stderr));
        };
        let library = |words: &[&str]| {
            gcc(&[&["-O1", "-shared", "-fPIC", "-o", "libslot.so", "slot.c"], words].concat())
        };
        let program = ["-O1", "-pthread", "-o", "writer", "writer.c"];
        let loaded = match slot {
            Slot::Own => {
                gcc(&[&program[..], &["-DOWN", "slot.c", "-rdynamic", "-ldl"]].concat());
                None
            }
            Slot::Linked(words) => {
                library(words);
                gcc(&[&program[..], &["-DOWN", "-L.", "-lslot", "-Wl,-rpath,$ORIGIN", "-ldl"]].concat());
                None
            }
            Slot::Loaded(words) => {
                library(words);
                gcc(&[&program[..], &["-ldl"]].concat());
                Some(folder.path().join("libslot.so"))
            }
        };
        Writer { folder, library: loaded }
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("writer")
    }

    /// There once the program may begin in earnest.
    fn go(&self) -> PathBuf {
        self.folder.path().join("go")
    }

    fn words(&self, spans: u64, calls: u64, next: &[String]) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        let library = self.library.as_deref().map_or("-".to_owned(), text);
        let mut words = vec![text(&self.program()), text(&self.program()), library, text(&self.go())];
        words.extend([THREADS, spans, calls].map(|number| number.to_string()));
        words.extend_from_slice(next);
        words
    }
}

/// For this one there are calls until the place is known.
const AWAITED: u64 = 1 << 40;

/// Each call is below the span that its offset names, and one that names none below none. How many there are for spans.
fn judge(recording: &Recording) -> u64 {
    // The loader's are longer.
    let calls = recording.named("pread64").into_iter().filter(|call| call.args[2] == 1);
    let mut right = 0;
    for call in calls {
        let named = call.args[3];
        let Some(context) = &call.context else {
            assert!(named == 0 || named == AWAITED, "below no span: {call:#?}");
            continue;
        };
        assert_eq!(context.span.0, named, "{call:#?}");
        assert_eq!(context.trace.0, u128::from(!named) << 64 | u128::from(named), "{call:#?}");
        assert_eq!(u64::from(context.flags), named & 1, "{call:#?}");
        right += u64::from(named != AWAITED);
    }
    right
}

/// Follows a program, and lets it begin in earnest once a call of it was seen below a span.
fn follow(config: &TracerConfig, words: &[String], go: &Path) -> Recording {
    let folder = tempfile::tempdir().unwrap();
    let mut actor = Actor::program(words, &folder.path().join("out"));
    let recorder = Recorder::start(config, &[actor.pid()]);
    actor.release();
    assert!(eventually(|| recorder.in_contexts() > 0), "nothing was found: {}", actor.said());
    std::fs::write(go, "").unwrap();
    assert_eq!(actor.play(), 0, "{}", actor.said());
    let recording = recorder.finish();
    recording.assert_balanced();
    assert_eq!(recording.accounts.calls.dropped, 0, "{:#?}", recording.accounts);
    recording
}

fn check(slot: Slot, config: &TracerConfig, (spans, calls): (u64, u64)) {
    needs!("gcc");
    if let Some(kind) = config.attach {
        or_skip!(support::recording::offered(kind));
    }
    let writer = Writer::build(slot);
    // What the child becomes has nothing to say.
    let next = writer.words(0, 0, &[]);
    let recording = follow(config, &writer.words(spans, calls, &next), &writer.go());
    // Two threads for each span, two calls of the parent and two of the child for theirs.
    assert_eq!(judge(&recording), 2 * spans * calls + 4);
    let books = &recording.accounts;
    assert_eq!((books.contexts_faulted, books.contexts_invalid), (0, 0), "{books:#?}");
}

/// With room for all calls at once: nothing may be missing, however busy the machine is.
const RING: usize = 64 << 20;

fn by(kind: Option<AttachKind>) -> TracerConfig {
    TracerConfig { attach: kind, ring_bytes: Some(RING), ..TracerConfig::default() }
}

#[test]
fn a_programs_own_slot() {
    check(Slot::Own, &by(Some(AttachKind::TpBtf)), MANY);
}

#[test]
fn a_programs_own_slot_by_untyped_probes() {
    check(Slot::Own, &by(Some(AttachKind::RawTp)), SOME);
}

#[test]
fn a_slot_of_a_library_that_is_linked() {
    check(Slot::Linked(&["-ftls-model=initial-exec"]), &by(None), SOME);
    check(Slot::Linked(&["-mtls-dialect=gnu2"]), &by(None), SOME);
    check(Slot::Linked(&["-mtls-dialect=gnu"]), &by(None), SOME);
}

#[test]
fn a_slot_of_a_library_that_is_loaded_later() {
    check(Slot::Loaded(&["-mtls-dialect=gnu"]), &by(None), SOME);
    check(Slot::Loaded(&["-mtls-dialect=gnu2"]), &by(None), SOME);
    check(Slot::Loaded(&["-ftls-model=initial-exec"]), &by(None), SOME);
}

#[test]
fn a_slot_by_untyped_probes_where_it_is_loaded_later() {
    check(Slot::Loaded(&["-mtls-dialect=gnu2"]), &by(Some(AttachKind::RawTp)), SOME);
}
