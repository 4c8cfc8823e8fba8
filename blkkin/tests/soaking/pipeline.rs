//! All services between recordings and Zipkin: agents, two aggregators, two exporters, a broker; who is killed, and whether all
//! is through.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{EVENTS, LINKS, SPANS, Settings, TRACES};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::chance::Chance;
use crate::broker::Broker;
use crate::common;
use crate::support::service::Service;

pub(crate) const PARTITIONS: u32 = 12;
/// Ten times what any of it takes on two slow cores; long runs take theirs, see [`Pipeline::patience`].
const PATIENCE: Duration = Duration::from_secs(180);
/// Between two kills, beside what it takes until something was done.
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
    patience: Duration,
    begun: Instant,
}

impl Pipeline {
    /// All but the agents. `idle_after` is the aggregators'.
    pub(crate) fn start(
        broker: Broker,
        folder: &Path,
        zipkin: &str,
        idle_after: &str,
        events: usize,
    ) -> Pipeline {
        let patience = PATIENCE + Duration::from_millis(events as u64 / 2);
        let to = format!("zipkin={zipkin}");
        let (folder, begun) = (folder.to_owned(), Instant::now());
        let (agents, aggregators, exporters) = Default::default();
        let mut all = Pipeline { broker, folder, to, agents, aggregators, exporters, patience, begun };
        for name in ["one", "two"] {
            let brokers = all.settings().brokers;
            let words = ["aggregator", "--brokers", &brokers, "--metrics", "off", "--save-every", "1s"];
            let words = [&words[..], &["--idle-after", idle_after], instance(name)].concat();
            all.aggregators.push(Service::start(&all.folder, &format!("aggregator-{name}"), &words));
        }
        for aggregator in &all.aggregators {
            aggregator.says("aggregating; events from", PATIENCE);
        }
        all.start_exporters();
        all
    }

    pub(crate) fn start_exporters(&mut self) {
        for name in ["one", "two"] {
            let brokers = self.settings().brokers;
            let words = ["exporter", "--brokers", &brokers, "--to", &self.to];
            let words = [&words[..], instance(name)].concat();
            self.exporters.push(Service::start(&self.folder, &format!("exporter-{name}"), &words));
        }
    }

    /// An agent for each recording; so many events a second in all.
    pub(crate) fn replay(&mut self, recordings: &[PathBuf], rate: Option<u32>) {
        let rate = rate.map(|rate| (rate / recordings.len() as u32).max(1).to_string());
        for (n, recording) in recordings.iter().enumerate() {
            let (brokers, recording) = (self.settings().brokers, recording.to_str().unwrap());
            let mut words = vec!["agent", "--brokers", &brokers, "--replay", recording];
            words.extend(rate.iter().flat_map(|rate| ["--rate", rate.as_str()]));
            self.agents.push(Service::start(&self.folder, &format!("agent-{n}"), &words));
        }
    }

    pub(crate) fn settings(&self) -> Settings {
        self.broker.settings()
    }

    /// Whether every agent has sent all that it had.
    pub(crate) fn agents_ended(&mut self) -> bool {
        self.agents.iter_mut().all(Service::has_ended)
    }

    /// Kills one after another, by decks of all that may be killed, until `over` and at least each kind once. An agent comes
    /// first, while there is one for sure; whoever else, when something was done since the last. Whom, and when.
    pub(crate) fn torment(
        &mut self,
        chance: &mut Chance,
        victims: &[Victim],
        mut over: impl FnMut(&mut Pipeline) -> bool,
    ) -> Vec<String> {
        let (mut told, mut deck) = (Vec::new(), victims.to_vec());
        chance.shuffle(&mut deck);
        deck.sort_by_key(|victim| *victim == Victim::Agent);
        for n in 0.. {
            if n >= victims.len() && over(self) {
                break;
            }
            if deck.is_empty() {
                deck = victims.to_vec();
                chance.shuffle(&mut deck);
            }
            self.wait_for_progress(&mut over);
            std::thread::sleep(chance.moment(BETWEEN));
            let victim = deck.pop().unwrap();
            if let Some(who) = self.kill(victim, chance) {
                told.push(format!("{who} at {:.1} s", self.begun.elapsed().as_secs_f64()));
            }
        }
        for victim in victims {
            let word = format!("{victim:?}").to_lowercase();
            assert!(told.iter().any(|told| told.starts_with(&word)), "no {word} was killed: {told:?}");
        }
        told
    }

    /// Kills, and starts the same again; whom, if there was somebody.
    fn kill(&mut self, victim: Victim, chance: &mut Chance) -> Option<String> {
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
        let n = chance.below(services.len());
        let word = format!("{victim:?} {}", n + 1).to_lowercase();
        services[n].kill().then(|| {
            services[n].start_again();
            word
        })
    }

    /// Until something more is in the topic of traces, or nothing more will come.
    fn wait_for_progress(&mut self, mut over: impl FnMut(&mut Pipeline) -> bool) {
        let before = ends(&self.settings(), TRACES);
        self.wait("more traces come", |all| ends(&all.settings(), TRACES) > before || over(all));
    }

    /// Until the agents have ended and all that is in each topic was read, done with and committed: from the first to the last,
    /// as each writes before it commits.
    pub(crate) fn settle(&mut self) {
        self.wait("the agents have sent all", Pipeline::agents_ended);
        let mut exporters = None;
        self.wait("the exporters have a group", |all| {
            exporters = group(&all.settings(), "blkkin-export-");
            exporters.is_some()
        });
        let exporters = exporters.unwrap_or_default();
        for (group, topic) in [
            ("blkkin-join", EVENTS),
            ("blkkin-link", LINKS),
            ("blkkin-assemble", SPANS),
            (&exporters, TRACES),
        ] {
            self.wait(&format!("{group} has done with {topic}"), |all| {
                behind(&all.settings(), group, topic) == Some(0)
            });
        }
    }

    fn wait(&mut self, what: &str, mut so: impl FnMut(&mut Pipeline) -> bool) {
        let begun = Instant::now();
        while !so(self) {
            let ended = self.aggregators.iter_mut().chain(&mut self.exporters).any(Service::has_ended);
            assert!(!ended, "a service ended by itself while {what} was waited for\n{}", self.said());
            assert!(
                begun.elapsed() < self.patience,
                "waited {:?} until {what}\n{}",
                self.patience,
                self.said()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Ends the exporters, as a person would before a replay.
    pub(crate) fn end_exporters(&mut self) -> String {
        end(&mut self.exporters)
    }

    /// Ends all; what the aggregators and the exporters said at last.
    pub(crate) fn end(mut self) -> String {
        [end(&mut self.exporters), end(&mut self.aggregators)].concat()
    }

    pub(crate) fn said(&self) -> String {
        let all = self.agents.iter().chain(&self.aggregators).chain(&self.exporters);
        all.map(Service::said).collect::<Vec<_>>().join("\n")
    }

    /// `blkkin exporter replay` of all, once the cluster has missed the exporter that has a name of its own.
    pub(crate) fn rewind(&mut self) {
        let brokers = self.settings().brokers;
        let to = self.to.clone();
        let words = ["exporter", "replay", "--from", "-24h", "--brokers", &brokers, "--to", &to];
        self.wait("the group may be set back", |_| {
            let run = common::run(&words);
            assert!(run.code == Some(0) || run.stderr.contains("it has members"), "{run:?}");
            run.code == Some(0)
        });
    }
}

/// One of each kind has a name of its own and comes back as who it was, the other comes as a stranger.
fn instance(name: &str) -> &'static [&'static str] {
    if name == "one" { &["--instance", "one"] } else { &[] }
}

fn end(services: &mut Vec<Service>) -> String {
    let ended = services.drain(..).map(|service| {
        let (status, said) = service.finish();
        assert_eq!(status, Some(0), "{said}");
        said
    });
    ended.collect()
}

fn client(settings: &Settings, group: &str) -> BaseConsumer {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &settings.brokers).set("group.id", group).set("log_level", "0");
    config.create().unwrap()
}

/// The group whose name begins so; none while the cluster does not say.
fn group(settings: &Settings, begin: &str) -> Option<String> {
    let groups = client(settings, "test").fetch_group_list(None, Duration::from_secs(5)).ok()?;
    groups.groups().iter().map(|group| group.name().to_owned()).find(|name| name.starts_with(begin))
}

/// How many records a topic has had; 0 while the cluster does not say.
fn ends(settings: &Settings, topic: &str) -> i64 {
    let asking = client(settings, "test");
    let end =
        |partition| asking.fetch_watermarks(topic, partition, Duration::from_secs(2)).map(|(_, high)| high);
    (0..PARTITIONS as i32).map(end).sum::<Result<i64, _>>().unwrap_or(0)
}

/// How many records of a topic a group has not done with; none while the cluster does not say.
fn behind(settings: &Settings, group: &str, topic: &str) -> Option<i64> {
    let asking = client(settings, group);
    let mut list = TopicPartitionList::new();
    (0..PARTITIONS as i32).for_each(|partition| {
        list.add_partition(topic, partition);
    });
    let committed = asking.committed_offsets(list, Duration::from_secs(5)).ok()?;
    let mut behind = 0;
    for element in committed.elements() {
        let (low, high) = asking.fetch_watermarks(topic, element.partition(), Duration::from_secs(2)).ok()?;
        behind += match element.offset() {
            Offset::Offset(next) => high - next,
            _ => high - low,
        };
    }
    Some(behind)
}
