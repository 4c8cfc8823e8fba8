//! `blkkin agent`: what happens on this machine goes into a topic of Kafka, until told to end.
//!
//! ```text
//! thread "drain"                    thread "send"                                  thread "look"
//! Tracer::drain ── bus (bounded) ── Gatherer → EventProducer → the cluster          makes the topic, says who is away
//! ```
//!
//! *In*: a loaded tracer, and a cluster that need not be there yet. *Out*: records, and at the end what became of every
//! event. *Invariant*: nothing is shed between the rings and the cluster: while it does not take more, the producer's queue
//! fills, then the bus, then the rings, and there it is counted.
//!
//! Nothing is joined here: a trace over several machines is whole only where their events meet. So what can be asked of a
//! whole trace alone (`--path`) is refused.

mod books;
mod replay;
mod send;

use std::process::ExitCode;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use blkkin_bus::kafka::{Deliveries, EVENTS, EventProducer, Settings};
use blkkin_bus::recording::Recorder;
use blkkin_bus::{CAPACITY_DEFAULT, topic};
use blkkin_tracer::{Ended, Follow, StopSignal, Tracer, TracerError};
use blkkin_wire::ids::Pid;

use crate::args::AgentArgs;
use crate::failure::{Failure, Status};
use crate::output::say;
use crate::pipeline::{Farewell, broken};
use crate::run::cannot_trace;
use crate::service::{Endpoint, Figures, Manager, Port, Search};
use crate::session::{Happening, Inbox, no_thread};
use crate::what::What;
use books::Books;

/// The log's time is the broker's: whoever tells by it that a node has fallen silent depends on no node's clock.
pub(crate) const OF_EVENTS: &[(&str, &str)] = &[("message.timestamp.type", "LogAppendTime")];

/// Traces and sends until told to end.
pub(crate) fn agent(args: &AgentArgs) -> Result<ExitCode, Failure> {
    // Open before anything is attached: a signal meanwhile ends the agent, and does not kill it.
    let mut inbox = Inbox::open()?;
    let Some(brokers) = &args.brokers else { return record(args, inbox) };
    let settings = settings(brokers, &args.set)?;
    if let Some(folder) = &args.replay {
        start_looking(&settings, args.partitions, &StopSignal::new(), &inbox)?;
        return replay::replay(folder, &settings, &mut inbox);
    }
    let traced = load(args)?;
    let producer = EventProducer::new(&settings, traced.0.source().node).map_err(no_cluster)?;
    let place = format!("{EVENTS} at {}", settings.brokers);
    serve(args, traced, Way::Cluster(producer, settings), place, inbox)
}

/// The same into a folder.
fn record(args: &AgentArgs, inbox: Inbox) -> Result<ExitCode, Failure> {
    let folder = args.record.clone().unwrap_or_default();
    let recorder = Recorder::open(&folder).map_err(|error| {
        let what = format!("cannot record into {}", folder.display());
        Failure::cannot_trace(
            what,
            error,
            "a folder in which files can be made, on a disk that is not traced",
        )
    })?;
    serve(args, load(args)?, Way::Folder(recorder), folder.display().to_string(), inbox)
}

/// Traces as a service, until told to end, or until nothing is left to do.
fn serve(
    args: &AgentArgs,
    (tracer, tree): (Tracer, Vec<Pid>),
    way: Way,
    place: String,
    mut inbox: Inbox,
) -> Result<ExitCode, Failure> {
    let manager = Manager::found();
    let books = Arc::new(Books::new(manager.silence_max()));
    let _metrics = Endpoint::of(
        args.service.metrics,
        args.service.metrics_token.as_deref(),
        Port::Agent,
        Arc::clone(&books) as Arc<dyn Figures>,
    )?;
    let cluster = if let Way::Cluster(_, settings) = &way { Some(settings.clone()) } else { None };
    let begun = format!("tracing; events go to {place}");
    let running = Running::start(tracer, way, place, &inbox, &books)?;
    if let Some(settings) = cluster {
        start_looking(&settings, args.partitions, &running.stop, &inbox)?;
    }
    for pid in &tree {
        say(&format!("following process {} and what it forks", pid.0));
    }
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
        manager.alive(books.pulse.silence());
    }
    manager.stopping(send::PATIENCE + send::PATIENCE);
    running.finish()
}

/// Where records go.
enum Way {
    Cluster(EventProducer, Settings),
    Folder(Recorder),
}

/// Makes the topic; nobody waits for it.
fn start_looking(
    settings: &Settings,
    partitions: u32,
    stop: &StopSignal,
    inbox: &Inbox,
) -> Result<(), Failure> {
    let settings = settings.clone();
    let attempt = move || settings.have_topic(EVENTS, partitions, OF_EVENTS);
    Search::begin("the cluster answers", inbox, stop, attempt).map(drop)
}

/// The words that say where the cluster is.
pub(crate) fn settings(brokers: &str, set: &[String]) -> Result<Settings, Failure> {
    let mut settings = Settings::new(brokers);
    for word in set {
        let Some((name, value)) = word.split_once('=') else {
            let why = "it has the form NAME=VALUE, as librdkafka has them";
            return Err(Failure::usage(format!("bad setting `{word}`"), why, "--set security.protocol=SSL"));
        };
        settings.extra.insert(name.to_owned(), value.to_owned());
    }
    Ok(settings)
}

fn load(args: &AgentArgs) -> Result<(Tracer, Vec<Pid>), Failure> {
    let mut what = What::look_up(&args.what)?;
    if !args.what.path.is_empty() {
        return Err(Failure::usage(
            "--path does not work with blkkin agent",
            "which file a request is about is known once its trace is joined, and an agent joins nothing",
            "choose by --cgroup, --comm, --device or --syscall here, and by path where traces are read",
        ));
    }
    let follow = if what.tree.is_empty() { Follow::All } else { Follow::Marked };
    let config = what.tracer_config(follow, &args.how)?;
    let tracer = Tracer::load(&config).map_err(cannot_trace)?;
    for pid in &what.tree {
        tracer.follow_tree(*pid).map_err(cannot_trace)?;
    }
    Ok((tracer, what.tree))
}

/// The threads.
struct Running {
    stop: StopSignal,
    drain: JoinHandle<Result<Ended, TracerError>>,
    send: JoinHandle<Result<Totals, Failure>>,
    /// Where the events went, for a person.
    place: String,
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) deliveries: Deliveries,
    /// Events that no record can hold.
    pub(crate) oversize: u64,
    /// Events that were not queued any more: the queue was full, and the end was asked for.
    pub(crate) left: u64,
}

impl Running {
    fn start(
        tracer: Tracer,
        way: Way,
        place: String,
        inbox: &Inbox,
        books: &Arc<Books>,
    ) -> Result<Running, Failure> {
        let failed = |error| no_thread("cannot start the agent", &error);
        let (publisher, subscription) = topic(CAPACITY_DEFAULT);
        let (stop, ended) = (StopSignal::new(), Farewell(inbox.sender()));
        let (told, books) = (stop.clone(), Arc::clone(books));
        let send = Builder::new().name("send".into()).spawn(move || {
            // Dropped last, also when something panics: whoever waits for the end must hear of it.
            let _ended = ended;
            send::run(subscription, way, &told, &books)
        });
        let send = send.map_err(failed)?;
        let told = stop.clone();
        let drain = Builder::new().name("drain".into()).spawn(move || tracer.drain(publisher, told));
        Ok(Running { stop, drain: drain.map_err(failed)?, send, place })
    }

    fn finish(self) -> Result<ExitCode, Failure> {
        self.stop.stop();
        let ended = self.drain.join().map_err(|panic| broken("the tracer", &*panic))?;
        let totals = self.send.join().map_err(|panic| broken("the sender", &*panic))??;
        let accounts = ended.map_err(cannot_trace)?.accounts;
        let Totals { deliveries, oversize, left } = totals;
        say(&format!(
            "{} events delivered to {}; {} records lost before that",
            deliveries.delivered,
            self.place,
            accounts.lost()
        ));
        let missing = deliveries.failed + deliveries.waiting() + oversize + left;
        if missing == 0 {
            return Ok(Status::Success.code());
        }
        Err(Failure {
            status: Status::Failed,
            ..Failure::usage(
                format!("{missing} events were not delivered"),
                format!(
                    "{} were refused by the cluster, {} not acknowledged in {} s, {left} not taken, {oversize} longer than a record",
                    deliveries.failed,
                    deliveries.waiting(),
                    send::PATIENCE.as_secs()
                ),
                format!("check {}: that a broker answers there, and the topic's settings", self.place),
            )
        })
    }
}

fn no_cluster(error: blkkin_bus::kafka::KafkaError) -> Failure {
    Failure::cannot_trace(error.what, error.why, error.remedy)
}
