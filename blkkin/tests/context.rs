//! For which span of its own a program calls: what its threads publish by OpenTelemetry's thread context, against what each call
//! says itself, by its offset.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

#[path = "context/attributes.rs"]
mod attributes;
mod common;
mod support;

use std::collections::HashSet;
use std::path::Path;

use blkkin_aggregator::translate;
use blkkin_tracer::{AttachKind, Filter, TraceScope, TracerConfig};
use blkkin_wire::event::SyscallEvent;
use blkkin_wire::ids::SpanId;

use support::actor::Actor;
use support::context::play::{AWAITED, RING, THREADS, finish, follow, follow_by, judge, words};
use support::context::{Programs, build_all};
use support::disk::Disk;
use support::live::eventually;
use support::recording::{Recorder, record};
use support::{needs, or_skip, skip};

/// Spans, and calls by each of the two threads that work for one: 100,000 calls, and 10,000 where the way to the slot is the matter.
const MANY: (u64, u64) = (1_000, 50);
const SOME: (u64, u64) = (500, 10);

#[test]
fn a_programs_own_slot() {
    check("own", Some(AttachKind::TpBtf), MANY);
}

#[test]
fn a_programs_own_slot_by_untyped_probes() {
    check("own", Some(AttachKind::RawTp), SOME);
}

#[test]
fn a_slot_of_a_library_that_is_linked() {
    ["linked-distance", "linked-module", "linked-descriptor"].iter().for_each(|name| check(name, None, SOME));
}

#[test]
fn a_slot_of_a_library_that_is_loaded_later() {
    ["loaded-distance", "loaded-module", "loaded-descriptor"].iter().for_each(|name| check(name, None, SOME));
}

#[test]
fn a_slot_by_untyped_probes_where_it_is_loaded_later() {
    check("loaded-descriptor", Some(AttachKind::RawTp), SOME);
}

#[test]
fn a_slot_of_a_static_program() {
    check("static", None, SOME);
}

/// musl's loader keeps its own vector of blocks, and its own argument of a descriptor.
#[test]
fn a_slot_by_musls_loader() {
    let linked = ["musl-own", "musl-linked-distance", "musl-linked-module", "musl-linked-descriptor"];
    linked.iter().for_each(|name| check(name, None, SOME));
}

#[test]
fn a_slot_by_musls_loader_where_it_is_loaded_later() {
    ["musl-loaded-module", "musl-loaded-descriptor"].iter().for_each(|name| check(name, None, SOME));
    check("musl-loaded-module", Some(AttachKind::RawTp), SOME);
}

#[test]
fn a_slot_of_a_static_program_with_musl() {
    check("musl-static", None, SOME);
}

/// What is mapped besides is the file as it was before anything in it was settled.
#[test]
fn a_slot_of_a_library_that_reads_its_own_file() {
    ["loaded-module-read", "loaded-descriptor-read"].iter().for_each(|name| check(name, None, SOME));
}

/// `churn.c` calls for it once its library stays.
const STAYS: u64 = 1 << 40 | 5;

/// What is unloaded while it is looked at says nothing of its file, and what comes to its place is not it.
#[test]
fn a_slot_of_a_library_that_comes_and_goes() {
    comes_and_goes(None);
}

#[test]
fn a_slot_by_untyped_probes_where_it_comes_and_goes() {
    comes_and_goes(Some(AttachKind::RawTp));
}

fn comes_and_goes(attach: Option<AttachKind>) {
    needs!();
    let programs = or_skip!(Programs::of("churn"));
    let folder = tempfile::tempdir().unwrap();
    let [library, other] = ["libslot.so", "libother.so"].map(|name| programs.at(name));
    let own = [programs.program(), programs.program(), library, other, programs.go().display().to_string()];
    let words = [&own[..], &["400", "1000", "200"].map(str::to_owned)].concat();
    let mut actor = Actor::program(&words, &folder.path().join("out"));
    let config = TracerConfig { attach, ring_bytes: Some(RING), ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[actor.pid()]);
    actor.release();
    assert!(eventually(|| recorder.inside(STAYS) > 0), "nothing was found of what stays: {}", actor.said());
    let recording = finish(recorder, &mut actor, &programs.go());
    assert_eq!(judge(&recording), 1000);
}

/// A process is there as long as one of its threads is.
#[test]
fn a_slot_of_a_program_whose_first_thread_has_ended() {
    needs!();
    let programs = or_skip!(Programs::of("leader"));
    let go = programs.go().display().to_string();
    let words = [programs.program(), programs.program(), go, "1000".to_owned()];
    assert_eq!(judge(&follow(None, &words, &programs.go())), 1000);
}

/// What is looked at is memory: the file may be gone.
#[test]
fn a_slot_of_a_library_that_is_deleted() {
    needs!();
    let programs = or_skip!(Programs::of("loaded-module"));
    let library = tempfile::tempdir().unwrap();
    let library = library.path().join("libslot.so");
    std::fs::copy(programs.library(true), &library).unwrap();
    let mut words = words(&programs, "loaded-module", SOME, 1, &[]);
    words[2] = library.display().to_string();
    let folder = tempfile::tempdir().unwrap();
    let mut actor = Actor::program(&words, &folder.path().join("out"));
    let pid = actor.pid();
    actor.release();
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", pid.0)).unwrap();
    assert!(eventually(|| maps().contains(&words[2])), "it does not begin: {}", actor.said());
    std::fs::remove_file(&library).unwrap();
    assert!(maps().contains(&format!("{} (deleted)", words[2])));
    let config = TracerConfig { ring_bytes: Some(RING), ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[pid]);
    let recording = finish(recorder, &mut actor, &programs.go());
    assert_eq!(judge(&recording), 2 * SOME.0 * SOME.1 + 4);
}

/// A loader that is kept waiting between the parts of a library, 0.1 s for each: what is there meanwhile is no word on what will be.
#[test]
fn a_slot_of_a_library_that_is_loaded_slowly() {
    needs!("strace");
    for name in
        ["loaded-distance", "loaded-module", "loaded-descriptor", "musl-loaded-module", "linked-module"]
    {
        let programs = or_skip!(Programs::of(name));
        let slowly =
            ["strace", "-D", "-o", "/dev/null", "-e", "trace=mmap", "-e", "inject=mmap:delay_exit=100000"];
        let own = words(&programs, name, SOME, 1, &[]);
        let words: Vec<String> = slowly.map(str::to_owned).into_iter().chain(own).collect();
        let recording = follow(None, &words, &programs.go());
        assert_eq!(judge(&recording), 2 * SOME.0 * SOME.1 + 4, "{name}");
    }
}

/// As in a container: another root, in which its files have names that are others' or nobody's outside, and numbers of processes of its own.
#[test]
fn a_slot_of_a_program_in_namespaces_of_its_own() {
    needs!("unshare");
    if std::env::var_os("BLKKIN_GUEST").is_some() {
        support::skip!("a guest has no C library's own tools to fill a root with");
    }
    for name in ["static", "loaded-module"] {
        let programs = or_skip!(Programs::of(name));
        let root = tempfile::tempdir().unwrap();
        let put = |from: &str, to: &str| {
            let to = root.path().join(to.trim_start_matches('/'));
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(from, to).unwrap();
        };
        put(&programs.program(), "program");
        if name != "static" {
            put(&programs.library(true), "libslot.so");
            // Its loader and libraries, by the paths by which it asks for them.
            let asked = std::process::Command::new("ldd").arg(programs.program()).output().unwrap();
            let asked = String::from_utf8(asked.stdout).unwrap();
            asked.split_whitespace().filter(|word| word.starts_with('/')).for_each(|path| put(path, path));
        }
        let library = if name == "static" { "-" } else { "/libslot.so" };
        let own = ["/program", "/program", library, "/go"].map(str::to_owned);
        let counts = [THREADS, SOME.0, SOME.1, 1].map(|number| number.to_string());
        let around = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--root"].map(str::to_owned);
        let at = [root.path().display().to_string()];
        let words: Vec<String> = around.into_iter().chain(at).chain(own).chain(counts).collect();
        let recording = follow(None, &words, &root.path().join("go"));
        assert_eq!(judge(&recording), 2 * SOME.0 * SOME.1 + 4, "{name}");
    }
}

/// Nobody has seen its execve: it is found by its first call, or because everybody is looked at.
#[test]
fn a_program_that_runs_already() {
    needs!();
    for follow in [TraceScope::Marked, TraceScope::All] {
        let programs = or_skip!(Programs::of("loaded-module"));
        let words = words(&programs, "loaded-module", SOME, 1, &[]);
        let folder = tempfile::tempdir().unwrap();
        let mut actor = Actor::program(&words, &folder.path().join("out"));
        let pid = actor.pid();
        actor.release();
        let library = programs.library(true);
        let maps = || std::fs::read_to_string(format!("/proc/{}/maps", pid.0)).unwrap();
        assert!(eventually(|| maps().contains(&library)), "it does not begin: {}", actor.said());
        let all = follow == TraceScope::All;
        let filter = Filter { pids: if all { vec![pid] } else { Vec::new() }, ..Filter::default() };
        let config =
            TracerConfig { scope: follow, filter, ring_bytes: Some(RING), ..TracerConfig::default() };
        let recorder = Recorder::start(&config, if all { &[] } else { std::slice::from_ref(&pid) });
        let recording = finish(recorder, &mut actor, &programs.go());
        // Its child is another process.
        let of_child = if all { 0 } else { 2 };
        assert_eq!(judge(&recording), 2 * SOME.0 * SOME.1 + 2 + of_child);
    }
}

fn check(name: &str, attach: Option<AttachKind>, (spans, calls): (u64, u64)) {
    needs!();
    let programs = or_skip!(Programs::of(name));
    // What the child becomes has nothing to say.
    let next = words(&programs, name, (0, 0), 1, &[]);
    let all = words(&programs, name, (spans, calls), 1, &next);
    let recording = follow(attach, &all, &programs.go());
    // Two threads for each span, two calls of the parent and two of the child for theirs.
    assert_eq!(judge(&recording), 2 * spans * calls + 4);
    let books = &recording.accounts;
    assert_eq!((books.contexts_faulted, books.contexts_invalid), (0, 0), "{books:#?}");
}

/// Of each way in which a context cannot be had or is none there are so many calls.
const EACH: u64 = 100;

/// Pointers to nowhere, records that are cut, invalid or none: no call is below a span that it does not name, and each is counted. A page
/// that is not there at a call's entry is read at its return.
#[test]
fn what_cannot_be_read_or_is_none_is_counted() {
    needs!();
    for kind in [AttachKind::TpBtf, AttachKind::RawTp] {
        let programs = or_skip!(Programs::of("hostile"));
        let (program, go) = (programs.program(), programs.go());
        let words = [program.clone(), program, go.display().to_string(), EACH.to_string()];
        let recording = follow(Some(kind), &words, &go);
        assert_eq!(judge(&recording), 1 + EACH);
        let books = &recording.accounts;
        // Three ways that fail at entry and at return, and one that fails at entry only; two that are none.
        let counted = [books.contexts_faulted, books.contexts_unread, books.contexts_invalid];
        assert_eq!(counted, [4 * EACH, 3 * EACH, 2 * EACH], "{books:#?}");
    }
}

/// The loader sets the thread pointer behind its search for libraries; this one looks for the C library in a thousand folders, with 8 to 30
/// calls in each (more for a newer processor), at which there is a place and no slot yet.
#[test]
fn a_thread_without_thread_local_storage_has_no_slot_and_no_fault() {
    const FOLDERS: usize = 1_000;
    needs!();
    for kind in [AttachKind::TpBtf, AttachKind::RawTp] {
        let programs = or_skip!(Programs::of("own"));
        let folders: Vec<String> = (0..FOLDERS).map(|n| format!("/nowhere/{n}")).collect();
        let mut words = words(&programs, "own", SOME, 1, &[]);
        words.splice(0..0, ["env".to_owned(), format!("LD_LIBRARY_PATH={}", folders.join(":"))]);
        let recording = follow(Some(kind), &words, &programs.go());
        let missed = recording.named("openat").into_iter().filter(|call| call.context.is_none()).count();
        assert!(missed > 5 * FOLDERS, "{missed} calls of the loader");
        // It is found all the same once there is a slot.
        assert_eq!(judge(&recording), 2 * SOME.0 * SOME.1 + 4);
        let books = &recording.accounts;
        assert_eq!((books.contexts_faulted, books.contexts_unread), (0, 0), "{books:#?}");
    }
}

#[test]
fn of_two_slots_that_differ_neither_counts() {
    needs!();
    let programs = or_skip!(Programs::of("twice"));
    let [one, other] = ["libslot.so", "libother.so"].map(|name| programs.at(name));
    let words = [programs.program(), programs.program(), one, other, "100".to_owned()];
    let folder = tempfile::tempdir().unwrap();
    let mut actor = Actor::program(&words, &folder.path().join("out"));
    let recording = record(&TracerConfig::default(), &mut [&mut actor]);
    recording.assert_balanced();
    let calls = recording.named("pread64").into_iter().filter(|call| call.args[2] == 1);
    let (below, others): (Vec<_>, Vec<_>) = calls.partition(|call| call.context.is_some());
    // Until the second is loaded the first is the only one.
    assert!(others.len() > 50, "{} calls are below a span", below.len());
}

/// `--errors-only` leaves out calls that succeed, and `--sampled-by-program on` of these not those whose program samples.
#[test]
fn what_its_program_samples_is_kept_whatever_filters_say() {
    needs!();
    let (spans, calls) = SOME;
    for kind in [AttachKind::TpBtf, AttachKind::RawTp] {
        let programs = or_skip!(Programs::of("own"));
        let words = words(&programs, "own", SOME, 1, &[]);
        let filter = Filter { errors_only: true, keep_sampled: true, ..Filter::default() };
        let config =
            TracerConfig { attach: Some(kind), filter, ring_bytes: Some(RING), ..TracerConfig::default() };
        let recording = follow_by(&config, &words, &programs.go());
        let own = |call: &&SyscallEvent| call.args[2] == 1 && call.args[3] != AWAITED;
        let kept: Vec<_> = recording.named("pread64").into_iter().filter(own).collect();
        // Of each odd span, all; those of the one in which the child is forked are its parent's two and its own.
        assert_eq!(kept.len() as u64, 2 * calls * spans / 2 + 3);
        assert!(kept.iter().all(|call| call.args[3] % 2 == 1), "{:#?}", recording.accounts);
        assert!(kept.iter().all(|call| call.context.as_ref().is_some_and(|context| context.is_sampled())));
        assert!(recording.accounts.calls_filtered >= calls * spans, "{:#?}", recording.accounts);
    }
}

/// The whole of it: bios and requests of a call that was made for a span of the program's are in its trace.
#[test]
fn what_is_below_a_call_is_in_the_applications_trace() {
    const STEP: u64 = 1 << 20;
    needs!("losetup");
    let disk = or_skip!(Disk::raw(24 * STEP));
    let programs = or_skip!(Programs::of("own"));
    let mut words = words(&programs, "own", (20, 2), STEP, &[]);
    words[1] = disk.node().display().to_string();
    let recording = follow(None, &words, &programs.go());
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

/// No test: the programs, for a guest, which has no compiler (`xtask/src/vm/initramfs.rs`).
#[test]
fn programs_for_a_guest() {
    let Some(into) = std::env::var_os("BLKKIN_BUILD_CONTEXT_PROGRAMS") else {
        skip!("nobody asks for programs");
    };
    build_all(Path::new(&into));
}
