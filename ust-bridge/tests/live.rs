//! Live sessions of real daemons: what is read live is what babeltrace2 reads of the relay's files afterwards.

#![allow(clippy::print_stderr, reason = "a test says how much it compared")]

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use blkkin_ust_bridge::live::follow::{Follower, Step, Target};
use blkkin_ust_bridge::live::reader::{Counts, Settings};
use support::lab::Lab;
use support::{babeltrace, text};

/// Follows until the session is over; all lines in the order in which they came.
fn follow(address: &str, session: &str) -> (Vec<String>, Counts) {
    let target =
        Target { address: address.to_owned(), session: session.to_owned(), settings: Settings::default() };
    let (mut follower, mut lines) = (Follower::new(target), Vec::new());
    let begun = Instant::now();
    loop {
        match follower.step(&mut |view| lines.push(text::line(view))) {
            Step::Read(wait) | Step::Away(_, wait) => std::thread::sleep(wait.min(Duration::from_millis(50))),
            Step::Over => break,
            Step::Refused(error) => panic!("{error}"),
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "the session never ends: {:?}", follower.counts());
    }
    let troubles = follower.troubles();
    assert!(troubles.is_empty(), "{troubles:?}");
    (lines, follower.counts())
}

fn by_processor(lines: &[String]) -> BTreeMap<String, Vec<&String>> {
    let mut streams = BTreeMap::<String, Vec<&String>>::new();
    for line in lines {
        let (_, rest) = line.split_once("cpu_id = ").expect("a processor");
        streams.entry(rest.split(' ').next().expect("its number").to_owned()).or_default().push(line);
    }
    streams
}

#[test]
fn a_live_session_reads_as_its_files() {
    let Some(lab) = Lab::start() else { return };
    lab.live_session("live", 5000, "--subbuf-size=64K --num-subbuf=16");
    let address = lab.address();
    let reader = std::thread::spawn(move || follow(&address, "live"));
    for (kind, count) in [("kinds", "3000"), ("tick", "20000"), ("kinds", "1")] {
        let mut sample = lab.sample(&[kind, count]);
        sample.go();
        sample.end();
    }
    lab.lttng("destroy live");
    let (lines, counts) = reader.join().expect("it reads");
    let heard = babeltrace::listen(&lab.traces());
    assert_eq!(heard.lines.len(), lines.len());
    let (theirs, ours) = (by_processor(&heard.lines), by_processor(&lines));
    for (processor, theirs) in &theirs {
        for (theirs, ours) in theirs.iter().zip(&ours[processor]) {
            assert_eq!(theirs, ours);
        }
    }
    assert_eq!((counts.lost.events, counts.lost.packets), (heard.events_lost, heard.packets_lost));
    assert_eq!((counts.events, counts.late, counts.broken, counts.gone), (lines.len() as u64, 0, 0, 0));
    assert!(lines.is_sorted_by_key(|line| &line[..32]), "in order of time");
    eprintln!("{} events, {} packets", counts.events, counts.packets);
}
