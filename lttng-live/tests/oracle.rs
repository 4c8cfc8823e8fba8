//! Comparison with babeltrace2: the same events, fields and order in each stream.

#![allow(clippy::print_stderr, reason = "a test prints how much it compared")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use blkkin_lttng_live::trace_folder::{TraceError, TraceFolder};
use support::programs::have;
use support::{babeltrace, synthetic, text};

/// Groups lines by their stream (its cpu_id, or its whole packet context).
fn by_stream(lines: &[String]) -> BTreeMap<&str, Vec<&str>> {
    let mut streams = BTreeMap::<&str, Vec<&str>>::new();
    for line in lines {
        let from = line.find("stream.packet.context").expect("a packet context");
        let to = from + line[from..].find('}').expect("the end of the context");
        streams.entry(&line[from..to]).or_default().push(line);
    }
    streams
}

/// Returns the lines of a stored trace in the order of reading, and its losses.
fn our_events(folder: &Path) -> (Vec<String>, u64, u64) {
    let mut trace_folder = TraceFolder::open(folder).expect("the folder is readable");
    let (mut lines, mut last) = (Vec::new(), i64::MIN);
    while let Some(view) = trace_folder.next_event() {
        assert!(view.time_ns >= last, "events go back in time: {last} then {}", view.time_ns);
        last = view.time_ns;
        lines.push(text::line(&view));
    }
    assert!(trace_folder.problems.is_empty(), "{:?}", trace_folder.problems);
    let losses = trace_folder.losses();
    (lines, losses.events, losses.packets)
}

fn compare(folder: &Path, what: &str) -> usize {
    let expected = babeltrace::read(folder);
    let (lines, events_lost, packets_lost) = our_events(folder);
    let (expected_events, our_events) = (by_stream(&expected.lines), by_stream(&lines));
    assert_eq!(
        expected_events.keys().collect::<Vec<_>>(),
        our_events.keys().collect::<Vec<_>>(),
        "{what}: streams"
    );
    for (stream, expected_events) in expected_events {
        let our_events = &our_events[stream];
        for (expected_events, our_events) in expected_events.iter().zip(our_events) {
            assert_eq!(expected_events, our_events, "{what}, {stream}");
        }
        assert_eq!(expected_events.len(), our_events.len(), "{what}, {stream}: events");
    }
    assert_eq!((expected.events_lost, expected.packets_lost), (events_lost, packets_lost), "{what}: losses");
    lines.len()
}

#[test]
fn random_traces_equal_babeltrace2() {
    if !have(&["babeltrace2"]) {
        return;
    }
    let mut events = 0;
    for seed in 1..=60 {
        let folder = tempfile::tempdir().expect("a folder");
        let written = synthetic::trace(seed, 1 + seed % 7, folder.path());
        let read = compare(folder.path(), &format!("seed {seed}"));
        assert_eq!(read as u64, written.events, "seed {seed}");
        let (_, events_lost, packets_lost) = our_events(folder.path());
        assert_eq!((events_lost, packets_lost), (written.events_lost, written.packets_lost), "seed {seed}");
        events += read;
    }
    eprintln!("{events} events of 60 traces compared");
}

#[test]
fn trace_without_metadata_is_reported_and_the_rest_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, seed) in [("whole", 1), ("bare", 2), ("cut", 3)] {
        let trace = folder.path().join(name);
        std::fs::create_dir(&trace).expect("a folder");
        let written = synthetic::trace(seed, 2, &trace);
        match name {
            "bare" => std::fs::remove_file(trace.join("metadata")).expect("the file exists"),
            "cut" => {
                let half = &written.metadata[..written.metadata.len() / 2];
                std::fs::write(trace.join("metadata"), half).expect("the file is writable");
            }
            _ => {}
        }
    }
    let (whole, _, _) = our_events(&folder.path().join("whole"));
    let mut trace_folder = TraceFolder::open(folder.path()).expect("the folder is readable");
    let mut read = 0;
    while trace_folder.next_event().is_some() {
        read += 1;
    }
    assert_eq!(read, whole.len());
    let problems: Vec<String> =
        trace_folder.problems.iter().map(|(_, problem)| problem.to_string()).collect();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(matches!(trace_folder.problems[0].1, TraceError::NoMetadata { streams: 2 }), "{problems:?}");
    assert!(matches!(trace_folder.problems[1].1, TraceError::Metadata(_)), "{problems:?}");
}
