//! Thread contexts: each system call has the span that its thread published by OpenTelemetry's
//! thread context (OTEP 4947).
//!
//! *Input*: C programs of `support/context`, with the slot in the program or in libraries, with
//! glibc and musl, linked, loaded and unloaded. *Independent count*: the offset of each call, in
//! which the program encodes its span.

mod attributes;

use std::collections::HashSet;
use std::path::Path;

use blkkin_aggregator::spans;
use blkkin_tracer::{AttachKind, Filter, TraceScope, TracerConfig};
use blkkin_wire::event::SyscallEvent;
use blkkin_wire::ids::SpanId;

use crate::support;
use crate::support::context::recorded_program::{
    RING, THREADS, WARM_UP, assert_contexts, finish, record_program, record_with_config, writer_args,
};
use crate::support::context::{Programs, build_all};
use crate::support::disk::Disk;
use crate::support::gated_process::GatedProcess;
use crate::support::live::eventually;
use crate::support::recording::{Recorder, record_one};
use crate::support::tools::is_guest;
use crate::support::{needs, or_skip, skip};

/// Spans, and calls by each of the two threads of a span: 100,000 calls, or 10,000 where only the
/// access to the slot differs.
const FULL: (u64, u64) = (1_000, 50);
const REDUCED: (u64, u64) = (500, 10);

#[test]
fn a_programs_own_slot() {
    check("own", Some(AttachKind::TpBtf), FULL);
}

#[test]
fn a_programs_own_slot_by_untyped_probes() {
    check("own", Some(AttachKind::RawTp), REDUCED);
}

#[test]
fn a_slot_of_a_library_that_is_linked() {
    ["linked-distance", "linked-module", "linked-descriptor"]
        .iter()
        .for_each(|name| check(name, None, REDUCED));
}

#[test]
fn a_slot_of_a_library_that_is_loaded_later() {
    ["loaded-distance", "loaded-module", "loaded-descriptor"]
        .iter()
        .for_each(|name| check(name, None, REDUCED));
}

#[test]
fn a_slot_by_untyped_probes_where_it_is_loaded_later() {
    check("loaded-descriptor", Some(AttachKind::RawTp), REDUCED);
}

#[test]
fn a_slot_of_a_static_program() {
    check("static", None, REDUCED);
}

/// musl's loader has its own vector of TLS blocks, and its own argument of a TLS descriptor.
#[test]
fn a_slot_by_musls_loader() {
    let linked = ["musl-own", "musl-linked-distance", "musl-linked-module", "musl-linked-descriptor"];
    linked.iter().for_each(|name| check(name, None, REDUCED));
}

#[test]
fn a_slot_by_musls_loader_where_it_is_loaded_later() {
    ["musl-loaded-module", "musl-loaded-descriptor"].iter().for_each(|name| check(name, None, REDUCED));
    check("musl-loaded-module", Some(AttachKind::RawTp), REDUCED);
}

#[test]
fn a_slot_of_a_static_program_with_musl() {
    check("musl-static", None, REDUCED);
}

/// The library maps its own file too, as it was before its relocations.
#[test]
fn a_slot_of_a_library_that_maps_its_own_file() {
    ["loaded-module-read", "loaded-descriptor-read"].iter().for_each(|name| check(name, None, REDUCED));
}

/// Span of `library_churn.c` after its library stays loaded.
const STAYS: u64 = 1 << 40 | 5;

/// A library that is unloaded during the scan gives no result for its file, and another one at its
/// address is not taken for it.
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
    let programs = or_skip!(Programs::of("library-churn"));
    let folder = tempfile::tempdir().unwrap();
    let [library, other] = ["libslot.so", "libother.so"].map(|name| programs.path(name));
    let first_args =
        [programs.program(), programs.program(), library, other, programs.go().display().to_string()];
    let args = [&first_args[..], &["400", "1000", "200"].map(str::to_owned)].concat();
    let mut process = GatedProcess::program(&args, &folder.path().join("out"));
    let config = TracerConfig { attach, ring_bytes: Some(RING), ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[process.pid()]);
    process.release();
    assert!(
        eventually(|| recorder.calls_inside(STAYS) > 0),
        "no context of the stable library was found: {}",
        process.output()
    );
    let recording = finish(recorder, &mut process, &programs.go());
    assert_eq!(assert_contexts(&recording), 1000);
}

/// A process exists as long as one of its threads.
#[test]
fn a_slot_of_a_program_after_its_first_thread_has_ended() {
    needs!();
    let programs = or_skip!(Programs::of("leader-exit"));
    let go = programs.go().display().to_string();
    let args = [programs.program(), programs.program(), go, "1000".to_owned()];
    assert_eq!(assert_contexts(&record_program(None, &args, &programs.go())), 1000);
}

/// The memory is scanned, so the file may be deleted.
#[test]
fn a_slot_of_a_library_that_is_deleted() {
    needs!();
    let programs = or_skip!(Programs::of("loaded-module"));
    let library = tempfile::tempdir().unwrap();
    let library = library.path().join("libslot.so");
    std::fs::copy(programs.library(true), &library).unwrap();
    let mut args = writer_args(&programs, "loaded-module", REDUCED, 1, &[]);
    args[2] = library.display().to_string();
    let folder = tempfile::tempdir().unwrap();
    let mut process = GatedProcess::program(&args, &folder.path().join("out"));
    let pid = process.pid();
    process.release();
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", pid.0)).unwrap();
    assert!(eventually(|| maps().contains(&args[2])), "it does not start: {}", process.output());
    std::fs::remove_file(&library).unwrap();
    assert!(maps().contains(&format!("{} (deleted)", args[2])));
    let config = TracerConfig { ring_bytes: Some(RING), ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[pid]);
    let recording = finish(recorder, &mut process, &programs.go());
    assert_eq!(assert_contexts(&recording), 2 * REDUCED.0 * REDUCED.1 + 4);
}

/// A loader that is delayed by 0.1 s between the mappings of a library: an intermediate state gives
/// no lasting result.
#[test]
fn a_slot_of_a_library_that_is_loaded_slowly() {
    needs!("strace");
    for name in
        ["loaded-distance", "loaded-module", "loaded-descriptor", "musl-loaded-module", "linked-module"]
    {
        let programs = or_skip!(Programs::of(name));
        let strace =
            ["strace", "-D", "-o", "/dev/null", "-e", "trace=mmap", "-e", "inject=mmap:delay_exit=100000"];
        let first_args = writer_args(&programs, name, REDUCED, 1, &[]);
        let args: Vec<String> = strace.map(str::to_owned).into_iter().chain(first_args).collect();
        let recording = record_program(None, &args, &programs.go());
        assert_eq!(assert_contexts(&recording), 2 * REDUCED.0 * REDUCED.1 + 4, "{name}");
    }
}

/// Namespaces as in a container: another root, in which paths name other files or none outside, and
/// a pid namespace.
#[test]
fn a_slot_of_a_program_in_namespaces_of_its_own() {
    needs!("unshare");
    if is_guest() {
        support::skip!("a guest has no C library's own tools to fill a root with");
    }
    for name in ["static", "loaded-module"] {
        let programs = or_skip!(Programs::of(name));
        let root = tempfile::tempdir().unwrap();
        let copy = |from: &str, to: &str| {
            let to = root.path().join(to.trim_start_matches('/'));
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(from, to).unwrap();
        };
        copy(&programs.program(), "program");
        if name != "static" {
            copy(&programs.library(true), "libslot.so");
            // The loader and libraries, by the paths that the program uses.
            let libraries = std::process::Command::new("ldd").arg(programs.program()).output().unwrap();
            let libraries = String::from_utf8(libraries.stdout).unwrap();
            libraries
                .split_whitespace()
                .filter(|word| word.starts_with('/'))
                .for_each(|path| copy(path, path));
        }
        let library = if name == "static" { "-" } else { "/libslot.so" };
        let first_args = ["/program", "/program", library, "/go"].map(str::to_owned);
        let counts = [THREADS, REDUCED.0, REDUCED.1, 1].map(|number| number.to_string());
        let unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--root"].map(str::to_owned);
        let root_arg = [root.path().display().to_string()];
        let args: Vec<String> = unshare.into_iter().chain(root_arg).chain(first_args).chain(counts).collect();
        let recording = record_program(None, &args, &root.path().join("go"));
        assert_eq!(assert_contexts(&recording), 2 * REDUCED.0 * REDUCED.1 + 4, "{name}");
    }
}

/// The tracer has not seen its execve: the program is found by its first call, or because all
/// processes are scanned.
#[test]
fn a_program_that_runs_already() {
    needs!();
    for scope in [TraceScope::Marked, TraceScope::All] {
        let programs = or_skip!(Programs::of("loaded-module"));
        let args = writer_args(&programs, "loaded-module", REDUCED, 1, &[]);
        let folder = tempfile::tempdir().unwrap();
        let mut process = GatedProcess::program(&args, &folder.path().join("out"));
        let pid = process.pid();
        process.release();
        let library = programs.library(true);
        let maps = || std::fs::read_to_string(format!("/proc/{}/maps", pid.0)).unwrap();
        assert!(eventually(|| maps().contains(&library)), "it does not start: {}", process.output());
        let all = scope == TraceScope::All;
        let filter = Filter { pids: if all { vec![pid] } else { Vec::new() }, ..Filter::default() };
        let config = TracerConfig { scope, filter, ring_bytes: Some(RING), ..TracerConfig::default() };
        let recorder = Recorder::start(&config, if all { &[] } else { std::slice::from_ref(&pid) });
        let recording = finish(recorder, &mut process, &programs.go());
        // The child is another process, which is not traced.
        let of_child = if all { 0 } else { 2 };
        assert_eq!(assert_contexts(&recording), 2 * REDUCED.0 * REDUCED.1 + 2 + of_child);
    }
}

fn check(name: &str, attach: Option<AttachKind>, (spans, calls): (u64, u64)) {
    needs!();
    let programs = or_skip!(Programs::of(name));
    // The program that the child executes makes no calls with a span.
    let next = writer_args(&programs, name, (0, 0), 1, &[]);
    let all = writer_args(&programs, name, (spans, calls), 1, &next);
    let recording = record_program(attach, &all, &programs.go());
    // Two threads for each span, two calls of the parent and two of the child for their own.
    assert_eq!(assert_contexts(&recording), 2 * spans * calls + 4);
    let stats = &recording.stats;
    assert_eq!((stats.contexts_faulted, stats.contexts_invalid), (0, 0), "{stats:#?}");
}

/// Calls of each case in which a context is unreadable or invalid.
const EACH: u64 = 100;

/// Invalid pointers, truncated, invalid and empty records: no call has a span other than its own,
/// and each case is counted. A page that is absent at a call's entry is read at its exit.
#[test]
fn unreadable_and_invalid_contexts_are_counted() {
    needs!();
    for kind in [AttachKind::TpBtf, AttachKind::RawTp] {
        let programs = or_skip!(Programs::of("hostile"));
        let (program, go) = (programs.program(), programs.go());
        let args = [program.clone(), program, go.display().to_string(), EACH.to_string()];
        let recording = record_program(Some(kind), &args, &go);
        assert_eq!(assert_contexts(&recording), 1 + EACH);
        let stats = &recording.stats;
        // Three cases fail at entry and at exit, one at entry only; two are invalid.
        let counts = [stats.contexts_faulted, stats.contexts_unread, stats.contexts_invalid];
        assert_eq!(counts, [4 * EACH, 3 * EACH, 2 * EACH], "{stats:#?}");
    }
}

/// The loader sets the thread pointer after its search for libraries. Here it searches for the C
/// library in a thousand folders, with 8 to 30 calls in each (more for a newer CPU), while the
/// slot's location is known but the slot does not exist yet.
#[test]
fn a_thread_without_thread_local_storage_has_no_slot_and_no_fault() {
    const FOLDERS: usize = 1_000;
    needs!();
    for kind in [AttachKind::TpBtf, AttachKind::RawTp] {
        let programs = or_skip!(Programs::of("own"));
        let folders: Vec<String> = (0..FOLDERS).map(|n| format!("/nowhere/{n}")).collect();
        let mut args = writer_args(&programs, "own", REDUCED, 1, &[]);
        args.splice(0..0, ["env".to_owned(), format!("LD_LIBRARY_PATH={}", folders.join(":"))]);
        let recording = record_program(Some(kind), &args, &programs.go());
        let missed =
            recording.calls_named("openat").into_iter().filter(|call| call.context.is_none()).count();
        assert!(missed > 5 * FOLDERS, "{missed} calls of the loader");
        // The slot is found as soon as it exists.
        assert_eq!(assert_contexts(&recording), 2 * REDUCED.0 * REDUCED.1 + 4);
        let stats = &recording.stats;
        assert_eq!((stats.contexts_faulted, stats.contexts_unread), (0, 0), "{stats:#?}");
    }
}

#[test]
fn two_different_slots_give_no_context() {
    needs!();
    let programs = or_skip!(Programs::of("two-slots"));
    let [first, other] = ["libslot.so", "libother.so"].map(|name| programs.path(name));
    let args = [programs.program(), programs.program(), first, other, "100".to_owned()];
    let folder = tempfile::tempdir().unwrap();
    let mut process = GatedProcess::program(&args, &folder.path().join("out"));
    let recording = record_one(&mut process);
    recording.assert_balanced();
    let calls = recording.calls_named("pread64").into_iter().filter(|call| call.args[2] == 1);
    let (with_span, without_span): (Vec<_>, Vec<_>) = calls.partition(|call| call.context.is_some());
    // Until the second library is loaded, the first slot is the only one.
    assert!(without_span.len() > 50, "{} calls have a span", with_span.len());
}

/// `--errors-only` drops successful calls, but with `--sampled-by-program on` not those that the
/// program samples.
#[test]
fn calls_that_the_program_samples_pass_every_filter() {
    needs!();
    let (spans, calls) = REDUCED;
    for kind in [AttachKind::TpBtf, AttachKind::RawTp] {
        let programs = or_skip!(Programs::of("own"));
        let args = writer_args(&programs, "own", REDUCED, 1, &[]);
        let filter = Filter { errors_only: true, keep_sampled: true, ..Filter::default() };
        let config =
            TracerConfig { attach: Some(kind), filter, ring_bytes: Some(RING), ..TracerConfig::default() };
        let recording = record_with_config(&config, &args, &programs.go());
        let first_args = |call: &&SyscallEvent| call.args[2] == 1 && call.args[3] != WARM_UP;
        let sampled: Vec<_> = recording.calls_named("pread64").into_iter().filter(first_args).collect();
        // Of each odd span all calls; of the span in which the child is forked the parent's two and
        // the child's one.
        assert_eq!(sampled.len() as u64, 2 * calls * spans / 2 + 3);
        assert!(sampled.iter().all(|call| call.args[3] % 2 == 1), "{:#?}", recording.stats);
        assert!(sampled.iter().all(|call| call.context.as_ref().is_some_and(|context| context.is_sampled())));
        assert!(recording.stats.calls_filtered >= calls * spans, "{:#?}", recording.stats);
    }
}

/// Bios and requests of a call with a program's span are in the program's trace.
#[test]
fn bios_and_requests_of_a_call_are_in_the_applications_trace() {
    const STEP: u64 = 1 << 20;
    needs!("losetup");
    let disk = or_skip!(Disk::raw(24 * STEP));
    let programs = or_skip!(Programs::of("own"));
    let mut args = writer_args(&programs, "own", (20, 2), STEP, &[]);
    args[1] = disk.node().display().to_string();
    let recording = record_program(None, &args, &programs.go());
    assert_eq!(assert_contexts(&recording), 2 * 20 * 2 + 4);
    let mut requests = 0;
    for trace in recording.traces.iter().filter(|trace| trace.context().is_some()) {
        let context = trace.context().unwrap();
        let spans = spans::spans_of(trace);
        assert!(spans.iter().all(|span| span.trace == context.trace), "{spans:#?}");
        assert_eq!(spans[0].parent, Some(context.span), "{spans:#?}");
        let known: HashSet<SpanId> = spans.iter().map(|span| span.id).collect();
        let with_span = spans[1..].iter().filter_map(|span| span.parent);
        assert!(with_span.clone().all(|parent| known.contains(&parent)), "{spans:#?}");
        requests += trace.requests.len();
    }
    assert!(requests > 0, "nothing was read from the disk with a span");
}

/// Not a test: builds the programs for a guest, which has no compiler
/// (`xtask/src/vm/initramfs.rs`).
#[test]
fn programs_for_a_guest() {
    let Some(target) = std::env::var_os("BLKKIN_BUILD_CONTEXT_PROGRAMS") else {
        skip!("no programs are requested");
    };
    build_all(Path::new(&target));
}
