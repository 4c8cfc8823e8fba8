//! Spans of the server, as LTTng recorded them and the bridge reads them. Every request is one span
//! with its own RPC key, the thread of every system call on the file has entered the request's
//! span, and the number of events is small.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

#[path = "../../ust-provider/tests/support/lttng.rs"]
#[allow(dead_code, reason = "shared with another crate, and used in part")]
mod lttng;
#[path = "support/recorded_events.rs"]
mod recorded_events;
mod support;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use lttng::{Event, Lttng};
use support::client::{self, Client};
use support::{MODES, RunningServer, are_installed, fio};

const MIB: u64 = 1 << 20;
/// Buffers of each CPU. They hold all events of a run, because the consumer daemon may be late.
const CHANNEL: [&str; 2] = ["--subbuf-size=16M", "--num-subbuf=8"];

/// Starts a server in its own LTTng session, which records it.
fn start_traced(lttng: &Lttng, mode: &[&str]) -> RunningServer {
    lttng.record("nbd", &["blkkin:*"], &CHANNEL);
    let own = lttng.install(Path::new(env!("CARGO_BIN_EXE_blkkin-nbd")));
    let mut command = lttng.command(own);
    // All requests, not a sample of them.
    command.env("BLKKIN_UST_ROOTS", "0");
    RunningServer::start_as(command, mode, 64 * MIB, &[])
}

/// Stops the server and returns all its events. Asserts at most eight LTTng events for each request.
fn stop_and_read(lttng: &Lttng, server: RunningServer) -> Vec<Event> {
    server.stop();
    read_events(lttng)
}

fn read_events(lttng: &Lttng) -> Vec<Event> {
    let (recorded, discarded) = lttng.finish_counting("nbd");
    assert_eq!(discarded, 0);
    let (recorded_events, lttng_events) = recorded_events::read(&lttng.home().join("traces/nbd"));
    assert_eq!(lttng_events, recorded.len(), "babeltrace2 reads another number of events");
    let requests = recorded_events.iter().filter(|event| event.name == "blkkin:begin").count();
    println!("{requests} requests: {} events in {lttng_events} LTTng events", recorded_events.len());
    // Begin, offset, length, perhaps flags, the RPC endpoint, enter, leave and end.
    assert!(lttng_events <= 8 * requests, "{lttng_events} events for {requests} requests");
    recorded_events
}

/// Groups the events by span, each group in order.
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
    if !are_installed(&["fio"]) {
        return;
    }
    for mode in MODES {
        let Some(lttng) = Lttng::start_or_skip() else { return };
        let server = start_traced(&lttng, mode);
        let uri = format!("--uri={}", server.uri());
        // More than 100,000 requests.
        let load =
            ["--rw=randrw", "--bs=4k", "--size=16m", "--offset_increment=16m", "--iodepth=16", "--numjobs=4"];
        let [read, written, synced] = fio(&[&[&*uri, "--io_size=100m", "--fsync=64"], &load[..]].concat());
        let events = stop_and_read(&lttng, server);
        let spans = by_span(&events);
        let count = |name: &str| spans.values().filter(|span| span[0].field("name") == name).count() as u64;
        println!("{mode:?}: fio: {read} reads, {written} writes, {synced} syncs");
        assert_eq!((count("nbd read"), count("nbd write"), read + written), (read, written, 4 * 25_600));
        assert!(synced > 0 && count("nbd flush") >= synced, "{}", count("nbd flush"));
        assert_eq!(count("nbd read") + count("nbd write") + count("nbd flush"), spans.len() as u64);
        let (mut keys, mut connections) = (HashSet::new(), HashSet::new());
        for span in spans.values() {
            let expected = ["begin", "number", "number", "rpc_endpoint", "enter", "leave", "end"];
            assert_eq!(kinds(span), expected, "{span:#?}");
            let (begin, endpoint, end) = (span[0], span[3], span[6]);
            assert_eq!((begin.number("kind"), begin.number("parent"), begin.number("on")), (1, 0, 0));
            assert_eq!((begin.field("service"), end.number("status")), ("blkkin-nbd", 0));
            assert_eq!(
                (endpoint.number("side"), endpoint.number("unique"), endpoint.field("protocol")),
                (1, 0, "nbd")
            );
            assert_eq!(span[4].vtid, span[5].vtid);
            connections.insert(endpoint.field("connection"));
            // libnbd numbers its requests, so their keys differ.
            assert!(keys.insert((endpoint.field("connection"), endpoint.number("cookie"))), "{span:#?}");
        }
        assert_eq!(connections.len(), 4, "{connections:?}");
        assert_one_span_at_a_time(&events);
    }
}

/// Asserts that no thread has entered two spans at once.
fn assert_one_span_at_a_time(events: &[Event]) {
    let mut entered: HashMap<u32, u64> = HashMap::new();
    for event in events {
        let span = event.number("span");
        match event.name.as_str() {
            "blkkin:enter" => assert_eq!(entered.insert(event.vtid, span), None, "{event:?}"),
            "blkkin:leave" => assert_eq!(entered.remove(&event.vtid), Some(span), "{event:?}"),
            _ => {}
        }
    }
    assert!(entered.is_empty());
}

/// Compares the system calls of each thread, recorded by strace, with the spans that the thread
/// entered, in order.
#[test]
fn every_system_call_on_the_file_is_made_inside_its_requests_span() {
    if !are_installed(&["fio", "strace"]) {
        return;
    }
    let Some(lttng) = Lttng::start_or_skip() else { return };
    lttng.record("nbd", &["blkkin:*"], &CHANNEL);
    let own = lttng.install(Path::new(env!("CARGO_BIN_EXE_blkkin-nbd")));
    let log = own.parent().unwrap().join("calls");
    let mut command = lttng.command("strace");
    command.args(["-f", "-qq", "-e", "trace=pread64,pwrite64,fdatasync", "-e", "signal=none", "-o"]);
    command.arg(&log).arg(own).env("BLKKIN_UST_ROOTS", "0");
    let server = RunningServer::start_as(command, MODES[0], 64 * MIB, &[]);
    let uri = format!("--uri={}", server.uri());
    let load = ["--rw=randrw", "--bs=4k", "--size=16m", "--io_size=4m", "--iodepth=16", "--numjobs=4"];
    fio(&[&[&*uri], &load[..]].concat());
    // strace ends when its child ends.
    let child = fs::read_to_string(format!("/proc/{0}/task/{0}/children", server.pid())).unwrap();
    support::capture(std::process::Command::new("kill").arg(child.trim()));
    let mut server = server;
    server.wait();
    let events = read_events(&lttng);

    let mut offsets: HashMap<u64, i64> = HashMap::new();
    let mut entered_offsets: HashMap<u32, Vec<i64>> = HashMap::new();
    for event in &events {
        match event.name.as_str() {
            "blkkin:number" if event.field("key") == "nbd.offset" => {
                offsets.insert(event.number("span"), event.number("val") as i64);
            }
            "blkkin:enter" => {
                entered_offsets.entry(event.vtid).or_default().push(offsets[&event.number("span")])
            }
            _ => {}
        }
    }
    let calls = fs::read_to_string(&log).unwrap();
    let mut called: HashMap<u32, Vec<i64>> = HashMap::new();
    // `1234  pread64(5, "…"..., 4096, 8192) = 4096`. A call that is interrupted in the log has two
    // lines: the second one has the offset of a read, the first one that of a write.
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
        let (thread, offset) = (arguments.split_whitespace().next(), arguments.rsplit(", ").next());
        let thread: u32 = thread.unwrap().parse().unwrap();
        called.entry(thread).or_default().push(offset.unwrap().trim().parse().unwrap());
    }
    // The calls of the main thread read shared libraries while they are loaded.
    called.remove(&child.trim().parse().unwrap());
    let all: usize = called.values().map(Vec::len).sum();
    println!("{all} calls by {} threads", called.len());
    assert!(all >= 4 * 1_024, "{all}");
    assert_eq!(called, entered_offsets);
}

#[test]
fn spans_of_failed_and_unanswered_requests_have_an_error() {
    for mode in MODES {
        let Some(lttng) = Lttng::start_or_skip() else { return };
        let server = start_traced(&lttng, mode);
        let mut client = Client::ready(&server.socket(), true);
        assert_eq!(client.round_trip(client::READ, 0, 64 * MIB, 1).error, 22);
        assert_eq!(client.round_trip(client::WRITE_ZEROES, 1, 0, 4_096).error, 0);
        assert_eq!(client.round_trip(client::BLOCK_STATUS, 0, 0, 4_096).error, 0);
        // The replies are larger than the socket's buffers. The client reads only the cookie of the
        // first.
        (0..20).for_each(|cookie| client.request(client::READ, 0, 100 + cookie, 0, 2 * MIB as u32));
        let head: [u8; 20] = client.read().unwrap();
        let cookie = u64::from_be_bytes(head[8..16].try_into().unwrap());
        drop(client);
        let events = stop_and_read(&lttng, server);
        let spans = by_span(&events);
        let cookie_of = |span: &Vec<&Event>| {
            span.iter().find(|event| event.name == "blkkin:rpc_endpoint").map(|event| event.number("cookie"))
        };
        let find = |name: &str, cookie: u64| {
            spans
                .values()
                .find(|span| span[0].field("name") == name && cookie_of(span) == Some(cookie))
                .unwrap_or_else(|| panic!("{name} {cookie}"))
        };
        let status = |span: &[&Event]| span.last().unwrap().number("status");
        assert_eq!(status(find("nbd read", 0xc001e)), 22);
        let zeroes = find("nbd write zeroes", 0xc001e);
        assert_eq!(status(zeroes), 0);
        assert!(zeroes.iter().any(|event| event.line().contains("nbd.flags")), "{zeroes:#?}");
        assert_eq!(status(find("nbd block status", 0xc001e)), 0);
        assert_eq!(status(find("nbd read", cookie)), epipe());
        for span in spans.values() {
            assert_eq!(*kinds(span).last().unwrap(), "end", "{span:#?}");
        }
        assert_one_span_at_a_time(&events);
    }
}

/// Status of a request whose reply was not sent.
fn epipe() -> u64 {
    rustix::io::Errno::PIPE.raw_os_error() as u64
}
