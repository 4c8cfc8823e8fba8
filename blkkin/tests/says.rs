//! Who a process is in its own words (OpenTelemetry's process context): on the spans of its calls from the moment on at which it was read,
//! as it changes, and not on those of its children or of the program that it becomes. The writer is `support/context/process_context.c`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use blkkin_aggregator::trace::Root;
use blkkin_aggregator::translate;
use blkkin_tracer::{Filter, TraceScope, TracerConfig};
use blkkin_wire::batch::SourceStats;
use blkkin_wire::process_context::{Attribute, AttributeValue, ProcessContextEvent};
use blkkin_wire::span::TagValue;

use support::context::Programs;
use support::context::scripted_program::ScriptedProgram;
use support::live::eventually;
use support::recording::{Recorder, Recording};
use support::{needs, or_skip, skip};

/// Where a program reads that waits.
const AWAITS: u64 = 99;
/// Calls of one `read=`.
const EACH: usize = 100;

/// What it says its service is; none where it says nothing any more.
fn service(said: &ProcessContextEvent) -> Option<&str> {
    let name = said.attributes.iter().find(|attribute| &*attribute.key == "service.name");
    name.map(|Attribute { value, .. }| match value {
        AttributeValue::Text(text) => &**text,
        AttributeValue::Number(_) => panic!("{said:?}"),
    })
}

fn services(recorder: &Recorder) -> Vec<Option<String>> {
    recorder.process_contexts().iter().map(|said| service(said).map(str::to_owned)).collect()
}

#[track_caller]
fn await_last(recorder: &Recorder, name: Option<&str>) {
    let last = || services(recorder).last().is_some_and(|last| last.as_deref() == name);
    assert!(eventually(last), "{name:?} is not said: {:?}", services(recorder));
}

/// By offset and what the span says: how many calls there are.
type Tags = BTreeMap<(u64, Option<String>), usize>;

fn tags(recording: &Recording) -> Tags {
    let mut tags = Tags::new();
    for trace in &recording.traces {
        let Root::Call(call) = &trace.root else { continue };
        // The loader's are longer.
        if call.call.name() != "pread64" || call.args[2] != 1 || call.args[3] == AWAITS {
            continue;
        }
        let spans = translate::spans(trace);
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

/// Of each `read=` all, with this name.
fn all(of: &[(u64, Option<&str>)]) -> Tags {
    of.iter().map(|(offset, name)| ((*offset, name.map(str::to_owned)), EACH)).collect()
}

fn finish(recorder: Recorder, mut speaker: ScriptedProgram) -> Recording {
    assert_eq!(speaker.process.run_to_exit(), 0, "{}", speaker.process.output());
    let recording = recorder.finish();
    recording.assert_balanced();
    recording
}

#[test]
fn a_process_is_called_what_it_says_until_it_says_something_else_or_is_another() {
    needs!();
    let programs = or_skip!(Programs::of("process-context"));
    let words = [
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
    let mut speaker = ScriptedProgram::new(&programs, &words);
    let recorder = Recorder::start(&TracerConfig::default(), &[speaker.process.pid()]);
    speaker.process.release();
    await_last(&recorder, Some("shop"));
    speaker.proceed("first");
    await_last(&recorder, Some("store"));
    speaker.proceed("second");
    await_last(&recorder, Some("third"));
    speaker.proceed("third");
    let recording = finish(recorder, speaker);
    // The child is another process.
    let expected =
        [(1, None), (2, Some("shop")), (3, None), (4, Some("store")), (5, None), (6, Some("third"))];
    assert_eq!(tags(&recording), all(&expected));
    let books = &recording.stats;
    assert_eq!((books.resources_malformed, books.resources_unread, books.resources_no_room), (0, 0, 0));
}

/// Nobody has seen it map anything.
#[test]
fn a_process_that_runs_already_is_called_what_it_says() {
    needs!();
    let programs = or_skip!(Programs::of("process-context"));
    for follow in [TraceScope::Marked, TraceScope::All] {
        let mut speaker = ScriptedProgram::new(&programs, &["name=shop", "await=first", "read=2"]);
        speaker.process.release();
        let pid = speaker.process.pid();
        let maps = || std::fs::read_to_string(format!("/proc/{}/maps", pid.0)).unwrap();
        assert!(
            eventually(|| maps().contains("OTEL_CTX")),
            "it does not begin: {}",
            speaker.process.output()
        );
        let everybody = follow == TraceScope::All;
        let filter = Filter { pids: if everybody { vec![pid] } else { Vec::new() }, ..Filter::default() };
        let config = TracerConfig { scope: follow, filter, ..TracerConfig::default() };
        let recorder = Recorder::start(&config, if everybody { &[] } else { std::slice::from_ref(&pid) });
        await_last(&recorder, Some("shop"));
        speaker.proceed("first");
        assert_eq!(tags(&finish(recorder, speaker)), all(&[(2, Some("shop"))]));
    }
}

/// Mappings are none of the calls that are asked for.
#[test]
fn a_process_is_found_also_where_a_filter_leaves_mappings_out() {
    needs!();
    let programs = or_skip!(Programs::of("process-context"));
    let calls = vec![blkkin_wire::syscalls::SyscallId::by_name("pread64").unwrap()];
    let mut speaker = ScriptedProgram::new(&programs, &["read=1", "name=shop", "await=first", "read=2"]);
    let config =
        TracerConfig { filter: Filter { syscalls: calls, ..Filter::default() }, ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[speaker.process.pid()]);
    speaker.process.release();
    await_last(&recorder, Some("shop"));
    speaker.proceed("first");
    assert_eq!(tags(&finish(recorder, speaker)), all(&[(1, None), (2, Some("shop"))]));
}

/// What cannot be understood takes back what was said before, and is counted; the process is called by what it says next.
#[test]
fn what_is_not_what_the_standard_has_is_counted_and_nothing_is_said() {
    needs!();
    let programs = or_skip!(Programs::of("process-context"));
    for kind in ["version", "size", "nowhere", "garbage"] {
        let odd = format!("odd={kind}");
        let words = ["name=shop", "await=first", &odd, "await=second", "read=2"];
        let mut speaker = ScriptedProgram::new(&programs, &words);
        let recorder = Recorder::start(&TracerConfig::default(), &[speaker.process.pid()]);
        speaker.process.release();
        await_last(&recorder, Some("shop"));
        speaker.proceed("first");
        await_last(&recorder, None);
        speaker.proceed("second");
        let recording = finish(recorder, speaker);
        assert_eq!(tags(&recording), all(&[(2, None)]), "{kind}");
        let SourceStats { resources_malformed, resources_unread, .. } = recording.stats;
        assert_eq!((resources_malformed, resources_unread), (1, 0), "{kind}");
    }
}

/// By memory that has a name and is no file: some ms after its threads' own, or when it is looked at for another reason.
#[test]
fn memory_with_a_name_is_found_too() {
    needs!();
    let programs = or_skip!(Programs::of("process-context"));
    let has_names = Command::new(programs.program()).args(["/dev/null", "anon=x"]).status().unwrap();
    if has_names.code() == Some(77) {
        skip!("this kernel gives memory no names (CONFIG_ANON_VMA_NAME)");
    }
    let mut speaker = ScriptedProgram::new(&programs, &["anon=shop", "await=first", "read=2"]);
    speaker.process.release();
    let maps = Path::new("/proc").join(speaker.process.pid().0.to_string()).join("maps");
    assert!(eventually(|| std::fs::read_to_string(&maps).unwrap().contains("OTEL_CTX")));
    let recorder = Recorder::start(&TracerConfig::default(), &[speaker.process.pid()]);
    await_last(&recorder, Some("shop"));
    speaker.proceed("first");
    assert_eq!(tags(&finish(recorder, speaker)), all(&[(2, Some("shop"))]));
}
