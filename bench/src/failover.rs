//! `failover`: time until a killed member of a consumer group is replaced.
//!
//! ```text
//! a writer to each partition → Kafka → two exporters → Kafka → reader
//! ```
//!
//! One of two exporters is killed by SIGKILL. *Measured*: the time from then on until a fragment of
//! each partition that was written later is delivered. *Invariant*: before a kill each exporter has
//! half of the partitions, by its own metrics. The cases need clusters with different settings, so
//! they run one after the other, each with its own broker.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use blkkin_bus::kafka::{Settings, SingleProducer, TRACES};
use blkkin_wire::fragment::{FragmentBatch, FragmentOrigin, Incarnation, StageId, TraceFragment};
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::span::Span;
use blkkin_wire::v1;
use rdkafka::Message as _;
use serde_json::Value;

use crate::Setting;
use crate::agent::metrics;
use crate::broker::Broker;
use crate::broker::child::KillOnDrop;
use crate::broker::client::subscribe;
use crate::frame::number::number;
use crate::frame::{BenchReport, Figure, RoundPolicy, Rounds};

const PARTITIONS: f64 = 4.0;
/// The number of writers, each into one partition, so that every partition has some.
const WRITERS: usize = 12;
const WRITE_INTERVAL: Duration = Duration::from_millis(5);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 0, min_rounds: 3, max_rounds: 3, time_limit: Duration::from_secs(600) };
/// Time limit until the partitions are assigned, and until they are delivered.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Topic that the exporters deliver to.
const SHOWN: &str = "shown";

const SHORT_TIMEOUT: &str = "group.consumer.min.session.timeout.ms=6000\ngroup.consumer.session.timeout.ms=6000\n\
    group.consumer.min.heartbeat.interval.ms=1000\ngroup.consumer.heartbeat.interval.ms=1000\n";
/// Protocol of the group, options of the exporters, and settings of the cluster.
const PROTOCOLS: [(&str, &[&str], &str); 3] = [
    ("classic, 6 s (blkkin's default)", &[], ""),
    ("KIP-848, the cluster's own defaults (45 s)", &["--set", "group.protocol=consumer"], ""),
    ("KIP-848, the cluster set to 6 s", &["--set", "group.protocol=consumer"], SHORT_TIMEOUT),
];

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let mut figures = Vec::new();
    for (protocol, options, cluster) in PROTOCOLS {
        for (is_restarted, case) in
            [(false, "the other one takes over"), (true, "restarted at once under its name")]
        {
            let times = measure(setting, options, cluster, is_restarted)?;
            let each: Vec<String> = times.iter().copied().map(number).collect();
            figures.push(
                Figure::of(format!("{protocol}: {case}"), &times.into_iter().collect::<Rounds>(), "s")
                    .note(each.join(", ")),
            );
        }
    }
    let how = format!(
        "Two exporters share {PARTITIONS} partitions, each with half of them. One is killed by SIGKILL. The time ends when each partition \
         has delivered a trace that was written after the kill. Medians; the last column has each round. One broker on the same CPUs."
    );
    Ok(BenchReport { how, figures, ..BenchReport::default() })
}

/// Returns the seconds of each round.
fn measure(setting: &Setting, options: &[&str], cluster: &str, is_restarted: bool) -> Result<Vec<f64>> {
    let broker = Broker::start_with(cluster).map_err(anyhow::Error::msg)?;
    let settings = broker.settings();
    settings.create_topic(TRACES, PARTITIONS as u32, Some(1))?;
    settings.create_topic(SHOWN, 1, Some(1))?;
    let start = |name: &str| {
        let instance: &[&str] = if is_restarted { &["--instance", name] } else { &[] };
        Exporter::start(setting, &settings, name, &[options, instance].concat())
    };
    let progress = Progress::default();
    std::thread::scope(|scope| {
        let load = [scope.spawn(|| progress.write(&settings)), scope.spawn(|| progress.read(&settings))];
        let times = rounds(setting, is_restarted, &progress, start);
        progress.stop.store(true, Relaxed);
        for thread in load {
            thread.join().ok().context("a thread of the load panicked")??;
        }
        times
    })
}

/// Kills an exporter in each round, and returns the seconds until all partitions are delivered again.
fn rounds(
    setting: &Setting,
    is_restarted: bool,
    progress: &Progress,
    start: impl Fn(&str) -> Result<Exporter>,
) -> Result<Vec<f64>> {
    let remaining = start("remaining")?;
    let mut killed = Some(start("killed")?);
    let round = |()| {
        let exporter = killed.take().context("invariant: each round leaves an exporter to kill")?;
        wait("each exporter has half of the partitions", || {
            [&remaining, &exporter].iter().all(|one| one.partitions() == Some(PARTITIONS / 2.0))
        })?;
        progress.wait_until_delivered()?;
        drop(exporter);
        killed = is_restarted.then(|| start("killed")).transpose()?;
        let time = progress.wait_until_delivered()?;
        // Without a name it joins as a new member, after the measurement.
        killed = Some(killed.take().map_or_else(|| start("killed"), Ok)?);
        Ok(time.as_secs_f64())
    };
    let rounds = POLICY.quick(setting.extent.is_quick()).run(&[()], round, |_| false)?;
    Ok(rounds.concat())
}

/// Polls until the condition is true, and returns the time.
fn wait(condition: &str, is_true: impl Fn() -> bool) -> Result<Duration> {
    let started = Instant::now();
    while !is_true() {
        if started.elapsed() > TIMEOUT {
            bail!("not within {} s: {condition}", TIMEOUT.as_secs());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(started.elapsed())
}

/// Running exporter, killed on drop.
struct Exporter {
    _process: KillOnDrop,
    metrics: String,
}

impl Exporter {
    fn start(setting: &Setting, settings: &Settings, name: &str, options: &[&str]) -> Result<Exporter> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let metrics = format!("127.0.0.1:{port}");
        let to = format!("zipkin-kafka={}/{SHOWN}?format=json", settings.brokers);
        let log = File::create(setting.folder.join(Path::new("failover").with_extension(name)))?;
        let mut command = Command::new(&setting.blkkin);
        command.args(["exporter", "--brokers", &settings.brokers, "--metrics", &metrics, "--to", &to]);
        command.args(options).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Ok(Exporter { _process: KillOnDrop(command.spawn().context("cannot start blkkin")?), metrics })
    }

    /// Returns the number of its partitions, some seconds ago; `None` before it is known.
    fn partitions(&self) -> Option<f64> {
        let text = metrics::get_as(&self.metrics, "/metrics", "*/*").ok()?;
        let line = text.lines().find(|line| line.starts_with("blkkin_exporter_partitions{"))?;
        line.rsplit_once(' ')?.1.parse().ok()
    }
}

/// Progress of the load: fragments have the numbers 1, 2, … in the order of their writing.
#[derive(Default)]
struct Progress {
    written: AtomicU64,
    /// Newest delivered fragment of each writer.
    delivered: [AtomicU64; WRITERS],
    stop: AtomicBool,
}

impl Progress {
    /// Waits until each writer has a delivered fragment that was written after the call.
    fn wait_until_delivered(&self) -> Result<Duration> {
        let newest = self.written.load(Relaxed);
        let is_delivered = || self.delivered.iter().all(|delivered| delivered.load(Relaxed) > newest);
        wait("each partition is delivered", is_delivered)
    }

    /// Writes fragments of one span, the writers in turns. A writer has its own key, so all its
    /// records are in one partition.
    fn write(&self, settings: &Settings) -> Result<()> {
        let producers: Vec<SingleProducer> =
            (0..WRITERS).map(|_| SingleProducer::new(settings, TRACES)).collect::<Result<_, _>>()?;
        for n in 1.. {
            if self.stop.load(Relaxed) {
                break;
            }
            let writer = n as usize % WRITERS;
            let (stage, incarnation) = (StageId::Assemble, Incarnation(0x5eed));
            let origin = FragmentOrigin { stage, partition: writer as u32, incarnation };
            let trace = TraceId(1 << 64 | u128::from(n));
            let span = Span { name: "pwrite".into(), service: "ext4".into(), ..Span::bare(trace, SpanId(n)) };
            let fragments = vec![TraceFragment::whole(trace, vec![span])];
            let batch = FragmentBatch { origin, first: (n - 1) / WRITERS as u64, fragments };
            let (key, record) = ([writer as u8], v1::encode_fragments(&batch));
            producers[writer].send(&key, &[], Some(&record)).context("a fragment cannot be written")?;
            self.written.store(n, Relaxed);
            std::thread::sleep(WRITE_INTERVAL);
        }
        Ok(())
    }

    /// Reads the delivered spans.
    fn read(&self, settings: &Settings) -> Result<()> {
        let consumer = subscribe(settings, SHOWN, SHOWN);
        while !self.stop.load(Relaxed) {
            let Some(Ok(message)) = consumer.poll(Duration::from_millis(20)) else { continue };
            let spans: Vec<Value> = serde_json::from_slice(message.payload().unwrap_or_default())?;
            for span in spans {
                let trace = span["traceId"].as_str().context("a span has no trace id")?;
                let n = u128::from_str_radix(trace, 16)? as u64;
                self.delivered[n as usize % WRITERS].fetch_max(n, Relaxed);
            }
        }
        Ok(())
    }
}
