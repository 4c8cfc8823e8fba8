//! A set of services for an hour: the growth of their memory, and whether a span is lost or
//! doubled.
//!
//! *In*: three nodes, each of which replays a new start of its tracer every minute; and an agent on
//! this machine with a disk under load and instrumented programs that come and go. An aggregator,
//! an exporter, an agent of the three nodes or the broker is killed every few seconds. One
//! aggregator, one exporter and the agent on this machine are never killed: their memory is the
//! result. One trace in [`ONE_IN`] is sampled, so that Zipkin can hold those of an hour.
//!
//! *Out*: resident memory by time. *Independent counts*: Zipkin's spans are those that the join
//! stage alone makes of the recordings and of the live agent's events, after the same draw; the
//! live agent's counts and fio's agree with the topic; each program's spans are those that it
//! counted.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use blkkin_aggregator::stage::join::JoinStageConfig;
use blkkin_aggregator::stage::sampling::SamplingRules;
use blkkin_wire::ids::Pid;

use super::live;
use super::node_recordings::NodeRecordings;
use super::pipeline::{PARTITIONS, Pipeline, Victim, assert_each_killed};
use super::rng::Rng;
use super::span_multiset::{SpanMultiset, assert_in_zipkin};
use crate::broker::Broker;
use crate::broker::child::KillOnDrop;
use crate::support::disk::Disk;
use crate::support::lttng_namespace::LttngNamespace;
use crate::support::service::Service;
use crate::support::zipkin::Zipkin;
use crate::support::{needs, or_skip};

const VICTIMS: [Victim; 4] = [Victim::Agent, Victim::Aggregator, Victim::Exporter, Victim::Broker];
/// Longest pause before a kill, after progress was made.
const BETWEEN: Duration = Duration::from_secs(10);
/// Events of a start of the three tracers, and their rate: a minute.
const EVENTS: u64 = 300_000;
const RATE: u32 = 5_000;
const ONE_IN: u32 = 50;
/// Longer than a broker takes to come back; each recording, and an agent that ends, marks its own end.
const IDLE_AFTER: &str = "10m";
const IDLE_AFTER_MS: u64 = 600_000;
/// Room in Zipkin: 7,800 sampled spans of the three nodes each minute, and those of the live agent.
const SPANS_A_MINUTE: u32 = 20_000;
/// Growth that is allowed in addition to half of the memory after 10 minutes.
const SLACK_KIB: u64 = 32 * 1024;
/// Instrumented programs at a time; every fifth is killed.
const PROGRAMS: usize = 5;
const PROGRAM_INTERVAL_US: u64 = 100_000;
/// Groups of events of a program, each with one span: 5 to 30 s.
const GROUPS: std::ops::Range<usize> = 50..300;
/// Spans of a program that LTTng may lose without a count (ust-bridge/tests/crowd.rs).
const UNCOUNTED_MAX: u64 = 2;
/// Parts of the agent's lines about events that it has not got.
const LOST: [&str; 3] = ["were lost", "came too late", "stuck"];
const TIME_LIMIT: Duration = Duration::from_secs(180);

/// Keeps the services running for `time`. `crowd` is the example of that name in `ust-provider/`.
pub(crate) fn run(time: Duration, seed: u64, crowd: &Path) {
    needs!("fio", "losetup", "lttng");
    let broker = or_skip!(Broker::start());
    let disk = or_skip!(Disk::raw(64 << 20));
    let namespace = or_skip!(LttngNamespace::new());
    let zipkin = or_skip!(Zipkin::with_capacity(500_000 + SPANS_A_MINUTE * (time.as_secs() / 60) as u32));
    let folder = tempfile::tempdir().unwrap();
    let rules = SamplingRules { one_in: ONE_IN, ..SamplingRules::default() };
    let sample = format!("1/{ONE_IN}");
    let args = ["--idle-after", IDLE_AFTER, "--sample", &sample, "--sampled-by-program", "off"];
    let mut pipeline = Pipeline::start_with(broker, folder.path(), &zipkin.url(), &args, 1, EVENTS as usize);
    let (brokers, spool) = (pipeline.settings().brokers, folder.path().join("spool"));
    let args = ["agent", "--brokers", &brokers, "--device", disk.name(), "--metrics", "off", "--ust"];
    let args = [&args[..], &["--spool", spool.to_str().unwrap()]].concat();
    let mut agent = Service::start_with(folder.path(), "agent", &args, |command| namespace.enter(&command));
    agent.wait_for_output("tracing; events go to", TIME_LIMIT);

    let (start, ended) = (Instant::now(), AtomicBool::new(false));
    let mut rng = Rng::new(seed);
    let mut expected = SpanMultiset::sampled_by(rules.clone());
    let mut memory = Memory::default();
    let mut kills = Vec::new();
    let report = folder.path().join("fio.json");
    let mut load = KillOnDrop(live::fio(disk.node(), &report, time.as_secs()));
    let programs = std::thread::scope(|scope| {
        let programs = scope.spawn(|| run_programs(&namespace, crowd, folder.path(), seed, &ended));
        // A scope waits for its threads also after a panic.
        let end = SetOnDrop(&ended);
        let mut events = 0;
        for round in 1.. {
            if start.elapsed() >= time {
                break;
            }
            let recordings = NodeRecordings::of_start(round, EVENTS);
            events += recordings.events;
            expected.extend(recordings.expected_of(rules.clone()));
            let round_folder = folder.path().join(format!("round-{round}"));
            pipeline.replay(&recordings.record(&round_folder), Some(RATE));
            kills.extend(pipeline.kill_in_intervals(&mut rng, &VICTIMS, BETWEEN, Pipeline::agents_ended));
            pipeline.forget_agents();
            fs::remove_dir_all(round_folder).unwrap();
            memory.sample(start.elapsed(), &pipeline, &agent);
            println!("{}; {events} events of three nodes, {} kills", memory.last_line(), kills.len());
            assert!(!agent.has_ended() && !programs.is_finished());
            assert!(start.elapsed() >= time || load.0.try_wait().unwrap().is_none(), "fio has ended");
        }
        assert!(load.0.wait().unwrap().success());
        drop(end);
        programs.join().unwrap()
    });
    assert_each_killed(&VICTIMS, &kills);
    let output = agent.finish_without_error();
    let topic = live::wait_for_complete_topic(&mut pipeline, || {
        let config = JoinStageConfig { idle_after: IDLE_AFTER_MS, ..JoinStageConfig::new(PARTITIONS) };
        (config, rules.clone())
    });
    let stats = topic.balance(&output).clone();
    if stats.lost() == 0 {
        assert_eq!(topic.calls, live::requests(&report), "{stats:#?}");
    }
    programs.assert_in(&topic, &output);
    expected.extend(topic.expected);
    let found =
        assert_in_zipkin(&zipkin, &expected, || format!("seed {seed}\n{output}\n{}", pipeline.output()));
    println!(
        "seed {seed}: {} fragments, {} spans in Zipkin as expected; live: {} calls, {} records lost; {} kills",
        expected.fragments,
        found.total(),
        topic.calls,
        stats.lost(),
        kills.len(),
    );
    println!("{}", memory.table());
    memory.assert_bounded();
    pipeline.end();
}

/// Ends the programs when it is dropped.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Resident memory of the services that are not killed.
#[derive(Default)]
struct Memory {
    names: Vec<String>,
    samples: Vec<(Duration, Vec<u64>)>,
}

impl Memory {
    fn sample(&mut self, at: Duration, pipeline: &Pipeline, agent: &Service) {
        let services = pipeline.spared().chain([("agent".to_owned(), agent)]);
        let (names, kib): (Vec<_>, Vec<_>) =
            services.map(|(name, service)| (name, resident_kib(service.id()))).unzip();
        self.names = names;
        self.samples.push((at, kib));
    }

    fn line(&self, (at, kib): &(Duration, Vec<u64>)) -> String {
        let each = self.names.iter().zip(kib).map(|(name, kib)| format!("{name} {} MiB", kib / 1024));
        format!("{} min: {}", at.as_secs() / 60, each.collect::<Vec<_>>().join(", "))
    }

    fn last_line(&self) -> String {
        self.samples.last().map(|sample| self.line(sample)).unwrap_or_default()
    }

    /// Returns the first samples after 10 and 30 minutes and each full hour, and the last one.
    fn table(&self) -> String {
        let hours = self.samples.last().map_or(0, |(at, _)| at.as_secs() / 3_600);
        let minutes = [10, 30].into_iter().chain((1..=hours).map(|hour| 60 * hour));
        let mut lines: Vec<_> =
            minutes.filter_map(|minutes| self.first_after(minutes)).map(|sample| self.line(sample)).collect();
        lines.push(self.last_line());
        lines.dedup();
        lines.join("\n")
    }

    fn first_after(&self, minutes: u64) -> Option<&(Duration, Vec<u64>)> {
        self.samples.iter().find(|(at, _)| at.as_secs() >= 60 * minutes)
    }

    /// Asserts that no service has more than half again what it had after 10 minutes.
    fn assert_bounded(&self) {
        let (Some((_, early)), Some((_, last))) = (self.first_after(10), self.samples.last()) else { return };
        for ((name, early), last) in self.names.iter().zip(early).zip(last) {
            assert!(*last <= early + early / 2 + SLACK_KIB, "{name} has grown:\n{}", self.table());
        }
    }
}

fn resident_kib(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_ascii_whitespace().next().unwrap().parse().unwrap()
}

/// An instrumented program that runs.
struct Program {
    process: KillOnDrop,
    report: PathBuf,
    /// The moment at which it is killed.
    dies_at: Option<Instant>,
}

/// Programs that ended normally, with the spans that each counted, and the number of killed ones.
#[derive(Default)]
struct Programs {
    /// Sums of each process id, with the number of programs that had it: the kernel uses ids again.
    counted: HashMap<Pid, (u64, u64)>,
    killed: HashSet<Pid>,
}

/// Keeps [`PROGRAMS`] programs running until `ended`, and then waits for them.
fn run_programs(
    namespace: &LttngNamespace,
    crowd: &Path,
    folder: &Path,
    seed: u64,
    ended: &AtomicBool,
) -> Programs {
    let mut rng = Rng::new(seed);
    let (mut running, mut programs, mut number) = (Vec::<Program>::new(), Programs::default(), 0);
    while !(ended.load(Ordering::Relaxed) && running.is_empty()) {
        while running.len() < PROGRAMS && !ended.load(Ordering::Relaxed) {
            let report = folder.join(format!("program-{number}"));
            let groups = GROUPS.start + rng.below(GROUPS.len());
            let mut command = namespace.command(crowd.to_str().unwrap());
            command.arg(&report).args([PROGRAM_INTERVAL_US.to_string(), groups.to_string()]);
            command.env("BLKKIN_UST_ROOTS", "0");
            let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
            let half = Duration::from_micros(PROGRAM_INTERVAL_US * groups as u64 / 2);
            let dies_at = (number % 5 == 4).then(|| Instant::now() + half);
            running.push(Program { process: KillOnDrop(process), report, dies_at });
            number += 1;
        }
        running.retain_mut(|program| programs.keep(program));
        std::thread::sleep(Duration::from_millis(100));
    }
    programs
}

impl Programs {
    /// Returns whether the program goes on; otherwise notes how it ended.
    fn keep(&mut self, program: &mut Program) -> bool {
        if program.dies_at.is_some_and(|at| at <= Instant::now()) {
            program.process.0.kill().unwrap();
            program.process.0.wait().unwrap();
            // nsenter executes the program, so its id is this one.
            self.killed.insert(Pid(program.process.0.id()));
        } else {
            let Some(status) = program.process.0.try_wait().unwrap() else { return true };
            assert!(status.success());
            let bytes = fs::read(&program.report).unwrap();
            let number = |at: usize| u64::from_ne_bytes(bytes[8 * at..8 * at + 8].try_into().unwrap());
            let (spans, programs) = self.counted.entry(Pid(number(0) as u32)).or_default();
            // Each group is three events.
            *spans += number(2) / 3;
            *programs += 1;
        }
        // One that was killed early has none.
        let _ = fs::remove_file(&program.report);
        false
    }

    /// Asserts that the topic has what each program counted, unless the agent reports lost events.
    fn assert_in(&self, topic: &live::Topic, output: &str) {
        let lost = output.lines().find(|line| LOST.iter().any(|text| line.contains(text)));
        let counted = self.counted.iter().filter(|(pid, _)| !self.killed.contains(pid));
        let (mut emitted, mut missing) = (0, 0);
        for (pid, (counted, programs)) in counted {
            let found = topic.daemon_spans.get(pid).copied().unwrap_or_default();
            let explained = lost.is_some() || counted.saturating_sub(found) <= UNCOUNTED_MAX * programs;
            assert!(
                found <= *counted && explained,
                "{found} spans of {pid:?}, which counted {counted}\n{output}"
            );
            emitted += counted;
            missing += counted - found;
        }
        println!(
            "programs: {} processes, {} of them killed; {emitted} spans, of which LTTng lost {missing} ({})",
            self.counted.len() + self.killed.len(),
            self.killed.len(),
            lost.unwrap_or("the agent reports none")
        );
        assert!(emitted > 0 && !self.killed.is_empty());
    }
}
