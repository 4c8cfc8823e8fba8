//! The thread that reads the LTTng session.
//!
//! *In*: the session's events, and thread exits. *Out*: updates for the correlator, with the time
//! up to which they are complete. *Invariant*: tracing continues whatever happens to the session. A
//! session that was destroyed, or whose relay is unreachable for [`RELAY_TIMEOUT`], is recreated,
//! with an attempt every [`RESTART_INTERVAL`]. Meanwhile no thread has a known daemon span.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use blkkin_lttng_live::event_view::{EventView, Gap};
use blkkin_lttng_live::live::follow::{Follower, Step};
use blkkin_lttng_live::live::reader::ReaderStats;
use blkkin_tracer::StopSignal;
use blkkin_ust_bridge::correlate::{ThreadExit, Update};
use blkkin_ust_bridge::daemon_spans::{DaemonSpanStats, DaemonSpans};
use blkkin_ust_bridge::mapping::config::Mapping;
use blkkin_ust_bridge::mapping::mapper::Mapper;
use blkkin_wire::clock::MonotonicNs;

use super::correlation::UpdateBatch;
use super::metrics::LttngMetrics;
use super::session::LttngSession;
use crate::clock;

/// While no stream is known, events older than this count as complete: a batch does not wait for
/// them. The relay knows a program's first buffers some ms after their creation, and before the
/// program's events are sent. blkkin learns of them at its next query, which an overloaded machine
/// delays.
const FIRST_STREAM_WITHIN: u64 = 1_000_000_000;
/// Time for the remaining events of an ended session.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which an unreachable relay counts as gone.
const RELAY_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of attempts to recreate the session.
const RESTART_INTERVAL: Duration = Duration::from_secs(10);
/// Poll interval without a session.
const NO_SESSION_PAUSE: Duration = Duration::from_millis(50);
/// Delay until the kernel side reports a process exit. A process that exits while it writes leaves
/// its ring stuck. If no process exited, the writer waits for a CPU or is not traced; [`STUCK_MAX`]
/// decides then.
const EXIT_KNOWN_WITHIN: Duration = Duration::from_secs(1);
const STUCK_MAX: Duration = Duration::from_secs(10);
/// Interval of checks for stuck rings.
const STUCK_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of problems to keep.
const PROBLEMS_MAX: usize = 16;

/// Statistics of the reader.
#[derive(Debug, Default)]
pub(crate) struct LttngStats {
    pub(super) daemon_spans: DaemonSpanStats,
    pub(super) counts: ReaderStats,
    /// Number of session restarts.
    pub(super) restarts: u64,
    /// Connections to the relay that were refused.
    pub(super) connections_refused: u64,
    /// Problems, as text for the operator.
    pub(super) problems: Vec<String>,
}

/// The channels to and from the correlator.
pub(super) struct ReaderChannels {
    pub(super) updates: SyncSender<UpdateBatch>,
    pub(super) exits: Receiver<ThreadExit>,
}

pub(super) struct SessionReader {
    session: LttngSession,
    /// `None` without a session.
    follower: Option<Follower>,
    /// The time since which the relay is unreachable.
    unreachable_since: Option<Instant>,
    /// The time of the next attempt to recreate the session.
    restart_at: Instant,
    mapper: Mapper,
    daemon_spans: DaemonSpans,
    channels: ReaderChannels,
    /// Exited threads, until their events are complete.
    ended: VecDeque<ThreadExit>,
    /// The last known process exit.
    exited: Option<Instant>,
    stop: StopSignal,
    stats: LttngStats,
    /// Connections refused by the gates of earlier relays.
    refused_before: u64,
    metrics: LttngMetrics,
    known_until: MonotonicNs,
    stuck_checked: Instant,
}

impl SessionReader {
    pub(super) fn new(
        session: LttngSession,
        mapping: Mapping,
        channels: ReaderChannels,
        stop: StopSignal,
        metrics: LttngMetrics,
    ) -> SessionReader {
        SessionReader {
            follower: session.follower(),
            session,
            unreachable_since: None,
            restart_at: Instant::now(),
            mapper: Mapper::new(mapping),
            daemon_spans: DaemonSpans::default(),
            channels,
            ended: VecDeque::new(),
            exited: None,
            stop,
            stats: LttngStats::default(),
            refused_before: 0,
            metrics,
            known_until: MonotonicNs(0),
            stuck_checked: Instant::now(),
        }
    }

    /// Reads until a stop request, then the rest.
    pub(super) fn run(mut self) -> LttngStats {
        let mut deadline: Option<Instant> = None;
        loop {
            let pause = if self.follower.is_some() { self.read() } else { self.restart() };
            if deadline.is_some_and(|deadline| self.follower.is_none() || Instant::now() > deadline) {
                break;
            }
            self.replace_stuck_session();
            self.publish();
            if self.stop.wait(pause) && deadline.is_none() {
                deadline = Some(Instant::now() + DRAIN_TIMEOUT);
                if let Err(error) = self.session.end() {
                    self.report_problem(error.to_string());
                }
            }
        }
        // The events that wait for their order, if the session did not end normally.
        let mut updates = self.close_follower();
        self.daemon_spans.finish(clock::now().0, &mut updates);
        self.known_until = MonotonicNs(u64::MAX);
        self.send(updates);
        self.publish();
        self.stats
    }

    /// Reads once; returns the pause until the next read.
    fn read(&mut self) -> Duration {
        let (step, updates) = self.step();
        self.send(updates);
        let why = match step {
            Step::Read(pause) => {
                self.unreachable_since = None;
                return pause;
            }
            Step::Unreachable(error, pause) => {
                if self.unreachable_since.get_or_insert_with(Instant::now).elapsed() < RELAY_TIMEOUT {
                    return pause;
                }
                error.to_string()
            }
            // The end that was requested.
            Step::Ended if self.stop.is_set() => {
                let updates = self.close_follower();
                self.send(updates);
                return Duration::ZERO;
            }
            Step::Ended | Step::Destroyed => "another process destroyed the session".to_owned(),
            Step::Refused(error) => error.to_string(),
        };
        self.report_problem(why);
        let mut updates = self.close_follower();
        // Span ends from now on are not received.
        self.daemon_spans.record_loss(self.known_until.0, clock::now().0, 0, &mut updates);
        self.send(updates);
        self.restart_at = Instant::now();
        Duration::ZERO
    }

    /// Recreates the session when it is due; returns the pause until the next check.
    fn restart(&mut self) -> Duration {
        // System calls must not wait for events that cannot come.
        self.known_until = self.known_until.max(clock::now());
        // Exits come on, however long no session can be made.
        let mut updates = Vec::new();
        self.apply_exits(&mut updates);
        self.send(updates);
        if Instant::now() < self.restart_at || self.stop.is_set() {
            return NO_SESSION_PAUSE;
        }
        self.refused_before += self.report_refusals();
        match self.session.restart() {
            Ok(()) => {
                self.follower = self.session.follower();
                self.stats.restarts += 1;
            }
            Err(error) => self.report_problem(error.to_string()),
        }
        (self.restart_at, self.unreachable_since) = (Instant::now() + RESTART_INTERVAL, None);
        Duration::ZERO
    }

    fn step(&mut self) -> (Step, Vec<Update>) {
        let mut updates = Vec::new();
        let Some(follower) = &mut self.follower else { return (Step::Destroyed, updates) };
        let (mapper, daemon_spans) = (&mut self.mapper, &mut self.daemon_spans);
        let step = follower.step(&mut |view| map_event(view, mapper, daemon_spans, &mut updates));
        if let Some(gap) = follower.take_gap() {
            record_gap(daemon_spans, gap, &mut updates);
        }
        if let Step::Read(_) = step {
            let no_stream_yet = clock::now().0.saturating_sub(FIRST_STREAM_WITHIN);
            let until = follower.complete_until().map_or(no_stream_yet, |ns| u64::try_from(ns).unwrap_or(0));
            self.known_until = self.known_until.max(MonotonicNs(until));
        }
        self.apply_exits(&mut updates);
        let problems = self.follower.as_mut().map(Follower::take_problems).unwrap_or_default();
        for problem in problems {
            self.report_problem(format!("{}: {}", problem.stream, problem.description));
        }
        let misfits: Vec<_> = self.mapper.take_bind_errors().map(|misfit| misfit.to_string()).collect();
        misfits.into_iter().for_each(|misfit| self.report_problem(misfit));
        (step, updates)
    }

    /// Applies the exits of threads whose events are complete.
    fn apply_exits(&mut self, updates: &mut Vec<Update>) {
        for exit in self.channels.exits.try_iter() {
            if exit.last {
                self.exited = Some(Instant::now());
            }
            self.ended.push_back(exit);
        }
        while let Some(ThreadExit { thread, at, last }) =
            self.ended.pop_front_if(|exit| exit.at < self.known_until.0)
        {
            match last {
                true => self.daemon_spans.process_exited(thread.process(), at, updates),
                false => self.daemon_spans.thread_exited(thread, at, updates),
            }
        }
    }

    fn send(&mut self, updates: Vec<Update>) {
        // The receiver is gone only when blkkin itself fails.
        let _ = self.channels.updates.send((updates, self.known_until));
    }

    /// Replaces the session of a stuck ring (see [`blkkin_ust_bridge::session::supervisor`]).
    fn replace_stuck_session(&mut self) {
        if self.stuck_checked.elapsed() < STUCK_CHECK_INTERVAL {
            return;
        }
        self.stuck_checked = Instant::now();
        let (Some(supervisor), Some(follower)) = (self.session.supervisor(), &self.follower) else { return };
        let long =
            stuck_after(self.exited.map(|exited| exited.elapsed()), supervisor.config().inactivity_max());
        if follower.reader().inactive_streams(long).next().is_none() {
            return;
        }
        let outcome = match supervisor.replace() {
            Ok(_) => {
                let fresh = self.session.follower();
                let mut updates = self.close_follower();
                self.daemon_spans.record_loss(self.known_until.0, clock::now().0, 0, &mut updates);
                self.follower = fresh;
                self.send(updates);
                "a ring was stuck because its writer was killed: the session was replaced".to_owned()
            }
            Err(error) => format!("a ring is stuck, and its session cannot be replaced: {error}"),
        };
        self.report_problem(outcome);
    }

    /// Closes the follower and maps the events that waited for their order.
    fn close_follower(&mut self) -> Vec<Update> {
        let mut updates = Vec::new();
        let Some(mut follower) = self.follower.take() else { return updates };
        let (mapper, daemon_spans) = (&mut self.mapper, &mut self.daemon_spans);
        follower.finish(&mut |view| map_event(view, mapper, daemon_spans, &mut updates));
        self.stats.counts = self.stats.counts.plus(follower.stats());
        updates
    }

    fn publish(&mut self) {
        self.stats.daemon_spans = *self.daemon_spans.stats();
        let now = self.follower.as_ref().map(Follower::stats).unwrap_or_default();
        self.stats.connections_refused = self.refused_before + self.report_refusals();
        let refused = self.stats.connections_refused;
        self.metrics.set_reader_stats(self.stats.counts.plus(now), self.stats.restarts, refused);
    }

    /// Reports users whose connections to the relay were refused. Returns the number of refused
    /// connections of this session.
    fn report_refusals(&mut self) -> u64 {
        let Some(refusals) = self.session.refusals() else { return 0 };
        let (count, users) = (refusals.count(), refusals.users());
        for user in users {
            let owner = user.map_or_else(|| "an unknown user".to_owned(), |user| format!("user {user}"));
            self.report_problem(format!("connections of {owner} to the relay were refused"));
        }
        count
    }

    fn report_problem(&mut self, what: String) {
        let problems = &mut self.stats.problems;
        if problems.len() < PROBLEMS_MAX && !problems.contains(&what) {
            self.metrics.log_problem(&what);
            problems.push(what);
        }
    }
}

/// Returns after which inactivity a ring is stuck, given the time since the last process exit: the
/// ring must have become inactive at that exit.
fn stuck_after(exited: Option<Duration>, least: Duration) -> Duration {
    let since = exited.map_or(STUCK_MAX, |exited| exited.saturating_sub(EXIT_KNOWN_WITHIN));
    since.max(least).min(STUCK_MAX)
}

/// Maps an event, after the gap before it.
fn map_event(
    view: &EventView<'_>,
    mapper: &mut Mapper,
    daemon_spans: &mut DaemonSpans,
    updates: &mut Vec<Update>,
) {
    if let Some(gap) = view.gap {
        record_gap(daemon_spans, gap, updates);
    }
    mapper.map(view, &mut |at, span_event| daemon_spans.apply(at, &span_event, updates));
}

fn record_gap(daemon_spans: &mut DaemonSpans, gap: Gap, updates: &mut Vec<Update>) {
    let ns = |ns: i64| u64::try_from(ns).unwrap_or(0);
    daemon_spans.record_loss(ns(gap.from_ns), ns(gap.until_ns), gap.events, updates);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, sync_channel};

    use blkkin_ust_bridge::daemon_spans::Thread;

    use super::*;

    #[test]
    fn exits_are_applied_while_no_session_can_be_made() {
        let (updates, sent) = sync_channel(8);
        let (ended, exits) = channel();
        let channels = ReaderChannels { updates, exits };
        let (stop, metrics) = (StopSignal::new(), LttngMetrics::default());
        let mut reader =
            SessionReader::new(LttngSession::lost(), Mapping::built_in(), channels, stop, metrics);
        assert!(reader.follower.is_none());
        reader.restart_at = Instant::now() + Duration::from_secs(3_600);
        for round in 0..3 {
            let before = clock::now();
            for tid in 0..10_000 {
                let thread = Thread::initial(round + 1, tid);
                ended
                    .send(ThreadExit { thread, at: 1, last: tid == 9_999 })
                    .expect("the reader has the other end");
            }
            assert_eq!(reader.restart(), NO_SESSION_PAUSE);
            let (_, known_until) = sent.try_recv().expect("updates");
            assert!(known_until >= before);
            assert!(reader.ended.is_empty() && reader.channels.exits.try_recv().is_err());
        }
        assert_eq!(reader.stats.restarts, 0);
    }

    #[test]
    fn ring_is_stuck_after_a_process_exit_or_a_long_inactivity() {
        let (s, ms) = (Duration::from_secs, Duration::from_millis);
        // A writer that waits for a CPU; no process exited.
        assert_eq!(stuck_after(None, s(1)), s(10));
        // A process exited just now: the ring is stuck after the minimum time.
        assert_eq!(stuck_after(Some(ms(20)), s(1)), s(1));
        assert_eq!(stuck_after(Some(ms(1_900)), s(1)), s(1));
        // An exit 5 s ago: a ring inactive for 2 s has another reason.
        assert_eq!(stuck_after(Some(s(5)), s(1)), s(4));
        assert_eq!(stuck_after(Some(s(3_600)), s(1)), s(10));
    }
}
