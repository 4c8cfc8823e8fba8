//! `blkkin agent`: what happens on this machine goes into a topic of Kafka, until told to end.
//!
//! ```text
//! thread "drain"                    thread "send"                                  thread "look"
//! Tracer::drain ── bus (bounded) ── Gatherer → Outbox → the cluster                 makes the topic, says who is away
//!                    └ --ust: [daemons](crate::daemons), --probes: [probes](crate::probes), └ spool (a folder, bounded)
//!                      and a bus more for each
//! ```
//!
//! *In*: a loaded tracer, and a cluster that need not be there yet. *Out*: records, and at the end what became of every
//! event. *Invariant*: nothing is shed between the rings and the cluster: while it does not take more, the spool fills (or,
//! where there is none, the producer's queue), then the bus, then the rings, and there it is counted. What an agent that is killed
//! loses the next one tells (`inherited.rs`).
//!
//! Nothing is joined here: a trace over several machines is whole only where their events meet. So what can be asked of a
//! whole trace alone (`--path`) is refused.

mod books;
mod figures;
mod inherited;
mod keeper;
mod load;
mod outbox;
mod replay;
mod send;
mod spooling;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use blkkin_bus::kafka::{Deliveries, EVENTS, EventProducer, KafkaError, Settings};
use blkkin_bus::recording::Recorder;
use blkkin_bus::{CAPACITY_DEFAULT, topic};
use blkkin_tracer::{Ended, Follow, StopSignal, Tracer, TracerError};
use blkkin_wire::ids::NodeId;
use blkkin_wire::killed::Killed;

use crate::args::{AgentArgs, UstArgs};
use crate::daemons::{AtWork, Daemons, Shown};
use crate::failure::{Failure, Status};
use crate::nearest::nearest;
use crate::output::say;
use crate::pipeline::{Farewell, asking, broken};
use crate::probes::{self, Probes};
use crate::run::cannot_trace;
use crate::service::{Endpoint, Figures, Manager, Port, Search};
use crate::session::{Happening, Inbox, no_thread};
use crate::what::{believed, whom};
use books::Books;
use inherited::{Inherited, Note};
use keeper::Keeper;
use load::{Loaded, load};
use send::{ToCluster, Way};

/// The log's time is the broker's: whoever tells by it that a node has fallen silent depends on no node's clock.
pub(crate) const OF_EVENTS: &[(&str, &str)] = &[("message.timestamp.type", "LogAppendTime")];

/// Traces and sends until told to end.
pub(crate) fn agent(args: &AgentArgs) -> Result<ExitCode, Failure> {
    // Open before anything is attached: a signal meanwhile ends the agent, and does not kill it.
    let mut inbox = Inbox::open()?;
    refuse_paths(args)?;
    refuse_of_a_replay(args)?;
    let Some(brokers) = &args.brokers else { return record(args, inbox) };
    let settings = settings(brokers, &args.set)?;
    if let Some(folder) = &args.replay {
        start_looking(&settings, args.partitions, &StopSignal::new(), &inbox)?;
        return replay::replay(folder, &settings, args.rate, &mut inbox);
    }
    let domain = args.domain.as_deref().map(domain).transpose()?;
    let spool = spooling::open(args)?;
    let keeper = Keeper::find(&args.bpffs);
    let mut inherited = Inherited::find(&keeper, spool.as_ref());
    let mut traced = load(args)?;
    let node = traced.tracer.source().node;
    let domain = domain.unwrap_or(node);
    let producer = EventProducer::new(&settings, domain).map_err(no_cluster)?;
    let legacy = keeper.and_then(|keeper| {
        let legacy = traced.tracer.bequeath().map_err(|error| error.to_string())?;
        Ok((keeper.keep(&legacy)?, legacy.ledger))
    });
    if let Err(why) = &legacy {
        say(&format!("what this agent loses, should it be killed, will be unknown: {why}"));
    }
    let (own, ledger) = legacy.ok().unzip();
    let kept = own.as_ref().map(|_| traced.tracer.source().epoch);
    let note = spool.as_ref().map(|spool| Note::new(spool.folder(), kept));
    note.iter().for_each(|note| inherited.leave(note));
    let place = format!("{EVENTS} at {}", settings.brokers);
    let killed = inherited.killed.clone();
    let record_bytes = settings.record_bytes();
    let way =
        Way::Cluster(Box::new(ToCluster { producer, record_bytes, node, domain, spool, ledger, inherited }));
    let ended = serve(args, traced, way, Some((settings, killed)), place, inbox);
    // However it ended, that is said: there is nothing for the next start to tell.
    drop(own);
    note.into_iter().for_each(Note::end);
    ended
}

/// A machine id, as /etc/machine-id has it.
fn domain(word: &str) -> Result<NodeId, Failure> {
    let fits = word.len() == 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = fits.then(|| u128::from_str_radix(word, 16).ok()).flatten();
    id.map(NodeId).ok_or_else(|| {
        let why = "it is 32 hexadecimal digits, as /etc/machine-id has them";
        Failure::usage(
            format!("bad machine id `{word}`"),
            why,
            "--domain $(cat /etc/machine-id), of the host",
        )
    })
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
    serve(args, load(args)?, Way::Folder(recorder), None, folder.display().to_string(), inbox)
}

/// Traces as a service, until told to end, or until nothing is left to do.
fn serve(
    args: &AgentArgs,
    Loaded { mut tracer, tree, wanted }: Loaded,
    way: Way,
    cluster: Option<(Settings, Vec<Killed>)>,
    place: String,
    mut inbox: Inbox,
) -> Result<ExitCode, Failure> {
    let manager = Manager::found();
    let heard = Daemons::prepare(&args.ust, &believed::believed(&args.how.contexts)?)?
        .map(|daemons| (daemons, Shown::at_once()));
    let shown = heard.as_ref().map(|(_, shown)| shown.clone());
    let probes = wanted.listen(&mut tracer)?.map(|probes| (probes, probes::Shown::default()));
    let hits = probes.as_ref().map(|(_, shown)| shown.clone());
    let books = Arc::new(Books::new(manager.silence_max(), (shown, hits), tracer.asking()));
    let _metrics = Endpoint::of(
        args.service.metrics,
        args.service.metrics_token.as_deref(),
        Port::Agent,
        Arc::clone(&books) as Arc<dyn Figures>,
    )?;
    let begun = format!("tracing; events go to {place}");
    if let Way::Cluster(way) = &way {
        way.spool.iter().for_each(|spool| books.spooled(spool.counts()));
    }
    let listeners = Listeners { daemons: heard, probes, follow: whom(&tree) };
    let running = Running::start(tracer, listeners, way, place, &inbox, &books)?;
    if let Some((settings, killed)) = cluster {
        books.inherit(killed);
        books.searched(start_looking(&settings, args.partitions, &running.stop, &inbox)?);
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

/// Makes the topic; nobody waits for it.
fn start_looking(
    settings: &Settings,
    partitions: u32,
    stop: &StopSignal,
    inbox: &Inbox,
) -> Result<Search, Failure> {
    let settings = settings.clone();
    let attempt = move || settings.have_topic(EVENTS, partitions, OF_EVENTS);
    Search::begin("the cluster answers", inbox, stop, attempt)
}

/// The words that say where the cluster is.
pub(crate) fn settings(brokers: &str, set: &[String]) -> Result<Settings, Failure> {
    let mut settings = Settings::new(brokers);
    for word in set {
        let Some((name, value)) = word.split_once('=') else {
            let why = "it has the form NAME=VALUE, as librdkafka has them";
            // What stands behind the name may be a password.
            let name =
                word.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.')).next().unwrap_or_default();
            return Err(Failure::usage(format!("bad setting `{name}`"), why, "--set security.protocol=SSL"));
        };
        settings.extra.insert(name.to_owned(), value.to_owned());
    }
    settings.check().map_err(|error| {
        let meant =
            settings.extra.keys().find(|name| error.what.contains(&format!(" {name} "))).and_then(|name| {
                let meant = nearest(name, SET_OFTEN)?;
                (meant != name)
                    .then(|| format!("`{meant}` is the nearest that is set often; {}", error.remedy))
            });
        Failure::usage(error.what, error.why, meant.unwrap_or(error.remedy))
    })?;
    Ok(settings)
}

fn refuse_of_a_replay(args: &AgentArgs) -> Result<(), Failure> {
    let (option, said) = match args.ust {
        UstArgs { ust: true, .. } => ("--ust", "what daemons said"),
        UstArgs { nbd: true, .. } => ("--nbd", "what NBD clients asked"),
        _ if !args.probes.probes.is_empty() => ("--probes", "what probes said"),
        _ => return Ok(()),
    };
    if args.replay.is_none() {
        return Ok(());
    }
    let why = format!("{said} was recorded with the rest, or was not");
    Err(Failure::usage(
        format!("{option} does not work with --replay"),
        why,
        format!("{option} with --record"),
    ))
}

fn refuse_paths(args: &AgentArgs) -> Result<(), Failure> {
    if args.what.path.is_empty() {
        return Ok(());
    }
    Err(Failure::usage(
        "--path does not work with blkkin agent",
        "which file a request is about is known once its trace is joined, and an agent joins nothing",
        "choose by --cgroup, --comm, --device or --syscall here, and by path where traces are read",
    ))
}

/// Settings of librdkafka that people give by `--set`.
const SET_OFTEN: [&str; 22] = [
    "broker.address.family",
    "debug",
    "group.protocol",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "message.max.bytes",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.oauthbearer.config",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "session.timeout.ms",
    "socket.timeout.ms",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.keystore.location",
];

/// Who hears what programs say, each with what is shown of it.
struct Listeners {
    daemons: Option<(Daemons, Shown)>,
    probes: Option<(Probes, probes::Shown)>,
    follow: Follow,
}

/// The threads.
struct Running {
    stop: StopSignal,
    drain: JoinHandle<Result<Ended, TracerError>>,
    send: JoinHandle<Result<Totals, Failure>>,
    daemons: Option<AtWork>,
    probes: Option<probes::AtWork>,
    /// Where the events went, for a person.
    place: String,
}

/// What was sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) deliveries: Deliveries,
    /// Events that no record can hold.
    pub(crate) oversize: u64,
    /// Events that were not queued any more: the queue was full, and the end was asked for.
    pub(crate) left: u64,
    /// Events that were sent, have no answer, and are nowhere else.
    unanswered: u64,
    /// Batches that stay in the spool, and where that is.
    spooled: Option<(u64, PathBuf)>,
    /// Why the cluster refused what it refused.
    pub(crate) refused: Option<KafkaError>,
}

impl Running {
    fn start(
        tracer: Tracer,
        listeners: Listeners,
        way: Way,
        place: String,
        inbox: &Inbox,
        books: &Arc<Books>,
    ) -> Result<Running, Failure> {
        let failed = |error| no_thread("cannot start the agent", &error);
        let Listeners { daemons: heard, probes: listened, follow } = listeners;
        let (mut publisher, subscription) = topic(CAPACITY_DEFAULT);
        let mut daemons = None;
        if let Some((prepared, shown)) = heard {
            let (first, batches) = topic(CAPACITY_DEFAULT);
            let out = std::mem::replace(&mut publisher, first);
            daemons = Some(prepared.start(batches, out, follow, &shown).map_err(failed)?);
        }
        // Before the daemons, as it waits for nothing.
        let mut probes = None;
        if let Some((prepared, shown)) = listened {
            let (first, batches) = topic(CAPACITY_DEFAULT);
            let out = std::mem::replace(&mut publisher, first);
            probes = Some(prepared.start(batches, out, &shown).map_err(failed)?);
        }
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
        Ok(Running { stop, drain: drain.map_err(failed)?, send, daemons, probes, place })
    }

    fn finish(self) -> Result<ExitCode, Failure> {
        self.stop.stop();
        let ended = self.drain.join().map_err(|panic| broken("the tracer", &*panic))?;
        let totals = self.send.join().map_err(|panic| broken("the sender", &*panic))??;
        let remarks = self.daemons.map(AtWork::collect).transpose()?.unwrap_or_default();
        remarks.iter().for_each(|remark| say(remark));
        let hits = ended.as_ref().ok().and_then(|ended| ended.hits);
        if let Some(probes) = self.probes {
            let (remarks, _) = probes.collect(hits)?;
            remarks.iter().for_each(|remark| say(remark));
        }
        let Ended { accounts, nbd, .. } = ended.map_err(cannot_trace)?;
        nbd.iter().flat_map(|nbd| asking::remarks(nbd, None)).for_each(|remark| say(&remark));
        let Totals { deliveries, oversize, left, unanswered, spooled, refused } = totals;
        say(&format!(
            "{} events delivered to {}; {} records lost before that",
            deliveries.delivered,
            self.place,
            accounts.lost()
        ));
        if let Some((batches, folder)) = spooled {
            say(&format!(
                "{batches} batches stay in the spool {}: the next start sends them",
                folder.display()
            ));
        }
        let missing = deliveries.failed + unanswered + oversize + left;
        if missing == 0 {
            return Ok(Status::Success.code());
        }
        let (because, remedy) = match refused {
            Some(error) => (format!(" ({})", error.why), error.remedy),
            None => {
                let remedy =
                    format!("check {}: that a broker answers there, and the topic's settings", self.place);
                (String::new(), remedy)
            }
        };
        Err(Failure {
            status: Status::Failed,
            ..Failure::usage(
                format!("{missing} events were not delivered"),
                format!(
                    "{} were refused by the cluster{because}, {unanswered} not acknowledged in {} s, {left} not taken, {oversize} longer than a record",
                    deliveries.failed,
                    send::PATIENCE.as_secs()
                ),
                remedy,
            )
        })
    }
}

fn no_cluster(error: KafkaError) -> Failure {
    Failure::cannot_trace(error.what, error.why, error.remedy)
}
