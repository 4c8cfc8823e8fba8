//! Live sessions of real daemons, compared with babeltrace2's output for the relay's files.

#![allow(clippy::print_stderr, reason = "a test prints how much it compared")]

mod support;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use blkkin_lttng_live::clock::monotonic_ns;
use blkkin_lttng_live::live::follow::{Follower, Step, Target};
use blkkin_lttng_live::live::reader::{ReaderSettings, ReaderStats};
use proptest::prelude::*;
use proptest::sample::Index;
use support::lab::{Lab, until};
use support::{babeltrace, text};

/// Follows until the session has ended; returns all lines in the order of reading.
fn follow(address: &str, session: &str) -> (Vec<String>, ReaderStats) {
    follow_and_count(address, session, &AtomicUsize::new(0))
}

fn follow_and_count(address: &str, session: &str, read: &AtomicUsize) -> (Vec<String>, ReaderStats) {
    // Longer than any connection is interrupted here, because the test checks the order.
    let settings = ReaderSettings { wait_max: Duration::from_secs(20), ..ReaderSettings::default() };
    let target = Target { address: address.to_owned(), session: session.to_owned(), settings };
    let (mut follower, mut lines) = (Follower::new(target), Vec::new());
    let begun = Instant::now();
    loop {
        match follower.step(&mut |view| lines.push(text::line(view))) {
            Step::Read(wait) => std::thread::sleep(wait),
            Step::Unreachable(error, wait) => {
                eprintln!("{error}: again in {wait:?}");
                std::thread::sleep(wait);
            }
            Step::Ended => break,
            Step::Destroyed => panic!("the session was destroyed meanwhile"),
            Step::Refused(error) => panic!("{error}"),
        }
        read.store(lines.len(), Ordering::SeqCst);
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "the session does not end: {:?}",
            follower.stats()
        );
    }
    let problems = follower.take_problems();
    assert!(problems.is_empty(), "{problems:?}");
    (lines, follower.stats())
}

/// Groups lines by CPU, and with buffers per process also by process.
fn by_stream(lines: &[String], of_processes: bool) -> BTreeMap<(&str, &str), Vec<&String>> {
    let mut streams = BTreeMap::<_, Vec<_>>::new();
    for line in lines {
        let number = |key| {
            let (_, rest) = line.split_once(key).expect("a number");
            rest.split([' ', ',']).next().expect("digits")
        };
        let process = if of_processes { number("vpid = ") } else { "" };
        streams.entry((number("cpu_id = "), process)).or_default().push(line);
    }
    streams
}

/// Checks that the lines equal babeltrace2's lines for the relay's folder, stream by stream.
fn assert_same_as_files(lab: &Lab, lines: &[String], stats: &ReaderStats, of_processes: bool) {
    eprintln!("{stats:?}");
    let expected = babeltrace::read(&lab.traces());
    assert_eq!(expected.lines.len(), lines.len());
    let (theirs, ours) = (by_stream(&expected.lines, of_processes), by_stream(lines, of_processes));
    for (stream, theirs) in &theirs {
        for (theirs, ours) in theirs.iter().zip(&ours[stream]) {
            assert_eq!(theirs, ours);
        }
    }
    assert_eq!((stats.lost.events, stats.lost.packets), (expected.events_lost, expected.packets_lost));
    assert_eq!((stats.events, stats.unreadable, stats.overwritten), (lines.len() as u64, 0, 0));
}

#[test]
fn live_session_equals_its_files() {
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
    let (lines, stats) = reader.join().expect("the reader ends normally");
    assert_same_as_files(&lab, &lines, &stats, false);
    assert_eq!(stats.events + stats.lost.events, 3000 + 20_000 + 1, "emitted events are read or counted");
    assert_eq!(stats.late, 0);
    assert!(lines.is_sorted_by_key(|line| &line[..32]), "in order of time");
}

#[test]
fn processes_with_own_buffers_start_and_exit() {
    let Some(lab) = Lab::start() else { return };
    lab.live_session("own", 20_000, "--buffers-pid --subbuf-size=16K --num-subbuf=16");
    let address = lab.address();
    let read = Arc::new(AtomicUsize::new(0));
    let progress = read.clone();
    let reader = std::thread::spawn(move || follow_and_count(&address, "own", &progress));
    for round in 1..=2 {
        let mut samples: Vec<_> = (0..3).map(|_| lab.sample(&["kinds", "300"])).collect();
        samples.iter_mut().for_each(|sample| sample.begin());
        samples.iter_mut().for_each(|sample| sample.done());
        // The relay forgets a process that exits before the reader has learned of its streams.
        until("the events are read", || read.load(Ordering::SeqCst) == round * 900);
        samples.into_iter().for_each(|sample| sample.end());
    }
    lab.lttng("destroy own");
    let (lines, stats) = reader.join().expect("the reader ends normally");
    assert_same_as_files(&lab, &lines, &stats, true);
    let processes: std::collections::BTreeSet<_> =
        by_stream(&lines, true).into_keys().map(|(_, pid)| pid.to_owned()).collect();
    assert_eq!(processes.len(), 6);
}

/// A program with a clock of its own emits events that have not happened yet. The others' events are
/// read all the same, in order, and no time after now counts as complete.
#[test]
fn events_of_the_future_are_refused_and_hold_up_no_others() {
    let Some(lab) = Lab::start() else { return };
    for buffers in ["uid", "pid"] {
        let options = format!("--buffers-{buffers} --subbuf-size=64K --num-subbuf=16");
        lab.live_session(buffers, 5000, &options);
        let (address, session) = (lab.address(), buffers.to_owned());
        let mut follower = Follower::new(Target { address, session, settings: ReaderSettings::default() });
        let (mut honest, mut ahead) = (lab.sample(&["tick", "1000"]), lab.sample_ahead(&["tick", "10"]));
        honest.go();
        ahead.go();
        let mut times = Vec::new();
        for round in 1..=3 {
            honest.go();
            until("the other program's events are read", || {
                let step = follower.step(&mut |view| times.push(view.time_ns));
                assert!(matches!(step, Step::Read(_) | Step::Unreachable(..)), "{:?}", follower.stats());
                let now = monotonic_ns() as i64;
                assert!(follower.complete_until().is_none_or(|until| until <= now));
                times.len() >= 1000 * (round + 1)
            });
        }
        let stats = follower.stats();
        let problems = follower.take_problems();
        assert_eq!((stats.events, stats.future, stats.unreadable), (4000, 10, 0), "{stats:?}");
        assert!(problems.iter().any(|problem| problem.description.contains("in the future")), "{problems:?}");
        assert!(times.is_sorted(), "in order of time");
        assert_eq!(stats.late, 0, "{stats:?}");
        honest.end();
        ahead.end();
        lab.lttng(&format!("destroy --no-wait {buffers}"));
    }
}

#[test]
fn attachment_without_begin_ignores_earlier_events_and_losses() {
    let Some(lab) = Lab::start() else { return };
    // Rings that block when they are full: earlier events are in packets, and none is discarded.
    lab.live_session("now", 5000, "--subbuf-size=4K --num-subbuf=16 --blocking-timeout=inf");
    let mut sample = lab.sample(&["tick", "5000"]);
    sample.go();
    let target = |from_begin| Target {
        address: lab.address(),
        session: "now".to_owned(),
        settings: ReaderSettings { from_begin, ..ReaderSettings::default() },
    };
    let mut all = Follower::new(target(true));
    let begun = Instant::now();
    while all.stats().events < 5000 {
        assert!(matches!(all.step(&mut |_| {}), Step::Read(_)), "{:?}", all.stats());
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", all.stats());
    }
    all.finish(&mut |_| {});
    let mut later = Follower::new(target(false));
    // The relay may still hold the previous reader.
    until("it is attached", || matches!(later.step(&mut |_| {}), Step::Read(_)));
    sample.go();
    until("the new events are read", || {
        later.step(&mut |_| {});
        later.stats().events >= 5000
    });
    let stats = later.stats();
    // The last packet before the attachment may be read as well: 4 KiB per CPU, some 60 events.
    assert!(stats.events < 5000 + 300, "{stats:?}");
    assert_eq!((stats.lost.events, stats.lost.packets, stats.unreadable), (0, 0, 0));
    sample.end();
    lab.lttng("destroy --no-wait now");
}

/// Forwards bytes to the relay and back, and breaks each connection after some bytes, except the
/// last one.
fn breaking_proxy(to: String, cuts: Vec<usize>, last_reached: Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("a port").to_string();
    std::thread::spawn(move || {
        for (left, client) in cuts.into_iter().chain(std::iter::repeat(usize::MAX)).zip(listener.incoming()) {
            last_reached.store(left == usize::MAX, Ordering::SeqCst);
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
fn broken_connections_lose_and_repeat_no_event() {
    let Some(lab) = Lab::start() else { return };
    lab.live_session("broken", 5000, "--subbuf-size=64K --num-subbuf=16");
    // In the handshake, in lists, in metadata and in packets.
    let cuts = vec![10, 200, 9_000, 40_000, 60_000, 80_000, 100_000, 150_000];
    let last_reached = Arc::new(AtomicBool::new(false));
    let cut_count = cuts.len();
    let address = breaking_proxy(lab.address(), cuts, last_reached.clone());
    let read = Arc::new(AtomicUsize::new(0));
    let progress = read.clone();
    let reader = std::thread::spawn(move || follow_and_count(&address, "broken", &progress));
    for _ in 0..3 {
        let mut sample = lab.sample(&["kinds", "2000", "20"]);
        sample.go();
        sample.end();
    }
    until("all cuts were made", || last_reached.load(Ordering::SeqCst));
    // If a session is destroyed while no reader is attached, its remaining data is lost.
    until("the events are read", || read.load(Ordering::SeqCst) == 6000);
    lab.lttng("destroy broken");
    let (lines, stats) = reader.join().expect("the reader ends normally");
    assert_same_as_files(&lab, &lines, &stats, false);
    assert_eq!(stats.late, 0);
    eprintln!("over {cut_count} broken connections");
}

/// Runs steps against a relay that sends `reply` for any request, and then closes the connection.
fn steps_for_reply(reply: Vec<u8>, steps: usize) -> (Vec<Step>, ReaderStats) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("a port").to_string();
    let relay = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        let _ = client.write_all(&reply);
        let _ = client.shutdown(Shutdown::Write);
        let _ = std::io::copy(&mut client, &mut std::io::sink());
    });
    let target = Target { address, session: "any".to_owned(), settings: ReaderSettings::default() };
    let mut follower = Follower::new(target);
    let mut steps_made = Vec::new();
    while steps_made.len() < steps
        && !matches!(steps_made.last(), Some(Step::Unreachable(..) | Step::Refused(_) | Step::Ended))
    {
        steps_made.push(follower.step(&mut |_| {}));
    }
    let stats = follower.stats();
    drop(follower);
    relay.join().expect("the relay thread ends normally");
    (steps_made, stats)
}

fn handshake(major: u32, minor: u32) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    bytes.extend(major.to_be_bytes());
    bytes.extend(minor.to_be_bytes());
    bytes.extend(1_u32.to_be_bytes());
    bytes
}

/// Returns all replies of a relay up to an attached session with one stream and its metadata.
fn attached() -> Vec<u8> {
    let text = |text: &str, size: usize| {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(size, 0);
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
    let text = b"trace { major = 1; minor = 8; byte_order = le; };\
        clock { name = \"monotonic\"; freq = 1000000000; };\
        stream { event.header := struct { integer { size = 8; } id;\
        integer { size = 8; map = clock.monotonic.value; } timestamp; }; };\
        event { name = \"a:b\"; id = 1; fields := struct { integer { size = 3; } n; string s[n]; }; };";
    let metadata = [&(text.len() as u64).to_be_bytes()[..], &one, text].concat();
    let no_more = [&0_u64.to_be_bytes()[..], &2_u32.to_be_bytes()].concat();
    let streams = [stream(1, 0), stream(2, 1)].concat();
    [
        handshake(2, 13),
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

/// Returns an index, and the packet with these bytes.
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
    fn random_replies_give_an_error_or_events(
        cut in any::<Index>(),
        flips in prop::collection::vec((any::<Index>(), 1_u8..), 0..4),
        noise in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut reply = [attached(), packet(&[1, 2, 1, b'a', 0, 1, 3, 0]), packet(&noise), noise].concat();
        let length = reply.len();
        flips.iter().for_each(|(at, with)| reply[at.index(length)] ^= with);
        reply.truncate(length - cut.index(400));
        let (steps, _) = steps_for_reply(reply, 50);
        prop_assert!(steps.len() < 50, "it ends");
    }
}

#[test]
fn permanent_and_temporary_errors_of_a_relay_differ() {
    let step_for = |reply: Vec<u8>| steps_for_reply(reply, 1).0.pop().expect("a step");
    let Step::Refused(error) = step_for(handshake(3, 0)) else { panic!("version 3 is not supported") };
    assert_eq!(
        error.to_string(),
        "the relay has version 3.0 of the live protocol; 2.4 and later 2.x are supported"
    );
    assert!(matches!(step_for(handshake(2, 3)), Step::Refused(_)));
    assert!(matches!(step_for(Vec::new()), Step::Unreachable(..)));
    let (_, stats) = steps_for_reply([attached(), packet(&[1, 2, 1, b'a', 0, 1, 3, 0])].concat(), 50);
    assert_eq!(
        (stats.events, stats.packets, stats.unreadable),
        (2, 1, 0),
        "the replies that the next test changes are valid"
    );
    let no_sessions = [handshake(2, 13), vec![0; 4]].concat();
    let Step::Unreachable(error, _) = step_for(no_sessions) else {
        panic!("the session may be created later")
    };
    assert_eq!(error.to_string(), "the relay has no session `any` (it has none)");
    let a_billion = [handshake(2, 13), vec![0x40, 0, 0, 0]].concat();
    assert!(matches!(step_for(a_billion), Step::Unreachable(..)));
    let target = Target {
        address: "127.0.0.1:1".to_owned(),
        session: "any".to_owned(),
        settings: ReaderSettings::default(),
    };
    assert!(matches!(Follower::new(target).step(&mut |_| {}), Step::Unreachable(..)));
}
