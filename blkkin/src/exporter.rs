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

mod book;
mod durations;
mod gathered;
mod kafka_post;
mod ledger;
mod metrics;
mod replay;
mod sink;
mod stop;
mod tally;
mod time;
mod work;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use blkkin_bus::kafka::{DEAD, DeadLetters, Group, Settings, TRACES};
use blkkin_tracer::StopSignal;
use blkkin_zipkin_export::Destination;

use crate::agent::settings;
use crate::args::{ExporterAction, ExporterArgs};
use crate::destination;
use crate::failure::{Failure, Status};
use crate::output::say;
use crate::pipeline::{Farewell, broken};
use crate::service::{Endpoint, Figures, LagGauge, Manager, Port, Search};
use crate::session::{Happening, Inbox, no_thread};

use book::Book;
pub(crate) use kafka_post::KafkaPost;
use metrics::Metrics;
use sink::Sink;
use stop::Stop;
use work::Worker;

/// For what is under way when the end is asked for: what is in hand, the last commit, and what is left.
const END_WITHIN: Duration = Duration::from_secs(20);

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
    let manager = Manager::found();
    let search = look(&settings, &inbox)?;
    let books: Vec<_> =
        routes.iter().map(|route| Arc::new(Book::new(route.destination.to_string()))).collect();
    let metrics = Metrics { books, silence_max: manager.silence_max(), search: search.clone() };
    let metrics = Arc::new(metrics);
    let _metrics = Endpoint::of(
        args.service.metrics,
        args.service.metrics_token.as_deref(),
        Port::Exporter,
        Arc::clone(&metrics) as Arc<dyn Figures>,
    )?;
    if !search.found(&mut inbox, &manager, || metrics.beat()) {
        say("told to end before there was anything to read");
        return Ok(Status::Success.code());
    }
    LagGauge::watch(&settings, metrics.books.iter().map(|book| (TRACES, book.lag.clone())).collect())?;
    run(&settings, (routes, sinks), &metrics, &manager, &mut inbox)
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

/// Until there are traces to be had, and where to leave what is refused.
fn look(settings: &Settings, inbox: &Inbox) -> Result<Search, Failure> {
    let (settings, remarks) = (settings.clone(), inbox.sender());
    // The attempts end with the process, as there is nothing else to do before.
    Search::begin("blkkin.traces can be read", inbox, &StopSignal::new(), move || {
        settings.partitions(TRACES)?;
        if let Err(error) = settings.have_topic(DEAD, 1, &[]) {
            let what = format!("{}: {}; try: {}", error.what, error.why, error.remedy);
            let remark = format!("{what}; what is refused waits for it, and holds what is behind it");
            // Nobody listens any more at the end.
            let _ = remarks.send(Happening::Waiting(remark));
        }
        Ok(())
    })
}

fn run(
    settings: &Settings,
    (routes, sinks): (Vec<Route>, Vec<Sink>),
    metrics: &Metrics,
    manager: &Manager,
    inbox: &mut Inbox,
) -> Result<ExitCode, Failure> {
    let stop = Stop::default();
    let mut threads = Vec::new();
    for ((route, sink), book) in routes.into_iter().zip(sinks).zip(&metrics.books) {
        say(&format!("exporting {TRACES} at {} to {} as {}", settings.brokers, book.name, route.group.name));
        let (ended, settings, stop) = (Farewell(inbox.sender()), settings.clone(), stop.clone());
        let at_work = Arc::clone(book);
        let thread = Builder::new().name("export".into()).spawn(move || {
            let sender = ended.0.clone();
            // Nobody listens any more at the end.
            let tell = move |remark| drop(sender.send(Happening::Waiting(remark)));
            Worker::new(settings, route, sink, stop, Box::new(tell), at_work).work();
            // After its last word: whoever waits for the end must hear of it, also when something panics.
            drop(ended);
        });
        threads.push((book, thread.map_err(|error| no_thread("cannot start the exporter", &error))?));
    }
    let to: Vec<_> = metrics.books.iter().map(|book| book.name.as_str()).collect();
    manager.ready(&format!("exporting {TRACES} at {} to {}", settings.brokers, to.join(", ")));
    let mut running = threads.len();
    while running > 0 {
        match inbox.next(manager.every().unwrap_or(Duration::MAX)) {
            Some(Happening::Signal(arrival)) if !arrival.is_child() => {
                manager.stopping(END_WITHIN);
                stop.stop();
            }
            Some(Happening::PipelineEnded) => running -= 1,
            Some(Happening::Waiting(remark)) => {
                say(&remark);
                manager.status(&remark);
            }
            Some(Happening::Signal(_) | Happening::Found) | None => {}
        }
        // One that broke off beats no more: the manager starts all again.
        manager.alive(metrics.silence());
    }
    let mut code = Status::Success.code();
    for (book, thread) in threads {
        match thread.join() {
            Ok(()) => {
                let tally = book.tally();
                tally.lines(&book.name).iter().for_each(|line| say(line));
                if tally.fenced {
                    code = Status::Failed.code();
                }
            }
            Err(panic) => code = broken(&format!("the export to {}", book.name), &*panic).print(),
        }
    }
    Ok(code)
}
