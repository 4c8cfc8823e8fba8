//! A live agent, a disk under load, and all other services killed meanwhile. The kernel's events
//! cannot be repeated, so they are accounted for by independent counts:
//!
//! 1. *fired = recorded + dropped* for each kind of record: the counts of the eBPF programs, of the
//!    reader, and of full rings.
//! 2. *recorded = in the topic*: a consumer of `blkkin.events` from its beginning finds as many of
//!    each kind.
//! 3. *in Zipkin = the traces of the join stage alone over the topic*, span by span.
//! 4. If nothing was dropped and no end was missed, *requests in fio's report = traces of its calls*.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use blkkin_aggregator::stage::join::{JoinStage, JoinStageConfig};
use blkkin_aggregator::stage::sampling::SamplingRules;
use blkkin_bus::kafka::{EVENTS, Settings};
use blkkin_wire::batch::{RecordStats, SourceStats};
use blkkin_wire::event::LayerEvent;
use blkkin_wire::fragment::Incarnation;
use blkkin_wire::ids::Pid;
use blkkin_wire::stage::{InputRecord, LogTime, Stage};
use blkkin_wire::v1;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{Message, Offset, TopicPartitionList};

use super::node_recordings::NODES;
use super::pipeline::{PARTITIONS, Pipeline, Victim};
use super::rng::Rng;
use super::span_multiset::{SpanMultiset, assert_in_zipkin};
use crate::broker::Broker;
use crate::broker::client::client;
use crate::support::disk::Disk;
use crate::support::service::Service;
use crate::support::zipkin::Zipkin;
use crate::support::{needs, or_skip};

/// Services that are killed. The agent is not: the number of events that it had in memory cannot be
/// known.
const VICTIMS: [Victim; 3] = [Victim::Aggregator, Victim::Exporter, Victim::Broker];
/// Requests a second.
const RATE: u32 = 300;
const SECONDS: u64 = 30;
/// The time without records of a node in the log after which its open traces are emitted as
/// incomplete.
const IDLE_AFTER: &str = "6s";
const IDLE_AFTER_MS: u64 = 6_000;
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Runs one round for each seed.
pub(crate) fn rounds(seeds: impl Iterator<Item = u64>) {
    needs!("fio", "losetup");
    let mut zipkin = or_skip!(Zipkin::with_capacity(200_000));
    for seed in seeds {
        let broker = or_skip!(Broker::start());
        let disk = or_skip!(Disk::raw(64 << 20));
        round(&zipkin, broker, &disk, seed);
        zipkin.kill();
        zipkin.up();
    }
}

fn round(zipkin: &Zipkin, broker: Broker, disk: &Disk, seed: u64) {
    let started = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let mut pipeline = Pipeline::start(broker, folder.path(), &zipkin.url(), IDLE_AFTER, 0);
    let brokers = pipeline.settings().brokers;
    let args = ["agent", "--brokers", &brokers, "--device", disk.name(), "--metrics", "off"];
    let agent = Service::start(folder.path(), "agent", &args);
    agent.wait_for_output("tracing; events go to", TIME_LIMIT);
    let mut load = fio(disk.node(), &folder.path().join("fio.json"), SECONDS);
    let killed =
        pipeline.kill_repeatedly(&mut Rng::new(seed), &VICTIMS, |_| load.try_wait().unwrap().is_some());
    println!("live, seed {seed}: killed: {}", killed.join(", "));
    assert!(load.wait().unwrap().success());
    let output = agent.finish_without_error();
    let topic = wait_for_complete_topic(&mut pipeline, || {
        let config = JoinStageConfig { idle_after: IDLE_AFTER_MS, ..JoinStageConfig::new(PARTITIONS) };
        (config, SamplingRules::default())
    });
    assert_in_zipkin(zipkin, &topic.expected, || format!("seed {seed}\n{output}\n{}", pipeline.output()));
    let stats = topic.balance(&output);
    let writes = requests(&folder.path().join("fio.json"));
    let calls = topic.calls;
    if stats.lost() == 0 {
        assert_eq!(calls, writes, "{stats:#?}");
    }
    println!(
        "live, seed {seed}: fio wrote {writes} times: {calls} calls recorded, {} records lost; {} events in the topic, {} spans in \
         Zipkin, as expected ({} s)",
        stats.lost(),
        topic.events,
        topic.expected.total(),
        started.elapsed().as_secs()
    );
    pipeline.end();
}

/// Waits until no trace is open and everything is exported, and returns the topic, joined and
/// sampled by these rules.
pub(super) fn wait_for_complete_topic(
    pipeline: &mut Pipeline,
    rules: impl Fn() -> (JoinStageConfig, SamplingRules),
) -> Topic {
    pipeline.settle();
    let started = Instant::now();
    loop {
        pipeline.settle();
        let (config, sampling) = rules();
        // A trace without its end is closed then.
        let limit = TIME_LIMIT + Duration::from_millis(config.idle_after);
        let topic = Topic::of(&pipeline.settings(), (config, sampling));
        if topic.pending == 0 {
            // Its last records may have come since.
            pipeline.settle();
            return topic;
        }
        assert!(started.elapsed() < limit, "{} events are pending:\n{}", topic.pending, pipeline.output());
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Starts random writes at [`RATE`], for `seconds` seconds.
pub(super) fn fio(node: &Path, report: &Path, seconds: u64) -> Child {
    let args = [
        "--name=soak".to_owned(),
        format!("--filename={}", node.display()),
        "--rw=randwrite".to_owned(),
        "--bs=4k".to_owned(),
        "--direct=1".to_owned(),
        "--ioengine=psync".to_owned(),
        // A forked job would outlive a killed fio.
        "--thread".to_owned(),
        "--time_based".to_owned(),
        format!("--runtime={seconds}"),
        format!("--rate_iops={RATE}"),
        "--allow_file_create=0".to_owned(),
        "--output-format=json".to_owned(),
        "--eta=never".to_owned(),
        format!("--output={}", report.display()),
    ];
    Command::new("fio").args(args).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

/// Returns the number of writes in fio's report.
pub(super) fn requests(report: &Path) -> u64 {
    let text = std::fs::read_to_string(report).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    json["jobs"][0]["write"]["total_ios"].as_u64().unwrap()
}

/// The live agent's events in the topic, and the spans that the join stage alone makes of them.
#[derive(Default)]
pub(super) struct Topic {
    pub(super) expected: SpanMultiset,
    /// Statistics of the last batch of the only source.
    stats: Option<SourceStats>,
    /// Calls, bios, requests, commits.
    kinds: [u64; 4],
    pub(super) events: u64,
    pub(super) calls: u64,
    /// Spans of each instrumented process.
    pub(super) daemon_spans: HashMap<Pid, u64>,
    pending: u64,
}

impl Topic {
    fn of(settings: &Settings, (config, rules): (JoinStageConfig, SamplingRules)) -> Topic {
        let mut topic = Topic { expected: SpanMultiset::sampled_by(rules), ..Topic::default() };
        let mut sequences = HashMap::new();
        for partition in 0..PARTITIONS as i32 {
            let mut stage = JoinStage::new(Incarnation(1), config.clone());
            each_record(settings, partition, |at, bytes| {
                if (1..=NODES as u128).contains(&v1::peek(bytes).unwrap().source.node.0) {
                    return;
                }
                stage.apply(InputRecord { at: Some(LogTime(at)), bytes }, &mut topic.expected);
                let batch = v1::decode(bytes).unwrap().batch;
                if batch.source.is_none() {
                    return;
                }
                let next = sequences.entry(batch.source).or_insert(0);
                assert_eq!(batch.sequence, *next, "the agent was not killed, so each batch occurs once");
                *next += 1;
                batch.events.iter().for_each(|event| topic.count(event));
                topic.stats = Some(batch.stats);
            });
            topic.pending += stage.pending();
        }
        assert_eq!(sequences.len(), 1);
        topic
    }

    fn count(&mut self, event: &LayerEvent) {
        let kinds: &[usize] = match event {
            LayerEvent::Syscall(_) => &[0],
            LayerEvent::Bio(_) => &[1],
            LayerEvent::Request(_) => &[2],
            LayerEvent::Pair(_) => &[1, 2],
            LayerEvent::Commit(_) => &[3],
            _ => &[],
        };
        kinds.iter().for_each(|kind| self.kinds[*kind] += 1);
        self.events += 1;
        match event {
            LayerEvent::Syscall(call) => self.calls += u64::from(call.call.name() == "pwrite64"),
            LayerEvent::DaemonSpan(span) => *self.daemon_spans.entry(span.pid).or_default() += 1,
            _ => {}
        }
    }

    pub(super) fn balance(&self, output: &str) -> &SourceStats {
        let stats = self.stats.as_ref().unwrap();
        let SourceStats { calls, bios, requests, commits, .. } = stats;
        for (counts, in_topic) in [calls, bios, requests, commits].into_iter().zip(self.kinds) {
            let RecordStats { recorded, .. } = *counts;
            assert!(counts.balances(), "{stats:#?}\n{output}");
            assert_eq!(recorded, in_topic, "{stats:#?}\n{output}");
        }
        stats
    }
}

/// Passes each record of a partition to `each`, with its log time.
fn each_record(settings: &Settings, partition: i32, mut each: impl FnMut(u64, &[u8])) {
    let consumer: BaseConsumer = client(settings, "test-events").create().unwrap();
    let (_, end) = consumer.fetch_watermarks(EVENTS, partition, TIME_LIMIT).unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(EVENTS, partition, Offset::Beginning).unwrap();
    consumer.assign(&list).unwrap();
    let (mut records, mut last) = (0, Instant::now());
    while records < end {
        assert!(last.elapsed() < TIME_LIMIT, "{records} of {end} records of partition {partition}");
        let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) else { continue };
        let at = message.timestamp().to_millis().unwrap() as u64;
        each(at, message.payload().unwrap_or_default());
        (records, last) = (records + 1, Instant::now());
    }
}
