//! For which span of its own a program calls: what its threads publish by OpenTelemetry's thread context, against what each call
//! says itself, by its offset.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use blkkin_aggregator::translate;
use blkkin_tracer::{AttachKind, TracerConfig};
use blkkin_wire::ids::SpanId;
use tempfile::TempDir;

use support::actor::Actor;
use support::disk::Disk;
use support::live::eventually;
use support::recording::{Recorder, Recording, record};
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

/// A folder with the sources in it.
fn sources() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("thread.h", include_str!("support/context/thread.h")),
        ("slot.c", include_str!("support/context/slot.c")),
        ("writer.c", include_str!("support/context/writer.c")),
        ("hostile.c", include_str!("support/context/hostile.c")),
        ("twice.c", include_str!("support/context/twice.c")),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn gcc(folder: &TempDir, words: &[&[&str]]) {
    let output = Command::new("gcc").current_dir(folder.path()).args(words.concat()).output().unwrap();
    assert!(output.status.success(), "gcc: {}", String::from_utf8_lossy(&output.stderr));
}

const LIBRARY: &[&str] = &["-O1", "-shared", "-fPIC", "slot.c", "-o"];

fn text(path: &Path) -> String {
    path.display().to_string()
}

impl Writer {
    fn build(slot: Slot) -> Writer {
        let folder = sources();
        let program: &[&str] = &["-O1", "-pthread", "-o", "writer", "writer.c"];
        let linked: &[&str] = &["-DOWN", "-L.", "-lslot", "-Wl,-rpath,$ORIGIN", "-ldl"];
        let library = |words| gcc(&folder, &[LIBRARY, &["libslot.so"], words]);
        let loaded = match slot {
            Slot::Own => {
                gcc(&folder, &[program, &["-DOWN", "slot.c", "-rdynamic", "-ldl"]]);
                None
            }
            Slot::Linked(words) => {
                library(words);
                gcc(&folder, &[program, linked]);
                None
            }
            Slot::Loaded(words) => {
                library(words);
                gcc(&folder, &[program, &["-ldl"]]);
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

    fn words(&self, (spans, calls): (u64, u64), step: u64, next: &[String]) -> Vec<String> {
        let library = self.library.as_deref().map_or("-".to_owned(), text);
        let mut words = vec![text(&self.program()), text(&self.program()), library, text(&self.go())];
        words.extend([THREADS, spans, calls, step].map(|number| number.to_string()));
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
    let next = writer.words((0, 0), 1, &[]);
    let recording = follow(config, &writer.words((spans, calls), 1, &next), &writer.go());
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

/// Of each way in which a context cannot be had or is none there are so many calls.
const EACH: u64 = 100;

/// Pointers to nowhere, records that are cut, invalid or none: no call is below a span that it does not name, and each is counted. A page
/// that is not there at a call's entry is read at its return.
#[test]
fn what_cannot_be_read_or_is_none_is_counted() {
    needs!("gcc");
    for kind in [AttachKind::TpBtf, AttachKind::RawTp] {
        let folder = sources();
        gcc(&folder, &[&["-O1", "-o", "hostile", "hostile.c", "slot.c", "-rdynamic"]]);
        let (program, go) = (text(&folder.path().join("hostile")), folder.path().join("go"));
        let words = [program.clone(), program, text(&go), EACH.to_string()];
        let recording = follow(&by(Some(kind)), &words, &go);
        assert_eq!(judge(&recording), 1 + EACH);
        let books = &recording.accounts;
        // Three ways that fail at entry and at return, and one that fails at entry only; two that are none.
        let counted = [books.contexts_faulted, books.contexts_unread, books.contexts_invalid];
        assert_eq!(counted, [4 * EACH, 3 * EACH, 2 * EACH], "{books:#?}");
    }
}

#[test]
fn of_two_slots_that_differ_neither_counts() {
    needs!("gcc");
    let folder = sources();
    let libraries = ["libone.so", "libother.so"];
    libraries.iter().for_each(|library| gcc(&folder, &[LIBRARY, &[library]]));
    gcc(&folder, &[&["-O1", "-o", "twice", "twice.c", "-ldl"]]);
    let [program, one, other] =
        ["twice", libraries[0], libraries[1]].map(|name| text(&folder.path().join(name)));
    let words = [program.clone(), program, one, other, "100".to_owned()];
    let mut actor = Actor::program(&words, &folder.path().join("out"));
    let recording = record(&TracerConfig::default(), &mut [&mut actor]);
    recording.assert_balanced();
    let calls = recording.named("pread64").into_iter().filter(|call| call.args[2] == 1);
    let (below, others): (Vec<_>, Vec<_>) = calls.partition(|call| call.context.is_some());
    // Until the second is loaded the first is the only one.
    assert!(others.len() > 50, "{} calls are below a span", below.len());
}

/// The whole of it: bios and requests of a call that was made for a span of the program's are in its trace.
#[test]
fn what_is_below_a_call_is_in_the_applications_trace() {
    needs!("gcc", "losetup");
    const STEP: u64 = 1 << 20;
    let disk = or_skip!(Disk::raw(24 * STEP));
    let writer = Writer::build(Slot::Own);
    let mut words = writer.words((20, 2), STEP, &[]);
    words[1] = text(disk.node());
    let recording = follow(&TracerConfig::default(), &words, &writer.go());
    assert_eq!(judge(&recording), 2 * 20 * 2 + 4);
    let mut requests = 0;
    for trace in recording.traces.iter().filter(|trace| trace.context().is_some()) {
        let context = trace.context().unwrap();
        let spans = translate::spans(trace);
        assert!(spans.iter().all(|span| span.trace == context.trace), "{spans:#?}");
        assert_eq!(spans[0].parent, Some(context.span), "{spans:#?}");
        let known: HashSet<SpanId> = spans.iter().map(|span| span.id).collect();
        let below = spans[1..].iter().filter_map(|span| span.parent);
        assert!(below.clone().all(|parent| known.contains(&parent)), "{spans:#?}");
        requests += trace.requests.len();
    }
    assert!(requests > 0, "nothing was read from the disk below a span");
}
