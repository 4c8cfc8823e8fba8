//! A live agent, a disk under load, and everybody behind the agent killed meanwhile. What the kernel saw cannot be asked for
//! again, so it is accounted for instead, by different hands:
//!
//! 1. *fired = recorded + dropped*, of each kind of record: what the programs in the kernel counted, what was read, what had no room.
//! 2. *recorded = in the topic*: who reads `blkkin.events` from its beginning finds as many of each kind.
//! 3. *in Zipkin = what the state machine alone makes of the topic*, span by span.
//! 4. Where nothing was dropped and no end was missed, *fio's own account = traces of its calls*.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use blkkin_aggregator::stage::join::{JoinStage, JoinStageConfig};
use blkkin_aggregator::stage::{LogTime, Record};
use blkkin_bus::kafka::{EVENTS, Settings};
use blkkin_wire::batch::{RecordStats, SourceStats};
use blkkin_wire::event::LayerEvent;
use blkkin_wire::fragment::Incarnation;
use blkkin_wire::v1;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use super::books::{SpanBooks, assert_in_zipkin};
use super::chance::Chance;
use super::pipeline::{PARTITIONS, Pipeline, Victim};
use crate::broker::Broker;
use crate::support::disk::Disk;
use crate::support::service::Service;
use crate::support::{needs, or_skip};
use crate::zipkin::Zipkin;

/// Who is killed: the agent is not, as nobody can tell what it had in hand.
const VICTIMS: [Victim; 3] = [Victim::Aggregator, Victim::Exporter, Victim::Broker];
/// Requests a second.
const RATE: u32 = 300;
const SECONDS: u32 = 30;
/// A trace whose end was never seen is given out when the log has held nothing of its node for so long.
const IDLE_AFTER: &str = "6s";
const IDLE_AFTER_MS: u64 = 6_000;
const PATIENCE: Duration = Duration::from_secs(120);

/// One round for each seed.
pub(crate) fn rounds(seeds: impl Iterator<Item = u64>) {
    needs!("fio", "losetup");
    let mut zipkin = or_skip!(Zipkin::holding(200_000));
    for seed in seeds {
        let broker = or_skip!(Broker::start());
        let disk = or_skip!(Disk::raw(64 << 20));
        round(&zipkin, broker, &disk, seed);
        zipkin.kill();
        zipkin.up();
    }
}

fn round(zipkin: &Zipkin, broker: Broker, disk: &Disk, seed: u64) {
    let begun = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let mut pipeline = Pipeline::start(broker, folder.path(), &zipkin.url(), IDLE_AFTER, 0);
    let brokers = pipeline.settings().brokers;
    let words = ["agent", "--brokers", &brokers, "--device", disk.name(), "--metrics", "off"];
    let agent = Service::start(folder.path(), "agent", &words);
    agent.says("tracing; events go to", PATIENCE);
    let mut load = fio(disk.node(), &folder.path().join("fio.json"));
    let killed = pipeline.torment(&mut Chance::new(seed), &VICTIMS, |_| load.try_wait().unwrap().is_some());
    println!("live, seed {seed}: killed: {}", killed.join(", "));
    assert!(load.wait().unwrap().success());
    let (status, said) = agent.finish();
    assert_eq!(status, Some(0), "{said}");
    let topic = whole_topic(&mut pipeline);
    assert_in_zipkin(zipkin, &topic.meant, || format!("seed {seed}\n{said}\n{}", pipeline.said()));
    let accounts = topic.balance(&said);
    let wrote = requests(&folder.path().join("fio.json"));
    let calls = topic.calls;
    if accounts.lost() == 0 {
        assert_eq!(calls, wrote, "{accounts:#?}");
    }
    println!(
        "live, seed {seed}: fio wrote {wrote} times: {calls} calls recorded, {} records lost; {} events in the topic, {} spans in \
         Zipkin, as meant ({} s)",
        accounts.lost(),
        topic.events,
        topic.meant.total(),
        begun.elapsed().as_secs()
    );
    pipeline.end();
}

/// Once nothing is open any more, and all of it is exported.
fn whole_topic(pipeline: &mut Pipeline) -> Topic {
    let begun = Instant::now();
    loop {
        pipeline.settle();
        let topic = Topic::of(&pipeline.settings());
        if topic.pending == 0 {
            return topic;
        }
        assert!(begun.elapsed() < PATIENCE, "{} events are pending:\n{}", topic.pending, pipeline.said());
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn fio(node: &Path, account: &Path) -> Child {
    let words = [
        "--name=soak".to_owned(),
        format!("--filename={}", node.display()),
        "--rw=randwrite".to_owned(),
        "--bs=4k".to_owned(),
        "--direct=1".to_owned(),
        "--ioengine=psync".to_owned(),
        "--time_based".to_owned(),
        format!("--runtime={SECONDS}"),
        format!("--rate_iops={RATE}"),
        "--allow_file_create=0".to_owned(),
        "--output-format=json".to_owned(),
        "--eta=never".to_owned(),
        format!("--output={}", account.display()),
    ];
    Command::new("fio").args(words).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

/// How often it wrote, by its own account.
fn requests(account: &Path) -> u64 {
    let text = std::fs::read_to_string(account).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
    json["jobs"][0]["write"]["total_ios"].as_u64().unwrap()
}

/// What lies in the topic of events, and what the state machine alone makes of it.
#[derive(Default)]
struct Topic {
    meant: SpanBooks,
    /// Of the last batch of the one source.
    accounts: Option<SourceStats>,
    /// Calls, bios, requests, commits.
    kinds: [u64; 4],
    events: u64,
    calls: u64,
    pending: u64,
}

impl Topic {
    fn of(settings: &Settings) -> Topic {
        let mut topic = Topic::default();
        let mut sequences = HashMap::new();
        let config = JoinStageConfig { idle_after: IDLE_AFTER_MS, ..JoinStageConfig::new(PARTITIONS) };
        for partition in 0..PARTITIONS as i32 {
            let mut stage = JoinStage::begin(Incarnation(1), config.clone());
            for (at, bytes) in records(settings, partition) {
                stage.apply(Record { at: Some(LogTime(at)), bytes: &bytes }, &mut topic.meant);
                let batch = v1::decode(&bytes).unwrap().batch;
                if batch.source.is_none() {
                    continue;
                }
                let next = sequences.entry(batch.source).or_insert(0);
                assert_eq!(batch.sequence, *next, "one agent, that was not killed: each batch once");
                *next += 1;
                batch.events.iter().for_each(|event| topic.count(event));
                topic.accounts = Some(batch.stats);
            }
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
        if let LayerEvent::Syscall(call) = event {
            self.calls += u64::from(call.call.name() == "pwrite64");
        }
    }

    fn balance(&self, said: &str) -> &SourceStats {
        let accounts = self.accounts.as_ref().unwrap();
        let SourceStats { calls, bios, requests, commits, .. } = accounts;
        for (account, in_topic) in [calls, bios, requests, commits].into_iter().zip(self.kinds) {
            let RecordStats { recorded, .. } = *account;
            assert!(account.balances(), "{accounts:#?}\n{said}");
            assert_eq!(recorded, in_topic, "{accounts:#?}\n{said}");
        }
        accounts
    }
}

/// All records of a partition, each with the time that the log gave it.
fn records(settings: &Settings, partition: i32) -> Vec<(u64, Vec<u8>)> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &settings.brokers).set("group.id", "test-events");
    let consumer: BaseConsumer = config.create().unwrap();
    let (_, end) = consumer.fetch_watermarks(EVENTS, partition, PATIENCE).unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(EVENTS, partition, Offset::Beginning).unwrap();
    consumer.assign(&list).unwrap();
    let (mut records, begun) = (Vec::new(), Instant::now());
    while (records.len() as i64) < end {
        assert!(begun.elapsed() < PATIENCE, "{} of {end} records of partition {partition}", records.len());
        let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) else { continue };
        let at = message.timestamp().to_millis().unwrap() as u64;
        records.push((at, message.payload().unwrap_or_default().to_vec()));
    }
    records
}
