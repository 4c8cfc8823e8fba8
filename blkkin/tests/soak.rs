//! The whole way under torment: the same recorded events from three agents, over two aggregators and twelve partitions, by two
//! exporters of one group to a real Zipkin; once quietly, and once with SIGKILL for an agent, an aggregator, an exporter and
//! the broker at random moments. What Zipkin shows is the same multiset of spans, and what the state machine alone makes
//! of these events: none lost, none doubled. The same again after Zipkin itself was killed, and the exporters replayed.
//!
//! `cargo xtask soak` runs this with more: see [`Extent`].

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

#[path = "../../bus/tests/support/mod.rs"]
mod broker;
mod common;
mod exporting;
mod soaking;
mod support;
#[path = "support/synthetic_batches.rs"]
mod synthetic_batches;
#[path = "support/traces.rs"]
mod traces;
#[path = "support/zipkin.rs"]
mod zipkin;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use broker::Broker;
use soaking::node_recordings::NodeRecordings;
use soaking::pipeline::{PARTITIONS, Pipeline, Victim};
use soaking::rng::Rng;
use soaking::span_multiset::SpanMultiset;
use soaking::{live, span_multiset};
use support::or_skip;
use traces::TraceReader;
use zipkin::Zipkin;

/// Never silent for so long: the recordings say themselves when they end.
const NEVER_IDLE: &str = "10m";
/// For a topic to be read.
const PATIENCE: Duration = Duration::from_secs(180);
const EACH: [Victim; 4] = [Victim::Agent, Victim::Aggregator, Victim::Exporter, Victim::Broker];

/// With a disk and a tracer, in `cargo xtask soak`.
const LIVE_ROUNDS: u64 = 2;

/// How much of it.
struct Extent {
    /// Recorded events of a round (BLKKIN_SOAK_EVENTS).
    events: u64,
    /// Rounds with kills (BLKKIN_SOAK_ROUNDS); more of them while the time is not over (BLKKIN_SOAK_SECONDS).
    rounds: u32,
    time: Duration,
    /// Of the first round; counted up (BLKKIN_SOAK_SEED).
    seed: u64,
    /// Events a second while somebody is killed: a round takes `events / rate` at the least.
    rate: u32,
    /// Whether live rounds are wanted too (BLKKIN_SOAK_ROUNDS is given).
    soak: bool,
}

impl Extent {
    fn of_environment() -> Extent {
        let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().unwrap());
        let events = number("BLKKIN_SOAK_EVENTS").unwrap_or(100_000);
        Extent {
            events,
            rounds: number("BLKKIN_SOAK_ROUNDS").unwrap_or(1) as u32,
            time: Duration::from_secs(number("BLKKIN_SOAK_SECONDS").unwrap_or(0)),
            seed: number("BLKKIN_SOAK_SEED").unwrap_or_else(|| std::process::id().into()),
            rate: (events / 20).clamp(5_000, 20_000) as u32,
            soak: number("BLKKIN_SOAK_ROUNDS").is_some(),
        }
    }
}

/// What all rounds have in common.
struct Soak {
    zipkin: Zipkin,
    worlds: NodeRecordings,
    meant: SpanMultiset,
    folder: tempfile::TempDir,
}

impl Soak {
    /// Recordings of their own for a round: how far they were replayed is noted in them.
    fn recordings(&self, round: &str) -> (PathBuf, Vec<PathBuf>) {
        let folder = self.folder.path().join(round);
        std::fs::create_dir(&folder).unwrap();
        let recordings = self.worlds.record(&folder);
        (folder, recordings)
    }

    fn assert_all_in_zipkin(&self, pipeline: &Pipeline, what: &str) -> SpanMultiset {
        span_multiset::assert_in_zipkin(&self.zipkin, &self.meant, || {
            format!("{what}\n{}", pipeline.output())
        })
    }

    /// Nobody is killed but Zipkin, at the end.
    fn quietly(&mut self, broker: Broker) -> SpanMultiset {
        let begun = Instant::now();
        let (folder, recordings) = self.recordings("quietly");
        let mut pipeline =
            Pipeline::start(broker, &folder, &self.zipkin.url(), NEVER_IDLE, self.worlds.events);
        pipeline.replay(&recordings, None);
        pipeline.settle();
        let found = self.assert_all_in_zipkin(&pipeline, "quietly");
        println!(
            "quietly: {} events, {} pieces, {} spans in Zipkin, as meant ({} s)",
            self.worlds.events,
            self.meant.fragments,
            found.total(),
            begun.elapsed().as_secs()
        );
        let begun = Instant::now();
        self.forget();
        pipeline.end_exporters();
        pipeline.rewind();
        pipeline.start_exporters();
        pipeline.settle();
        let again = self.assert_all_in_zipkin(&pipeline, "after Zipkin was killed");
        assert!(again == found);
        println!(
            "Zipkin killed, replayed: {} spans, the same ({} s)",
            again.total(),
            begun.elapsed().as_secs()
        );
        pipeline.end();
        found
    }

    /// Zipkin has nothing any more.
    fn forget(&mut self) {
        self.zipkin.kill();
        self.zipkin.restart();
        assert_eq!(SpanMultiset::in_zipkin(&self.zipkin, &self.meant).total(), 0, "it forgot");
    }

    /// Everybody is killed, again and again.
    fn tormented(&mut self, broker: Broker, seed: u64, rate: u32, quiet: &SpanMultiset) {
        let begun = Instant::now();
        self.forget();
        let (folder, recordings) = self.recordings(&format!("seed-{seed}"));
        let mut pipeline =
            Pipeline::start(broker, &folder, &self.zipkin.url(), NEVER_IDLE, self.worlds.events);
        pipeline.replay(&recordings, Some(rate));
        let killed = pipeline.kill_repeatedly(&mut Rng::new(seed), &EACH, Pipeline::agents_ended);
        println!("seed {seed}: killed: {}", killed.join(", "));
        pipeline.settle();
        let found = self.assert_all_in_zipkin(&pipeline, &format!("seed {seed}"));
        assert!(found == *quiet, "seed {seed}");
        let took = begun.elapsed().as_secs();
        let mut reader = TraceReader::new(&pipeline.settings(), PARTITIONS as i32);
        reader.read_until(PATIENCE, |pieces| traces::total(pieces) as u64 >= self.meant.fragments);
        assert_eq!(traces::total(&reader.fragments) as u64, self.meant.fragments, "seed {seed}");
        println!(
            "seed {seed}: {} events, {} pieces, {} of them written twice, {} spans in Zipkin, as quietly ({took} s)",
            self.worlds.events,
            self.meant.fragments,
            reader.repeated,
            found.total(),
        );
        pipeline.end();
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn none_is_lost_and_none_doubled_whoever_is_killed() {
    let extent = Extent::of_environment();
    let broker = or_skip!(Broker::start());
    let worlds = NodeRecordings::of(extent.events);
    let meant = worlds.expected();
    let zipkin = or_skip!(Zipkin::with_capacity(meant.total() as u32 * 5 / 4 + 50_000));
    let folder = tempfile::tempdir().unwrap();
    let mut soak = Soak { zipkin, worlds, meant, folder };
    let quiet = soak.quietly(broker);
    let begun = Instant::now();
    let mut round = 0;
    while round < extent.rounds || begun.elapsed() < extent.time {
        let broker = or_skip!(Broker::start());
        soak.tormented(broker, extent.seed + u64::from(round), extent.rate, &quiet);
        round += 1;
    }
    if extent.soak {
        drop(soak);
        live::rounds((0..LIVE_ROUNDS).map(|n| extent.seed + n));
    }
}
