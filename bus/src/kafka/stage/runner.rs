//! The one thread of a stage: reads, lets machines work, writes, saves.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::Message;
use rdkafka::message::OwnedMessage;

use super::super::settings::Group;
use super::super::{FENCED_AGAIN, KafkaError, Progress, STATE, Settings};
use super::member::{Event, Member};
use super::outbox::AGE_MAX;
use super::output::{Letter, Output};
use super::owned::Owned;
use super::{Entry, Machine, Machines};

mod saving;
mod taking;

use saving::send;
use taking::Trouble;

/// For the cluster to acknowledge what was sent: 30 s, as long as a broker takes to be missed and replaced.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same once the end was asked for.
const LAST_PATIENCE: Duration = Duration::from_secs(10);
/// Between two attempts to reach the cluster.
const AGAIN: Duration = Duration::from_millis(500);
/// Between two looks at whether the end was asked for.
const LOOK: Duration = Duration::from_millis(200);

/// What a stage is run with.
#[derive(Clone, Debug)]
pub struct StageConfig {
    /// The topic that it reads.
    pub input: String,
    /// The topic that it writes.
    pub output: String,
    /// The topic that it writes beside it: of the join the links, of the assembly its own input.
    pub aside: String,
    /// Its group.
    pub group: Group,
    /// States are saved no more often.
    pub save_every: Duration,
    /// A partition in which nothing came for so long, and whose machine waits, gets a tick.
    pub tick_after: Duration,
    /// A partition whose state cannot be found begins anew instead of being refused.
    pub forget: bool,
}

/// What is left when a stage has ended.
#[derive(Debug)]
pub struct Ended<M> {
    /// The machines, by partition.
    pub machines: BTreeMap<i32, M>,
    /// Whether all that they have read is saved; the rest is read again.
    pub saved: bool,
    /// Records of the input that were deleted before they were read.
    pub gone: u64,
    /// Pieces that were longer than a record may be: a copy lies with the dead letters.
    pub oversize: u64,
    /// Records that the cluster has acknowledged, states and ticks among them.
    pub delivered: u64,
}

/// A stage at work.
pub struct StageRunner<F: Machines> {
    machines: F,
    config: StageConfig,
    settings: Settings,
    /// None while it comes back: who had its name has left before.
    member: Option<Member>,
    told: String,
    output: Output,
    owned: BTreeMap<i32, Owned<F::Machine>>,
    state_partitions: i32,
    /// When the last state was saved.
    rested_since: Instant,
    /// When it was last shown out by somebody of its own name.
    fenced: Option<Instant>,
    oversize: u64,
    gone: u64,
    /// What was read, for who looks.
    progress: Progress,
}

impl<F: Machines> StageRunner<F> {
    /// Joins the group. The topics are there.
    pub fn join(settings: &Settings, config: StageConfig, machines: F) -> Result<Self, KafkaError> {
        let state_partitions = i32::try_from(settings.partitions(STATE)?).unwrap_or(i32::MAX);
        let member = Some(Member::join(settings, &config.group, &config.input)?);
        let output = Output::new(settings)?;
        let settings = settings.clone();
        let owned = BTreeMap::new();
        Ok(StageRunner {
            machines,
            config,
            settings,
            member,
            told: String::new(),
            output,
            owned,
            state_partitions,
            rested_since: Instant::now(),
            fenced: None,
            oversize: 0,
            gone: 0,
            progress: Progress::default(),
        })
    }

    /// Shows there how far it is.
    pub fn show(self, progress: &Progress) -> Self {
        StageRunner { progress: progress.clone(), ..self }
    }

    /// Works until `stop` says so; `tell` hears what a person should know.
    pub fn run(
        mut self,
        stop: impl Fn() -> bool,
        tell: impl Fn(String),
    ) -> Result<Ended<F::Machine>, KafkaError> {
        while !stop() {
            match self.member()?.next(self.pause())? {
                Event::Record(message) => self.record(&message)?,
                Event::Offered(partitions) => match self.offered(&partitions, &stop, &tell) {
                    Ok(()) => {}
                    Err(Trouble::Passing(error)) => self.rejoin(&error, &tell)?,
                    Err(Trouble::Final(error)) => return Err(error),
                },
                Event::Wanted(partitions, lost) => self.wanted(&partitions, lost)?,
                Event::NotYet(error) => self.rejoin(&error, &tell)?,
                Event::Fenced(error) => self.fenced(error, &tell)?,
                Event::Nothing => {}
            }
            let now = Instant::now();
            self.send_due(now, &stop)?;
            self.save_due(now)?;
            self.tick_due(now)?;
            self.output.failed()?;
        }
        let all = self.owned.keys().copied().collect::<Vec<_>>();
        let saved = self.save(&all, LAST_PATIENCE)?;
        let StageRunner { owned, output, oversize, gone, .. } = self;
        let gone = gone + owned.values().map(|owned| owned.gone).sum::<u64>();
        let machines = owned.into_iter().map(|(partition, owned)| (partition, owned.machine)).collect();
        Ok(Ended { machines, saved, gone, oversize, delivered: output.delivered() })
    }

    /// How long nothing is due.
    fn pause(&self) -> Duration {
        AGE_MAX / 3
    }

    fn record(&mut self, message: &OwnedMessage) -> Result<(), KafkaError> {
        let (partition, offset) = (message.partition(), message.offset());
        // Fetched before its partition went.
        let Some(owned) = self.owned.get_mut(&partition) else { return Ok(()) };
        if offset < owned.next {
            return Ok(());
        }
        let at_ms = message.timestamp().to_millis().and_then(|ms| u64::try_from(ms).ok());
        let bytes = message.payload().unwrap_or_default();
        owned.apply(offset, Entry { at_ms, bytes }, Instant::now());
        self.progress.stands(partition, Some(owned.next));
        if let Some(why) = owned.outbox.take_dead() {
            let headers = [
                ("blkkin.by", self.config.group.name.clone()),
                ("blkkin.reason", why),
                ("blkkin.topic", self.config.input.clone()),
                ("blkkin.partition", partition.to_string()),
                ("blkkin.offset", offset.to_string()),
            ];
            self.output.bury(&headers, bytes, PATIENCE)?;
        }
        Ok(())
    }

    /// Shown out by its own name. A broker that was killed may answer a request to join twice, once to who has asked again since: the
    /// second answer shows out the first. So it comes back once. Where another process has the name, that one is shown out then, comes
    /// back, and this one is shown out again: it ends.
    fn fenced(&mut self, error: KafkaError, tell: &impl Fn(String)) -> Result<(), KafkaError> {
        if self.fenced.is_some_and(|before| before.elapsed() < FENCED_AGAIN) {
            return Err(error);
        }
        self.fenced = Some(Instant::now());
        self.rejoin(&error, tell)
    }

    /// Leaves the group and comes back: partitions that could not be taken are offered again, to whoever is there. What hinders
    /// it is told once, however often it comes back.
    fn rejoin(&mut self, error: &KafkaError, tell: &impl Fn(String)) -> Result<(), KafkaError> {
        let remark = format!("{error}; trying again");
        if remark != self.told {
            tell(remark.clone());
            self.told = remark;
        }
        self.gone += self.owned.values().map(|owned| owned.gone).sum::<u64>();
        self.owned.clear();
        // It leaves first: by KIP-848 a name is one member's until that has left or was missed.
        self.member = None;
        self.progress.clear();
        std::thread::sleep(AGAIN);
        self.member = Some(Member::join(&self.settings, &self.config.group, &self.config.input)?);
        Ok(())
    }

    fn member(&self) -> Result<&Member, KafkaError> {
        self.member.as_ref().ok_or_else(|| KafkaError {
            what: format!("the group {} was left", self.config.group.name),
            why: "it could not be joined again".to_owned(),
            remedy: "start again: what was done stays done".to_owned(),
        })
    }

    /// While the queue is full everything waits, the next records too; until the end is asked for.
    fn send_due(&mut self, now: Instant, stop: &impl Fn() -> bool) -> Result<(), KafkaError> {
        for owned in self.owned.values_mut() {
            owned.outbox.pack_due(now);
            while !send(&self.config, &self.output, owned, LOOK, &mut self.oversize)? {
                if stop() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Where a machine waits for a time, and nothing comes that could bring it.
    fn tick_due(&mut self, now: Instant) -> Result<(), KafkaError> {
        let silent =
            |owned: &Owned<F::Machine>| now.saturating_duration_since(owned.heard) >= self.config.tick_after;
        if !self.output.is_idle() || !self.owned.values().any(silent) {
            return Ok(());
        }
        let Some(tick) = self.machines.tick() else { return Ok(()) };
        for owned in self.owned.values_mut().filter(|owned| owned.machine.needs_ticks()) {
            if now.saturating_duration_since(owned.heard) < self.config.tick_after {
                continue;
            }
            owned.heard = now;
            let letter = Letter {
                topic: &self.config.input,
                partition: Some(owned.partition),
                payload: Some(&tick),
                ..Letter::default()
            };
            self.output.send(&letter, Duration::ZERO)?;
        }
        Ok(())
    }
}
