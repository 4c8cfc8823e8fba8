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
use proptest::prelude::*;
use proptest::sample::Index;
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
    assert_eq!(counts.events + counts.lost.events, 3000 + 20_000 + 1, "what was emitted is read or counted");
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

#[test]
fn from_now_on_what_was_before_is_neither_read_nor_counted_as_lost() {
    let Some(lab) = Lab::start() else { return };
    // Rings that block while they are full: what comes before is in packets, and nothing is discarded.
    lab.live_session("now", 5000, "--subbuf-size=4K --num-subbuf=16 --blocking-timeout=inf");
    let mut sample = lab.sample(&["tick", "5000"]);
    sample.go();
    let target = |from_begin| Target {
        address: lab.address(),
        session: "now".to_owned(),
        settings: Settings { from_begin, ..Settings::default() },
    };
    let mut all = Follower::new(target(true));
    let begun = Instant::now();
    while all.counts().events < 5000 {
        assert!(matches!(all.step(&mut |_| {}), Step::Read(_)), "{:?}", all.counts());
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", all.counts());
    }
    all.finish(&mut |_| {});
    let mut later = Follower::new(target(false));
    // The relay may still hold the reader that has gone.
    until("it is attached", || matches!(later.step(&mut |_| {}), Step::Read(_)));
    sample.go();
    until("the new events are read", || {
        later.step(&mut |_| {});
        later.counts().events >= 5000
    });
    let counts = later.counts();
    // The packet that was the last one then may be read too: of each processor 4 KiB, some 60 events.
    assert!(counts.events < 5000 + 300, "{counts:?}");
    assert_eq!((counts.lost.events, counts.lost.packets, counts.broken), (0, 0, 0));
    sample.end();
    lab.lttng("destroy --no-wait now");
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

/// A relay that says `answer`, whatever it is asked, and is gone; what steps make of it.
fn answered(answer: Vec<u8>, steps: usize) -> (Vec<Step>, Counts) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("a port").to_string();
    let relay = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        let _ = client.write_all(&answer);
        let _ = client.shutdown(Shutdown::Write);
        let _ = std::io::copy(&mut client, &mut std::io::sink());
    });
    let target = Target { address, session: "any".to_owned(), settings: Settings::default() };
    let mut follower = Follower::new(target);
    let mut made = Vec::new();
    while made.len() < steps && !matches!(made.last(), Some(Step::Away(..) | Step::Refused(_) | Step::Over)) {
        made.push(follower.step(&mut |_| {}));
    }
    let counts = follower.counts();
    drop(follower);
    relay.join().expect("it answers");
    (made, counts)
}

fn greeting(major: u32, minor: u32) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    bytes.extend(major.to_be_bytes());
    bytes.extend(minor.to_be_bytes());
    bytes.extend(1_u32.to_be_bytes());
    bytes
}

/// All that a relay says until a session with one stream and its metadata is attached to.
fn attached() -> Vec<u8> {
    let text = |text: &str, room: usize| {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(room, 0);
        bytes
    };
    let stream = |id: u64, metadata: u32| {
        [
            &id.to_be_bytes()[..],
            &1_u64.to_be_bytes(),
            &metadata.to_be_bytes(),
            &text("path", 4096),
            &text("c_0", 255),
        ]
        .concat()
    };
    let session = [&1_u64.to_be_bytes()[..], &[0; 12], &text("host", 64), &text("any", 255)].concat();
    let one = 1_u32.to_be_bytes();
    let described = b"trace { major = 1; minor = 8; byte_order = le; };\
        clock { name = \"monotonic\"; freq = 1000000000; };\
        stream { event.header := struct { integer { size = 8; } id;\
        integer { size = 8; map = clock.monotonic.value; } timestamp; }; };\
        event { name = \"a:b\"; id = 1; fields := struct { integer { size = 3; } n; string s[n]; }; };";
    let metadata = [&(described.len() as u64).to_be_bytes()[..], &one, described].concat();
    let no_more = [&0_u64.to_be_bytes()[..], &2_u32.to_be_bytes()].concat();
    let streams = [stream(1, 0), stream(2, 1)].concat();
    [
        greeting(2, 13),
        one.to_vec(),
        session,
        one.to_vec(),
        one.to_vec(),
        2_u32.to_be_bytes().to_vec(),
        streams,
        metadata,
        no_more,
    ]
    .concat()
}

/// An index of a packet of `bytes` bytes, and the packet.
fn packet(bytes: &[u8]) -> Vec<u8> {
    let bits = (bytes.len() as u64 * 8).to_be_bytes();
    let index =
        [&[0; 8], &bits[..], &bits, &[0; 8], &9_u64.to_be_bytes(), &[0; 16], &1_u32.to_be_bytes(), &[0; 4]]
            .concat();
    [
        index,
        1_u32.to_be_bytes().to_vec(),
        (bytes.len() as u32).to_be_bytes().to_vec(),
        vec![0; 4],
        bytes.to_vec(),
    ]
    .concat()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_relay_says_is_an_error_or_events(
        cut in any::<Index>(),
        flips in prop::collection::vec((any::<Index>(), 1_u8..), 0..4),
        noise in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut answer = [attached(), packet(&[1, 2, 1, b'a', 0, 1, 3, 0]), packet(&noise), noise].concat();
        let length = answer.len();
        flips.iter().for_each(|(at, with)| answer[at.index(length)] ^= with);
        answer.truncate(length - cut.index(400));
        let (steps, _) = answered(answer, 50);
        prop_assert!(steps.len() < 50, "it ends");
    }
}

#[test]
fn a_relay_that_is_none_is_told_apart_from_one_that_is_away() {
    let says = |answer: Vec<u8>| answered(answer, 1).0.pop().expect("a step");
    let Step::Refused(error) = says(greeting(3, 0)) else { panic!("version 3 is another protocol") };
    assert_eq!(
        error.to_string(),
        "the relay speaks version 3.0 of the live protocol; 2.4 and later 2.x can be read"
    );
    assert!(matches!(says(greeting(2, 3)), Step::Refused(_)));
    assert!(matches!(says(Vec::new()), Step::Away(..)));
    let (_, counts) = answered([attached(), packet(&[1, 2, 1, b'a', 0, 1, 3, 0])].concat(), 50);
    assert_eq!(
        (counts.events, counts.packets, counts.broken),
        (2, 1, 0),
        "what the next test changes is valid"
    );
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
