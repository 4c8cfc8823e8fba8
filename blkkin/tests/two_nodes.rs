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
#[path = "support/link.rs"]
mod link;
mod support;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use broker::Broker;
use link::{ADDRESSES, Link, MACHINES};
use support::live::eventually;
use support::metrics::{address, get, value};
use support::nbd::server;
use support::service::Service;
use support::{needs, or_skip};

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const DISK: u64 = 64 * MIB;
const JOBS: u64 = 2;
/// What Linux waits at the least for an acknowledgement (include/net/tcp.h, TCP_RTO_MIN: HZ/5). With one request in flight a probe
/// for a lost tail comes no earlier (net/ipv4/tcp_output.c, tcp_schedule_loss_probe).
const RTO_US: i64 = 200_000;

/// A daemon that ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All that runs; in the order in which it ends.
struct World {
    agents: [Service; 2],
    _server: Killed,
    uri: String,
    aggregator: Service,
    exporter: Service,
    link: Link,
    _broker: Broker,
    home: tempfile::TempDir,
}

impl World {
    fn begin(server: &Path) -> Result<World, String> {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path();
        let of_home = |name: &str| folder.join(name).display().to_string();
        let link = Link::up()?;
        let broker = Broker::start()?;
        let brokers = broker.settings().brokers;
        let cluster = ["--brokers", brokers.as_str()];
        let service = |name: &str, words: &[&str]| {
            let service = Service::start(folder, name, &[&[name], &cluster[..], words].concat());
            service.says(if name == "exporter" { "exporting" } else { "aggregating; events from" }, PATIENCE);
            service
        };
        // Not so soon that a request that lost a segment twice is given up.
        let aggregator = service("aggregator", &["--metrics", "127.0.0.1:0", "--await-asker", "30s"]);
        let to = format!("zipkin={}", of_home("spans.json"));
        let exporter = service("exporter", &["--metrics", "off", "--to", &to]);
        let agent = |name: &str, node: usize, words: &[&str]| {
            let metrics = ["--metrics", "127.0.0.1:0", "--spool", "off"];
            let words = [&["agent"], &cluster[..], &metrics[..], words].concat();
            let agent = Service::start_by(folder, name, &words, |command| link.nodes[node].service(&command));
            agent.says("tracing; events go to", PATIENCE);
            agent
        };
        let workers = [
            "--comm",
            "nbd-worker-0",
            "--comm",
            "nbd-worker-1",
            "--syscall",
            "pread64",
            "--syscall",
            "pwrite64",
        ];
        let agents = [
            agent("asks", 0, &["--nbd", "--comm", "fio", "--syscall", "fsync"]),
            agent("answers", 1, &[&["--ust"], &workers[..]].concat()),
        ];
        fs::File::create(folder.join("disk")).unwrap().set_len(DISK).unwrap();
        let listens = folder.join("uri");
        let mut command = link.nodes[1].program(server.to_str().unwrap());
        command.args([&of_home("disk"), "--tcp", &format!("{}:0", ADDRESSES[1]), "--threads", "2"]);
        let server =
            command.stdout(fs::File::create(&listens).unwrap()).stderr(Stdio::null()).spawn().unwrap();
        let server = Killed(server);
        // It says where it listens once it is known to LTTng.
        assert!(eventually(|| fs::metadata(&listens).unwrap().len() > 0));
        let uri = fs::read_to_string(&listens).unwrap().trim().to_owned();
        Ok(World { agents, _server: server, uri, aggregator, exporter, link, _broker: broker, home })
    }

    /// fio on the first node: so many requests a job, one at a time, in a part of the disk that nobody else asks for.
    fn fio(&self, name: &str, rw: &str, requests: u64, part: u64) -> Command {
        let mut command = self.link.nodes[0].program("fio");
        let each = format!("{}", MIB * 4);
        let words = [
            format!("--name={name}"),
            "--ioengine=nbd".to_owned(),
            format!("--uri={}", self.uri),
            format!("--rw={rw}"),
            "--bs=4k".to_owned(),
            "--iodepth=1".to_owned(),
            format!("--numjobs={JOBS}"),
            "--thread".to_owned(),
            format!("--size={each}"),
            format!("--offset={}", part * MIB * 8),
            format!("--offset_increment={each}"),
            format!("--number_ios={requests}"),
            "--output-format=json".to_owned(),
            format!("--output={}/{name}.json", self.home.path().display()),
        ];
        command.args(words).stdin(Stdio::null());
        command
    }

    fn asks(&self, name: &str, rw: &str, requests: u64, part: u64) {
        let status = self.fio(name, rw, requests, part).status().unwrap();
        assert!(status.success(), "{status}");
    }

    /// The median of so many pings, one after the other.
    fn ping(&self, count: u32) -> Duration {
        let words = ["busybox", "ping", "-A", "-c", &count.to_string(), ADDRESSES[1]];
        let said = self.link.nodes[0].says(&words).unwrap();
        let times =
            said.lines().filter_map(|line| line.split("time=").nth(1)?.split(' ').next()?.parse().ok());
        let mut times: Vec<f64> = times.collect();
        times.sort_by(f64::total_cmp);
        Duration::from_secs_f64(times[times.len() / 2] / 1e3)
    }

    fn figure(&self, agent: usize, name: &str) -> f64 {
        value(&get(address(&self.agents[agent].said()), "/metrics"), &format!("blkkin_{name}"))
    }

    /// Reads until there is no answer any more, then takes the link down, then ends who asks.
    fn cut(&self) {
        let asker = Killed(self.fio("cut", "randread", 1_000_000, CUT).spawn().unwrap());
        let queued = || {
            let said = self.link.nodes[1].says(&["ss", "-Htn", "state", "established"]).unwrap();
            said.lines()
                .filter(|line| line.split_whitespace().nth(1).is_some_and(|bytes| bytes != "0"))
                .count() as u64
        };
        let asked = self.figure(0, "nbd_requests_total");
        assert!(eventually(|| self.figure(0, "nbd_requests_total") >= asked + 20.0));
        self.link.lose_answers();
        // All have asked, and the server's answers lie there unacknowledged, but for what is on its way just now.
        let stuck = eventually(|| {
            let before = self.figure(0, "nbd_requests_total");
            let all = (0..5).all(|_| {
                std::thread::sleep(Duration::from_millis(100));
                queued() == JOBS
            });
            all && self.figure(0, "nbd_requests_total") == before
        });
        assert!(stuck);
        self.link.cut();
        drop(asker);
        let ended = "nbd_requests_unanswered_total{why=\"connection ended\"}";
        assert!(eventually(|| self.figure(0, ended) == JOBS as f64), "{}", self.agents[0].said());
    }

    /// Ends all, once so many requests of both ends are written: spans, the aggregator's metrics, and what was said.
    fn end(self, requests: usize) -> (Vec<Value>, String, String) {
        let both = || {
            ["CLIENT", "SERVER"].map(|kind| self.written().matches(&format!("\"kind\":\"{kind}\"")).count())
        };
        let came = eventually(|| both().iter().all(|count| *count >= requests));
        let metrics = get(address(&self.aggregator.said()), "/metrics");
        let World { agents, aggregator, exporter, home, .. } = self;
        let mut said = String::new();
        for service in agents.into_iter().chain([aggregator, exporter]) {
            let (status, words) = service.finish();
            assert_eq!(status, Some(0), "{words}");
            said += &words;
        }
        assert!(came, "{requests} of each wanted:\n{said}");
        let spans = serde_json::from_slice(&fs::read(home.path().join("spans.json")).unwrap()).unwrap();
        (spans, metrics, said)
    }

    /// What the exporter has written so far.
    fn written(&self) -> String {
        fs::read_to_string(self.home.path().join("spans.json.partial")).unwrap_or_default()
    }
}

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
    let below: HashMap<&str, &Value> =
        of("SERVER").into_iter().map(|span| (word(span, "parentId"), span)).collect();
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
    }
    let met = requests.iter().filter(|request| request.server.is_some()).count();
    assert_eq!(met, below.len(), "a server's operation below nobody of them");
    requests
}

fn median(mut all: Vec<i64>) -> i64 {
    all.sort_unstable();
    all[all.len() / 2]
}

/// Requests of a job.
const DELAYED: u64 = 150;
const LOST_AMONG: u64 = 150;
/// Parts of the disk.
const LOSS: u64 = 2;
const CUT: u64 = 3;

#[test]
fn what_the_network_did_is_seen_in_the_requests_it_did_it_to() {
    needs!("fio", "lttng", "lttng-relayd", "ip", "ss", "nsenter", "busybox");
    let server = or_skip!(server());
    let world = or_skip!(World::begin(&server));
    let mut planted = Vec::new();
    for (part, ms) in [(0, 2), (1, 10)] {
        world.link.delay(Duration::from_millis(ms));
        world.asks(&format!("delay{ms}"), "randread", DELAYED, part);
        let took = world.link.took() * 2;
        planted.push((part, ms, took, world.ping(101)));
    }
    world.link.delay(Duration::from_millis(2));
    world.link.lose_reads(12);
    let before = world.link.nodes[0].resent();
    world.asks("loss", "randread", LOST_AMONG, LOSS);
    world.link.lose_reads(0);
    let resent = world.link.nodes[0].resent() - before;
    let lost = world.link.lost();
    world.cut();

    // What was asked in all: of those that were cut off only the agent knows.
    let all = world.figure(0, "nbd_requests_total");
    assert!(all >= (JOBS * (2 * DELAYED + LOST_AMONG + 1)) as f64, "{all}");
    let cut_off = "nbd_requests_unanswered_total{why=\"connection ended\"}";
    assert_eq!(
        (world.figure(0, cut_off), world.figure(0, "nbd_requests_answered_total")),
        (JOBS as f64, all - JOBS as f64)
    );
    assert!(world.figure(0, "nbd_segments_resent_total") >= lost.len() as f64);
    let (spans, metrics, said) = world.end(all as usize);

    for (part, ms, took, ping) in planted {
        assert_delayed(&requests(&spans, part), ms, took, ping);
    }
    assert_lost_stand_out(&requests(&spans, LOSS), &lost, resent);
    assert_cut(&requests(&spans, CUT));
    assert_one_clock(&metrics);
    assert!(said.contains(" 0 refused"), "{said}");
}

/// What `--nbd` needs is said before somebody needs it.
#[test]
fn the_doctor_says_what_it_needs() {
    needs!();
    let said: Value = serde_json::from_str(&common::run(&["doctor", "--json"]).stdout).unwrap();
    let probes = said["nbd_probes"].as_array().unwrap();
    let works = |probe: &Value| (probe["name"].as_str().unwrap().to_owned(), probe["verdict"] == "works");
    let found: BTreeMap<String, bool> = probes.iter().map(works).collect();
    let meant = blkkin_tracer::probes::NBD_PROBES.iter().map(|probe| (probe.name.to_owned(), true));
    assert_eq!(found, meant.collect());
    let table = common::run(&["doctor"]).stdout;
    assert!(table.contains("Probes that --nbd adds") && table.contains("nbd_resend"), "{table}");
}

/// What the network took is what the link took, and what both machines took to wake up.
fn assert_delayed(requests: &[Request<'_>], ms: u64, took: Duration, ping: Duration) {
    assert_eq!(requests.len() as u64, JOBS * DELAYED, "as many as fio asked for");
    let network: Vec<i64> = requests.iter().map(|request| request.network().unwrap()).collect();
    let (median, took, ping) = (median(network), took.as_micros() as i64, ping.as_micros() as i64);
    println!(
        "{ms} ms each way, there and back at the median: network {median} µs, link {took} µs, ping {ping} µs"
    );
    assert!(median >= took, "less than the link took");
    // The next millisecond is not the network's: a ping wakes up nobody at the other end, a request does.
    assert!(median < ping + 2_000, "more than the network took");
}

/// What was sent once more says so, and nothing else does.
fn assert_lost_stand_out(requests: &[Request<'_>], lost: &[u64], resent: u64) {
    assert_eq!(requests.len() as u64, JOBS * LOST_AMONG);
    let (marked, others): (Vec<_>, Vec<_>) = requests.iter().partition(|request| request.resent() > 0);
    let times: i64 = marked.iter().map(|request| request.resent()).sum();
    let slowest = others.iter().filter_map(|request| request.network()).max();
    let quickest = marked.iter().filter_map(|request| request.network()).min();
    println!(
        "{} requests' segments lost; {resent} sent once more as the kernel counts, {} requests say so, {times} times; the network took \
         {quickest:?} µs or more of these, and of the others {slowest:?} µs at the most",
        lost.len(),
        marked.len(),
    );
    assert!(!lost.is_empty());
    let mut missed = lost.iter().filter(|offset| !marked.iter().any(|request| request.offset() == **offset));
    assert_eq!(missed.next(), None, "was lost, and its request does not say so");
    // The kernel may have sent again what was only late, but no more than it says; the rest is no request's: a handshake, a farewell.
    assert!((lost.len() as i64..=resent as i64).contains(&times), "{times}");
    assert!(quickest >= Some(RTO_US), "{quickest:?}");
}

/// The server answered, and that went nowhere: the client's part has no end of its own, and says so above the server's, which has one.
fn assert_cut(requests: &[Request<'_>]) {
    let (cut, answered): (Vec<_>, Vec<_>) =
        requests.iter().partition(|request| request.client["tags"].get("nbd.reply").is_some());
    println!(
        "the link cut: {} answered before; {} not, of which one is {} above {}",
        answered.len(),
        cut.len(),
        cut[0].client,
        cut[0].server.unwrap()
    );
    assert_eq!(cut.len() as u64, JOBS);
    for Request { client, server } in cut {
        let server = server.unwrap();
        assert_eq!(client["tags"]["nbd.reply"], "none: its connection was closed first");
        assert!(
            client["tags"].get("error").is_some() && server["tags"].get("error").is_none(),
            "{client} {server}"
        );
    }
}

/// The nodes' clocks are one, and nobody was told.
fn assert_one_clock(metrics: &str) {
    let labels = format!("{{asker=\"{:032x}\",answerer=\"{:032x}\"}}", MACHINES[0], MACHINES[1]);
    let of = |name: &str| value(metrics, &format!("blkkin_{name}{labels}"));
    let (offset, error) = (of("clock_offset_seconds"), of("clock_offset_error_seconds"));
    println!("clocks apart by {:.1} µs ± {:.1} µs, and they are one", offset * 1e6, error * 1e6);
    assert!(offset.abs() <= error, "{offset} ± {error}");
}
