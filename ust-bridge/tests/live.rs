//! Live sessions of real daemons: what is read live is what babeltrace2 reads of the relay's files afterwards.

#![allow(clippy::print_stderr, reason = "a test says how much it compared")]

mod support;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use blkkin_ust_bridge::live::follow::{Follower, Step, Target};
use blkkin_ust_bridge::live::reader::{Counts, Settings};
use support::lab::{Lab, until};
use support::{babeltrace, text};

/// Follows until the session is over; all lines in the order in which they came.
fn follow(address: &str, session: &str) -> (Vec<String>, Counts) {
    follow_and_tell(address, session, &AtomicUsize::new(0))
}

fn follow_and_tell(address: &str, session: &str, read: &AtomicUsize) -> (Vec<String>, Counts) {
    // Longer than any connection here is away: order is what is tested.
    let settings = Settings { wait_max: Duration::from_secs(20), ..Settings::default() };
    let target = Target { address: address.to_owned(), session: session.to_owned(), settings };
    let (mut follower, mut lines) = (Follower::new(target), Vec::new());
    let begun = Instant::now();
    loop {
        match follower.step(&mut |view| lines.push(text::line(view))) {
            Step::Read(wait) => std::thread::sleep(wait),
            Step::Away(error, wait) => {
                eprintln!("{error}: again in {wait:?}");
                std::thread::sleep(wait);
            }
            Step::Over => break,
            Step::Gone => panic!("the session was destroyed meanwhile"),
            Step::Refused(error) => panic!("{error}"),
        }
        read.store(lines.len(), Ordering::SeqCst);
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "the session never ends: {:?}",
            follower.counts()
        );
    }
    let troubles = follower.troubles();
    assert!(troubles.is_empty(), "{troubles:?}");
    (lines, follower.counts())
}

/// By processor, and by process where each has buffers of its own.
fn by_stream(lines: &[String], of_processes: bool) -> BTreeMap<(&str, &str), Vec<&String>> {
    let mut streams = BTreeMap::<_, Vec<_>>::new();
    for line in lines {
        let number = |key| {
            let (_, rest) = line.split_once(key).expect("a number");
            rest.split([' ', ',']).next().expect("its digits")
        };
        let process = if of_processes { number("vpid = ") } else { "" };
        streams.entry((number("cpu_id = "), process)).or_default().push(line);
    }
    streams
}

/// That `lines` are what babeltrace2 reads in the relay's folder, stream by stream.
fn same_as_files(lab: &Lab, lines: &[String], counts: &Counts, of_processes: bool) {
    eprintln!("{counts:?}");
    let heard = babeltrace::listen(&lab.traces());
    assert_eq!(heard.lines.len(), lines.len());
    let (theirs, ours) = (by_stream(&heard.lines, of_processes), by_stream(lines, of_processes));
    for (stream, theirs) in &theirs {
        for (theirs, ours) in theirs.iter().zip(&ours[stream]) {
            assert_eq!(theirs, ours);
        }
    }
    assert_eq!((counts.lost.events, counts.lost.packets), (heard.events_lost, heard.packets_lost));
    assert_eq!((counts.events, counts.broken, counts.gone), (lines.len() as u64, 0, 0));
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
    same_as_files(&lab, &lines, &counts, false);
    assert_eq!(counts.late, 0);
    assert!(lines.is_sorted_by_key(|line| &line[..32]), "in order of time");
}

#[test]
fn processes_with_buffers_of_their_own_come_and_go() {
    let Some(lab) = Lab::start() else { return };
    lab.live_session("own", 20_000, "--buffers-pid --subbuf-size=16K --num-subbuf=16");
    let address = lab.address();
    let read = Arc::new(AtomicUsize::new(0));
    let told = read.clone();
    let reader = std::thread::spawn(move || follow_and_tell(&address, "own", &told));
    for turn in 1..=2 {
        let mut samples: Vec<_> = (0..3).map(|_| lab.sample(&["kinds", "300"])).collect();
        samples.iter_mut().for_each(|sample| sample.begin());
        samples.iter_mut().for_each(|sample| sample.done());
        // A process that is gone before its reader has heard of it is forgotten by the relay.
        until("the events are read", || read.load(Ordering::SeqCst) == turn * 900);
        samples.into_iter().for_each(|sample| sample.end());
    }
    lab.lttng("destroy own");
    let (lines, counts) = reader.join().expect("it reads");
    same_as_files(&lab, &lines, &counts, true);
    let processes: std::collections::BTreeSet<_> =
        by_stream(&lines, true).into_keys().map(|(_, pid)| pid.to_owned()).collect();
    assert_eq!(processes.len(), 6);
}

/// Carries bytes to the relay and back, and breaks each connection after some; the last one is left alone.
fn breaking_proxy(to: String, cuts: Vec<usize>, left_alone: Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("a port").to_string();
    std::thread::spawn(move || {
        for (left, client) in cuts.into_iter().chain(std::iter::repeat(usize::MAX)).zip(listener.incoming()) {
            left_alone.store(left == usize::MAX, Ordering::SeqCst);
            let (Ok(mut client), Ok(mut relay)) = (client, TcpStream::connect(&to)) else { return };
            let (mut from_client, mut to_relay) =
                (client.try_clone().expect("a socket"), relay.try_clone().expect("a socket"));
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from_client, &mut to_relay);
                let _ = to_relay.shutdown(Shutdown::Both);
            });
            let _ = std::io::copy(&mut (&mut relay).take(left as u64), &mut client);
            let _ = client.shutdown(Shutdown::Both);
            let _ = relay.shutdown(Shutdown::Both);
        }
    });
    address
}

#[test]
fn a_connection_that_breaks_loses_and_repeats_nothing() {
    let Some(lab) = Lab::start() else { return };
    lab.live_session("broken", 5000, "--subbuf-size=64K --num-subbuf=16");
    // In the greeting, in lists, in metadata, in packets.
    let cuts = vec![10, 200, 9_000, 40_000, 60_000, 80_000, 100_000, 150_000];
    let left_alone = Arc::new(AtomicBool::new(false));
    let count = cuts.len();
    let address = breaking_proxy(lab.address(), cuts, left_alone.clone());
    let read = Arc::new(AtomicUsize::new(0));
    let told = read.clone();
    let reader = std::thread::spawn(move || follow_and_tell(&address, "broken", &told));
    for _ in 0..3 {
        let mut sample = lab.sample(&["kinds", "2000", "20"]);
        sample.go();
        sample.end();
    }
    until("all cuts were made", || left_alone.load(Ordering::SeqCst));
    // A session that is destroyed while nobody is attached is gone, with what the relay still had of it.
    until("the events are read", || read.load(Ordering::SeqCst) == 6000);
    lab.lttng("destroy broken");
    let (lines, counts) = reader.join().expect("it reads");
    same_as_files(&lab, &lines, &counts, false);
    assert_eq!(counts.late, 0);
    eprintln!("over {count} broken connections");
}

#[test]
fn a_relay_that_is_none_is_told_apart_from_one_that_is_away() {
    let says = |answer: Vec<u8>| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("a port").to_string();
        let relay = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            let _ = client.write_all(&answer);
            let _ = client.shutdown(Shutdown::Write);
            let _ = std::io::copy(&mut client, &mut std::io::sink());
        });
        let target = Target { address, session: "any".to_owned(), settings: Settings::default() };
        let step = Follower::new(target).step(&mut |_| {});
        relay.join().expect("it answers");
        step
    };
    let greeting = |major: u32, minor: u32| {
        let mut bytes = vec![0; 8];
        bytes.extend(major.to_be_bytes());
        bytes.extend(minor.to_be_bytes());
        bytes.extend(1_u32.to_be_bytes());
        bytes
    };
    let Step::Refused(error) = says(greeting(3, 0)) else { panic!("version 3 is another protocol") };
    assert_eq!(
        error.to_string(),
        "the relay speaks version 3.0 of the live protocol; 2.4 and later 2.x can be read"
    );
    assert!(matches!(says(greeting(2, 3)), Step::Refused(_)));
    assert!(matches!(says(Vec::new()), Step::Away(..)));
    let no_sessions = [greeting(2, 13), vec![0; 4]].concat();
    let Step::Away(error, _) = says(no_sessions) else { panic!("a session may come yet") };
    assert_eq!(error.to_string(), "the relay has no session `any`; it has none");
    let a_billion = [greeting(2, 13), vec![0x40, 0, 0, 0]].concat();
    assert!(matches!(says(a_billion), Step::Away(..)));
    let target = Target {
        address: "127.0.0.1:1".to_owned(),
        session: "any".to_owned(),
        settings: Settings::default(),
    };
    assert!(matches!(Follower::new(target).step(&mut |_| {}), Step::Away(..)));
}
