//! Changes of what the agent records, while it runs: by `blkkin ctl` on this node, and for a fleet by a topic.
//!
//! ```text
//! blkkin ctl ── Unix socket ─────────────► thread "ctl" ────────┐
//!                                          (socket.rs)          ├─► Controller ──► maps of the kernel side
//! blkkin ctl --brokers ── blkkin.control ► thread "ctl-topic" ──┘   (schedule.rs)
//!                                          (topic.rs)
//! ```
//!
//! *In*: requests, and records of the topic. *Out*: settings of the tracer, and the answer with the state. *Invariant*: a
//! change is applied whole or not at all; the answer comes after it; and the log names the user that asked for it.
//!
//! *Two sources*: the last change applies. The topic's records for this node replace the options of the start, so `reset`
//! returns to it. A change by the socket for a time survives a lasting record.
//!
//! *Rejected*: the port of the metrics. Its clients may see but not change anything, and have no user.

mod schedule;
mod socket;
mod topic;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant, SystemTime};

use blkkin_bus::kafka;
use blkkin_tracer::StopSignal;
use blkkin_tracer::capture::{CaptureControl, CaptureSettings};
use blkkin_tracer::selection::budget::BudgetStatus;
use blkkin_wire::ids::NodeId;
use tracing::{info, warn};

use crate::cli::{AgentArgs, FilterArgs};
use crate::ctl::fleet::{FleetRecord, NodeRecords};
use crate::ctl::protocol::{Answer, Change, ChangeRecord, RecordingSettings, Request, State};
use crate::ctl::resolve::resolve;
use crate::error::{CliError, cannot_spawn};
use crate::filter::keep::{self, Disks};
use crate::service::{MetricFamily, MetricKind, format_utc};
use schedule::Schedule;
pub(super) use socket::ControlSocket;

/// Number of changes that the state lists.
const CHANGES_MAX: usize = 8;
/// Time until a failed return to the lasting settings is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// Handle of the control, and its counters for the metrics.
#[derive(Clone)]
pub(super) struct RuntimeControl {
    controller: Arc<Mutex<Controller>>,
    stats: Arc<ControlStats>,
}

#[derive(Debug, Default)]
struct ControlStats {
    changes: AtomicU64,
    refused: AtomicU64,
    is_paused: AtomicBool,
    /// Offset behind the last record of the topic that was taken.
    topic_offset: AtomicI64,
}

impl RuntimeControl {
    /// Takes the settings of the start, and serves clients of the socket in a thread, until the process exits.
    pub(super) fn start(
        args: &AgentArgs,
        capture: CaptureControl,
        socket: Option<ControlSocket>,
    ) -> Result<RuntimeControl, CliError> {
        let mut start = RecordingSettings {
            recording: true,
            sample: args.filter.sample.clone().unwrap_or_else(|| "1/1".into()),
            keep: args.filter.keep.iter().map(|rule| rule.trim().to_owned()).collect(),
            budget: args.budget.clone(),
        };
        resolve(&mut start, &args.filter, Disks::Any)?;
        let stats = Arc::<ControlStats>::default();
        let controller = Controller {
            capture,
            filter: args.filter.clone(),
            schedule: Schedule { lasting: start.clone(), timed: None },
            start,
            fleet: NodeRecords::default(),
            changes: VecDeque::new(),
            stats: Arc::clone(&stats),
        };
        let control = RuntimeControl { controller: Arc::new(Mutex::new(controller)), stats };
        if let Some(socket) = socket {
            let control = control.clone();
            spawn("ctl", move || socket.serve(&control))?;
        }
        Ok(control)
    }

    /// Follows a topic in a thread, until `stop`.
    pub(super) fn follow(
        &self,
        settings: &kafka::Settings,
        topic: &str,
        node: NodeId,
        stop: &StopSignal,
    ) -> Result<(), CliError> {
        let (control, settings, topic, stop) =
            (self.clone(), settings.clone(), topic.to_owned(), stop.clone());
        let names = topic::node_names(node);
        spawn("ctl-topic", move || topic::follow(&control, &settings, &topic, &names, &stop))
    }

    fn lock(&self) -> MutexGuard<'_, Controller> {
        // A panic leaves a valid schedule behind: it is replaced as a whole.
        self.controller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn metric_families(&self) -> Vec<MetricFamily> {
        let ControlStats { changes, refused, is_paused, topic_offset } = &*self.stats;
        let single = |kind, name, help, value| MetricFamily::single(kind, name, help, value);
        vec![
            single(
                MetricKind::Counter,
                "ctl_changes",
                "Changes of what is recorded, by blkkin ctl or at the end of their time",
                changes.load(Relaxed) as f64,
            ),
            single(
                MetricKind::Counter,
                "ctl_refused",
                "Requests to the control socket and records of --ctl-topic that were refused",
                refused.load(Relaxed) as f64,
            ),
            single(
                MetricKind::Gauge,
                "ctl_paused",
                "1 while no operation is recorded, because of blkkin ctl off",
                f64::from(u8::from(is_paused.load(Relaxed))),
            ),
            single(
                MetricKind::Gauge,
                "ctl_topic_offset",
                "Offset behind the last record of --ctl-topic that this agent has taken",
                topic_offset.load(Relaxed) as f64,
            ),
        ]
    }
}

impl fmt::Debug for RuntimeControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats.fmt(f)
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), CliError> {
    let failed = |error| cannot_spawn("cannot serve blkkin ctl", &error);
    Builder::new().name(name.into()).spawn(run).map(drop).map_err(failed)
}

/// The settings, and the handle that applies them.
struct Controller {
    capture: CaptureControl,
    /// Options of the start, which some rules contradict.
    filter: FilterArgs,
    start: RecordingSettings,
    /// Records of the topic for this node.
    fleet: NodeRecords,
    schedule: Schedule,
    changes: VecDeque<ChangeRecord>,
    stats: Arc<ControlStats>,
}

impl Controller {
    /// Ends the timed settings if their time has come. Returns the time until it comes.
    fn end_due(&mut self, now: Instant) -> Option<Duration> {
        if self.schedule.left(now).is_some_and(|left| left.is_zero()) {
            let next = Schedule { timed: None, ..self.schedule.clone() };
            match self.apply(next) {
                Ok(()) => self.record(None, "the time of a change has ended".into()),
                Err(error) => {
                    warn!("the lasting settings cannot be restored yet: {} ({})", error.what, error.why);
                    self.schedule.timed.iter_mut().for_each(|(_, end)| *end = now + RETRY);
                }
            }
        }
        self.schedule.left(now)
    }

    fn answer(&mut self, request: &Request, from: Option<libc::ucred>) -> Answer {
        let now = Instant::now();
        let (next, what) = match request {
            Request::Show => return Answer::State(self.state(now).into()),
            Request::Change(change) => {
                // Disks of these rules must be there; those of earlier ones may be gone.
                let mut changed = self.start.with(change);
                if change.keep.is_some()
                    && let Err(error) = self.resolve(&mut changed, Disks::Present)
                {
                    return self.refused(error);
                }
                (self.schedule.with(change, now), change.arguments())
            }
            Request::Reset => (self.of_fleet(&self.fleet, now), "reset".to_owned()),
        };
        match self.apply(next) {
            Ok(()) => {
                self.record(from, what);
                Answer::State(self.state(now).into())
            }
            Err(error) => self.refused(error),
        }
    }

    fn refused(&self, CliError { what, why, remedy, .. }: CliError) -> Answer {
        self.stats.refused.fetch_add(1, Relaxed);
        Answer::Refused { what, why, remedy }
    }

    /// Takes what the topic has for this node now. It is applied if it is not what it was.
    fn set_fleet(&mut self, fleet: NodeRecords) {
        if fleet == self.fleet {
            return;
        }
        let now = Instant::now();
        let mut next = self.of_fleet(&fleet, now);
        if self.fleet.timed == fleet.timed {
            next.timed = self.schedule.timed.clone();
        }
        match self.apply(next) {
            Ok(()) => {
                self.record(None, describe(&fleet));
                self.fleet = fleet;
            }
            // Each record was checked, so it is the kernel that refuses; the next end of the topic tries again.
            Err(error) => warn!("{} is not applied: {}: {}", describe(&fleet), error.what, error.why),
        }
    }

    /// Checks whether this agent can apply a record of the topic.
    fn check(&self, record: &FleetRecord) -> Result<(), String> {
        let mut settings = self.start.with(&record.change);
        self.resolve(&mut settings, Disks::Any)
            .map(drop)
            .map_err(|error| format!("{}: {}", error.what, error.why))
    }

    /// Returns the schedule that the options of the start and the records of the topic make.
    fn of_fleet(&self, fleet: &NodeRecords, now: Instant) -> Schedule {
        let change = |record: &Option<(i64, FleetRecord)>| {
            record.as_ref().map_or_else(Change::default, |(_, record)| record.change.clone())
        };
        let left = fleet.timed.as_ref().and_then(|(_, record)| record.left(SystemTime::now()));
        let end = left.filter(|left| !left.is_zero()).and_then(|left| now.checked_add(left));
        let timed = end.map(|end| (self.start.with(&change(&fleet.timed)), end));
        Schedule { lasting: self.start.with(&change(&fleet.lasting)), timed }
    }

    /// Applies the settings of a schedule, or none of them.
    fn apply(&mut self, mut schedule: Schedule) -> Result<(), CliError> {
        let mut settings = self.resolve(&mut schedule.lasting, Disks::Any)?;
        if let Some((timed, _)) = &mut schedule.timed {
            settings = self.resolve(timed, Disks::Any)?;
        }
        self.capture.set(&settings)?;
        self.stats.is_paused.store(settings.is_paused, Relaxed);
        let before = self.schedule.now().keep.clone();
        self.schedule = schedule;
        let now = &self.schedule.now().keep;
        if *now != before {
            keep::warn_without_effect(now);
        }
        Ok(())
    }

    /// Resolves settings that this agent can apply.
    fn resolve(&self, settings: &mut RecordingSettings, disks: Disks) -> Result<CaptureSettings, CliError> {
        let settings = resolve(settings, &self.filter, disks)?;
        if settings.budget.is_some() && self.capture.budget().is_none() {
            return Err(CliError::usage(
                "--budget cannot be added to this agent",
                "it was started without, so its programs do not measure their time",
                "blkkin agent --budget 10%, which blkkin ctl can then change",
            ));
        }
        Ok(settings)
    }

    fn record(&mut self, from: Option<libc::ucred>, what: String) {
        self.stats.changes.fetch_add(1, Relaxed);
        let (uid, pid) = from.map(|from| (from.uid, from.pid)).unzip();
        match (uid, pid) {
            (Some(uid), Some(pid)) => info!(uid, pid, "blkkin ctl {what}, by user {uid} (pid {pid})"),
            _ => info!("{what}"),
        }
        let at = format_utc(SystemTime::now());
        self.changes.push_front(ChangeRecord { at, uid, pid, what });
        self.changes.truncate(CHANGES_MAX);
    }

    fn state(&self, now: Instant) -> State {
        let left = self.schedule.left(now).map(|left| left.as_millis() as u64);
        let (budget, limits) = (self.capture.budget(), self.capture.percentile_limits());
        State {
            now: self.schedule.now().clone(),
            afterwards: left.map(|left| (self.schedule.lasting.clone(), left)),
            start: self.start.clone(),
            fleet: self.fleet.applying(SystemTime::now()).map(FleetRecord::to_string).collect(),
            one_in: match &budget {
                Some(status) => status.one_in(),
                None => self.capture.settings().sample.one_in(),
            },
            keep_suspended: budget.as_ref().is_some_and(BudgetStatus::keep_suspended),
            without_effect: keep::without_effect(&self.schedule.now().keep)
                .into_iter()
                .map(str::to_owned)
                .collect(),
            percentiles: limits.into_iter().map(|(rule, slow)| (rule, slow.map(|slow| slow.0))).collect(),
            changes: self.changes.iter().cloned().collect(),
        }
    }
}

/// Describes what the topic has for this node.
fn describe(fleet: &NodeRecords) -> String {
    let records: Vec<String> = fleet.applying(SystemTime::now()).map(FleetRecord::to_string).collect();
    match records.is_empty() {
        true => "of the fleet: nothing for this node".to_owned(),
        false => format!("of the fleet: {}", records.join("; ")),
    }
}
