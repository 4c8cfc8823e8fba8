//! An NBD client on one node and the server on another, an agent on each, and a link between them that delays, loses and is cut: each
//! request is one trace, and what the network took of it is what the link took.
//!
//! Nodes are namespaces of this kernel, so both have one clock and nobody is told so: each agent has another machine-id. What there is to
//! compare with is the link's own account, ping by the same link, the kernel's count of segments that were sent once more, and fio's
//! of requests.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

#[path = "../../bus/tests/support/mod.rs"]
mod broker;
mod common;
#[path = "support/nbd_fleet.rs"]
mod nbd_fleet;
#[path = "support/network_link.rs"]
mod network_link;
mod support;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use serde_json::Value;

use nbd_fleet::{CUT, DISCONNECT, JOBS, LOSS, MIB, NbdFleet, UNANSWERED_AT_CLOSE};
use network_link::{ADDRESSES, MACHINE_IDS};
use support::metrics::{documented_families, is_nbd_family, value};
use support::nbd::server;
use support::retransmits::Retransmits;
use support::{needs, or_skip};

/// What Linux waits at the least for an acknowledgement (include/net/tcp.h, TCP_RTO_MIN: HZ/5). With one request in flight a probe
/// for a lost tail comes no earlier (net/ipv4/tcp_output.c, tcp_schedule_loss_probe).
const RTO_US: i64 = 200_000;

/// A request as both ends tell it.
struct Request<'a> {
    client: &'a Value,
    server: Option<&'a Value>,
}

impl Request<'_> {
    /// What neither the client nor the server took, µs.
    fn network(&self) -> Option<i64> {
        Some(self.client["duration"].as_i64()? - self.server?["duration"].as_i64()?)
    }

    fn offset(&self) -> u64 {
        number(self.client, "nbd.offset").unwrap() as u64
    }

    fn resent(&self) -> i64 {
        number(self.client, "nbd.resent").unwrap_or(0)
    }
}

fn number(span: &Value, key: &str) -> Option<i64> {
    span["tags"][key].as_str()?.parse().ok()
}

fn word<'a>(span: &'a Value, key: &str) -> &'a str {
    span[key].as_str().unwrap_or_default()
}

/// Requests of the part of the disk, in which nobody else asked: each client's, with the server's below it.
fn requests(spans: &[Value], part: u64) -> Vec<Request<'_>> {
    let here = part * 8 * MIB..(part + 1) * 8 * MIB;
    let of = |kind: &str| {
        let all = spans.iter().filter(|span| {
            word(span, "kind") == kind
                && number(span, "nbd.offset").is_some_and(|offset| here.contains(&(offset as u64)))
                && number(span, "nbd.length") == Some(4096)
        });
        all.collect::<Vec<_>>()
    };
    let (below, alone): (Vec<_>, Vec<_>) =
        of("SERVER").into_iter().partition(|span| span.get("parentId").is_some());
    let below: HashMap<&str, &Value> = below.into_iter().map(|span| (word(span, "parentId"), span)).collect();
    let requests = of("CLIENT")
        .into_iter()
        .map(|client| Request { client, server: below.get(word(client, "id")).copied() });
    let requests: Vec<Request<'_>> = requests.collect();
    for Request { client, server } in &requests {
        let Some(server) = server else { continue };
        assert_eq!(word(server, "traceId"), word(client, "traceId"));
        let asked = |span: &Value| (number(span, "nbd.offset"), word(span, "name").to_owned());
        assert_eq!(asked(server), asked(client), "another request's: {server} below {client}");
        let link = server["tags"]["blkkin.link"].as_str().unwrap();
        assert!(link.starts_with("exact: nbd-stream"), "{link}");
        // Before its end, which is what it says after its answer was sent.
        let answers =
            server["annotations"].as_array().into_iter().flatten().find(|said| said["value"] == "answers");
        let answers =
            answers.and_then(|said| said["timestamp"].as_i64()).unwrap_or_else(|| panic!("{server}"));
        let [begin, took] = ["timestamp", "duration"].map(|key| server[key].as_i64().unwrap());
        assert!((begin..=begin + took).contains(&answers), "{server}");
    }
    let met = requests.iter().filter(|request| request.server.is_some()).count();
    assert_eq!(met, below.len(), "a server's operation below nobody of them");
    assert_eq!(requests.len(), met + alone.len(), "each request has both its ends");
    requests
}

fn median(mut all: Vec<i64>) -> i64 {
    all.sort_unstable();
    all[all.len() / 2]
}

/// Requests of a job.
const DELAYED: u64 = 150;
const LOST_AMONG: u64 = 150;

#[test]
fn what_the_network_did_is_seen_in_the_requests_it_did_it_to() {
    needs!("fio", "lttng", "lttng-relayd", "ip", "ss", "nsenter", "busybox");
    let server = or_skip!(server());
    let world = or_skip!(NbdFleet::start(&server));
    let mut planted = Vec::new();
    for (part, ms) in [(0, 2), (1, 10)] {
        world.link.delay(Duration::from_millis(ms));
        world.run_fio(&format!("delay{ms}"), "randread", DELAYED, part);
        let took = world.link.median_delay();
        planted.push((part, ms, took, world.ping(101)));
    }
    world.link.delay(Duration::from_millis(2));
    world.link.drop_reads(12);
    let watch = Retransmits::start(world.folder());
    let before = world.link.nodes[0].retransmitted_segments();
    world.run_fio("loss", "randread", LOST_AMONG, LOSS);
    world.link.drop_reads(0);
    let resent = world.link.nodes[0].retransmitted_segments() - before;
    let lost = world.link.dropped_reads();
    let hidden = match watch {
        Ok(watch) => watch.on_hidden_tasks(ADDRESSES[0]),
        Err(why) => {
            println!("ftrace cannot be asked: {why}");
            0
        }
    };
    world.disconnect_client();
    world.cut_link();

    // What was asked in all: of those that were cut off only the agent knows.
    let all = world.metric(0, "nbd_requests_total");
    assert!(all >= (JOBS * (2 * DELAYED + LOST_AMONG + 1)) as f64, "{all}");
    let left = 2.0 * JOBS as f64;
    let found = [UNANSWERED_AT_CLOSE, "nbd_replies_total"].map(|name| world.metric(0, name));
    assert_eq!(found, [left, all - left]);
    assert!(world.metric(0, "nbd_segments_retransmitted_total") >= (lost.len() - hidden) as f64);
    let shown: BTreeSet<String> = world.families(0).into_iter().filter(|name| is_nbd_family(name)).collect();
    let described: BTreeSet<String> =
        documented_families().into_iter().filter(|name| is_nbd_family(name)).collect();
    assert_eq!((shown.len(), &shown), (5, &described), "the table in docs/operating.md");
    let (spans, metrics, said) = world.finish(all as usize);

    for (part, ms, took, ping) in planted {
        assert_delayed(&requests(&spans, part), ms, took, ping);
    }
    assert_lost_stand_out(&requests(&spans, LOSS), &lost, resent, hidden);
    assert_cut_off(&requests(&spans, DISCONNECT), "the client left");
    assert_cut_off(&requests(&spans, CUT), "the link cut");
    assert_one_clock(&metrics);
    // What became of each end is said.
    let met = (0..5).flat_map(|part| requests(&spans, part)).filter(|request| request.server.is_some());
    let (ends, matched) = (2 * all as usize, 2 * met.count());
    println!("{ends} ends of requests, {matched} of which met the other");
    assert!(said.contains(&format!("{ends} RPC endpoints = {matched} matched")), "{said}");
    assert_eq!(ends, matched, "{said}");
}

/// What `--nbd` needs is said before somebody needs it.
#[test]
fn the_doctor_says_what_it_needs() {
    needs!();
    let said: Value = serde_json::from_str(&common::run(&["doctor", "--json"]).stdout).unwrap();
    let probes = said["nbd_probes"].as_array().unwrap();
    let works = |probe: &Value| (probe["name"].as_str().unwrap().to_owned(), probe["verdict"] == "works");
    let found: BTreeMap<String, bool> = probes.iter().map(works).collect();
    let meant = blkkin_tracer::attach::probes::NBD_PROBES.iter().map(|probe| (probe.name.to_owned(), true));
    assert_eq!(found, meant.collect());
    let table = common::run(&["doctor"]).stdout;
    assert!(table.contains("Probes for --nbd") && table.contains("nbd_resend"), "{table}");
}

/// What the network took is what the link took, and what both machines took to wake up.
fn assert_delayed(requests: &[Request<'_>], ms: u64, took: Duration, ping: Duration) {
    assert_eq!(requests.len() as u64, JOBS * DELAYED, "as many as fio asked for");
    let network: Vec<i64> = requests.iter().filter_map(Request::network).collect();
    let (median, took, ping) = (median(network), took.as_micros() as i64, ping.as_micros() as i64);
    println!(
        "{ms} ms each way, there and back at the median: network {median} µs, link {took} µs, ping {ping} µs"
    );
    assert!(median >= took, "less than the link took");
    // What is beyond is two programs that wake up, where a ping wakes up one; on a busy machine that takes its time.
    assert!(median < 2 * took + 5_000, "more than the network took");
}

/// What was sent once more says so, and nothing else does. Of those on top of a hidden task nobody can know.
fn assert_lost_stand_out(requests: &[Request<'_>], lost: &[u64], resent: u64, hidden: usize) {
    assert_eq!(requests.len() as u64, JOBS * LOST_AMONG);
    let (marked, others): (Vec<_>, Vec<_>) = requests.iter().partition(|request| request.resent() > 0);
    let times: i64 = marked.iter().map(|request| request.resent()).sum();
    let slowest = others.iter().filter_map(|request| request.network()).max();
    let quickest = marked.iter().filter_map(|request| request.network()).min();
    println!(
        "{} requests' segments lost; {resent} sent once more as the kernel counts, {hidden} of them on top of a task that it hides; \
         {} requests say so, {times} times; the network took {quickest:?} µs or more of these, and of the others {slowest:?} µs at the most",
        lost.len(),
        marked.len(),
    );
    assert!(!lost.is_empty());
    let says_so = |offset: &&u64| marked.iter().any(|request| request.offset() == **offset);
    let missed: Vec<_> = lost.iter().filter(|offset| !says_so(offset)).collect();
    assert!(missed.len() <= hidden, "were lost, and their requests do not say so: {missed:?}");
    // The kernel may have sent again what was only late, but no more than it says; the rest is no request's: a handshake, a farewell.
    assert!(((lost.len() - hidden) as i64..=resent as i64).contains(&times), "{times}");
    assert!(quickest >= Some(RTO_US), "{quickest:?}");
}

/// The client's part has no answer, and says so above the server's, which goes on as if somebody heard it.
fn assert_cut_off(requests: &[Request<'_>], how: &str) {
    let without = |request: &&Request<'_>| request.client["tags"].get("nbd.reply").is_some();
    let (cut, answered): (Vec<_>, Vec<_>) = requests.iter().partition(without);
    let met = cut.iter().filter(|request| request.server.is_some()).count();
    println!(
        "{how}: {} answered before; {} not, of which {met} stand above the server's",
        answered.len(),
        cut.len()
    );
    assert_eq!((cut.len(), met), (JOBS as usize, JOBS as usize));
    for Request { client, server } in cut {
        let server = server.unwrap();
        assert_eq!(client["tags"]["nbd.reply"], "none: the connection was closed first");
        assert_eq!(client["tags"]["error"], "its answer was never seen");
        assert!(server["tags"]["blkkin.link"].as_str().unwrap().ends_with("which saw no answer"), "{server}");
        // Shown from where it was sent on, as no more is known of two clocks by a request without an answer.
        let [sent, taken] = [client, server].map(|span| span["timestamp"].as_i64().unwrap());
        assert!((sent - 1..=sent + 1).contains(&taken), "µs: {client} {server}");
    }
}

/// The nodes' clocks are one, and nobody was told.
fn assert_one_clock(metrics: &str) {
    let labels = format!("{{client=\"{:032x}\",server=\"{:032x}\"}}", MACHINE_IDS[0], MACHINE_IDS[1]);
    let of = |name: &str| value(metrics, &format!("blkkin_{name}{labels}"));
    let (offset, error) = (of("clock_offset_seconds"), of("clock_offset_error_seconds"));
    println!("clocks apart by {:.1} µs ± {:.1} µs, and they are one", offset * 1e6, error * 1e6);
    assert!(offset.abs() <= error, "{offset} ± {error}");
}
