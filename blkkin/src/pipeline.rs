//! The way of events through this process.
//!
//! ```text
//! thread "drain"                    thread "join"
//! Tracer::drain ── bus (bounded) ── Joiner ── Tail ─┬─ Report
//!                                                   └─ translate ─ (Home) ─ Outlet (a thread each)
//! ```
//!
//! *In*: a loaded tracer. *Out*: a [`Harvest`]: the report, and the books of every stage. *Invariant*: nothing
//! is shed between the rings and the exporters' queues. When the join falls behind, the bus fills, the drain
//! waits, the rings overflow, and the kernel side counts that.
//!
//! *End*: [`Pipeline::stop`] tells the drain; it empties the rings, detaches and drops its end of the bus, the join
//! takes what is left, finishes its traces and waits for the exporters. Whoever listens on the inbox then hears
//! [`Happening::PipelineEnded`], and [`Pipeline::collect`] does not wait.

mod alive;
pub(crate) mod asking;
mod join;
pub(crate) mod live;
mod others;
mod raw;

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::{Builder, JoinHandle};

use blkkin_aggregator::join::JoinAccounts;
use blkkin_bus::{CAPACITY_DEFAULT, Counts, topic};
use blkkin_report::{Progress, Report};
use blkkin_tracer::{Detail, Ended, Follow, StopSignal, Tracer, TracerError};
use blkkin_wire::batch::Accounts;
use blkkin_zipkin_export::Exporter;

use crate::daemons::{AtWork, Daemons, Shown};
use crate::destination::{Delivery, Outlet};
use crate::failure::Failure;
use crate::probes::{self, Probes};
use crate::session::Happening;
use crate::tail::Tail;
use live::Live;

/// What to do with traces.
pub(crate) struct Plan {
    /// Who is followed.
    pub(crate) follow: Follow,
    /// Which are kept.
    pub(crate) tail: Tail,
    /// How much is said of a call.
    pub(crate) detail: Detail,
    /// What remembers them.
    pub(crate) report: Report,
    /// Where their spans go.
    pub(crate) outlets: Vec<Outlet>,
    /// What is heard of daemons, if anybody listens.
    pub(crate) daemons: Option<Daemons>,
    /// What is heard at probes of programs, if anybody listens.
    pub(crate) probes: Option<Probes>,
    /// What programs ask NBD servers is seen: it may meet what daemons say of the same requests.
    pub(crate) nbd: bool,
}

/// What there is when all has ended.
pub(crate) struct Harvest {
    /// What the kept traces were.
    pub(crate) report: Report,
    /// The tracer's books: the final ones, or as of the last batch with the error that ended it early.
    pub(crate) tracer: (Accounts, Option<TracerError>),
    /// The join's books.
    pub(crate) join: JoinAccounts,
    /// The bus's books.
    pub(crate) bus: Counts,
    /// Traces left out because a name that a filter asks for is not known.
    pub(crate) names_unknown: u64,
    /// Journal commits left out, as no recorded call of those who are followed waited for them.
    pub(crate) commits_of_others: u64,
    /// Followed processes of which no end was recorded; none where there were too many to remember.
    pub(crate) alive: Option<usize>,
    /// What became of the spans.
    pub(crate) deliveries: Vec<Delivery>,
    /// What there is to say of daemons, and of who asks them.
    pub(crate) daemons: Vec<String>,
    /// What hits of probes became, if anybody listened.
    pub(crate) probes: Option<probes::Told>,
}

/// Both threads.
pub(crate) struct Pipeline {
    stop: StopSignal,
    live: Arc<Live>,
    servers: Vec<Arc<Exporter>>,
    drain: JoinHandle<Result<Ended, TracerError>>,
    join: JoinHandle<join::Joined>,
    daemons: Option<AtWork>,
    probes: Option<probes::AtWork>,
}

impl Pipeline {
    /// Starts both threads.
    pub(crate) fn start(tracer: Tracer, mut plan: Plan, inbox: Sender<Happening>) -> io::Result<Pipeline> {
        let (mut publisher, subscription) = topic(CAPACITY_DEFAULT);
        let mut daemons = None;
        if let Some(prepared) = plan.daemons.take() {
            let (first, batches) = topic(CAPACITY_DEFAULT);
            let out = std::mem::replace(&mut publisher, first);
            daemons = Some(prepared.start(batches, out, plan.follow, &Shown::default())?);
        }
        // Before the daemons, as it waits for nothing.
        let mut probes = None;
        if let Some(prepared) = plan.probes.take() {
            let (first, batches) = topic(CAPACITY_DEFAULT);
            let out = std::mem::replace(&mut publisher, first);
            probes = Some(prepared.start(batches, out, &probes::Shown::default())?);
        }
        let (stop, live) = (StopSignal::new(), Arc::new(Live::default()));
        let servers = plan.outlets.iter().filter_map(Outlet::server).collect();
        let watched = Arc::clone(&live);
        let join = Builder::new().name("join".into()).spawn(move || {
            // Dropped last, also when something panics: whoever waits for the end must hear of it.
            let ended = Farewell(inbox);
            join::join(subscription, plan, &watched, |remark| ended.tell(remark))
        })?;
        let told = stop.clone();
        let drain = Builder::new().name("drain".into()).spawn(move || tracer.drain(publisher, told))?;
        Ok(Pipeline { stop, live, servers, drain, join, daemons, probes })
    }

    /// Tells the drain to empty the rings and end.
    pub(crate) fn stop(&self) {
        self.stop.stop();
    }

    /// Waits for no server any more: what it did not take is counted.
    pub(crate) fn break_off(&self) {
        self.servers.iter().for_each(|server| server.break_off());
    }

    /// What was seen so far.
    pub(crate) fn seen(&self) -> Progress {
        self.live.read()
    }

    /// Waits for the end of both threads.
    pub(crate) fn collect(self) -> Result<Harvest, Failure> {
        let mut joined = self.join.join().map_err(|panic| broken("the join", &*panic))?;
        let (mut asked, mut hits) = (None, None);
        let tracer = match self.drain.join().map_err(|panic| broken("the tracer", &*panic))? {
            Ok(ended) => {
                joined.report.at_end(ended.at_end);
                (asked, hits) = (ended.nbd, ended.hits);
                (ended.accounts, None)
            }
            Err(error) => (joined.last, Some(error)),
        };
        let mut daemons = self.daemons.map(AtWork::collect).transpose()?.unwrap_or_default();
        let mut told = None;
        if let Some(probes) = self.probes {
            let (remarks, numbers) = probes.collect(hits)?;
            daemons.extend(remarks);
            told = Some(numbers);
        }
        if let Some(asked) = asked {
            daemons.extend(asking::remarks(&asked, joined.met.as_ref()));
        }
        Ok(Harvest {
            daemons,
            probes: told,
            report: joined.report,
            tracer,
            join: joined.accounts,
            bus: joined.bus,
            names_unknown: joined.names_unknown,
            commits_of_others: joined.commits_of_others,
            alive: joined.alive,
            deliveries: joined.deliveries,
        })
    }
}

/// Says that a pipeline has ended when it is dropped.
pub(crate) struct Farewell(pub(crate) Sender<Happening>);

impl Farewell {
    fn tell(&self, remark: String) {
        // As below.
        let _ = self.0.send(Happening::Waiting(remark));
    }
}

impl Drop for Farewell {
    fn drop(&mut self) {
        // Nobody listens any more when the person has left.
        let _ = self.0.send(Happening::PipelineEnded);
    }
}

/// A thread that panicked.
pub(crate) fn broken(part: &str, panic: &(dyn Any + Send)) -> Failure {
    let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
    let words = words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    Failure {
        status: crate::failure::Status::Failed,
        ..Failure::usage(
            format!("{part} broke off, and the trace with it"),
            words,
            "report this with the command line: it is an error in blkkin",
        )
    }
}
