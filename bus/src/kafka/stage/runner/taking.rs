//! Partitions come and go, each with its state.

use blkkin_wire::piece::Epoch;
use uuid::Uuid;

use super::super::super::KafkaError;
use super::super::member::Committed;
use super::super::note::Note;
use super::super::owned::Owned;
use super::super::{Machine, Machines};
use super::{AGAIN, LAST_PATIENCE, PATIENCE, StageRunner};

/// Why partitions could not be taken.
pub(super) enum Trouble {
    /// Next time it may work.
    Passing(KafkaError),
    /// Somebody has to do something.
    Final(KafkaError),
}

impl From<KafkaError> for Trouble {
    fn from(error: KafkaError) -> Self {
        Trouble::Passing(error)
    }
}

impl<F: Machines> StageRunner<F> {
    /// Partitions come: each with its state, or with nothing.
    pub(super) fn offered(
        &mut self,
        partitions: &[i32],
        stop: &impl Fn() -> bool,
        tell: &impl Fn(String),
    ) -> Result<(), Trouble> {
        let mut said = false;
        let committed = loop {
            match self.member()?.committed(partitions) {
                Ok(committed) => break committed,
                Err(_) if stop() => return Ok(()),
                Err(error) => {
                    if !std::mem::replace(&mut said, true) {
                        tell(format!("{error}; going on until it can be reached"));
                    }
                    std::thread::sleep(AGAIN);
                }
            }
        };
        let new = committed.iter().filter(|(_, committed)| *committed == Committed::Nothing).count();
        if new > 0 {
            tell(format!(
                "{new} partitions of {} begin from nothing: nobody has read them, or so long ago that the cluster forgot it \
                 (offsets.retention.minutes)",
                self.config.input
            ));
        }
        let mut from = Vec::new();
        for (partition, committed) in committed {
            let owned = match committed {
                Committed::Nothing => self.begin(partition, None)?,
                Committed::State(next, note) => self.resume(partition, next, &note, tell)?,
                Committed::Foreign(next) if self.config.forget => self.begin(partition, Some(next))?,
                Committed::Foreign(next) => {
                    let why = "the group's offset was set by something else, and no state belongs to it";
                    return Err(Trouble::Final(self.lost(partition, next, why)));
                }
            };
            from.push((partition, owned.next));
            self.progress.stands(partition, Some(owned.next));
            self.owned.insert(partition, owned);
        }
        Ok(self.member()?.take(&from)?)
    }

    /// A machine that has seen nothing; its epoch is committed before it says a word.
    pub(super) fn begin(&mut self, partition: i32, next: Option<i64>) -> Result<Owned<F::Machine>, Trouble> {
        let next = match next {
            Some(next) => next,
            None => self.member()?.earliest(partition)?,
        };
        let machine = self.machines.begin(Epoch(draw()));
        let owned = self.own(machine, partition, next);
        self.commit_first(owned)
    }

    /// The machine of the last member.
    pub(super) fn resume(
        &mut self,
        partition: i32,
        next: i64,
        note: &Note,
        tell: &impl Fn(String),
    ) -> Result<Owned<F::Machine>, Trouble> {
        let shelf = self.shelf(partition);
        let found = shelf.read(note, &self.settings, PATIENCE)?;
        let fresh = Epoch(draw());
        let restored = found.state(note).and_then(|state| self.machines.restore(&state, fresh));
        let machine = match restored {
            Ok(machine) => machine,
            Err(why) if self.config.forget => {
                tell(format!("partition {partition} of {} begins anew: {why}", self.config.input));
                return self.begin(partition, Some(next));
            }
            Err(why) => return Err(Trouble::Final(self.lost(partition, next, &why))),
        };
        for key in &found.left {
            shelf.empty_key(key, &self.output)?;
        }
        let renumbered = machine.epoch() == fresh;
        let mut owned = self.own(machine, partition, next);
        owned.old.push((note.place, note.chunks));
        if renumbered {
            tell(format!(
                "partition {partition} of {}: saved under another configuration or release; numbers begin anew",
                self.config.input
            ));
            return self.commit_first(owned);
        }
        owned.is_saved(next, note.bytes);
        Ok(owned)
    }

    fn own(&self, machine: F::Machine, partition: i32, next: i64) -> Owned<F::Machine> {
        let bytes_max = self.settings.record_bytes();
        Owned::new(machine, self.machines.stage(), partition, next, draw(), bytes_max)
    }

    /// Saves a machine before it reads anything.
    pub(super) fn commit_first(
        &mut self,
        mut owned: Owned<F::Machine>,
    ) -> Result<Owned<F::Machine>, Trouble> {
        let (partition, next, place) = (owned.partition, owned.next, owned.place());
        let state = owned.machine.save().map_err(|why| self.no_state(partition, &why))?;
        let written = self.shelf(partition).write(place, &state, &self.output, PATIENCE)?;
        let written = written.ok_or_else(|| self.unanswered(partition))?;
        self.owned.insert(partition, owned);
        let committed = self.commit(&[(partition, next, written)], PATIENCE)?;
        match self.owned.remove(&partition) {
            Some(owned) if committed => Ok(owned),
            _ => Err(self.unanswered(partition).into()),
        }
    }

    /// Partitions go.
    pub(super) fn wanted(&mut self, partitions: &[i32], lost: bool) -> Result<(), KafkaError> {
        if !lost {
            self.save(partitions, LAST_PATIENCE)?;
        }
        for partition in partitions {
            self.gone += self.owned.remove(partition).map_or(0, |owned| owned.gone);
            self.progress.gave(*partition);
        }
        self.member()?.give(partitions);
        Ok(())
    }

    pub(super) fn lost(&self, partition: i32, next: i64, why: &str) -> KafkaError {
        KafkaError {
            what: format!(
                "the state of partition {partition} of {} at offset {next} cannot be used",
                self.config.input
            ),
            why: why.to_owned(),
            remedy: "use the release that saved it; or begin anew from that offset, without open traces and names: \
                --forget"
                .to_owned(),
        }
    }
}

/// A number that nobody else has.
fn draw() -> u64 {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    // Version and variant are the same in all of them: where they lie in one half, the other is random.
    high ^ low.rotate_left(32)
}
