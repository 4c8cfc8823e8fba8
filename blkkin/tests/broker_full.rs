//! A broker whose disk is full: it takes nothing, whoever sends waits, and nothing is lost once there is room.
//!
//! Kafka gives up a folder that cannot be written, and a broker that has no other ends itself. So what a producer meets is a
//! broker that refuses, then one that is away.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

#[path = "../../bus/tests/support/mod.rs"]
mod broker;
mod common;
mod support;

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{EVENTS, EventProducer, Record, Sent, Settings};
use blkkin_wire::ids::NodeId;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Message};

use broker::Broker;
use support::live::eventually;
use support::{needs, or_skip};

const RECORDS: u64 = 200;
const BYTES: usize = 100_000;
/// What is left for the broker: a tenth of what is sent.
const ROOM: u64 = 2 << 20;
const PATIENCE: Duration = Duration::from_secs(120);

/// A file system in memory of 64 MiB; unmounted with the test.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf) -> Result<Small, String> {
        fs::create_dir(&at).map_err(|error| error.to_string())?;
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"]).arg(&at).output();
        let mounted = mounted.map_err(|error| error.to_string())?;
        match mounted.status.success() {
            true => Ok(Small(at)),
            false => Err(format!("no tmpfs: {}", String::from_utf8_lossy(&mounted.stderr).trim())),
        }
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Leaves so much room.
    fn fill(&self, room: u64) {
        let said =
            Command::new("df").args(["--output=avail", "--block-size=1"]).arg(&self.0).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let free: u64 = said.lines().nth(1).unwrap().trim().parse().unwrap();
        fs::write(self.filler(), vec![0; (free - room) as usize]).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Whoever still writes there is killed by now, or soon: it goes when they do.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Bytes that nothing makes shorter, others for each number.
fn noise(n: u64) -> Vec<u8> {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let word = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    };
    (0..BYTES / 8).flat_map(word).collect()
}

/// How often each record is there.
fn found(settings: &Settings) -> HashMap<Vec<u8>, u32> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &settings.brokers)
        .set("group.id", "all")
        .set("auto.offset.reset", "earliest");
    let consumer: BaseConsumer = config.create().unwrap();
    consumer.subscribe(&[EVENTS]).unwrap();
    let (mut found, begun) = (HashMap::<_, u32>::new(), Instant::now());
    while found.values().sum::<u32>() < RECORDS as u32 && begun.elapsed() < PATIENCE {
        if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
            *found.entry(message.payload().unwrap().to_vec()).or_default() += 1;
        }
    }
    found
}

#[test]
fn a_broker_without_room_is_waited_for_and_nothing_is_lost() {
    needs!("mount");
    let folder = tempfile::tempdir().unwrap();
    let small = or_skip!(Small::mount(folder.path().join("small")));
    let mut broker =
        or_skip!(Broker::start_in(tempfile::tempdir().unwrap(), &small.0.join("data"), None, ""));
    let mut settings = broker.settings();
    settings.create_topic(EVENTS, 1, Some(1)).unwrap();
    // Much less than what is sent: who sends must wait.
    settings.queue_bytes_max = 2 << 20;
    let producer = EventProducer::new(&settings, NodeId(1)).unwrap();
    small.fill(ROOM);
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            for n in 0..RECORDS {
                let record = Record { bytes: noise(n), events: 1 };
                assert_eq!(producer.send(record, || false), Ok(Sent::Queued));
            }
        });
        assert!(eventually(|| !broker.is_up() || broker.log().contains("No space left")), "{}", broker.log());
        assert!(eventually(|| producer.stats().waiting() > 0));
        let stuck = producer.stats();
        println!("{stuck:?}; up: {}", broker.is_up());
        assert!(stuck.accepted < RECORDS && stuck.failed == 0, "{stuck:?}");
        fs::remove_file(small.filler()).unwrap();
        broker.kill();
        broker.up();
        sending.join().unwrap();
    });
    let deliveries = producer.flush(PATIENCE);
    println!("{deliveries:?}");
    assert_eq!((deliveries.delivered, deliveries.failed, deliveries.waiting()), (RECORDS, 0, 0));
    assert!(deliveries.waited_ns > 0, "who sends has waited");
    let found = found(&settings);
    assert_eq!(found.len() as u64, RECORDS);
    assert!((0..RECORDS).all(|n| found.get(&noise(n)) == Some(&1)), "each once");
}
