//! Thread-context attributes: the tags of each call must equal what its thread had published when
//! it made the call.
//!
//! *Input*: the program `support/context/thread_attributes.c`, whose threads publish attributes per
//! span and make known calls. *Independent count*: the offset of each call encodes its span, and
//! this file computes the attributes of a span from the same rule as the program. *Moved pages*: a page
//! that the kernel moves at that moment (compaction) cannot be read by a program of the tracer, which takes no
//! page fault. The test of many calls allows one call in a thousand for it, each counted by the tracer, and
//! none where the kernel's own count of moved pages (`/proc/vmstat`) did not grow.

use std::collections::BTreeMap;

use blkkin_aggregator::spans;
use blkkin_aggregator::trace::{Root, Trace};
use blkkin_tracer::{AttachKind, Filter, TracerConfig};
use blkkin_wire::event::{LayerEvent, SyscallEvent, TaskChange};
use blkkin_wire::head_sampling::HeadSampling;
use blkkin_wire::span::TagValue;

use crate::support::context::Programs;
use crate::support::context::scripted_program::ScriptedProgram;
use crate::support::live::eventually;
use crate::support::recording::{Recorder, Recording};
use crate::support::tools::is_guest;
use crate::support::{needs, or_skip};

const WARM_UP: u64 = 1 << 40 | 1;
/// Calls of each reading argument of the program.
const EACH: usize = 100;
const RING: usize = 64 << 20;

/// Records what the program does after its argument `await=go`, once its slot and `keys` attribute
/// names are known.
fn record(kind: Option<AttachKind>, programs: &Programs, script: &[&str], keys: usize) -> Recording {
    record_with(&TracerConfig { attach: kind, ..TracerConfig::default() }, programs, script, keys)
}

/// Records with this configuration, as [`record`] does.
fn record_with(config: &TracerConfig, programs: &Programs, script: &[&str], keys: usize) -> Recording {
    let mut program = ScriptedProgram::new(programs, script);
    let config = TracerConfig { ring_bytes: Some(RING), ..config.clone() };
    let recorder = Recorder::start(&config, &[program.process.pid()]);
    program.process.release();
    let known =
        || recorder.process_contexts().last().is_some_and(|context| context.thread_keys.len() == keys);
    assert!(eventually(|| recorder.calls_with_context() > 0 && known()), "{:?}", recorder.process_contexts());
    program.proceed("go");
    let recording = finish(recorder, &mut program);
    assert_one_process_context(&recording);
    recording
}

/// The process context is published once, and withdrawn only after the last call.
fn assert_one_process_context(recording: &Recording) {
    let contexts = recording.events.iter().filter_map(|event| match event {
        LayerEvent::ProcessContext(process) => Some(process),
        _ => None,
    });
    let last_call = recording.calls_named("pread64").iter().map(|call| call.exit).max();
    let before_exit = contexts.filter(|process| Some(process.time) < last_call);
    // Times and whether withdrawn, on one line: a shortened report shows all.
    let withdrawals: Vec<_> = before_exit.map(|process| (process.time.0, process.is_withdrawal())).collect();
    let execs = recording.events.iter().filter_map(|event| match event {
        LayerEvent::Task(task) => (task.change == TaskChange::Execed).then_some(task.time.0),
        _ => None,
    });
    let execs: Vec<_> = execs.collect();
    assert!(
        matches!(withdrawals[..], [(_, false)]),
        "{withdrawals:?} until {last_call:?}; executed at {execs:?}"
    );
}

fn finish(recorder: Recorder, program: &mut ScriptedProgram) -> Recording {
    assert_eq!(program.process.run_to_exit(), 0, "{}", program.process.output());
    let recording = recorder.finish();
    recording.assert_balanced();
    assert_eq!(recording.stats.calls.dropped, 0, "{:#?}", recording.stats);
    recording
}

/// Thread attributes of a root span, by key without prefix. Keys of blkkin's own counters are in
/// parentheses.
type Attributes = BTreeMap<String, String>;

fn attributes(trace: &Trace) -> Attributes {
    let text = |value: &TagValue| match value {
        TagValue::Text(text) => text.to_string(),
        TagValue::Number(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    let spans = spans::spans_of(trace);
    assert!(spans[1..].iter().flat_map(|span| &span.tags).all(|(key, _)| !key.contains("app_thread")));
    let tags = spans[0].tags.iter().filter_map(|(key, value)| {
        let (is_counter, key) = (key.starts_with("blkkin.app_thread."), key.split_once("app_thread.")?.1);
        let key = if is_counter { format!("({key})") } else { key.to_owned() };
        Some((key, text(value)))
    });
    let attributes: Attributes = tags.collect();
    let tags = spans[0].tags.iter().filter(|(key, _)| key.contains("app_thread."));
    assert_eq!(attributes.len(), tags.count(), "a key occurs twice");
    attributes
}

/// Returns the calls of the recording with the attributes of their root span.
fn calls_with_attributes(recording: &Recording) -> impl Iterator<Item = (&SyscallEvent, Attributes)> {
    let tags = recording.traces.iter().filter_map(|trace| match &trace.root {
        Root::Call(call) => Some((call, trace)),
        _ => None,
    });
    tags.map(|(call, trace)| (call, attributes(trace)))
}

/// Returns by offset the attributes of the one-byte reads, which must all be equal, and the number
/// of reads.
fn reads(recording: &Recording) -> BTreeMap<u64, (Attributes, usize)> {
    let mut reads = BTreeMap::new();
    for (call, attributes) in calls_with_attributes(recording) {
        // Reads of the dynamic loader are longer.
        if call.call.name() != "pread64" || call.args[2] != 1 || call.args[3] == WARM_UP {
            continue;
        }
        let span = call.context.as_ref().map_or(0, |context| context.span.0);
        assert_eq!(span, call.args[3], "{call:#?}");
        let (known, count) = reads.entry(call.args[3]).or_insert_with(|| (attributes.clone(), 0));
        assert_eq!(*known, attributes, "{call:#?}");
        *count += 1;
    }
    reads
}

fn expected_reads(reads: &[(u64, &[(&str, &str)])]) -> BTreeMap<u64, (Attributes, usize)> {
    let read = |(offset, attributes): &(u64, &[(&str, &str)])| {
        let attributes =
            attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        (*offset, (attributes, EACH))
    };
    reads.iter().map(read).collect()
}

/// Returns the attributes that `thread_attributes.c` publishes for a span (`attributes_of`).
fn attributes_of(span: u64) -> Attributes {
    let mut attributes = Attributes::from([("span".to_owned(), format!("span-{span}"))]);
    if !span.is_multiple_of(3) {
        attributes.insert("length".to_owned(), "x".repeat((span % 200) as usize));
    }
    if span.is_multiple_of(5) {
        attributes.insert("letter".to_owned(), "é".to_owned());
    }
    attributes
}

/// 100,000 reads and 20,000 calls with paths, with two files, with a path that is not in memory
/// yet, and with submissions. Four threads change their span every 40 calls. Each call has the
/// attributes of its span.
#[test]
fn the_attributes_of_a_call_are_those_of_its_thread_at_that_time() {
    needs!();
    // An emulated CPU takes minutes for that many calls.
    let full_size = if is_guest() { ("many=500,20", 11_000) } else { ("many=2500,40", 110_000) };
    for (kind, (many, least)) in [(None, full_size), (Some(AttachKind::RawTp), ("many=300,20", 7_000))] {
        let programs = or_skip!(Programs::of("thread-attributes"));
        let script = ["keys=span,length,letter", "await=go", many];
        let moved_before = moved_pages();
        let recording = record(kind, &programs, &script, 3);
        let moved = moved_pages() - moved_before;
        let (mut matching, mut unread, mut by_name) = (0, 0, BTreeMap::<&str, usize>::new());
        for (call, attributes) in calls_with_attributes(&recording) {
            let span = call.context.as_ref().map_or(0, |context| context.span.0);
            if span == 0 || span == WARM_UP {
                assert!(attributes.is_empty(), "{call:#?}");
                continue;
            }
            if attributes.keys().eq(["(bytes_unread)"]) {
                unread += 1;
                continue;
            }
            assert_eq!(attributes, attributes_of(span), "{call:#?}");
            matching += 1;
            *by_name.entry(call.call.name()).or_default() += 1;
        }
        println!("{matching} calls with spans, each with the attributes of its thread: {by_name:?}");
        assert!(matching >= least, "{matching}");
        for name in ["pread64", "rename", "openat", "copy_file_range", "io_submit", "io_uring_enter"] {
            assert!(by_name.get(name).is_some_and(|count| *count >= 300), "{name}: {by_name:?}");
        }
        let stats = &recording.stats;
        assert_eq!((stats.attributes_cut, stats.attributes_unread), (0, unread), "{stats:#?}");
        assert_eq!(stats.contexts_invalid, 0, "{stats:#?}");
        let allowed = if moved == 0 { 0 } else { matching / 1_000 };
        let not_read = stats.contexts_faulted + unread;
        assert!(not_read <= allowed, "{not_read} not read while the kernel moved {moved} pages: {stats:#?}");
    }
}

/// Returns the number of pages that the kernel has moved, or tried to move; 0 of a kernel that moves none.
fn moved_pages() -> u64 {
    let counts = std::fs::read_to_string("/proc/vmstat").unwrap();
    let lines = counts.lines().filter_map(|line| line.split_once(' '));
    let of_pages = lines.filter(|(name, _)| ["pgmigrate_success", "pgmigrate_fail"].contains(name));
    of_pages.map(|(_, count)| count.parse::<u64>().unwrap()).sum()
}

/// A thread that publishes attributes and no span has no trace that could decide about its calls: with head sampling
/// the id of each call does.
#[test]
fn a_call_with_attributes_and_no_span_is_sampled_by_its_own_id() {
    const SETS: usize = 40;
    needs!();
    let programs = or_skip!(Programs::of("thread-attributes"));
    let script = [&["keys=one", "await=go"][..], &["set=0:0=x"; SETS]].concat();
    // The program samples the span of its warm-up.
    let filter = Filter { keep_sampled: true, ..Filter::default() };
    let config =
        TracerConfig { filter, head_sampling: HeadSampling::from_one_in(4), ..TracerConfig::default() };
    let recording = record_with(&config, &programs, &script, 1);
    let calls = recording.calls_named("pread64").into_iter();
    let found: Vec<_> = calls.filter(|call| call.attributes.is_some() && call.context.is_none()).collect();
    assert!(found.iter().all(|call| call.args[3] == 0 && call.sampling.one_in() == 4), "{found:#?}");
    // One in four of 4,000, within five standard deviations.
    println!("{} of {} calls", found.len(), SETS * EACH);
    assert!(found.len().abs_diff(SETS * EACH / 4) < 137, "{}", found.len());
}

/// Key numbers without a name, values that are no text, truncated entries, more bytes than are
/// read, and absent pages become no tag and are counted, also for a thread without a span.
#[test]
fn attributes_without_a_name_or_readable_value_are_counted_and_not_tagged() {
    needs!();
    for kind in [AttachKind::TpBtf, AttachKind::RawTp] {
        let programs = or_skip!(Programs::of("thread-attributes"));
        let script = [
            "keys=one,,three,three",
            "await=go",
            "set=11:0=a;1=nameless;2=c",
            "set=12:2=first;3=second;9=unknown",
            "raw=13:0001ff02017a",
            "raw=14:000161000562",
            "set=15:0=new;0=",
            "size=16:612",
            "size=17:613",
            "size=18:65535",
            "late=19",
            "never=20",
            "set=0:0=nospan",
        ];
        let recording = record(Some(kind), &programs, &script, 4);
        let (long, rest) = ("x".repeat(255), "x".repeat(612 - 2 * 257 - 2));
        assert_eq!(long.len() + rest.len() + 255 + 6, 612);
        let expected: [(u64, &[(&str, &str)]); 11] = [
            (0, &[("one", "nospan")]),
            (11, &[("one", "a"), ("three", "c"), ("(dropped_attributes_count)", "1")]),
            (12, &[("three", "second"), ("(dropped_attributes_count)", "2")]),
            (13, &[("three", "z"), ("(dropped_attributes_count)", "1")]),
            (14, &[("one", "a"), ("(dropped_attributes_count)", "1")]),
            (15, &[("one", "")]),
            // Key 0 once, and the second of two values of key 1.
            (16, &[("one", &long), ("(dropped_attributes_count)", "1")]),
            (17, &[("(bytes_unread)", "613")]),
            (18, &[("(bytes_unread)", "65535")]),
            (19, &[("one", "late")]),
            (20, &[("(bytes_unread)", "6")]),
        ];
        assert_eq!(reads(&recording), expected_reads(&expected), "{kind:?}");
        let stats = &recording.stats;
        let counts = [stats.attributes_cut, stats.attributes_unread, stats.contexts_invalid];
        assert_eq!(counts, [2 * EACH as u64, EACH as u64, 0], "{stats:#?}");
    }
}

/// A key number gets its name when the process publishes it; earlier values under it are counted.
/// Names that the process publishes for another schema are not applied to these records.
#[test]
fn a_key_number_has_the_name_that_its_process_has_published_by_then() {
    needs!();
    let programs = or_skip!(Programs::of("thread-attributes"));
    let script = [
        "keys=one",
        "await=go",
        "set=11:0=a;1=b",
        "keys=one,two",
        "await=second",
        "set=12:0=a;1=b",
        "schema=nodejs_v1_dev",
        "keys=one,two",
        "await=third",
        "set=13:0=a;1=b",
    ];
    let mut program = ScriptedProgram::new(&programs, &script);
    let config = TracerConfig { ring_bytes: Some(RING), ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[program.process.pid()]);
    program.process.release();
    let keys = || recorder.process_contexts().last().map_or(usize::MAX, |context| context.thread_keys.len());
    let proceed = |program: &ScriptedProgram, name: &str, known: usize| {
        assert!(eventually(|| keys() == known), "{name}: {:?}", recorder.process_contexts());
        program.proceed(name);
    };
    assert!(eventually(|| recorder.calls_with_context() > 0), "no context was found");
    proceed(&program, "go", 1);
    proceed(&program, "second", 2);
    proceed(&program, "third", 0);
    let recording = finish(recorder, &mut program);
    let expected: [(u64, &[(&str, &str)]); 3] = [
        (11, &[("one", "a"), ("(dropped_attributes_count)", "1")]),
        (12, &[("one", "a"), ("two", "b")]),
        (13, &[("(dropped_attributes_count)", "2")]),
    ];
    assert_eq!(reads(&recording), expected_reads(&expected));
}
