//! `blkkin exporter`: traces out of a topic of Kafka to where they are looked at, until told to end.
//!
//! ```text
//! a thread for each destination, a group of consumers each:
//! TraceConsumer ── pieces → spans ── Sender | SpanFile ── the destination
//!       ↑                                  │ acknowledged        │ refused
//!       └── commit ────────────────────────┴──── blkkin.dead ────┘
//! ```
//!
//! *In*: `blkkin.traces`. *Out*: each span at each destination, or in `blkkin.dead` with why; at the end what became of them.
//!
//! *Invariant*: a group's offset is committed only behind what the destination has acknowledged or what lies in
//! `blkkin.dead`. So nothing is dropped while a destination is away, and what an exporter that was killed had sent and not
//! committed is sent again: byte for byte the same, which Zipkin shows once; a topic, a file or an OTLP receiver has it
//! twice. What comes twice in the topic itself is known by its numbers and sent once.
//!
//! One destination never waits for another: they share nothing but the process. *Rejected*: one group that sends to all (the
//! slowest says how fast), a queue for each destination in memory (the topic is one already, and outlives us).

mod gathered;
mod kafka_post;
mod ledger;
mod replay;
mod sink;
mod stop;
mod tally;
mod time;
mod work;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::thread::Builder;
use std::time::{Duration, Instant};

use blkkin_bus::kafka::{DEAD, DeadLetters, Group, KafkaError, Settings, TRACES};
use blkkin_zipkin_export::Destination;

use crate::agent::settings;
use crate::args::{ExporterAction, ExporterArgs};
use crate::destination;
use crate::failure::{Failure, Status};
use crate::output::say;
use crate::pipeline::{Farewell, broken};
use crate::session::{Happening, Inbox, no_thread};

pub(crate) use kafka_post::KafkaPost;
use sink::Sink;
use stop::Stop;
use work::Worker;

/// Between two attempts to find the cluster.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Exports until told to end, or sets groups back.
pub(crate) fn exporter(args: &ExporterArgs) -> Result<ExitCode, Failure> {
    let settings = settings(&args.brokers, &args.set)?;
    let routes = routes(args)?;
    if args.action == Some(ExporterAction::Replay) {
        return replay::replay(&settings, &routes, args.from.as_deref().unwrap_or_default());
    }
    if args.from.is_some() {
        let why = "an exporter goes on where its group was";
        return Err(Failure::usage("--from is for replay", why, "blkkin exporter replay --from TIME …"));
    }
    let mut inbox = Inbox::open()?;
    // A setting that means nothing is refused when something is made of it; nothing is connected by that.
    DeadLetters::new(&settings, "").map_err(replay::failed)?;
    // Opened before the cluster is looked for: what is wrong with a destination is told at once.
    let mut sinks = Vec::new();
    for route in &routes {
        sinks.push(Sink::open(route, &settings)?);
    }
    if !found(&settings, &mut inbox) {
        return Ok(Status::Success.code());
    }
    run(&settings, routes, sinks, &mut inbox)
}

/// A destination and its group.
pub(super) struct Route {
    /// As it was named.
    word: String,
    /// Where to.
    destination: Destination,
    /// Who reads for it.
    group: Group,
}

fn routes(args: &ExporterArgs) -> Result<Vec<Route>, Failure> {
    let (mut routes, mut names) = (Vec::new(), BTreeSet::new());
    for word in &args.to {
        let destination = destination::parse(word)?;
        let name = format!("{}-{}", args.group, destination.name());
        if !names.insert(name.clone()) {
            let why = "each destination has a group of its own, and this one would be shared";
            return Err(Failure::usage(format!("{destination} is named twice"), why, "name it once"));
        }
        let group = Group { name, member: args.instance.clone() };
        routes.push(Route { word: word.clone(), destination, group });
    }
    Ok(routes)
}

/// Waits until there are traces to be had, says what hinders it, once each; false when told to end meanwhile.
fn found(settings: &Settings, inbox: &mut Inbox) -> bool {
    let (mut said, begun) = (String::new(), Instant::now());
    loop {
        match settings.partitions(TRACES) {
            Ok(_) => break,
            Err(error) if error.to_string() != said => {
                said = error.to_string();
                say(&format!("{}; going on until it can be used", block(&error)));
            }
            Err(_) => {}
        }
        if told_to_end(inbox.next(LOOK_EVERY)) {
            return false;
        }
    }
    if !said.is_empty() {
        say(&format!("{TRACES} can be read after {} s", begun.elapsed().as_secs()));
    }
    if let Err(error) = settings.have_topic(DEAD, 1, &[]) {
        say(&format!("{}; what is refused waits for it, and holds what is behind it", block(&error)));
    }
    true
}

fn block(error: &KafkaError) -> String {
    format!("{}: {}; try: {}", error.what, error.why, error.remedy)
}

fn told_to_end(happening: Option<Happening>) -> bool {
    matches!(happening, Some(Happening::Signal(arrival)) if !arrival.is_child())
}

fn run(
    settings: &Settings,
    routes: Vec<Route>,
    sinks: Vec<Sink>,
    inbox: &mut Inbox,
) -> Result<ExitCode, Failure> {
    let stop = Stop::default();
    let mut threads = Vec::new();
    for (route, sink) in routes.into_iter().zip(sinks) {
        let name = route.destination.to_string();
        say(&format!("exporting {TRACES} at {} to {name} as {}", settings.brokers, route.group.name));
        let (ended, settings, stop) = (Farewell(inbox.sender()), settings.clone(), stop.clone());
        let thread = Builder::new().name("export".into()).spawn(move || {
            let sender = ended.0.clone();
            // Nobody listens any more at the end.
            let tell = move |remark| drop(sender.send(Happening::Waiting(remark)));
            let tally = Worker::new(settings, route, sink, stop, Box::new(tell)).work();
            // After its last word: whoever waits for the end must hear of it, also when something panics.
            drop(ended);
            tally
        });
        threads.push((name, thread.map_err(|error| no_thread("cannot start the exporter", &error))?));
    }
    let mut running = threads.len();
    while running > 0 {
        match inbox.next(Duration::MAX) {
            Some(Happening::Signal(arrival)) if !arrival.is_child() => stop.stop(),
            Some(Happening::PipelineEnded) => running -= 1,
            Some(Happening::Waiting(remark)) => say(&remark),
            Some(Happening::Signal(_)) | None => {}
        }
    }
    let mut code = Status::Success.code();
    for (name, thread) in threads {
        match thread.join() {
            Ok(tally) => {
                tally.lines(&name).iter().for_each(|line| say(line));
                if tally.fenced {
                    code = Status::Failed.code();
                }
            }
            Err(panic) => code = broken(&format!("the export to {name}"), &*panic).print(),
        }
    }
    Ok(code)
}
