//! What threads say of their work besides a span, against what each call is known to have been made under. The writer is
//! `support/context/more.c`.

use std::collections::BTreeMap;

use blkkin_aggregator::trace::{Root, Trace};
use blkkin_aggregator::translate;
use blkkin_tracer::{AttachKind, TracerConfig};
use blkkin_wire::event::SyscallEvent;
use blkkin_wire::span::TagValue;

use crate::support::context::Programs;
use crate::support::context::speaker::Speaker;
use crate::support::live::eventually;
use crate::support::recording::{Recorder, Recording};
use crate::support::{needs, or_skip};

const AWAITED: u64 = 1 << 40 | 1;
/// Calls of each of a program's words.
const EACH: usize = 100;
const RING: usize = 64 << 20;

/// What the program does behind its word `await=go` once its slot and so many of its names are known.
fn follow(kind: Option<AttachKind>, programs: &Programs, words: &[&str], names: usize) -> Recording {
    let mut speaker = Speaker::new(programs, words);
    let config = TracerConfig { attach: kind, ring_bytes: Some(RING), ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[speaker.actor.pid()]);
    speaker.actor.release();
    let known = || recorder.said().last().is_some_and(|said| said.thread_keys.len() == names);
    assert!(eventually(|| recorder.in_contexts() > 0 && known()), "{:?}", recorder.said());
    speaker.goes_on("go");
    finish(recorder, &mut speaker)
}

fn finish(recorder: Recorder, speaker: &mut Speaker) -> Recording {
    assert_eq!(speaker.actor.play(), 0, "{}", speaker.actor.said());
    let recording = recorder.finish();
    recording.assert_balanced();
    assert_eq!(recording.accounts.calls.dropped, 0, "{:#?}", recording.accounts);
    recording
}

/// What a span says that a thread said: by key without its prefix.
type Said = BTreeMap<String, String>;

fn said(trace: &Trace) -> Said {
    let text = |value: &TagValue| match value {
        TagValue::Text(text) => text.to_string(),
        TagValue::Number(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    let spans = translate::spans(trace);
    assert!(spans[1..].iter().flat_map(|span| &span.tags).all(|(key, _)| !key.contains("app_thread")));
    let own = spans[0].tags.iter().filter_map(|(key, value)| {
        let (ours, key) = (key.starts_with("blkkin.app_thread."), key.split_once("app_thread.")?.1);
        let key = if ours { format!("({key})") } else { key.to_owned() };
        Some((key, text(value)))
    });
    let said: Said = own.collect();
    let tags = spans[0].tags.iter().filter(|(key, _)| key.contains("app_thread."));
    assert_eq!(said.len(), tags.count(), "a key twice");
    said
}

/// The program's own calls and what is said of each.
fn calls(recording: &Recording) -> impl Iterator<Item = (&SyscallEvent, Said)> {
    let own = recording.traces.iter().filter_map(|trace| match &trace.root {
        Root::Call(call) => Some((call, trace)),
        _ => None,
    });
    own.map(|(call, trace)| (call, said(trace)))
}

/// By offset: what is said of the reads there, which are all alike, and how many there are.
fn reads(recording: &Recording) -> BTreeMap<u64, (Said, usize)> {
    let mut reads = BTreeMap::new();
    for (call, said) in calls(recording) {
        // The loader's are longer.
        if call.call.name() != "pread64" || call.args[2] != 1 || call.args[3] == AWAITED {
            continue;
        }
        let span = call.context.as_ref().map_or(0, |context| context.span.0);
        assert_eq!(span, call.args[3], "{call:#?}");
        let (known, count) = reads.entry(call.args[3]).or_insert_with(|| (said.clone(), 0));
        assert_eq!(*known, said, "{call:#?}");
        *count += 1;
    }
    reads
}

fn all(of: &[(u64, &[(&str, &str)])]) -> BTreeMap<u64, (Said, usize)> {
    let one = |(offset, said): &(u64, &[(&str, &str)])| {
        let said = said.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        (*offset, (said, EACH))
    };
    of.iter().map(one).collect()
}

/// What `more.c` says below a span (`of_span`).
fn of_span(span: u64) -> Said {
    let mut said = Said::from([("span".to_owned(), format!("span-{span}"))]);
    if !span.is_multiple_of(3) {
        said.insert("length".to_owned(), "x".repeat((span % 200) as usize));
    }
    if span.is_multiple_of(5) {
        said.insert("letter".to_owned(), "é".to_owned());
    }
    said
}

/// 100,000 reads and 20,000 calls with paths, two files or a path that is not in memory yet, and that submit, by four threads that work for another span
/// each 40 calls: what is said of each call is what its span's threads say.
#[test]
fn what_is_said_of_a_call_is_what_its_thread_said_then() {
    needs!();
    // An emulated processor takes minutes for as many as that.
    let most = match std::env::var_os("BLKKIN_GUEST") {
        None => ("many=2500,40", 110_000),
        Some(_) => ("many=500,20", 11_000),
    };
    for (kind, (many, least)) in [(None, most), (Some(AttachKind::RawTp), ("many=300,20", 7_000))] {
        let programs = or_skip!(Programs::of("more"));
        let words = ["keys=span,length,letter", "await=go", many];
        let recording = follow(kind, &programs, &words, 3);
        let (mut right, mut by_name) = (0, BTreeMap::<&str, usize>::new());
        for (call, said) in calls(&recording) {
            let span = call.context.as_ref().map_or(0, |context| context.span.0);
            if span == 0 || span == AWAITED {
                assert!(said.is_empty(), "{call:#?}");
                continue;
            }
            assert_eq!(said, of_span(span), "{call:#?}");
            right += 1;
            *by_name.entry(call.call.name()).or_default() += 1;
        }
        println!("{right} calls below spans, each with what its thread said: {by_name:?}");
        assert!(right >= least, "{right}");
        for name in ["pread64", "rename", "openat", "copy_file_range", "io_submit", "io_uring_enter"] {
            assert!(by_name.get(name).is_some_and(|count| *count >= 300), "{name}: {by_name:?}");
        }
        let books = &recording.accounts;
        assert_eq!((books.attributes_cut, books.attributes_unread), (0, 0), "{books:#?}");
        assert_eq!((books.contexts_faulted, books.contexts_invalid), (0, 0), "{books:#?}");
    }
}

/// Numbers without a name, values that are no text, entries that are cut, more bytes than are read, pages that are not there: nothing of it
/// is a tag, and each is counted; also of a thread that works for no span.
#[test]
fn what_cannot_be_named_or_read_is_counted_and_nothing_else_is_said() {
    needs!();
    for kind in [AttachKind::TpBtf, AttachKind::RawTp] {
        let programs = or_skip!(Programs::of("more"));
        let words = [
            "keys=one,,three,three",
            "await=go",
            "say=11:0=a;1=nameless;2=c",
            "say=12:2=first;3=second;9=unknown",
            "raw=13:0001ff02017a",
            "raw=14:000161000562",
            "say=15:0=new;0=",
            "size=16:612",
            "size=17:613",
            "size=18:65535",
            "late=19",
            "never=20",
            "say=0:0=nobody",
        ];
        let recording = follow(Some(kind), &programs, &words, 4);
        let (long, rest) = ("x".repeat(255), "x".repeat(612 - 2 * 257 - 2));
        assert_eq!(long.len() + rest.len() + 255 + 6, 612);
        let expected: [(u64, &[(&str, &str)]); 11] = [
            (0, &[("one", "nobody")]),
            (11, &[("one", "a"), ("three", "c"), ("(left_out)", "1")]),
            (12, &[("three", "second"), ("(left_out)", "2")]),
            (13, &[("three", "z"), ("(left_out)", "1")]),
            (14, &[("one", "a"), ("(left_out)", "1")]),
            (15, &[("one", "")]),
            // Of number 0 one, and of number 1 the last of two.
            (16, &[("one", &long), ("(left_out)", "1")]),
            (17, &[("(bytes_unread)", "613")]),
            (18, &[("(bytes_unread)", "65535")]),
            (19, &[("one", "late")]),
            (20, &[("(bytes_unread)", "6")]),
        ];
        assert_eq!(reads(&recording), all(&expected), "{kind:?}");
        let books = &recording.accounts;
        let counted = [books.attributes_cut, books.attributes_unread, books.contexts_invalid];
        assert_eq!(counted, [2 * EACH as u64, EACH as u64, 0], "{books:#?}");
    }
}

/// A number gets its name when the process says it; before, what is said under it is counted. What is said of other records is none of theirs.
#[test]
fn a_number_has_the_name_that_its_process_gives_it_by_then() {
    needs!();
    let programs = or_skip!(Programs::of("more"));
    let words = [
        "keys=one",
        "await=go",
        "say=11:0=a;1=b",
        "keys=one,two",
        "await=second",
        "say=12:0=a;1=b",
        "schema=nodejs_v1_dev",
        "keys=one,two",
        "await=third",
        "say=13:0=a;1=b",
    ];
    let mut speaker = Speaker::new(&programs, &words);
    let config = TracerConfig { ring_bytes: Some(RING), ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[speaker.actor.pid()]);
    speaker.actor.release();
    let names = || recorder.said().last().map_or(usize::MAX, |said| said.thread_keys.len());
    let goes_on = |speaker: &Speaker, name: &str, known: usize| {
        assert!(eventually(|| names() == known), "{name}: {:?}", recorder.said());
        speaker.goes_on(name);
    };
    assert!(eventually(|| recorder.in_contexts() > 0), "nothing was found");
    goes_on(&speaker, "go", 1);
    goes_on(&speaker, "second", 2);
    goes_on(&speaker, "third", 0);
    let recording = finish(recorder, &mut speaker);
    let expected: [(u64, &[(&str, &str)]); 3] = [
        (11, &[("one", "a"), ("(left_out)", "1")]),
        (12, &[("one", "a"), ("two", "b")]),
        (13, &[("(left_out)", "2")]),
    ];
    assert_eq!(reads(&recording), all(&expected));
}
