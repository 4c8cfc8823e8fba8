//! babeltrace2 and this crate read the same traces: the same events, fields and order in each stream.

#![allow(clippy::print_stderr, reason = "a test says how much it compared")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use blkkin_ust_bridge::stored::{Stored, Trouble};
use support::{babeltrace, have, synthetic, text};

/// Lines by the stream that they are of (its cpu_id, or its whole packet context).
fn by_stream(lines: &[String]) -> BTreeMap<&str, Vec<&str>> {
    let mut streams = BTreeMap::<&str, Vec<&str>>::new();
    for line in lines {
        let from = line.find("stream.packet.context").expect("a packet context");
        let to = from + line[from..].find('}').expect("its end");
        streams.entry(&line[from..to]).or_default().push(line);
    }
    streams
}

/// Our lines of a stored trace, in the order in which they come, and what was lost.
fn ours(folder: &Path) -> (Vec<String>, u64, u64) {
    let mut stored = Stored::open(folder).expect("the folder is read");
    let (mut lines, mut last) = (Vec::new(), i64::MIN);
    while let Some(view) = stored.next_event() {
        assert!(view.time_ns >= last, "events go back in time: {last} then {}", view.time_ns);
        last = view.time_ns;
        lines.push(text::line(&view));
    }
    assert!(stored.troubles.is_empty(), "{:?}", stored.troubles);
    let losses = stored.losses();
    (lines, losses.events, losses.packets)
}

fn compare(folder: &Path, what: &str) -> usize {
    let heard = babeltrace::listen(folder);
    let (lines, events_lost, packets_lost) = ours(folder);
    let (theirs, ours) = (by_stream(&heard.lines), by_stream(&lines));
    assert_eq!(theirs.keys().collect::<Vec<_>>(), ours.keys().collect::<Vec<_>>(), "{what}: streams");
    for (stream, theirs) in theirs {
        let ours = &ours[stream];
        for (theirs, ours) in theirs.iter().zip(ours) {
            assert_eq!(theirs, ours, "{what}, {stream}");
        }
        assert_eq!(theirs.len(), ours.len(), "{what}, {stream}: events");
    }
    assert_eq!((heard.events_lost, heard.packets_lost), (events_lost, packets_lost), "{what}: losses");
    lines.len()
}

#[test]
fn traces_of_random_types_read_as_babeltrace2_reads_them() {
    if !have(&["babeltrace2"]) {
        return;
    }
    let mut events = 0;
    for seed in 1..=60 {
        let folder = tempfile::tempdir().expect("a folder");
        let written = synthetic::trace(seed, 1 + seed % 7, folder.path());
        let read = compare(folder.path(), &format!("seed {seed}"));
        assert_eq!(read as u64, written.events, "seed {seed}");
        let (_, events_lost, packets_lost) = ours(folder.path());
        assert_eq!((events_lost, packets_lost), (written.events_lost, written.packets_lost), "seed {seed}");
        events += read;
    }
    eprintln!("{events} events of 60 traces compared");
}

#[test]
fn a_trace_without_metadata_is_told_and_the_rest_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, seed) in [("whole", 1), ("bare", 2), ("cut", 3)] {
        let trace = folder.path().join(name);
        std::fs::create_dir(&trace).expect("a folder");
        let written = synthetic::trace(seed, 2, &trace);
        match name {
            "bare" => std::fs::remove_file(trace.join("metadata")).expect("it is there"),
            "cut" => {
                let half = &written.metadata[..written.metadata.len() / 2];
                std::fs::write(trace.join("metadata"), half).expect("it is ours");
            }
            _ => {}
        }
    }
    let (whole, _, _) = ours(&folder.path().join("whole"));
    let mut stored = Stored::open(folder.path()).expect("the folder is read");
    let mut read = 0;
    while stored.next_event().is_some() {
        read += 1;
    }
    assert_eq!(read, whole.len());
    let troubles: Vec<String> = stored.troubles.iter().map(|(_, trouble)| trouble.to_string()).collect();
    assert_eq!(troubles.len(), 2, "{troubles:?}");
    assert!(matches!(stored.troubles[0].1, Trouble::NoMetadata { streams: 2 }), "{troubles:?}");
    assert!(matches!(stored.troubles[1].1, Trouble::Metadata(_)), "{troubles:?}");
}
