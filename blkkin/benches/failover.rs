//! Time until a consumer group notices a killed member, for the numbers in docs/kafka.md.
//!
//! Two exporters share a topic; one of them is killed. The measured time runs from the kill until
//! spans of each of its partitions are delivered again: `cargo bench -p blkkin --bench failover`.
//! It takes ten minutes, mostly waits for clusters with a session timeout of 45 s.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "it measures, fails by panicking, and prints its results"
)]

#[path = "../../bus/tests/support/mod.rs"]
mod broker;
#[path = "../tests/common/mod.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod common;
#[path = "../tests/exporting/mod.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod exporting;
#[path = "../tests/support/mod.rs"]
#[allow(dead_code, unused_imports, unused_macros, reason = "the tests use more of it")]
mod support;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{Settings, TRACES};
use rdkafka::Message;
use serde_json::Value;

use broker::Broker;
use broker::client::subscribe;
use exporting::{Writer, fragment};
use support::or_skip;

const PARTITIONS: u32 = 4;
/// The number of writers, each into one partition, so that every partition has some.
const WRITERS: u64 = 12;
const TIMES: usize = 3;
const PATIENCE: Duration = Duration::from_secs(120);
const QUICK: &str = "group.consumer.min.session.timeout.ms=6000\ngroup.consumer.session.timeout.ms=6000\n\
    group.consumer.min.heartbeat.interval.ms=1000\ngroup.consumer.heartbeat.interval.ms=1000\n";

/// The latest fragment of each writer that was written, and that was delivered.
#[derive(Default)]
struct Progress {
    written: HashMap<u64, u64>,
    delivered: HashMap<u64, u64>,
}

/// Writes and reads until the stop flag is set.
fn start_load(
    settings: &Settings,
    progress: &Arc<Mutex<Progress>>,
    stop: &Arc<AtomicBool>,
) -> [std::thread::JoinHandle<()>; 2] {
    let (into, out) = (settings.clone(), settings.clone());
    let (written, delivered) = (Arc::clone(progress), Arc::clone(progress));
    let (stop_write, stop_read) = (Arc::clone(stop), Arc::clone(stop));
    let write = std::thread::spawn(move || {
        let mut writers: Vec<_> = (0..WRITERS).map(|n| Writer::new(&into, n as u32)).collect();
        for n in 0.. {
            if stop_write.load(Relaxed) {
                return;
            }
            writers[(n % WRITERS) as usize].write(vec![fragment(n)]);
            written.lock().unwrap().written.insert(n % WRITERS, n);
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let read = std::thread::spawn(move || {
        let consumer = subscribe(&out, "shown", "shown");
        while !stop_read.load(Relaxed) {
            let Some(Ok(message)) = consumer.poll(Duration::from_millis(20)) else { continue };
            let spans: Vec<Value> = serde_json::from_slice(message.payload().unwrap()).unwrap();
            let mut progress = delivered.lock().unwrap();
            for span in spans {
                let trace = u128::from_str_radix(span["traceId"].as_str().unwrap(), 16).unwrap();
                let n = (trace as u64) - 1;
                let latest = progress.delivered.entry(n % WRITERS).or_default();
                *latest = n.max(*latest);
            }
        }
    });
    [write, read]
}

/// Waits until a fragment of each writer that was written after the call is delivered; returns the
/// time.
fn until_all_flow(progress: &Arc<Mutex<Progress>>) -> Duration {
    let begun = Instant::now();
    let before = progress.lock().unwrap().written.clone();
    loop {
        let all = |progress: &Progress| {
            (0..WRITERS).all(|writer| {
                let newest = before.get(&writer).copied().unwrap_or_default();
                progress.delivered.get(&writer).is_some_and(|delivered| *delivered > newest)
            })
        };
        if all(&progress.lock().unwrap()) {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < PATIENCE, "not delivered");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn measure(what: &str, broker: &str, set: &[&str], with_instance: bool) {
    let broker = Broker::start_with(broker).unwrap();
    let (settings, folder) = (broker.settings(), tempfile::tempdir().unwrap());
    settings.create_topic(TRACES, PARTITIONS, Some(1)).unwrap();
    settings.create_topic("shown", 1, Some(1)).unwrap();
    let to = format!("zipkin-kafka={}/shown?format=json", settings.brokers);
    let start = |name: &str| {
        let mut words = vec!["--to", to.as_str()];
        set.iter().for_each(|word| words.extend(["--set", *word]));
        if with_instance {
            words.extend(["--instance", name]);
        }
        exporting::start(&settings, folder.path(), &words)
    };
    let (progress, stop) = (Arc::new(Mutex::new(Progress::default())), Arc::new(AtomicBool::new(false)));
    let threads = start_load(&settings, &progress, &stop);
    let _stays = start("stays");
    let mut killed = start("killed");
    let mut times = Vec::new();
    for _ in 0..TIMES {
        // Each exporter has half of the partitions.
        std::thread::sleep(Duration::from_secs(15));
        until_all_flow(&progress);
        killed.kill();
        // With an instance name it restarts at once; without one it joins later, as a new member.
        let restarted = with_instance.then(|| start("killed"));
        times.push(until_all_flow(&progress));
        killed = restarted.unwrap_or_else(|| start("killed"));
    }
    stop.store(true, Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let times: Vec<_> = times.iter().map(|time| format!("{:.1} s", time.as_secs_f64())).collect();
    println!("{what}: {}", times.join(", "));
}

fn main() {
    drop(or_skip!(Broker::start()));
    let newer: &[&str] = &["group.protocol=consumer"];
    measure("classic, survivor", "", &[], false);
    measure("classic, it restarts under its name", "", &[], true);
    measure("KIP-848, the cluster's defaults, survivor", "", newer, false);
    measure("KIP-848, the cluster's defaults, it restarts under its name", "", newer, true);
    measure("KIP-848, the cluster sets 6 s, survivor", QUICK, newer, false);
    measure("KIP-848, the cluster sets 6 s, it restarts under its name", QUICK, newer, true);
}
