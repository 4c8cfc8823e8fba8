//! Run loop of a stage on one thread: receive, apply, send, save.
//!
//! *In*: events of the group member. *Out*: records of the stages, their saved states, and
//! ticks. *Invariant*: while the output's queue is full, or a save waits for the cluster, no record
//! is received.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use blkkin_wire::stage::{InputRecord, LogTime, Stage};
use rdkafka::message::OwnedMessage;
use rdkafka::{Message, Timestamp};

use super::super::dead_letters::DeadLetter;
use super::super::settings::Group;
use super::super::{FENCED_TWICE_WITHIN, KafkaError, Progress};
use super::cluster::{Cluster, GroupMember, MemberEvent};
use super::overflows::Overflows;
use super::owned_partition::OwnedPartition;
use super::record_batcher::AGE_MAX;
use super::stage_producer::{OutgoingRecord, StageProducer};

mod assign;
mod save;
mod shutdown;

use assign::AssignError;
use save::send_ready;

/// Timeout for acknowledgements: 30 s, the time a cluster takes to detect and replace a failed
/// broker.
const ACK_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout after shutdown was requested.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts to reach the cluster.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Interval between two updates of the metrics.
const SHARE_EVERY: Duration = Duration::from_secs(1);
/// Pause between two checks for shutdown.
const STOP_POLL: Duration = Duration::from_millis(200);

/// Configuration of a stage's runner.
#[derive(Clone, Debug)]
pub struct RunnerConfig {
    /// Input topic.
    pub input: String,
    /// Main output topic.
    pub output: String,
    /// Side output topic: RPC endpoints of the join stage, fragments for the assemble stage's own
    /// input.
    pub side_output: String,
    /// Consumer group.
    pub group: Group,
    /// Shortest interval between two saved states.
    pub save_every: Duration,
    /// Time without input after which a waiting stage gets a tick.
    pub tick_after: Duration,
    /// True if a partition without a usable state starts from an empty one instead of failing.
    pub forget: bool,
}

/// Result of a stage that has stopped.
#[derive(Debug)]
pub struct StageOutcome<S> {
    /// Stages by partition.
    pub stages: BTreeMap<i32, S>,
    /// True if saved states cover all received records; the rest is received again.
    pub saved: bool,
    /// Input records that retention deleted before they were read.
    pub expired: u64,
    /// Fragments longer than a record: their spans are in the dead-letter topic.
    pub oversize: u64,
    /// Records with a producer's time ahead of this machine's clock. Their time was cut.
    pub dated_ahead: u64,
    /// Acknowledged records, including states and ticks.
    pub delivered: u64,
}

/// Maximum time in ms by which a producer's clock may be ahead of this machine's.
const AHEAD_MAX_MS: u64 = 60_000;

/// Returns a record's time, and whether it was cut. The broker's time counts as it is. A producer's time
/// (`message.timestamp.type=CreateTime`) counts up to [`AHEAD_MAX_MS`] ahead of `now`: a later one would end the
/// waiting of all sources of the partition.
fn log_time(timestamp: Timestamp, now: SystemTime) -> (Option<LogTime>, bool) {
    let ms = timestamp.to_millis().and_then(|ms| u64::try_from(ms).ok());
    let Timestamp::CreateTime(_) = timestamp else { return (ms.map(LogTime), false) };
    let now = now.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
    let most = now.saturating_add(AHEAD_MAX_MS);
    (ms.map(|ms| LogTime(ms.min(most))), ms.is_some_and(|ms| ms > most))
}

fn dated_ahead(topic: &str) -> String {
    format!(
        "records of {topic} have a producer's time over 60 s ahead of this machine's clock, which is cut; set \
         message.timestamp.type=LogAppendTime for the topic, and check the producers' clocks"
    )
}

/// Running stage, on any cluster.
pub(super) struct Runner<S: Stage, C: Cluster> {
    config: RunnerConfig,
    stage_config: S::Config,
    cluster: C,
    /// `None` while the member rejoins: its old membership has to end first.
    member: Option<C::Member>,
    last_logged: String,
    output: C::Output,
    owned: BTreeMap<i32, OwnedPartition<S>>,
    state_partitions: i32,
    /// Time of the last saved state.
    last_save: Instant,
    /// Time at which another member last fenced this one.
    fenced: Option<Instant>,
    oversize: u64,
    expired: u64,
    dated_ahead: u64,
    /// Progress that is shared with the lag reader.
    progress: Progress,
    /// Counters that are shared with the metrics, and the time of their last update.
    overflows: (Overflows, Instant),
}

impl<S: Stage, C: Cluster> Runner<S, C> {
    /// Joins the group. The topics exist.
    pub(super) fn join(
        cluster: C,
        config: RunnerConfig,
        stage_config: S::Config,
        state_partitions: i32,
    ) -> Result<Self, KafkaError> {
        let member = Some(cluster.join(&config.group, &config.input)?);
        let output = cluster.producer()?;
        let owned = BTreeMap::new();
        let now = cluster.now();
        Ok(Runner {
            config,
            stage_config,
            cluster,
            member,
            last_logged: String::new(),
            output,
            owned,
            state_partitions,
            last_save: now,
            fenced: None,
            oversize: 0,
            expired: 0,
            dated_ahead: 0,
            progress: Progress::default(),
            overflows: (Overflows::default(), now),
        })
    }

    pub(super) fn set_progress(&mut self, progress: &Progress) {
        self.progress = progress.clone();
    }

    pub(super) fn set_overflows(&mut self, overflows: &Overflows) {
        self.overflows = (overflows.clone(), self.cluster.now());
    }

    /// Runs until `stop` returns true; `log` receives messages for the log.
    pub(super) fn run(
        mut self,
        stop: impl Fn() -> bool,
        log: impl Fn(String),
    ) -> Result<StageOutcome<S>, KafkaError> {
        while !stop() {
            match self.member()?.next(self.pause())? {
                MemberEvent::Record(message) => {
                    let is_first = self.dated_ahead == 0;
                    self.record(&message)?;
                    if is_first && self.dated_ahead > 0 {
                        log(dated_ahead(&self.config.input));
                    }
                }
                MemberEvent::Assigned(partitions) => match self.assign(&partitions, &stop, &log) {
                    Ok(()) => {}
                    Err(AssignError::Transient(error)) => self.rejoin(&error, &log)?,
                    Err(AssignError::Permanent(error)) => return Err(error),
                },
                MemberEvent::Revoked(partitions, lost) => self.revoke(&partitions, lost)?,
                MemberEvent::JoinAgain(error) => self.rejoin(&error, &log)?,
                MemberEvent::Fenced(error) => self.fenced(error, &log)?,
                MemberEvent::Nothing => {}
            }
            let now = self.cluster.now();
            self.send_due(now, &stop)?;
            self.save_due(now)?;
            self.tick_due(now)?;
            self.share_overflows(now);
            self.output.failed()?;
        }
        let saved = self.save_at_shutdown()?;
        let Runner { owned, output, oversize, expired, dated_ahead, .. } = self;
        let expired = expired + owned.values().map(|owned| owned.expired).sum::<u64>();
        let stages = owned.into_iter().map(|(partition, owned)| (partition, owned.stage)).collect();
        Ok(StageOutcome { stages, saved, expired, oversize, dated_ahead, delivered: output.delivered() })
    }

    /// Returns the time until something is due.
    fn pause(&self) -> Duration {
        AGE_MAX / 3
    }

    fn record(&mut self, message: &OwnedMessage) -> Result<(), KafkaError> {
        let (partition, offset) = (message.partition(), message.offset());
        // Fetched before its partition was revoked.
        let Some(owned) = self.owned.get_mut(&partition) else { return Ok(()) };
        if offset < owned.next {
            return Ok(());
        }
        let (at, is_ahead) = log_time(message.timestamp(), SystemTime::now());
        self.dated_ahead += u64::from(is_ahead);
        let bytes = message.payload().unwrap_or_default();
        owned.apply(offset, InputRecord { at, bytes }, self.cluster.now());
        self.progress.set(partition, Some(owned.next));
        if let Some(why) = owned.batcher.take_rejection() {
            let headers = vec![
                ("blkkin.by", self.config.group.name.clone()),
                ("blkkin.reason", why),
                ("blkkin.topic", self.config.input.clone()),
                ("blkkin.partition", partition.to_string()),
                ("blkkin.offset", offset.to_string()),
            ];
            owned.dead_letters.push_back(DeadLetter { headers, payload: bytes.to_vec() });
        }
        Ok(())
    }

    /// Handles a fence by this member's own instance name. A broker that was killed may answer one
    /// join request twice, and the second answer fences the first. So the member rejoins once. If
    /// another process has the name, the two fence each other in turn, and this one ends at the
    /// second fence.
    fn fenced(&mut self, error: KafkaError, log: &impl Fn(String)) -> Result<(), KafkaError> {
        let now = self.cluster.now();
        let recent = |before: Instant| now.saturating_duration_since(before) < FENCED_TWICE_WITHIN;
        if self.fenced.replace(now).is_some_and(recent) {
            return Err(error);
        }
        self.rejoin(&error, log)
    }

    /// Leaves the group and rejoins: partitions that could not be assigned are offered again, to
    /// any member. The reason is logged once.
    fn rejoin(&mut self, error: &KafkaError, log: &impl Fn(String)) -> Result<(), KafkaError> {
        let message = format!("{error}; trying again");
        if message != self.last_logged {
            log(message.clone());
            self.last_logged = message;
        }
        self.expired += self.owned.values().map(|owned| owned.expired).sum::<u64>();
        self.owned.clear();
        // Leave first: with KIP-848 a name stays taken until its member has left or expired.
        self.member = None;
        self.progress.clear();
        self.cluster.pause(RETRY_PAUSE);
        self.member = Some(self.cluster.join(&self.config.group, &self.config.input)?);
        Ok(())
    }

    fn member(&self) -> Result<&C::Member, KafkaError> {
        self.member.as_ref().ok_or_else(|| KafkaError {
            what: format!("the group {} was left", self.config.group.name),
            why: "the member could not rejoin it".to_owned(),
            remedy: "restart the service: committed work is kept".to_owned(),
        })
    }

    /// Waits while the queue is full, and receives no more records meanwhile, until shutdown is
    /// requested.
    fn send_due(&mut self, now: Instant, stop: &impl Fn() -> bool) -> Result<(), KafkaError> {
        for owned in self.owned.values_mut() {
            owned.batcher.flush_due(now);
            while !send_ready(&self.config, &self.output, owned, STOP_POLL, &mut self.oversize)? {
                if stop() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn share_overflows(&mut self, now: Instant) {
        let (overflows, updated) = &mut self.overflows;
        if now.saturating_duration_since(*updated) >= SHARE_EVERY {
            *updated = now;
            overflows.set(self.owned.values().map(|owned| owned.stage.overflows()));
        }
    }

    /// Appends a tick for each partition whose stage waits for a time and has no input.
    fn tick_due(&mut self, now: Instant) -> Result<(), KafkaError> {
        let is_idle = |owned: &OwnedPartition<S>| {
            now.saturating_duration_since(owned.last_input) >= self.config.tick_after
        };
        if !self.output.is_idle() || !self.owned.values().any(is_idle) {
            return Ok(());
        }
        let tick = S::tick();
        for owned in self.owned.values_mut().filter(|owned| owned.stage.pending() > 0) {
            if now.saturating_duration_since(owned.last_input) < self.config.tick_after {
                continue;
            }
            owned.last_input = now;
            let record = OutgoingRecord {
                topic: &self.config.input,
                partition: Some(owned.partition),
                payload: Some(&tick),
                ..OutgoingRecord::default()
            };
            self.output.send(&record, Duration::ZERO)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_producers_time_ahead_of_the_clock_is_cut() {
        let now = UNIX_EPOCH + Duration::from_millis(1_000);
        let of = |timestamp| log_time(timestamp, now);
        assert_eq!(of(Timestamp::CreateTime(61_000)), (Some(LogTime(61_000)), false));
        assert_eq!(of(Timestamp::CreateTime(i64::MAX)), (Some(LogTime(61_000)), true));
        assert_eq!(of(Timestamp::LogAppendTime(1_000_000)), (Some(LogTime(1_000_000)), false));
        assert_eq!(of(Timestamp::CreateTime(-5)), (None, false));
        assert_eq!(of(Timestamp::NotAvailable), (None, false));
    }
}
