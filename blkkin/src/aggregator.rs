//! `blkkin aggregator`: events of many machines out of Kafka, traces into it, as one of a group.
//!
//! ```text
//! thread "join"                                    thread "assemble"
//! blkkin.events → JoinStage → blkkin.spans   ...   blkkin.spans → AssembleStage → blkkin.traces
//!                     └ blkkin.links → MeetStage ───────┘     thread "meet"
//! ```
//!
//! *In*: a cluster that need not be there yet. *Out*: traces, and at the end what became of every event and piece.
//! *Invariant*: nothing is known here that is not in the cluster: whoever comes next goes on where this one was, killed or
//! not. What is read, decided and counted is `aggregator`'s (pure); how it is kept is `bus`' ([`blkkin_bus::kafka::stage`]).

mod clocks;
mod machines;
mod metrics;
mod say;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use blkkin_aggregator::stage::assemble::AssembleStageConfig;
use blkkin_aggregator::stage::join::JoinStageConfig;
use blkkin_aggregator::stage::meet::MeetStageConfig;
use blkkin_aggregator::stage::rules::Rules;
use blkkin_bus::kafka::stage::{Ended, Machines, StageConfig, StageRunner};
use blkkin_bus::kafka::{
    DEAD, DeadLetters, EVENTS, Group, KafkaError, LINKS, SPANS, STATE, Settings, TRACES,
};
use blkkin_tracer::StopSignal;

use self::machines::{Assembles, Assembling, Joining, Joins, Meeting, Meets};
use self::metrics::Metrics;
use crate::agent;
use crate::args::{AggregatorArgs, StageChoice};
use crate::failure::{Failure, Status};
use crate::output::say;
use crate::pipeline::{Farewell, broken};
use crate::service::{Endpoint, LagGauge, Manager, Port, Search};
use crate::session::{Happening, Inbox, no_thread};
use crate::what::units;

/// What a topic may take to be known to all brokers after it was made.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// What saving the last state may take: two answers of the cluster.
const STATE_WITHIN: Duration = Duration::from_secs(20);
/// Ticks of a silent partition in the time after which a source is finished: the last comes that much later at the most.
const TICKS: u32 = 3;

/// Of each chunk the last. Small segments, since the newest is never compacted.
const OF_STATES: &[(&str, &str)] = &[("cleanup.policy", "compact"), ("segment.bytes", "67108864")];

/// Works until told to end.
pub(crate) fn aggregator(args: &AggregatorArgs) -> Result<ExitCode, Failure> {
    let mut inbox = Inbox::open()?;
    let settings = agent::settings(&args.brokers, &args.set)?;
    let plan = Plan::of(args)?;
    // A setting that means nothing is refused when something is made of it; nothing is connected by that.
    DeadLetters::new(&settings, "").map_err(no_cluster)?;
    let manager = Manager::found();
    let stop = StopSignal::new();
    let topics = Topics::default();
    let search = look(&settings, args.partitions, &topics, &stop, &inbox)?;
    let metrics = Metrics::new(args.stage, search.clone(), manager.silence_max());
    let _metrics = Endpoint::of(
        args.service.metrics,
        args.service.metrics_token.as_deref(),
        Port::Aggregator,
        Arc::new(metrics.clone()),
    )?;
    if !search.found(&mut inbox, &manager, || metrics.beat()) {
        say("told to end before the cluster could be reached");
        return Ok(Status::Success.code());
    }
    let gauges = metrics.stages().iter().map(|stage| (stage.input, stage.lag.clone()));
    LagGauge::watch(&settings, gauges.collect())?;
    let mut stages = Stages::default();
    let does = |stage| args.stage == StageChoice::All || args.stage == stage;
    if does(StageChoice::Join) {
        let config = JoinStageConfig {
            links: topics.partitions(LINKS),
            idle_after: millis(plan.idle_after),
            ..JoinStageConfig::new(topics.partitions(SPANS))
        };
        let joins = Joins { config, metrics: metrics.clone() };
        let config = (plan.stage([EVENTS, SPANS, LINKS], "blkkin-join"), joins);
        stages.join = Some(start("join", &settings, config, &stop, &inbox, &metrics)?);
    }
    if does(StageChoice::Meet) {
        let wait_for = millis(plan.await_asker);
        let config = MeetStageConfig { wait_for, ..MeetStageConfig::new(topics.partitions(SPANS)) };
        let config =
            (plan.stage([LINKS, SPANS, SPANS], "blkkin-meet"), Meets { config, metrics: metrics.clone() });
        stages.meet = Some(start("meet", &settings, config, &stop, &inbox, &metrics)?);
    }
    if does(StageChoice::Assemble) {
        let rules = AssembleStageConfig::new(topics.partitions(TRACES), plan.rules.clone());
        let (input, await_for) = (topics.partitions(SPANS), millis(plan.await_asker));
        let config = AssembleStageConfig { input, await_for, ..rules };
        let config = (plan.stage([SPANS, TRACES, SPANS], "blkkin-assemble"), Assembles { config });
        stages.assemble = Some(start("assemble", &settings, config, &stop, &inbox, &metrics)?);
    }
    let begun = format!("aggregating; events from {EVENTS}, traces to {TRACES} at {}", settings.brokers);
    say(&begun);
    manager.ready(&begun);
    loop {
        match inbox.next(manager.every().unwrap_or(Duration::MAX)) {
            Some(Happening::Signal(arrival)) if !arrival.is_child() => break,
            Some(Happening::PipelineEnded) => break,
            Some(Happening::Waiting(remark)) => {
                say(&remark);
                manager.status(&remark);
            }
            Some(Happening::Signal(_) | Happening::Found) | None => {}
        }
        manager.alive(metrics.silence());
    }
    manager.stopping(STATE_WITHIN);
    stop.stop();
    stages.finish()
}

/// What the words mean.
struct Plan {
    rules: Rules,
    idle_after: Duration,
    await_asker: Duration,
    save_every: Duration,
    instance: Option<String>,
    forget: bool,
}

impl Plan {
    fn of(args: &AggregatorArgs) -> Result<Plan, Failure> {
        let slower = args.slower_than.as_deref().map(|word| units::duration("--slower-than", word));
        let rules = Rules {
            one_in: args.sample.as_deref().map_or(Ok(1), one_in)?,
            errors: args.errors,
            slower_than: slower.transpose()?,
            by_program: args.sampled_by_program.is_on(),
        };
        if rules.one_in == 1 && (rules.errors || rules.slower_than.is_some()) {
            return Err(Failure::usage(
                "--errors and --slower-than without --sample",
                "they keep what the draw leaves out, and without --sample nothing is left out",
                "--sample 1/100 besides",
            ));
        }
        Ok(Plan {
            rules,
            idle_after: units::timespan("--idle-after", &args.idle_after)?,
            await_asker: units::timespan("--await-asker", &args.await_asker)?,
            save_every: units::timespan("--save-every", &args.save_every)?,
            instance: args.instance.clone(),
            forget: args.forget,
        })
    }

    fn stage(&self, [input, output, aside]: [&str; 3], group: &str) -> StageConfig {
        StageConfig {
            input: input.to_owned(),
            output: output.to_owned(),
            aside: aside.to_owned(),
            group: Group { name: group.to_owned(), member: self.instance.clone() },
            save_every: self.save_every,
            tick_after: self.idle_after / TICKS,
            forget: self.forget,
        }
    }
}

/// `1/100`, or `100`.
fn one_in(word: &str) -> Result<u32, Failure> {
    let number = word.strip_prefix("1/").unwrap_or(word);
    let of = number.parse().ok().filter(|&n: &u32| n > 0);
    of.ok_or_else(|| {
        Failure::usage(
            format!("bad share `{word}`"),
            "one trace in so many is kept: 1/N, N from 1",
            "--sample 1/100",
        )
    })
}

/// How many partitions the topics have that stages write to, as they were found.
#[derive(Clone, Debug, Default)]
struct Topics(Arc<Mutex<BTreeMap<&'static str, u32>>>);

impl Topics {
    /// One that was made a moment ago is not known to each broker at once.
    fn find(&self, settings: &Settings, topic: &'static str) -> Result<(), KafkaError> {
        let begun = Instant::now();
        loop {
            match settings.partitions(topic) {
                Ok(count) => {
                    let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                    found.insert(topic, u32::try_from(count).unwrap_or(u32::MAX));
                    return Ok(());
                }
                Err(error) if begun.elapsed() > KNOWN_WITHIN => return Err(error),
                Err(_) => std::thread::sleep(KNOWN_WITHIN / 50),
            }
        }
    }

    /// Asked once all are found.
    fn partitions(&self, topic: &str) -> u32 {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *found.get(topic).expect("invariant: nothing begins before all topics are found")
    }
}

/// Makes the topics, or finds them.
fn look(
    settings: &Settings,
    partitions: u32,
    topics: &Topics,
    stop: &StopSignal,
    inbox: &Inbox,
) -> Result<Search, Failure> {
    let wanted: [(&'static str, &[(&str, &str)]); 6] = [
        (EVENTS, agent::OF_EVENTS),
        (SPANS, &[]),
        (LINKS, &[]),
        (TRACES, &[]),
        (DEAD, &[]),
        (STATE, OF_STATES),
    ];
    let (settings, topics) = (settings.clone(), topics.clone());
    Search::begin("the cluster answers", inbox, stop, move || {
        wanted.iter().try_for_each(|(topic, of)| settings.have_topic(topic, partitions, of))?;
        wanted.iter().try_for_each(|(topic, _)| topics.find(&settings, topic))
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

type Running<M> = JoinHandle<Result<Ended<M>, KafkaError>>;

#[derive(Default)]
struct Stages {
    join: Option<Running<Joining>>,
    meet: Option<Running<Meeting>>,
    assemble: Option<Running<Assembling>>,
}

impl Stages {
    /// Waits for all, says what became of everything, and then what failed.
    fn finish(self) -> Result<ExitCode, Failure> {
        let join = self.join.map(|running| wait("the join", running));
        let meet = self.meet.map(|running| wait("the meeting", running));
        let assemble = self.assemble.map(|running| wait("the assembly", running));
        let ended = |stage: &str, saved: bool| {
            if !saved {
                say(&format!("{stage}: the last state could not be saved: what came after it is read again"));
            }
        };
        if let Some(Ok(join)) = &join {
            say(&say::join(join));
            ended("join", join.saved);
        }
        if let Some(Ok(meet)) = &meet {
            // Most clusters have nothing between nodes.
            if meet.machines.values().any(|meeting| meeting.0.books().records > 0) {
                say(&say::meet(meet));
            }
            ended("meet", meet.saved);
        }
        if let Some(Ok(assemble)) = &assemble {
            say(&say::assemble(assemble));
            ended("assemble", assemble.saved);
        }
        join.transpose()?;
        meet.transpose()?;
        assemble.transpose()?;
        Ok(Status::Success.code())
    }
}

fn start<F>(
    name: &str,
    settings: &Settings,
    (config, machines): (StageConfig, F),
    stop: &StopSignal,
    inbox: &Inbox,
    metrics: &Metrics,
) -> Result<Running<F::Machine>, Failure>
where
    F: Machines + Send + 'static,
    F::Machine: Send,
{
    let (settings, stop) = (settings.clone(), stop.clone());
    let (ended, remarks, stage) = (Farewell(inbox.sender()), inbox.sender(), name.to_owned());
    let gauge = metrics.stages().iter().find(|stage| stage.name == name).cloned();
    let run = move || {
        // Dropped last, also when something panics: whoever waits for the end must hear of it.
        let _ended = ended;
        let mut runner = StageRunner::join(&settings, config, machines)?;
        if let Some(gauge) = &gauge {
            runner = runner.show(&gauge.lag.progress);
        }
        // Nobody listens any more at the end.
        let tell = |remark| drop(remarks.send(Happening::Waiting(format!("{stage}: {remark}"))));
        let told = || {
            gauge.iter().for_each(|gauge| gauge.pulse.beat());
            stop.is_given()
        };
        runner.run(told, tell)
    };
    Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(|error| no_thread("cannot start the aggregator", &error))
}

fn wait<M>(who: &str, running: Running<M>) -> Result<Ended<M>, Failure> {
    running.join().map_err(|panic| broken(who, &*panic))?.map_err(no_cluster)
}

fn no_cluster(error: KafkaError) -> Failure {
    let failure = Failure::usage(error.what, error.why, error.remedy);
    Failure { status: Status::Failed, ..failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_one_in_so_many() {
        assert_eq!((one_in("1/100"), one_in("7")), (Ok(100), Ok(7)));
        for bad in ["0", "1/0", "2/3", "", "0.1"] {
            assert!(one_in(bad).is_err(), "{bad}");
        }
    }
}
