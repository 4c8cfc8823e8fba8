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

mod machines;
mod metrics;
mod say;

use std::process::ExitCode;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use blkkin_aggregator::stage::assemble::AssembleStageConfig;
use blkkin_aggregator::stage::join::JoinStageConfig;
use blkkin_aggregator::stage::meet::MeetStageConfig;
use blkkin_aggregator::stage::rules::Rules;
use blkkin_bus::kafka::stage::{Ended, Machines, StageConfig, StageRunner};
use blkkin_bus::kafka::{DEAD, EVENTS, Group, KafkaError, LINKS, SPANS, STATE, Settings, TRACES};
use blkkin_tracer::StopSignal;

use self::machines::{Assembles, Assembling, Joining, Joins, Meeting, Meets};
use self::metrics::Metrics;
use crate::agent;
use crate::args::{AggregatorArgs, StageChoice};
use crate::failure::{Failure, Status};
use crate::output::say;
use crate::pipeline::{Farewell, broken};
use crate::service::{Endpoint, Manager};
use crate::session::{Happening, Inbox, no_thread};
use crate::what::units;

/// Between two attempts to find the cluster.
const LOOK_EVERY: Duration = Duration::from_secs(2);
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
    let manager = Manager::found();
    let metrics = Metrics::new(manager.silence_max());
    let _metrics = Endpoint::of(args.service.metrics, Arc::new(metrics.clone()))?;
    if !topics(&settings, args.partitions, &mut inbox) {
        say("told to end before the cluster could be reached");
        return Ok(Status::Success.code());
    }
    let stop = StopSignal::new();
    let mut stages = Stages::default();
    let does = |stage| args.stage == StageChoice::All || args.stage == stage;
    if does(StageChoice::Join) {
        let config = JoinStageConfig {
            links: partitions(&settings, LINKS)?,
            idle_after: millis(plan.idle_after),
            ..JoinStageConfig::new(partitions(&settings, SPANS)?)
        };
        let joins = Joins { config, metrics: metrics.clone() };
        let config = (plan.stage([EVENTS, SPANS, LINKS], "blkkin-join"), joins);
        stages.join = Some(start("join", &settings, config, &stop, &inbox, &metrics)?);
    }
    if does(StageChoice::Meet) {
        let wait_for = millis(plan.await_asker);
        let config = MeetStageConfig { wait_for, ..MeetStageConfig::new(partitions(&settings, SPANS)?) };
        let config = (plan.stage([LINKS, SPANS, SPANS], "blkkin-meet"), Meets { config });
        stages.meet = Some(start("meet", &settings, config, &stop, &inbox, &metrics)?);
    }
    if does(StageChoice::Assemble) {
        let rules = AssembleStageConfig::new(partitions(&settings, TRACES)?, plan.rules.clone());
        let (input, await_for) = (partitions(&settings, SPANS)?, millis(plan.await_asker));
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
            Some(Happening::Waiting(remark)) => say(&remark),
            Some(Happening::Signal(_)) | None => {}
        }
        manager.alive(metrics.pulse.silence());
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

/// Makes the topics, or finds them; says what hinders it, once each. False where the end came first.
fn topics(settings: &Settings, partitions: u32, inbox: &mut Inbox) -> bool {
    let wanted: [(&str, &[(&str, &str)]); 6] = [
        (EVENTS, agent::OF_EVENTS),
        (SPANS, &[]),
        (LINKS, &[]),
        (TRACES, &[]),
        (DEAD, &[]),
        (STATE, OF_STATES),
    ];
    let mut said = String::new();
    loop {
        let missing = wanted.iter().find_map(|(topic, of)| settings.have_topic(topic, partitions, of).err());
        let Some(error) = missing else { return true };
        if error.to_string() != said {
            said = error.to_string();
            say(&format!("{said}; {}; going on until it can be reached", error.remedy));
        }
        if let Some(Happening::Signal(arrival)) = inbox.next(LOOK_EVERY)
            && !arrival.is_child()
        {
            return false;
        }
    }
}

fn partitions(settings: &Settings, topic: &str) -> Result<u32, Failure> {
    let partitions = settings.partitions(topic).map_err(no_cluster)?;
    Ok(u32::try_from(partitions).unwrap_or(u32::MAX))
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
    let (ended, remarks, pulse) = (Farewell(inbox.sender()), inbox.sender(), metrics.pulse.clone());
    let stage = name.to_owned();
    let run = move || {
        // Dropped last, also when something panics: whoever waits for the end must hear of it.
        let _ended = ended;
        let runner = StageRunner::join(&settings, config, machines)?;
        // Nobody listens any more at the end.
        let tell = |remark| drop(remarks.send(Happening::Waiting(format!("{stage}: {remark}"))));
        let told = || {
            pulse.beat();
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
