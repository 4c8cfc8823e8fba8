//! A broker with a full disk: it accepts nothing, producers wait, and nothing is lost once there is
//! space again.
//!
//! *Input*: a real broker on a small tmpfs that is filled while a producer sends. *Independent
//! count*: the records' own contents, each of which must occur exactly once in the topic.
//!
//! Kafka gives up a folder that it cannot write, and a broker without another folder ends. So a
//! producer first has a broker that refuses records, then one that is unreachable.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{EVENTS, EventProducer, Record, Sent, Settings};
use blkkin_wire::ids::NodeId;
use rdkafka::Message;

use crate::broker::Broker;
use crate::broker::client::subscribe;
use crate::support::live::eventually;
use crate::support::tmpfs::Tmpfs;
use crate::support::{needs, or_skip};

const RECORDS: u64 = 200;
const BYTES: usize = 100_000;
/// Free space left for the broker: a tenth of what is sent.
const FREE_BYTES: u64 = 2 << 20;
const TIME_LIMIT: Duration = Duration::from_secs(120);

fn filler(disk: &Tmpfs) -> PathBuf {
    disk.path().join("filler")
}

/// Fills the file system up to this free space.
fn fill(disk: &Tmpfs, free_bytes: u64) {
    let output =
        Command::new("df").args(["--output=avail", "--block-size=1"]).arg(disk.path()).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let free: u64 = output.lines().nth(1).unwrap().trim().parse().unwrap();
    fs::write(filler(disk), vec![0; (free - free_bytes) as usize]).unwrap();
}

/// Returns incompressible bytes, different for each number.
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

/// Returns the number of occurrences of each record.
fn found(settings: &Settings) -> HashMap<Vec<u8>, u32> {
    let consumer = subscribe(settings, "all", EVENTS);
    let (mut found, started) = (HashMap::<_, u32>::new(), Instant::now());
    while found.values().sum::<u32>() < RECORDS as u32 && started.elapsed() < TIME_LIMIT {
        if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
            *found.entry(message.payload().unwrap().to_vec()).or_default() += 1;
        }
    }
    found
}

#[test]
fn producers_wait_for_a_broker_without_space_and_nothing_is_lost() {
    needs!("mount");
    let folder = tempfile::tempdir().unwrap();
    let small = or_skip!(Tmpfs::mount(folder.path().join("small"), "64m"));
    let mut broker =
        or_skip!(Broker::start_in(tempfile::tempdir().unwrap(), &small.path().join("data"), None, ""));
    let mut settings = broker.settings();
    settings.create_topic(EVENTS, 1, Some(1)).unwrap();
    // Much less than what is sent, so that the producer must wait.
    settings.queue_bytes_max = 2 << 20;
    let producer = EventProducer::new(&settings, NodeId(1)).unwrap();
    fill(&small, FREE_BYTES);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
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
        fs::remove_file(filler(&small)).unwrap();
        broker.kill();
        broker.up();
        sender.join().unwrap();
    });
    let deliveries = producer.flush(TIME_LIMIT);
    println!("{deliveries:?}");
    assert_eq!((deliveries.delivered, deliveries.failed, deliveries.waiting()), (RECORDS, 0, 0));
    assert!(deliveries.waited_ns > 0, "the producer has waited");
    let found = found(&settings);
    assert_eq!(found.len() as u64, RECORDS);
    assert!((0..RECORDS).all(|n| found.get(&noise(n)) == Some(&1)), "each once");
}
