//! Soak test of the whole pipeline: three agents replay recorded events over two aggregators and
//! twelve partitions, and two exporters of one group deliver to a real Zipkin.
//!
//! *Input*: recorded events, sent once without faults, and once with SIGKILL for an agent, an
//! aggregator, an exporter and the broker at random moments. Zipkin must have the same multiset of
//! spans both times, and the one that the state machine alone computes from these events: no span
//! is lost or duplicated. The same holds after Zipkin was killed and the exporters replayed.
//!
//! `cargo xtask soak` runs this with larger numbers: see [`SoakConfig`]. `cargo xtask soak --endure 1h` runs
//! [`soaking::endurance`] instead.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::broker::Broker;
use crate::soaking::node_recordings::NodeRecordings;
use crate::soaking::pipeline::{PARTITIONS, Pipeline, Victim};
use crate::soaking::rng::Rng;
use crate::soaking::span_multiset::SpanMultiset;
use crate::soaking::{endurance, live, span_multiset};
use crate::support::or_skip;
use crate::support::stage_summary::summary_counts;
use crate::support::traces;
use crate::support::traces::TraceReader;
use crate::support::zipkin::Zipkin;

/// Idle timeout that is never reached, because recordings mark their own end.
const NEVER_IDLE: &str = "10m";
/// Maximum time to read a topic.
const TIMEOUT: Duration = Duration::from_secs(180);
const VICTIMS: [Victim; 4] = [Victim::Agent, Victim::Aggregator, Victim::Exporter, Victim::Broker];

/// Rounds with a disk and a tracer, only in `cargo xtask soak`.
const LIVE_ROUNDS: u64 = 2;

/// Size of a soak test.
struct SoakConfig {
    /// Recorded events of a round (BLKKIN_SOAK_EVENTS).
    events: u64,
    /// Rounds with kills (BLKKIN_SOAK_ROUNDS); further rounds follow until the time is over
    /// (BLKKIN_SOAK_SECONDS).
    rounds: u32,
    time: Duration,
    /// Seed of the first round, which each further round increments (BLKKIN_SOAK_SEED).
    seed: u64,
    /// Events per second in rounds with kills: a round takes at least `events / rate` seconds.
    rate: u32,
    /// Live rounds in addition (BLKKIN_SOAK_ROUNDS is set).
    soak: bool,
}

impl SoakConfig {
    fn from_environment() -> SoakConfig {
        let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
        let events = number("BLKKIN_SOAK_EVENTS").unwrap_or(40_000);
        SoakConfig {
            events,
            rounds: number("BLKKIN_SOAK_ROUNDS").unwrap_or(1) as u32,
            time: Duration::from_secs(number("BLKKIN_SOAK_SECONDS").unwrap_or(0)),
            seed: number("BLKKIN_SOAK_SEED").unwrap_or_else(|| std::process::id().into()),
            rate: (events / 20).clamp(5_000, 20_000) as u32,
            soak: number("BLKKIN_SOAK_ROUNDS").is_some(),
        }
    }
}

/// State that all rounds share.
struct Soak {
    zipkin: Zipkin,
    recordings_of_nodes: NodeRecordings,
    expected_spans: SpanMultiset,
    folder: tempfile::TempDir,
}

impl Soak {
    /// Creates recordings for one round, because a recording contains its replay position.
    fn recordings(&self, round: &str) -> (PathBuf, Vec<PathBuf>) {
        let folder = self.folder.path().join(round);
        std::fs::create_dir(&folder).unwrap();
        let recordings = self.recordings_of_nodes.record(&folder);
        (folder, recordings)
    }

    fn assert_all_in_zipkin(&self, pipeline: &Pipeline, what: &str) -> SpanMultiset {
        span_multiset::assert_in_zipkin(&self.zipkin, &self.expected_spans, || {
            format!("{what}\n{}", pipeline.output())
        })
    }

    /// Runs a round in which only Zipkin is killed, at the end.
    fn run_without_kills(&mut self, broker: Broker) -> SpanMultiset {
        let start = Instant::now();
        let (folder, recordings) = self.recordings("quietly");
        let mut pipeline =
            Pipeline::start(broker, &folder, &self.zipkin.url(), NEVER_IDLE, self.recordings_of_nodes.events);
        pipeline.replay(&recordings, None);
        pipeline.settle();
        let found = self.assert_all_in_zipkin(&pipeline, "quietly");
        println!(
            "no kills: {} events, {} fragments, {} spans in Zipkin, as expected ({} s)",
            self.recordings_of_nodes.events,
            self.expected_spans.fragments,
            found.total(),
            start.elapsed().as_secs()
        );
        let start = Instant::now();
        self.restart_zipkin();
        pipeline.end_exporters();
        pipeline.rewind();
        pipeline.start_exporters();
        pipeline.settle();
        let again = self.assert_all_in_zipkin(&pipeline, "after Zipkin was killed");
        assert!(again == found);
        println!(
            "Zipkin killed, replayed: {} spans, the same ({} s)",
            again.total(),
            start.elapsed().as_secs()
        );
        pipeline.end();
        found
    }

    /// Restarts Zipkin without its memory.
    fn restart_zipkin(&mut self) {
        self.zipkin.kill();
        self.zipkin.up();
        assert_eq!(SpanMultiset::in_zipkin(&self.zipkin, &self.expected_spans).total(), 0, "Zipkin is empty");
    }

    /// Runs a round in which every kind of process is killed repeatedly.
    fn run_with_kills(&mut self, broker: Broker, seed: u64, rate: u32, expected: &SpanMultiset) {
        let start = Instant::now();
        self.restart_zipkin();
        let (folder, recordings) = self.recordings(&format!("seed-{seed}"));
        let mut pipeline =
            Pipeline::start(broker, &folder, &self.zipkin.url(), NEVER_IDLE, self.recordings_of_nodes.events);
        pipeline.replay(&recordings, Some(rate));
        let killed = pipeline.kill_repeatedly(&mut Rng::new(seed), &VICTIMS, Pipeline::agents_ended);
        println!("seed {seed}: killed: {}", killed.join(", "));
        pipeline.settle();
        let found = self.assert_all_in_zipkin(&pipeline, &format!("seed {seed}"));
        assert!(found == *expected, "seed {seed}");
        let took = start.elapsed().as_secs();
        let mut reader = TraceReader::new(&pipeline.settings(), PARTITIONS as i32);
        reader.read_until(TIMEOUT, |pieces| traces::total(pieces) as u64 >= self.expected_spans.fragments);
        assert_eq!(traces::total(&reader.fragments) as u64, self.expected_spans.fragments, "seed {seed}");
        println!(
            "seed {seed}: {} events, {} fragments, {} of them written twice, {} spans in Zipkin, as without kills ({took} s)",
            self.recordings_of_nodes.events,
            self.expected_spans.fragments,
            reader.repeated,
            found.total(),
        );
        self.assert_sums(&pipeline.end(), found.total() as u64);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

impl Soak {
    /// Asserts that the services' counts add up after kills, as docs/operating.md has them; the topics and Zipkin have
    /// been compared with what the state machine makes of the events. `spans` are in Zipkin.
    fn assert_sums(&self, output: &str, spans: u64) {
        let counts = |stage| summary_counts(output, stage, u64::from(PARTITIONS));
        let [_, events, joined, late, orphaned, pending, names, fragments, written, ..] = counts("join")[..]
        else {
            panic!("{output}")
        };
        assert_eq!(events, joined + late + orphaned + pending, "join: {output}");
        assert_eq!(events + names, self.recordings_of_nodes.joined_events(), "topic to join: {output}");
        assert_eq!((fragments, written), (self.expected_spans.fragments, spans), "join: {output}");
        let [_, received, sampled, dropped, of_spans, ..] = counts("assemble")[..] else {
            panic!("{output}")
        };
        assert_eq!(received, fragments, "join to assemble: {output}");
        assert_eq!((received, of_spans), (sampled + dropped, spans), "assemble to exporter: {output}");
        for lost in ["fragments are missing", "spans were refused", "without naming them"] {
            assert!(!output.contains(lost), "exporter to destination: {output}");
        }
    }
}

#[test]
fn no_span_is_lost_or_duplicated_when_processes_are_killed() {
    let config = SoakConfig::from_environment();
    if let Some(crowd) = std::env::var_os("BLKKIN_SOAK_CROWD") {
        endurance::run(config.time, config.seed, crowd.as_ref());
        return;
    }
    let broker = or_skip!(Broker::start());
    let recordings_of_nodes = NodeRecordings::of(config.events);
    let expected_spans = recordings_of_nodes.expected();
    let zipkin = or_skip!(Zipkin::with_capacity(expected_spans.total() as u32 * 5 / 4 + 50_000));
    let folder = tempfile::tempdir().unwrap();
    let mut soak = Soak { zipkin, recordings_of_nodes, expected_spans, folder };
    let expected = soak.run_without_kills(broker);
    let start = Instant::now();
    let mut round = 0;
    while round < config.rounds || start.elapsed() < config.time {
        let broker = or_skip!(Broker::start());
        soak.run_with_kills(broker, config.seed + u64::from(round), config.rate, &expected);
        round += 1;
    }
    if config.soak {
        drop(soak);
        live::rounds((0..LIVE_ROUNDS).map(|n| config.seed + n));
    }
}
