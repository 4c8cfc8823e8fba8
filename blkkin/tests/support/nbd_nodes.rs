//! An NBD client's node and a server's, an agent on each, and what joins what these say: Kafka, an aggregator, an exporter to a file.
//!
//! Everything that is told to end, or that is left, ends when it is dropped.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::broker::Broker;
use crate::link::{ADDRESSES, Link};
use crate::support::live::eventually;
use crate::support::metrics::{address, families, get, value};
use crate::support::service::Service;
use crate::support::tools::{capture, tool};

const PATIENCE: Duration = Duration::from_secs(60);
const DISK: u64 = 64 * MIB;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const JOBS: u64 = 2;
/// Parts of the disk.
pub(crate) const LOSS: u64 = 2;
pub(crate) const CUT: u64 = 3;
pub(crate) const LEFT: u64 = 4;
pub(crate) const CUT_OFF: &str = "nbd_requests_unanswered_total{reason=\"connection closed\"}";

/// A daemon that ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All that runs; in the order in which it ends.
pub(crate) struct World {
    agents: [Service; 2],
    server: Killed,
    uri: String,
    aggregator: Service,
    exporter: Service,
    pub(crate) link: Link,
    _broker: Broker,
    home: tempfile::TempDir,
    fio: PathBuf,
}

/// fio by a name of this test's own: nodes share the kernel, in which others' run beside it, and an agent follows who has this name.
fn own_fio(folder: &Path) -> Result<PathBuf, String> {
    let fio = folder.join(format!("fio-{}", std::process::id()));
    let installed = capture(tool("sh").args(["-c", "command -v fio"]))?;
    std::os::unix::fs::symlink(installed, &fio).map_err(|error| error.to_string())?;
    Ok(fio)
}

impl World {
    pub(crate) fn begin(server: &Path) -> Result<World, String> {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path();
        let of_home = |name: &str| folder.join(name).display().to_string();
        let fio = own_fio(folder)?;
        let asks = fio.file_name().unwrap().to_string_lossy().into_owned();
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
        let aggregator = service("aggregator", &["--metrics", "127.0.0.1:0", "--await-client", "30s"]);
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
            agent("asks", 0, &["--nbd", "--comm", &asks, "--syscall", "fsync"]),
            agent("answers", 1, &[&["--ust"], &workers[..]].concat()),
        ];
        fs::File::create(folder.join("disk")).unwrap().set_len(DISK).unwrap();
        let listens = folder.join("uri");
        let mut command = link.nodes[1].at_once(server.to_str().unwrap());
        command.args([&of_home("disk"), "--tcp", &format!("{}:0", ADDRESSES[1]), "--threads", "2"]);
        let server =
            command.stdout(fs::File::create(&listens).unwrap()).stderr(Stdio::null()).spawn().unwrap();
        let server = Killed(server);
        // It says where it listens once it is known to LTTng.
        assert!(eventually(|| fs::metadata(&listens).unwrap().len() > 0));
        let uri = fs::read_to_string(&listens).unwrap().trim().to_owned();
        Ok(World { agents, server, uri, aggregator, exporter, link, _broker: broker, home, fio })
    }

    /// fio on the first node: so many requests a job, one at a time, in a part of the disk that nobody else asks for.
    fn fio(&self, name: &str, rw: &str, requests: u64, part: u64) -> Command {
        let mut command = self.link.nodes[0].at_once(&self.fio.display().to_string());
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

    pub(crate) fn asks(&self, name: &str, rw: &str, requests: u64, part: u64) {
        let status = self.fio(name, rw, requests, part).status().unwrap();
        assert!(status.success(), "{status}");
    }

    /// For what a test keeps beside its own.
    pub(crate) fn folder(&self) -> &Path {
        self.home.path()
    }

    /// The median of so many pings, one after the other.
    pub(crate) fn ping(&self, count: u32) -> Duration {
        let mut ping = self.link.nodes[0].at_once("busybox");
        let said = capture(ping.args(["ping", "-A", "-c", &count.to_string(), ADDRESSES[1]])).unwrap();
        let times =
            said.lines().filter_map(|line| line.split("time=").nth(1)?.split(' ').next()?.parse().ok());
        let mut times: Vec<f64> = times.collect();
        times.sort_by(f64::total_cmp);
        Duration::from_secs_f64(times[times.len() / 2] / 1e3)
    }

    pub(crate) fn figure(&self, agent: usize, name: &str) -> f64 {
        value(&get(address(&self.agents[agent].said()), "/metrics"), &format!("blkkin_{name}"))
    }

    /// Reads, holds the server up, and leaves once it has requests that it has not read; then it goes on.
    pub(crate) fn leave(&self) {
        let asker = self.reads("left", LEFT);
        self.signal(libc::SIGSTOP);
        self.settled(0);
        self.leaves(asker);
        self.signal(libc::SIGCONT);
    }

    /// Reads until there is no answer any more, then takes the link down, then ends who asks.
    pub(crate) fn cut(&self) {
        let asker = self.reads("cut", CUT);
        self.link.lose_answers();
        self.settled(1);
        self.link.cut();
        self.leaves(asker);
    }

    /// Reads without an end, once some were answered.
    fn reads(&self, name: &str, part: u64) -> Killed {
        let asked = self.figure(0, "nbd_requests_total");
        let asker = Killed(self.fio(name, "randread", 1_000_000, part).spawn().unwrap());
        assert!(eventually(|| self.figure(0, "nbd_requests_total") >= asked + 20.0));
        asker
    }

    /// Until each job has one request that goes no further: bytes wait in this queue (0: not read by the server; 1: not acknowledged
    /// to it) of each connection, and nothing more is asked.
    fn settled(&self, queue: usize) {
        let waiting = || {
            let said = self.link.nodes[1].says(&["ss", "-Htn", "state", "established"]).unwrap();
            let bytes = said.lines().filter_map(|line| line.split_whitespace().nth(queue));
            bytes.filter(|bytes| *bytes != "0").count() as u64
        };
        let settled = eventually(|| {
            let before = self.figure(0, "nbd_requests_total");
            let all = (0..5).all(|_| {
                std::thread::sleep(Duration::from_millis(100));
                waiting() == JOBS
            });
            all && self.figure(0, "nbd_requests_total") == before
        });
        assert!(settled, "{}", self.agents[0].said());
    }

    fn leaves(&self, asker: Killed) {
        let before = self.figure(0, CUT_OFF);
        drop(asker);
        let left = eventually(|| self.figure(0, CUT_OFF) == before + JOBS as f64);
        assert!(left, "{}", self.agents[0].said());
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: numbers only; the process has not been waited for.
        unsafe { libc::kill(self.server.0.id() as libc::pid_t, signal) };
    }

    /// Ends all, once so many requests of both ends are written: spans, the aggregator's metrics, and what was said.
    pub(crate) fn end(self, requests: usize) -> (Vec<Value>, String, String) {
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
        println!("{said}");
        let spans = serde_json::from_slice(&fs::read(home.path().join("spans.json")).unwrap()).unwrap();
        (spans, metrics, said)
    }

    /// What it has figures of.
    pub(crate) fn families(&self, agent: usize) -> BTreeSet<String> {
        families(&get(address(&self.agents[agent].said()), "/metrics"))
    }

    /// What the exporter has written so far.
    fn written(&self) -> String {
        fs::read_to_string(self.home.path().join("spans.json.partial")).unwrap_or_default()
    }
}
