//! What earlier starts on this machine have left that were killed.
//!
//! *In*: counters that somebody has kept (`keeper.rs`), and a spool. *Out*: [`Killed`], for the first batch, for the metrics and for
//! a person. *Invariant*: what is not known is said to be unknown, and never 0; who was killed is told until a batch that
//! says so is where it stays, so by two starts at the worst, and each epoch counts once.
//!
//! That there was somebody at all is known in two ways: by its counters, and by a note in the spool, which an orderly end takes
//! away. A note without counters is a machine that went down, or one on which nobody keeps counters; unless they are pinned,
//! where an agent beside us may have found them, and told.

use std::fs;
use std::path::{Path, PathBuf};

use blkkin_bus::spool::Spool;
use blkkin_tracer::origin;
use blkkin_wire::ids::{BootId, StartEpoch};
use blkkin_wire::killed::{Killed, Remains};
use blkkin_wire::v1;

use super::keeper::{Departed, Keeper};
use crate::output::say;

/// There while an agent uses the spool.
const NOTE: &str = "running";

/// What is left of others.
pub(super) struct Inherited {
    dead: Vec<Departed>,
    /// What there is to tell.
    pub(super) killed: Vec<Killed>,
    /// The last one's note is all that there is of it: ours has to wait.
    by_note: bool,
    note: Option<Note>,
}

/// Says in the spool's folder that an agent uses it: its boot, and its start if its counters are kept.
///
/// Where the last one's says what nothing else does, ours takes its place when that is told, and not before: else a kill meanwhile
/// would hide it.
#[derive(Clone, Debug)]
pub(super) struct Note {
    path: PathBuf,
    text: String,
}

/// One that has not ended in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Former {
    boot: Option<BootId>,
    epoch: Option<StartEpoch>,
}

impl Note {
    /// Of an agent that uses this spool from now on.
    pub(super) fn new(folder: &Path, kept: Option<StartEpoch>) -> Note {
        let epoch = kept.map_or_else(String::new, |epoch| format!("{:016x}", epoch.0));
        Note { path: folder.join(NOTE), text: format!("{:032x} {epoch}\n", boot().0) }
    }

    /// Who used it before, and has not ended in order.
    pub(super) fn last(folder: &Path) -> Option<Former> {
        let text = fs::read_to_string(folder.join(NOTE)).ok()?;
        let mut words = text.split_whitespace();
        let boot = words.next().and_then(|word| u128::from_str_radix(word, 16).ok());
        let epoch = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
        Some(Former { boot: boot.map(BootId), epoch: epoch.map(StartEpoch) })
    }

    /// All is said, of ourselves too.
    pub(super) fn end(self) {
        if fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            // Where nothing can be written the spool says so, as soon as it is written to.
            let _ = fs::remove_file(self.path);
        }
    }

    /// Whole or not at all.
    fn write(&self) {
        let next = self.path.with_extension("next");
        // As above.
        let _ = fs::write(&next, &self.text).and_then(|()| fs::rename(next, &self.path));
    }
}

fn boot() -> BootId {
    origin::source().boot
}

impl Inherited {
    /// Looks what there is, and says it.
    pub(super) fn find(keeper: &Result<Keeper, String>, spool: Option<&Spool>) -> Inherited {
        let former = spool.and_then(|spool| Note::last(spool.folder()));
        let found = keeper.as_ref().map_err(String::clone).and_then(Keeper::departed);
        let last = spool.and_then(|spool| v1::peek(spool.last_found()?).ok());
        let (mut dead, mut unknown) = (Vec::new(), Vec::new());
        match found {
            Ok(found) => dead = found,
            Err(why) => unknown.push(why),
        }
        let mut killed = Vec::new();
        for one in &dead {
            let last = last.filter(|last| Some(last.source.epoch) == one.epoch).map(|last| last.sequence);
            let remains = one.books.as_ref().map(|books| books.remains(last));
            unknown.extend(remains.as_ref().err().map(|why| (*why).clone()));
            killed.push(Killed { epoch: one.epoch, remains: remains.ok() });
        }
        let is_told = |former: Former| {
            let pinned = matches!(keeper, Ok(Keeper::Pins(_))) && former.boot == Some(boot());
            let found = dead.iter().any(|one| one.epoch == former.epoch);
            former.epoch.is_some() && (found || pinned)
        };
        let mut by_note = false;
        match former {
            Some(former) if !is_told(former) => {
                killed.push(Killed { epoch: former.epoch, remains: None });
                by_note = true;
            }
            // Without a spool there is no note: whether there was anybody is not known either.
            None if spool.is_none() && keeper.is_err() => killed.push(Killed { epoch: None, remains: None }),
            _ => {}
        }
        tell(&killed, unknown.first().map(String::as_str));
        Inherited { dead, killed, by_note, note: None }
    }

    /// From now on somebody uses the spool who may be killed.
    pub(super) fn leave(&mut self, note: &Note) {
        if !self.by_note {
            note.write();
        }
        self.note = Some(note.clone());
    }

    /// All of it was heard.
    pub(super) fn forget(self) {
        self.note.iter().for_each(Note::write);
        self.dead.into_iter().for_each(Departed::forget);
    }
}

fn tell(killed: &[Killed], why: Option<&str>) {
    for Killed { epoch, remains } in killed {
        let who = epoch.map_or("an earlier start".to_owned(), |epoch| format!("start {:016x}", epoch.0));
        match remains {
            Some(remains) => say(&format!("{who} was killed: {}", lost(remains))),
            None => {
                let why = why.unwrap_or("it left a note that it runs, and no counters");
                say(&format!("what {who} lost, if it was killed, is unknown: {why}"));
            }
        }
    }
}

fn lost(remains: &Remains) -> String {
    let (lost, doubtful) = (remains.lost().sum(), remains.doubtful.sum());
    let mut line = format!("{lost} of {} records are lost", remains.fired.sum());
    if doubtful > 0 {
        line.push_str(&format!(
            ", unless the cluster has the {doubtful} of them that it had not acknowledged"
        ));
    }
    line
}
