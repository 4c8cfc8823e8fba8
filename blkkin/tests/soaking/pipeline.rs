//! Services between recordings and Zipkin: agents, two aggregators, two exporters and a broker.
//! It kills them at random times and waits until all data has passed through.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{EVENTS, LINKS, SPANS, Settings, TRACES};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{Offset, TopicPartitionList};

use super::rng::Rng;
use crate::broker::{self, Broker};
use crate::common;
use crate::support::service::Service;

pub(crate) const PARTITIONS: u32 = 12;
/// Ten times the longest step on two slow cores; long runs get more, by their number of events.
const TIME_LIMIT: Duration = Duration::from_secs(180);
/// Longest random pause before a kill, after progress was made.
const BETWEEN: Duration = Duration::from_millis(1_500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    Agent,
    Aggregator,
    Exporter,
    Broker,
}

pub(crate) struct Pipeline {
    pub(crate) broker: Broker,
    folder: PathBuf,
    to: String,
    pub(crate) agents: Vec<Service>,
    aggregators: Vec<Service>,
    exporters: Vec<Service>,
    /// Aggregators and exporters that are never killed: the first ones of each.
    spared: usize,
    time_limit: Duration,
    started: Instant,
}

impl Pipeline {
    /// Starts all services except the agents, with `idle_after` for the aggregators.
    pub(crate) fn start(
        broker: Broker,
        folder: &Path,
        zipkin: &str,
        idle_after: &str,
        events: usize,
    ) -> Pipeline {
        Pipeline::start_with(broker, folder, zipkin, &["--idle-after", idle_after], 0, events)
    }

    /// Starts all services except the agents, with these arguments of the aggregators. The first
    /// `spared` aggregators and exporters will not be killed.
    pub(crate) fn start_with(
        broker: Broker,
        folder: &Path,
        zipkin: &str,
        aggregator_args: &[&str],
        spared: usize,
        events: usize,
    ) -> Pipeline {
        let time_limit = TIME_LIMIT + Duration::from_millis(events as u64 / 2);
        let to = format!("zipkin={zipkin}");
        let (folder, started) = (folder.to_owned(), Instant::now());
        let (agents, aggregators, exporters) = Default::default();
        let mut all =
            Pipeline { broker, folder, to, agents, aggregators, exporters, spared, time_limit, started };
        for name in ["one", "two"] {
            let brokers = all.settings().brokers;
            let args = ["aggregator", "--brokers", &brokers, "--metrics", "off", "--save-every", "1s"];
            let args = [&args[..], aggregator_args, all.instance(name)].concat();
            all.aggregators.push(Service::start(&all.folder, &format!("aggregator-{name}"), &args));
        }
        for aggregator in &all.aggregators {
            aggregator.wait_for_output("aggregating; events from", TIME_LIMIT);
        }
        all.start_exporters();
        all
    }

    pub(crate) fn start_exporters(&mut self) {
        for name in ["one", "two"] {
            let brokers = self.settings().brokers;
            let args = ["exporter", "--brokers", &brokers, "--to", &self.to];
            let args = [&args[..], self.instance(name)].concat();
            self.exporters.push(Service::start(&self.folder, &format!("exporter-{name}"), &args));
        }
    }

    /// Starts an agent for each recording; `rate` is in events a second for all together.
    pub(crate) fn replay(&mut self, recordings: &[PathBuf], rate: Option<u32>) {
        let rate = rate.map(|rate| (rate / recordings.len() as u32).max(1).to_string());
        for (n, recording) in recordings.iter().enumerate() {
            let (brokers, recording) = (self.settings().brokers, recording.to_str().unwrap());
            let mut args = vec!["agent", "--brokers", &brokers, "--replay", recording];
            args.extend(rate.iter().flat_map(|rate| ["--rate", rate.as_str()]));
            self.agents.push(Service::start(&self.folder, &format!("agent-{n}"), &args));
        }
    }

    /// Returns the arguments for an instance name. One service of each kind has a static name and
    /// rejoins under it; the other rejoins as a new member. Not where services are spared: the broker
    /// may fence a static member again and again, and a service manager would start it again.
    fn instance(&self, name: &str) -> &'static [&'static str] {
        if name == "one" && self.spared == 0 { &["--instance", "one"] } else { &[] }
    }

    /// Removes agents that have ended.
    pub(crate) fn forget_agents(&mut self) {
        assert!(self.agents_ended());
        self.agents.clear();
    }

    /// Returns the aggregators and exporters that are never killed, by name.
    pub(crate) fn spared(&self) -> impl Iterator<Item = (String, &Service)> {
        let kinds = [("aggregator", &self.aggregators), ("exporter", &self.exporters)];
        kinds.into_iter().flat_map(|(kind, services)| {
            (1..).zip(&services[..self.spared]).map(move |(n, service)| (format!("{kind} {n}"), service))
        })
    }

    pub(crate) fn settings(&self) -> Settings {
        self.broker.settings()
    }

    /// Returns whether every agent has sent everything and ended.
    pub(crate) fn agents_ended(&mut self) -> bool {
        self.agents.iter_mut().all(Service::has_ended)
    }

    /// Kills services one after another, in shuffled rounds of all victims, until `finished`
    /// returns true and each kind was killed at least once. An agent is killed first, while one
    /// certainly runs; every other kill waits for progress since the previous one. Returns each
    /// kill with its time.
    pub(crate) fn kill_repeatedly(
        &mut self,
        rng: &mut Rng,
        victims: &[Victim],
        finished: impl FnMut(&mut Pipeline) -> bool,
    ) -> Vec<String> {
        let killed = self.kill_in_intervals(rng, victims, BETWEEN, finished);
        assert_each_killed(victims, &killed);
        killed
    }

    /// Kills services like [`Pipeline::kill_repeatedly`], with pauses of at most `between`. Where the agents
    /// end within the first pause, none of them is killed.
    pub(crate) fn kill_in_intervals(
        &mut self,
        rng: &mut Rng,
        victims: &[Victim],
        between: Duration,
        mut finished: impl FnMut(&mut Pipeline) -> bool,
    ) -> Vec<String> {
        let (mut killed, mut deck) = (Vec::new(), victims.to_vec());
        rng.shuffle(&mut deck);
        deck.sort_by_key(|victim| *victim == Victim::Agent);
        for n in 0.. {
            if n >= victims.len() && finished(self) {
                break;
            }
            if deck.is_empty() {
                deck = victims.to_vec();
                rng.shuffle(&mut deck);
            }
            self.wait_for_progress(&mut finished);
            std::thread::sleep(rng.duration(between));
            let victim = deck.pop().unwrap();
            if let Some(name) = self.kill(victim, rng) {
                killed.push(format!("{name} at {:.1} s", self.started.elapsed().as_secs_f64()));
            }
        }
        killed
    }

    /// Kills a service and restarts it. Returns its name, or none if it had already ended.
    fn kill(&mut self, victim: Victim, rng: &mut Rng) -> Option<String> {
        let services = match victim {
            Victim::Broker => {
                self.broker.kill();
                self.broker.up();
                return Some("broker".to_owned());
            }
            Victim::Agent => &mut self.agents,
            Victim::Aggregator => &mut self.aggregators,
            Victim::Exporter => &mut self.exporters,
        };
        let spared = if victim == Victim::Agent { 0 } else { self.spared };
        let n = spared + rng.below(services.len() - spared);
        let name = format!("{victim:?} {}", n + 1).to_lowercase();
        services[n].kill().then(|| {
            services[n].restart();
            name
        })
    }

    /// Waits until the topic of traces has more records, or until no more will arrive.
    fn wait_for_progress(&mut self, mut finished: impl FnMut(&mut Pipeline) -> bool) {
        let before = record_count(&self.settings(), TRACES);
        self.wait("more traces arrive", |all| {
            record_count(&all.settings(), TRACES) > before || finished(all)
        });
    }

    /// Waits until the agents have ended and every record that each topic then has was processed and
    /// committed. The topics are checked in the order of the data flow, because each stage writes
    /// before it commits. Records that come later do not count: a partition with open traces gets a tick
    /// each few seconds and is saved once a minute, so that two of them are hardly ever both at their ends.
    pub(crate) fn settle(&mut self) {
        self.wait("the agents have sent everything", Pipeline::agents_ended);
        let mut exporters = None;
        self.wait("the exporters have a group", |all| {
            exporters = group(&all.settings(), "blkkin-export-");
            exporters.is_some()
        });
        let exporters = exporters.unwrap_or_default();
        for (group, topic) in stages(&exporters) {
            let mut found = None;
            self.wait(&format!("the cluster returns the ends of {topic}"), |all| {
                found = ends(&all.settings(), topic).ok();
                found.is_some()
            });
            let ends = found.unwrap_or_default();
            self.wait(&format!("{group} has committed {topic}"), |all| {
                lag(&all.settings(), group, topic, &ends)
                    .is_ok_and(|lag| lag.iter().all(|records| *records <= 0))
            });
        }
    }

    /// Returns what each group has not committed, and what the threads of each service do, for a test that
    /// waits in vain.
    fn progress(&self) -> String {
        let settings = self.settings();
        let exporters = group(&settings, "blkkin-export-").unwrap_or_default();
        let groups = stages(&exporters).map(|(group, topic)| {
            let lag = ends(&settings, topic).and_then(|ends| lag(&settings, group, topic, &ends));
            format!("{group} has not committed of {topic}, by partition: {lag:?}\n")
        });
        let services = self.aggregators.iter().chain(&self.exporters).map(|service| {
            let pid = service.id().to_string();
            match Command::new("gdb")
                .args(["-p", &pid, "-batch", "-ex", "thread apply all backtrace 12"])
                .output()
            {
                Ok(output) => format!("process {pid}: {}\n", String::from_utf8_lossy(&output.stdout)),
                Err(error) => format!("process {pid}: gdb: {error}\n"),
            }
        });
        groups.into_iter().chain(services).collect()
    }

    fn wait(&mut self, awaited: &str, mut condition: impl FnMut(&mut Pipeline) -> bool) {
        let started = Instant::now();
        while !condition(self) {
            let ended = self.aggregators.iter_mut().chain(&mut self.exporters).any(Service::has_ended);
            assert!(!ended, "a service ended while waiting until {awaited}\n{}", self.output());
            assert!(
                started.elapsed() < self.time_limit,
                "waited {:?} until {awaited}\n{}\n{}",
                self.time_limit,
                self.progress(),
                self.output()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Stops the exporters, as an operator does before a replay.
    pub(crate) fn end_exporters(&mut self) -> String {
        end(&mut self.exporters)
    }

    /// Stops all services; returns the last output of the aggregators and the exporters.
    pub(crate) fn end(mut self) -> String {
        [end(&mut self.exporters), end(&mut self.aggregators)].concat()
    }

    pub(crate) fn output(&self) -> String {
        let all = self.agents.iter().chain(&self.aggregators).chain(&self.exporters);
        all.map(Service::output).collect::<Vec<_>>().join("\n")
    }

    /// Runs `blkkin exporter replay` of everything, after the group coordinator has removed the
    /// exporter with a static name.
    pub(crate) fn rewind(&mut self) {
        let brokers = self.settings().brokers;
        let to = self.to.clone();
        let args = ["exporter", "replay", "--from", "-24h", "--brokers", &brokers, "--to", &to];
        self.wait("the group can be reset", |_| {
            let run = common::run(&args);
            assert!(run.code == Some(0) || run.stderr.contains("it has members"), "{run:?}");
            run.code == Some(0)
        });
    }
}

/// Asserts that a service of each kind was killed.
pub(crate) fn assert_each_killed(victims: &[Victim], killed: &[String]) {
    for victim in victims {
        let name = format!("{victim:?}").to_lowercase();
        assert!(killed.iter().any(|kill| kill.starts_with(&name)), "no {name} was killed: {killed:?}");
    }
}

fn end(services: &mut Vec<Service>) -> String {
    services.drain(..).map(Service::finish_without_error).collect()
}

fn client(settings: &Settings, group: &str) -> BaseConsumer {
    broker::client::client(settings, group).set("log_level", "0").create().unwrap()
}

/// Returns the group whose name has this prefix, or none while the cluster does not respond.
fn group(settings: &Settings, begin: &str) -> Option<String> {
    let groups = client(settings, "test").fetch_group_list(None, Duration::from_secs(5)).ok()?;
    groups.groups().iter().map(|group| group.name().to_owned()).find(|name| name.starts_with(begin))
}

/// Returns the number of records written to a topic, or 0 while the cluster does not respond.
fn record_count(settings: &Settings, topic: &str) -> i64 {
    ends(settings, topic).map_or(0, |ends| ends.iter().sum())
}

/// Returns the offset behind the last record of each partition.
fn ends(settings: &Settings, topic: &str) -> KafkaResult<Vec<i64>> {
    let consumer = client(settings, "test");
    let end =
        |partition| consumer.fetch_watermarks(topic, partition, Duration::from_secs(2)).map(|(_, high)| high);
    (0..PARTITIONS as i32).map(end).collect()
}

/// Returns the groups with their topics, in the order of the data flow.
fn stages(exporters: &str) -> [(&str, &'static str); 4] {
    [("blkkin-join", EVENTS), ("blkkin-link", LINKS), ("blkkin-assemble", SPANS), (exporters, TRACES)]
}

/// Returns the number of records before each partition's end that a group has not committed.
fn lag(settings: &Settings, group: &str, topic: &str, ends: &[i64]) -> KafkaResult<Vec<i64>> {
    let consumer = client(settings, group);
    let mut list = TopicPartitionList::new();
    (0..PARTITIONS as i32).for_each(|partition| {
        list.add_partition(topic, partition);
    });
    let committed = consumer.committed_offsets(list, Duration::from_secs(5))?;
    let lag = |element: &TopicPartitionListElem<'_>| {
        let partition = element.partition();
        let next = match element.offset() {
            Offset::Offset(next) => next,
            _ => consumer.fetch_watermarks(topic, partition, Duration::from_secs(2))?.0,
        };
        Ok(ends[partition as usize] - next)
    };
    committed.elements().iter().map(lag).collect()
}
