//! Process contexts (OTEP 4719): spans of a process have the attributes that it published, from the
//! moment at which the context was read. Children and a new program after exec do not inherit them.
//!
//! *Input*: `support/context/process_context.c`, which publishes contexts and then makes a known
//! number of calls at known offsets. The attributes of the calls' spans are counted by offset.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use blkkin_aggregator::spans;
use blkkin_aggregator::trace::Root;
use blkkin_tracer::{Filter, TraceScope, TracerConfig};
use blkkin_wire::batch::SourceStats;
use blkkin_wire::process_context::{Attribute, AttributeValue, ProcessContextEvent};
use blkkin_wire::span::TagValue;

use crate::support::context::Programs;
use crate::support::context::scripted_program::ScriptedProgram;
use crate::support::live::eventually;
use crate::support::recording::{Recorder, Recording};
use crate::support::{needs, or_skip, skip};

/// Offset at which the program reads while it waits.
const AWAITS: u64 = 99;
/// Calls of one `read=`.
const EACH: usize = 100;

/// Returns the service name of a process context, or none if it was withdrawn.
fn service(context: &ProcessContextEvent) -> Option<&str> {
    let name = context.attributes.iter().find(|attribute| &*attribute.key == "service.name");
    name.map(|Attribute { value, .. }| match value {
        AttributeValue::Text(text) => &**text,
        AttributeValue::Number(_) => panic!("{context:?}"),
    })
}

fn services(recorder: &Recorder) -> Vec<Option<String>> {
    recorder.process_contexts().iter().map(|context| service(context).map(str::to_owned)).collect()
}

#[track_caller]
fn await_last(recorder: &Recorder, name: Option<&str>) {
    let last = || services(recorder).last().is_some_and(|last| last.as_deref() == name);
    assert!(eventually(last), "{name:?} was not read: {:?}", services(recorder));
}

/// Number of calls by offset and service name.
type Tags = BTreeMap<(u64, Option<String>), usize>;

fn tags(recording: &Recording) -> Tags {
    let mut tags = Tags::new();
    for trace in &recording.traces {
        let Root::Call(call) = &trace.root else { continue };
        // Reads of the loader are longer than one byte.
        if call.call.name() != "pread64" || call.args[2] != 1 || call.args[3] == AWAITS {
            continue;
        }
        let spans = spans::spans_of(trace);
        let tag = |key: &str| match spans[0].tags.iter().find(|(name, _)| name == key)?.1.clone() {
            TagValue::Text(text) => Some(text.into_owned()),
            other => panic!("{other:?}"),
        };
        let name = tag("app.service.name");
        assert_eq!(tag("app.service.instance.id"), name.as_ref().map(|_| "one".to_owned()));
        *tags.entry((call.args[3], name)).or_default() += 1;
    }
    tags
}

/// Builds the expected tags: all calls of each `read=` with this name.
fn expected_tags(reads: &[(u64, Option<&str>)]) -> Tags {
    reads.iter().map(|(offset, name)| ((*offset, name.map(str::to_owned)), EACH)).collect()
}

fn finish(recorder: Recorder, mut program: ScriptedProgram) -> Recording {
    assert_eq!(program.process.run_to_exit(), 0, "{}", program.process.output());
    let recording = recorder.finish();
    recording.assert_balanced();
    recording
}

#[test]
fn a_process_context_applies_until_it_changes_or_the_program_does() {
    needs!();
    let programs = or_skip!(Programs::of("process-context"));
    let args = [
        "read=1",
        "name=shop",
        "await=first",
        "read=2",
        "fork=3",
        "name=store",
        "await=second",
        "read=4",
        "exec",
        "read=5",
        "name=third",
        "await=third",
        "read=6",
    ];
    let mut program = ScriptedProgram::new(&programs, &args);
    let recorder = Recorder::start(&TracerConfig::default(), &[program.process.pid()]);
    program.process.release();
    await_last(&recorder, Some("shop"));
    program.proceed("first");
    await_last(&recorder, Some("store"));
    program.proceed("second");
    await_last(&recorder, Some("third"));
    program.proceed("third");
    let recording = finish(recorder, program);
    // The child is a different process.
    let expected =
        [(1, None), (2, Some("shop")), (3, None), (4, Some("store")), (5, None), (6, Some("third"))];
    assert_eq!(tags(&recording), expected_tags(&expected));
    let stats = &recording.stats;
    assert_eq!((stats.resources_malformed, stats.resources_unread, stats.resources_no_room), (0, 0, 0));
}

/// The mapping was made before the tracer started.
#[test]
fn the_context_of_a_process_that_already_runs_is_read() {
    needs!();
    let programs = or_skip!(Programs::of("process-context"));
    for scope in [TraceScope::Marked, TraceScope::All] {
        let mut program = ScriptedProgram::new(&programs, &["name=shop", "await=first", "read=2"]);
        program.process.release();
        let pid = program.process.pid();
        let maps = || std::fs::read_to_string(format!("/proc/{}/maps", pid.0)).unwrap();
        assert!(
            eventually(|| maps().contains("OTEL_CTX")),
            "it publishes nothing: {}",
            program.process.output()
        );
        let all_tasks = scope == TraceScope::All;
        let filter = Filter { pids: if all_tasks { vec![pid] } else { Vec::new() }, ..Filter::default() };
        let config = TracerConfig { scope, filter, ..TracerConfig::default() };
        let recorder = Recorder::start(&config, if all_tasks { &[] } else { std::slice::from_ref(&pid) });
        await_last(&recorder, Some("shop"));
        program.proceed("first");
        assert_eq!(tags(&finish(recorder, program)), expected_tags(&[(2, Some("shop"))]));
    }
}

/// The filter excludes mmap calls.
#[test]
fn a_process_context_is_found_although_a_filter_excludes_mmap() {
    needs!();
    let programs = or_skip!(Programs::of("process-context"));
    let calls = vec![blkkin_wire::syscalls::SyscallId::by_name("pread64").unwrap()];
    let mut program = ScriptedProgram::new(&programs, &["read=1", "name=shop", "await=first", "read=2"]);
    let config =
        TracerConfig { filter: Filter { syscalls: calls, ..Filter::default() }, ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[program.process.pid()]);
    program.process.release();
    await_last(&recorder, Some("shop"));
    program.proceed("first");
    assert_eq!(tags(&finish(recorder, program)), expected_tags(&[(1, None), (2, Some("shop"))]));
}

/// A malformed context withdraws the previous one and is counted; the next valid one applies.
#[test]
fn malformed_contexts_are_counted_and_not_used() {
    needs!();
    let programs = or_skip!(Programs::of("process-context"));
    for kind in ["version", "size", "nowhere", "garbage"] {
        let malformed = format!("odd={kind}");
        let args = ["name=shop", "await=first", &malformed, "await=second", "read=2"];
        let mut program = ScriptedProgram::new(&programs, &args);
        let recorder = Recorder::start(&TracerConfig::default(), &[program.process.pid()]);
        program.process.release();
        await_last(&recorder, Some("shop"));
        program.proceed("first");
        await_last(&recorder, None);
        program.proceed("second");
        let recording = finish(recorder, program);
        assert_eq!(tags(&recording), expected_tags(&[(2, None)]), "{kind}");
        let SourceStats { resources_malformed, resources_unread, .. } = recording.stats;
        assert_eq!((resources_malformed, resources_unread), (1, 0), "{kind}");
    }
}

/// The context is in anonymous memory with a name. It is found some ms after the thread context, or
/// with the next scan.
#[test]
fn named_anonymous_memory_is_found() {
    needs!();
    let programs = or_skip!(Programs::of("process-context"));
    let has_names = Command::new(programs.program()).args(["/dev/null", "anon=x"]).status().unwrap();
    if has_names.code() == Some(77) {
        skip!("this kernel gives memory no names (CONFIG_ANON_VMA_NAME)");
    }
    let mut program = ScriptedProgram::new(&programs, &["anon=shop", "await=first", "read=2"]);
    program.process.release();
    let maps = Path::new("/proc").join(program.process.pid().0.to_string()).join("maps");
    assert!(eventually(|| std::fs::read_to_string(&maps).unwrap().contains("OTEL_CTX")));
    let recorder = Recorder::start(&TracerConfig::default(), &[program.process.pid()]);
    await_last(&recorder, Some("shop"));
    program.proceed("first");
    assert_eq!(tags(&finish(recorder, program)), expected_tags(&[(2, Some("shop"))]));
}
