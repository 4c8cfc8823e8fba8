//! Assignment and revocation of partitions, with their states.
//!
//! *In*: partitions from the group. *Out*: a stage for each, restored from its committed state
//! or empty. *Invariant*: a stage's incarnation is committed before its first output.

use blkkin_wire::fragment::Incarnation;
use blkkin_wire::stage::Stage;

use super::super::super::KafkaError;
use super::super::cluster::{Cluster, Committed, GroupMember};
use super::super::owned_partition::OwnedPartition;

use super::super::stage_producer::StageProducer;
use super::super::state_ref::StateRef;
use super::{ACK_TIMEOUT, RETRY_PAUSE, Runner, SHUTDOWN_TIMEOUT};

/// Reason why partitions could not be assigned.
pub(super) enum AssignError {
    /// A retry may succeed.
    Transient(KafkaError),
    /// An operator has to act.
    Permanent(KafkaError),
}

impl From<KafkaError> for AssignError {
    fn from(error: KafkaError) -> Self {
        AssignError::Transient(error)
    }
}

impl<S: Stage, C: Cluster> Runner<S, C> {
    /// Handles an assignment: restores each partition's state, or starts an empty one.
    pub(super) fn assign(
        &mut self,
        partitions: &[i32],
        stop: &impl Fn() -> bool,
        log: &impl Fn(String),
    ) -> Result<(), AssignError> {
        let mut logged = false;
        let committed = loop {
            match self.member()?.committed(partitions) {
                Ok(committed) => break committed,
                Err(_) if stop() => return Ok(()),
                Err(error) => {
                    if !std::mem::replace(&mut logged, true) {
                        log(format!("{error}; retrying until it is reachable"));
                    }
                    self.cluster.pause(RETRY_PAUSE);
                }
            }
        };
        let new = committed.iter().filter(|(_, committed)| *committed == Committed::Nothing).count();
        if new > 0 {
            log(format!(
                "{new} partitions of {} start from their first record: the group has no offset for them, or the cluster has \
                 expired it (offsets.retention.minutes)",
                self.config.input
            ));
        }
        let mut from = Vec::new();
        for (partition, committed) in committed {
            let owned = match committed {
                Committed::Nothing => self.start_partition(partition, None)?,
                Committed::State(next, state_ref) => {
                    self.resume_partition(partition, next, &state_ref, log)?
                }
                Committed::Foreign(next) if self.config.forget => {
                    self.start_partition(partition, Some(next))?
                }
                Committed::Foreign(next) => {
                    let why = "another client committed the group's offset, and no state belongs to it";
                    return Err(AssignError::Permanent(self.state_error(partition, next, why)));
                }
            };
            from.push((partition, owned.next));
            self.progress.set(partition, Some(owned.next));
            self.owned.insert(partition, owned);
        }
        Ok(self.member()?.assign(&from)?)
    }

    /// Starts an empty stage; its incarnation is committed before its first output.
    pub(super) fn start_partition(
        &mut self,
        partition: i32,
        next: Option<i64>,
    ) -> Result<OwnedPartition<S>, AssignError> {
        let next = match next {
            Some(next) => next,
            None => self.member()?.earliest(partition)?,
        };
        let stage = S::new(Incarnation(self.cluster.random()), self.stage_config.clone());
        let owned = self.owned_partition(stage, partition, next);
        self.commit_first(owned)
    }

    /// Restores the previous owner's stage.
    pub(super) fn resume_partition(
        &mut self,
        partition: i32,
        next: i64,
        state_ref: &StateRef,
        log: &impl Fn(String),
    ) -> Result<OwnedPartition<S>, AssignError> {
        let store = self.state_store(partition);
        let found = self.cluster.read_state(&store, state_ref, ACK_TIMEOUT)?;
        let incarnation = Incarnation(self.cluster.random());
        let restored = found.state(state_ref).and_then(|state| {
            S::restore(&state, self.stage_config.clone(), incarnation).map_err(|why| why.to_string())
        });
        let stage = match restored {
            Ok(stage) => stage,
            Err(_) if self.is_superseded(partition, next, state_ref)? => {
                return Err(self.commit_timeout(partition).into());
            }
            Err(why) if self.config.forget => {
                log(format!("partition {partition} of {} starts empty: {why}", self.config.input));
                return self.start_partition(partition, Some(next));
            }
            Err(why) => return Err(AssignError::Permanent(self.state_error(partition, next, &why))),
        };
        let renumbered = stage.incarnation() == incarnation;
        let mut owned = self.owned_partition(stage, partition, next);
        owned.obsolete_keys = found.obsolete;
        owned.obsolete_slots.push((state_ref.slot, state_ref.chunks));
        if renumbered {
            log(format!(
                "partition {partition} of {}: saved under another configuration or release; sequence numbers restart",
                self.config.input
            ));
            return self.commit_first(owned);
        }
        owned.set_saved(next, state_ref.bytes, self.cluster.now());
        Ok(owned)
    }

    /// Returns whether another member has committed since: this one was evicted, and the state that
    /// it was to read is obsolete.
    fn is_superseded(&self, partition: i32, next: i64, state_ref: &StateRef) -> Result<bool, KafkaError> {
        let committed = self.member()?.committed(&[partition])?;
        Ok(committed != [(partition, Committed::State(next, *state_ref))])
    }

    fn owned_partition(&self, stage: S, partition: i32, next: i64) -> OwnedPartition<S> {
        let (bytes_max, now) = (self.output.record_bytes(), self.cluster.now());
        OwnedPartition::new(stage, partition, next, self.cluster.random(), bytes_max, now)
    }

    /// Saves a stage before it reads its first record.
    pub(super) fn commit_first(
        &mut self,
        mut owned: OwnedPartition<S>,
    ) -> Result<OwnedPartition<S>, AssignError> {
        let (partition, next, slot) = (owned.partition, owned.next, owned.next_slot());
        let state = owned.stage.save().map_err(|why| self.save_error(partition, &why))?;
        let written = self.state_store(partition).write(slot, &state, &self.output, ACK_TIMEOUT)?;
        let written = written.ok_or_else(|| self.commit_timeout(partition))?;
        self.owned.insert(partition, owned);
        let committed = self.commit(&[(partition, next, written)], ACK_TIMEOUT)?;
        match self.owned.remove(&partition) {
            Some(owned) if committed => Ok(owned),
            _ => Err(self.commit_timeout(partition).into()),
        }
    }

    /// Handles a revocation.
    pub(super) fn revoke(&mut self, partitions: &[i32], lost: bool) -> Result<(), KafkaError> {
        if !lost {
            self.save(partitions, SHUTDOWN_TIMEOUT)?;
        }
        for partition in partitions {
            self.expired += self.owned.remove(partition).map_or(0, |owned| owned.expired);
            self.progress.remove(*partition);
        }
        self.member()?.unassign(partitions);
        Ok(())
    }

    pub(super) fn state_error(&self, partition: i32, next: i64, why: &str) -> KafkaError {
        KafkaError {
            what: format!(
                "the state of partition {partition} of {} at offset {next} cannot be used",
                self.config.input
            ),
            why: why.to_owned(),
            remedy: "start the release that saved it, or the next one: no record is lost meanwhile. --forget would start \
                with an empty state from that offset, without open traces and names"
                .to_owned(),
        }
    }
}
