//! What the server says of itself while it is traced, as LTTng recorded it and the bridge reads it: every request is one span
//! under its own name, every call to the file is done by a thread that works for it, and it takes few events to say so.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

#[path = "support/facts.rs"]
mod facts;
#[path = "../../ust-provider/tests/support/lttng.rs"]
#[allow(dead_code, reason = "it is another crate's, and used in part")]
mod lttng;
mod support;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use lttng::{Event, Lttng};
use support::client::{self, Client};
use support::{MODES, Running, are_here, fio};

const MIB: u64 = 1 << 20;
/// Of each CPU, and more than all events of a run: whoever collects them may be late.
const CHANNEL: [&str; 2] = ["--subbuf-size=16M", "--num-subbuf=8"];

/// A server that is recorded, in its own LTTng.
fn traced(lttng: &Lttng, mode: &[&str]) -> Running {
    lttng.record("nbd", &["blkkin:*"], &CHANNEL);
    let own = lttng.install(Path::new(env!("CARGO_BIN_EXE_blkkin-nbd")));
    Running::start_as(lttng.command(own), mode, 64 * MIB, &[])
}

/// What was recorded of it, all of it; at most four events for each request.
fn recorded(lttng: &Lttng, server: Running) -> Vec<Event> {
    server.stop();
    finished(lttng)
}

fn finished(lttng: &Lttng) -> Vec<Event> {
    let (recorded, discarded) = lttng.finish_counting("nbd");
    assert_eq!(discarded, 0);
    let (said, events) = facts::read(&lttng.home().join("traces/nbd"));
    assert_eq!(events, recorded.len(), "as many as babeltrace2 reads");
    let requests = said.iter().filter(|event| event.name == "blkkin:begin").count();
    println!("{requests} requests: {} things in {events} events", said.len());
    // Its begin with all about it, one to enter, one to leave, its end; fewer where several come at once.
    assert!(events <= 4 * requests, "{events} events for {requests} requests");
    said
}

fn started() -> Option<Lttng> {
    Lttng::start().inspect_err(|why| println!("skipped: {why}")).ok()
}

/// The events of one span, in order.
fn by_span(events: &[Event]) -> HashMap<u64, Vec<&Event>> {
    let mut spans: HashMap<u64, Vec<&Event>> = HashMap::new();
    events.iter().for_each(|event| spans.entry(event.number("span")).or_default().push(event));
    spans
}

fn kinds<'a>(span: &[&'a Event]) -> Vec<&'a str> {
    span.iter().map(|event| event.name.strip_prefix("blkkin:").unwrap()).collect()
}

#[test]
fn each_request_is_one_span_with_its_cookie_and_entered_once() {
    if !are_here(&["fio"]) {
        return;
    }
    for mode in MODES {
        let Some(lttng) = started() else { return };
        let server = traced(&lttng, mode);
        let uri = format!("--uri={}", server.uri());
        // 100,000 and more.
        let load =
            ["--rw=randrw", "--bs=4k", "--size=16m", "--offset_increment=16m", "--iodepth=16", "--numjobs=4"];
        let [read, written, synced] = fio(&[&[&*uri, "--io_size=100m", "--fsync=64"], &load[..]].concat());
        let events = recorded(&lttng, server);
        let spans = by_span(&events);
        let count = |name: &str| spans.values().filter(|span| span[0].field("name") == name).count() as u64;
        println!("{mode:?}: fio: {read} reads, {written} writes, {synced} syncs");
        assert_eq!((count("nbd read"), count("nbd write"), read + written), (read, written, 4 * 25_600));
        assert!(synced > 0 && count("nbd flush") >= synced, "{}", count("nbd flush"));
        assert_eq!(count("nbd read") + count("nbd write") + count("nbd flush"), spans.len() as u64);
        let (mut names, mut connections) = (HashSet::new(), HashSet::new());
        for span in spans.values() {
            let expected = ["begin", "meeting", "number", "number", "enter", "leave", "end"];
            assert_eq!(kinds(span), expected, "{span:#?}");
            let (begin, meeting, end) = (span[0], span[1], span[6]);
            assert_eq!((begin.number("kind"), begin.number("parent"), begin.number("on")), (1, 0, 0));
            assert_eq!((begin.field("service"), end.number("status")), ("blkkin-nbd", 0));
            assert_eq!(
                (meeting.number("side"), meeting.number("unique"), meeting.field("rule")),
                (1, 0, "nbd")
            );
            assert_eq!(span[4].vtid, span[5].vtid);
            connections.insert(meeting.field("connection"));
            // libnbd counts its requests, so none has another's name.
            assert!(names.insert((meeting.field("connection"), meeting.number("cookie"))), "{span:#?}");
        }
        assert_eq!(connections.len(), 4, "{connections:?}");
        assert_working_for_one_at_a_time(&events);
    }
}

/// No thread works for two requests at once.
fn assert_working_for_one_at_a_time(events: &[Event]) {
    let mut works_for: HashMap<u32, u64> = HashMap::new();
    for event in events {
        let span = event.number("span");
        match event.name.as_str() {
            "blkkin:enter" => assert_eq!(works_for.insert(event.vtid, span), None, "{event:?}"),
            "blkkin:leave" => assert_eq!(works_for.remove(&event.vtid), Some(span), "{event:?}"),
            _ => {}
        }
    }
    assert!(works_for.is_empty());
}

/// By strace: which thread read from where, in order. By LTTng: what it worked for then.
#[test]
fn every_call_to_the_file_is_done_by_who_works_for_its_request() {
    if !are_here(&["fio", "strace"]) {
        return;
    }
    let Some(lttng) = started() else { return };
    lttng.record("nbd", &["blkkin:*"], &CHANNEL);
    let own = lttng.install(Path::new(env!("CARGO_BIN_EXE_blkkin-nbd")));
    let log = own.parent().unwrap().join("calls");
    let mut command = lttng.command("strace");
    command.args(["-f", "-qq", "-e", "trace=pread64,pwrite64,fdatasync", "-e", "signal=none", "-o"]);
    command.arg(&log).arg(own);
    let server = Running::start_as(command, MODES[0], 64 * MIB, &[]);
    let uri = format!("--uri={}", server.uri());
    let load = ["--rw=randrw", "--bs=4k", "--size=16m", "--io_size=4m", "--iodepth=16", "--numjobs=4"];
    fio(&[&[&*uri], &load[..]].concat());
    // strace ends as its child does.
    let child = fs::read_to_string(format!("/proc/{0}/task/{0}/children", server.pid())).unwrap();
    support::capture(std::process::Command::new("kill").arg(child.trim()));
    let mut server = server;
    server.wait();
    let events = finished(&lttng);

    let mut places: HashMap<u64, i64> = HashMap::new();
    let mut worked: HashMap<u32, Vec<i64>> = HashMap::new();
    for event in &events {
        match event.name.as_str() {
            "blkkin:number" if event.field("key") == "nbd.offset" => {
                places.insert(event.number("span"), event.number("val") as i64);
            }
            "blkkin:enter" => worked.entry(event.vtid).or_default().push(places[&event.number("span")]),
            _ => {}
        }
    }
    let calls = fs::read_to_string(&log).unwrap();
    let mut called: HashMap<u32, Vec<i64>> = HashMap::new();
    // `1234  pread64(5, "…"..., 4096, 8192) = 4096`. What others interrupt in the log is two lines: of a read the second one
    // has the place, of a write the first one.
    for line in calls.lines() {
        let arguments = match line.split_once(" <unfinished") {
            Some((arguments, _)) if line.contains(" pwrite64(") => arguments,
            None if line.contains(" pread64(")
                || line.contains(" pwrite64(")
                || line.contains("pread64 resumed") =>
            {
                line.rsplit_once(") ").unwrap().0.trim_end().trim_end_matches(')')
            }
            _ => continue,
        };
        let (thread, place) = (arguments.split_whitespace().next(), arguments.rsplit(", ").next());
        let thread: u32 = thread.unwrap().parse().unwrap();
        called.entry(thread).or_default().push(place.unwrap().trim().parse().unwrap());
    }
    // What loads libraries is the first thread.
    called.remove(&child.trim().parse().unwrap());
    let all: usize = called.values().map(Vec::len).sum();
    println!("{all} calls by {} threads", called.len());
    assert!(all >= 4 * 1_024, "{all}");
    assert_eq!(called, worked);
}

#[test]
fn what_fails_says_why_and_what_is_never_answered_too() {
    for mode in MODES {
        let Some(lttng) = started() else { return };
        let server = traced(&lttng, mode);
        let mut client = Client::ready(&server.socket(), true);
        assert_eq!(client.ask(client::READ, 0, 64 * MIB, 1).error, 22);
        assert_eq!(client.ask(client::WRITE_ZEROES, 1, 0, 4_096).error, 0);
        assert_eq!(client.ask(client::BLOCK_STATUS, 0, 0, 4_096).error, 0);
        // More than a socket holds, and nobody reads more of it than which request it answers.
        (0..20).for_each(|cookie| client.request(client::READ, 0, 100 + cookie, 0, 2 * MIB as u32));
        let head: [u8; 20] = client.read().unwrap();
        let begun = u64::from_be_bytes(head[8..16].try_into().unwrap());
        drop(client);
        let events = recorded(&lttng, server);
        let spans = by_span(&events);
        let find = |name: &str, cookie: u64| {
            spans
                .values()
                .find(|span| span[0].field("name") == name && span[1].number("cookie") == cookie)
                .unwrap_or_else(|| panic!("{name} {cookie}"))
        };
        let status = |span: &[&Event]| span.last().unwrap().number("status");
        assert_eq!(status(find("nbd read", 0xc001e)), 22);
        let zeroes = find("nbd write zeroes", 0xc001e);
        assert_eq!(status(zeroes), 0);
        assert!(zeroes.iter().any(|event| event.line().contains("nbd.flags")), "{zeroes:#?}");
        assert_eq!(status(find("nbd block status", 0xc001e)), 0);
        assert_eq!(status(find("nbd read", begun)), epipe());
        for span in spans.values() {
            assert_eq!(*kinds(span).last().unwrap(), "end", "{span:#?}");
        }
        assert_working_for_one_at_a_time(&events);
    }
}

/// Nobody heard of it.
fn epipe() -> u64 {
    rustix::io::Errno::PIPE.raw_os_error() as u64
}
