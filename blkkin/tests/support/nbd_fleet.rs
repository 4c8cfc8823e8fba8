//! An NBD client's node and a server's node with an agent each, and the services that join their
//! events: Kafka, an aggregator, an exporter to a file.
//!
//! All processes end when the fleet is dropped.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::nbd::serve;
use super::network_link::{ADDRESSES, NetworkLink};
use crate::broker::Broker;
use crate::broker::child::KillOnDrop;
use crate::support::live::eventually;
use crate::support::metrics::{address, families, get, value};
use crate::support::service::Service;
use crate::support::tools::{capture, tool};

const TIME_LIMIT: Duration = Duration::from_secs(60);
const DISK: u64 = 64 * MIB;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const JOBS: u64 = 2;
/// Parts of the disk, by the test that uses them.
pub(crate) const LOSS: u64 = 2;
pub(crate) const CUT: u64 = 3;
pub(crate) const DISCONNECT: u64 = 4;
pub(crate) const UNANSWERED_AT_CLOSE: &str = "nbd_requests_unanswered_total{reason=\"connection closed\"}";

/// The processes, in the order in which they end.
pub(crate) struct NbdFleet {
    agents: [Service; 2],
    server: KillOnDrop,
    uri: String,
    aggregator: Service,
    exporter: Service,
    pub(crate) link: NetworkLink,
    _broker: Broker,
    folder: tempfile::TempDir,
    fio: PathBuf,
}

/// Links fio under a name of this test. The nodes share a kernel in which other tests' fio runs,
/// and the agent traces the processes of this name.
fn fio_link(folder: &Path) -> Result<PathBuf, String> {
    let fio = folder.join(format!("fio-{}", std::process::id()));
    let installed = capture(tool("sh").args(["-c", "command -v fio"]))?;
    std::os::unix::fs::symlink(installed, &fio).map_err(|error| error.to_string())?;
    Ok(fio)
}

impl NbdFleet {
    pub(crate) fn start(server: &Path) -> Result<NbdFleet, String> {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path();
        let file_path = |name: &str| folder.join(name).display().to_string();
        let fio = fio_link(folder)?;
        let comm = fio.file_name().unwrap().to_string_lossy().into_owned();
        let link = NetworkLink::new()?;
        let broker = Broker::start()?;
        let brokers = broker.settings().brokers;
        let cluster = ["--brokers", brokers.as_str()];
        let service = |name: &str, args: &[&str]| {
            let service = Service::start(folder, name, &[&[name], &cluster[..], args].concat());
            service.wait_for_output(
                if name == "exporter" { "exporting" } else { "aggregating; events from" },
                TIME_LIMIT,
            );
            service
        };
        // Long enough that a request that lost a segment twice is not given up.
        let aggregator = service("aggregator", &["--metrics", "127.0.0.1:0", "--await-client", "30s"]);
        let to = format!("zipkin={}", file_path("spans.json"));
        let exporter = service("exporter", &["--metrics", "off", "--to", &to]);
        let agent = |name: &str, node: usize, args: &[&str]| {
            let metrics = ["--metrics", "127.0.0.1:0", "--spool", "off"];
            let args = [&["agent"], &cluster[..], &metrics[..], args].concat();
            let agent =
                Service::start_with(folder, name, &args, |command| link.nodes[node].enter_mounts(&command));
            agent.wait_for_output("tracing; events go to", TIME_LIMIT);
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
            agent("client", 0, &["--nbd", "--comm", &comm, "--syscall", "fsync"]),
            agent("server", 1, &[&["--ust"], &workers[..]].concat()),
        ];
        fs::File::create(folder.join("disk")).unwrap().set_len(DISK).unwrap();
        let command = link.nodes[1].realtime_command(server.to_str().unwrap());
        let listen = ["--tcp", &format!("{}:0", ADDRESSES[1])];
        let (server, uri) = serve(command, &folder.join("disk"), &listen);
        Ok(NbdFleet { agents, server, uri, aggregator, exporter, link, _broker: broker, folder: home, fio })
    }

    /// Returns fio on the first node: `requests` requests a job, one at a time, in a part of the
    /// disk that no other run uses.
    fn fio(&self, name: &str, rw: &str, requests: u64, part: u64) -> Command {
        let mut command = self.link.nodes[0].realtime_command(&self.fio.display().to_string());
        let each = format!("{}", MIB * 4);
        let args = [
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
            format!("--output={}/{name}.json", self.folder.path().display()),
        ];
        command.args(args).stdin(Stdio::null());
        command
    }

    pub(crate) fn run_fio(&self, name: &str, rw: &str, requests: u64, part: u64) {
        let status = self.fio(name, rw, requests, part).status().unwrap();
        assert!(status.success(), "{status}");
    }

    /// Returns the folder for the test's other files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the median round-trip time of `count` pings, one after the other.
    pub(crate) fn ping(&self, count: u32) -> Duration {
        let mut ping = self.link.nodes[0].realtime_command("busybox");
        let output = capture(ping.args(["ping", "-A", "-c", &count.to_string(), ADDRESSES[1]])).unwrap();
        let times =
            output.lines().filter_map(|line| line.split("time=").nth(1)?.split(' ').next()?.parse().ok());
        let mut times: Vec<f64> = times.collect();
        times.sort_by(f64::total_cmp);
        Duration::from_secs_f64(times[times.len() / 2] / 1e3)
    }

    pub(crate) fn metric(&self, agent: usize, name: &str) -> f64 {
        value(&get(address(&self.agents[agent].output()), "/metrics"), &format!("blkkin_{name}"))
    }

    /// Reads, stops the server, disconnects the client while the server has requests that it has
    /// not read, then continues the server.
    pub(crate) fn disconnect_client(&self) {
        let client = self.start_reads("left", DISCONNECT);
        self.signal(libc::SIGSTOP);
        self.wait_until_stalled(0);
        self.end_client(client);
        self.signal(libc::SIGCONT);
    }

    /// Reads until no reply arrives any more, then takes the link down, then ends the client.
    pub(crate) fn cut_link(&self) {
        let client = self.start_reads("cut", CUT);
        self.link.drop_replies();
        self.wait_until_stalled(1);
        self.link.cut();
        self.end_client(client);
    }

    /// Starts reads without an end and waits until some were answered.
    fn start_reads(&self, name: &str, part: u64) -> KillOnDrop {
        let requests_before = self.metric(0, "nbd_requests_total");
        let client = KillOnDrop(self.fio(name, "randread", 1_000_000, part).spawn().unwrap());
        assert!(eventually(|| self.metric(0, "nbd_requests_total") >= requests_before + 20.0));
        client
    }

    /// Waits until each job has one request that makes no progress: each connection has bytes in
    /// this queue (0: not read by the server; 1: not acknowledged to it), and no further request is
    /// sent.
    fn wait_until_stalled(&self, queue: usize) {
        let waiting = || {
            let output = self.link.nodes[1].output(&["ss", "-Htn", "state", "established"]).unwrap();
            let bytes = output.lines().filter_map(|line| line.split_whitespace().nth(queue));
            bytes.filter(|bytes| *bytes != "0").count() as u64
        };
        let stalled = eventually(|| {
            let before = self.metric(0, "nbd_requests_total");
            let all = (0..5).all(|_| {
                std::thread::sleep(Duration::from_millis(100));
                waiting() == JOBS
            });
            all && self.metric(0, "nbd_requests_total") == before
        });
        assert!(stalled, "{}", self.agents[0].output());
    }

    fn end_client(&self, client: KillOnDrop) {
        let before = self.metric(0, UNANSWERED_AT_CLOSE);
        drop(client);
        let closed = eventually(|| self.metric(0, UNANSWERED_AT_CLOSE) == before + JOBS as f64);
        assert!(closed, "{}", self.agents[0].output());
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: numbers only; the process has not been waited for.
        unsafe { libc::kill(self.server.0.id() as libc::pid_t, signal) };
    }

    /// Ends all services after `requests` requests of both ends are written. Returns the spans, the
    /// aggregator's metrics, and the services' output.
    pub(crate) fn finish(self, requests: usize) -> (Vec<Value>, String, String) {
        let counts = || {
            ["CLIENT", "SERVER"].map(|kind| self.written().matches(&format!("\"kind\":\"{kind}\"")).count())
        };
        let complete = eventually(|| counts().iter().all(|count| *count >= requests));
        let metrics = get(address(&self.aggregator.output()), "/metrics");
        let NbdFleet { agents, aggregator, exporter, folder, .. } = self;
        let mut output = String::new();
        for service in agents.into_iter().chain([aggregator, exporter]) {
            let service_output = service.finish_without_error();
            output += &service_output;
        }
        assert!(complete, "{requests} of each wanted:\n{output}");
        println!("{output}");
        let spans = serde_json::from_slice(&fs::read(folder.path().join("spans.json")).unwrap()).unwrap();
        (spans, metrics, output)
    }

    /// Returns the metric families of an agent.
    pub(crate) fn families(&self, agent: usize) -> BTreeSet<String> {
        families(&get(address(&self.agents[agent].output()), "/metrics"))
    }

    /// Returns what the exporter has written so far.
    fn written(&self) -> String {
        fs::read_to_string(self.folder.path().join("spans.json.partial")).unwrap_or_default()
    }
}
