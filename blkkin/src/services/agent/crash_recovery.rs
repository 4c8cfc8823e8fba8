//! Loss reports of earlier agents on this machine that were killed.
//!
//! *In*: stored counters (`counter_store.rs`) and a spool. *Out*: [`CrashedRun`]s for the first
//! batch, the metrics and the log. *Invariant*: unknown losses are reported as unknown, never as 0.
//! A crashed run is reported until a batch with the report is safely stored: by two starts in the
//! worst case, and each epoch counts once.
//!
//! Two traces reveal a crashed run: its counters, and a marker file in the spool that an orderly
//! shutdown removes. A marker without counters means that the machine went down, or that it has no
//! counter store. With pinned counters there is a third case: another agent on this machine has
//! already found and reported them.

use std::fs;
use std::path::{Path, PathBuf};

use blkkin_bus::spool::Spool;
use blkkin_tracer::identity;
use blkkin_wire::crash_report::{CrashedRun, LossReport};
use blkkin_wire::ids::{BootId, StartEpoch};
use blkkin_wire::v1;
use tracing::error;

use super::counter_store::{CounterStore, UnreportedRun};

/// The marker file, present while an agent uses the spool.
const MARKER_FILE: &str = "running";

/// Crashed runs that no start has reported yet, and the marker of this run.
pub(super) struct CrashRecovery {
    unreported: Vec<UnreportedRun>,
    /// The reports.
    pub(super) crashed_runs: Vec<CrashedRun>,
    /// The previous marker is the only evidence of a crashed run, so the own marker must wait.
    known_by_marker_only: bool,
    marker: Option<RunMarker>,
}

/// A marker in the spool's folder: the boot of the agent that uses it, and its epoch if its
/// counters are stored.
///
/// If the previous marker is the only evidence of a crashed run, the own marker replaces it only
/// after the report was delivered. Otherwise a crash in between would hide that run.
#[derive(Clone, Debug)]
pub(super) struct RunMarker {
    path: PathBuf,
    text: String,
}

/// A previous run without an orderly shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PreviousRun {
    boot: Option<BootId>,
    epoch: Option<StartEpoch>,
}

impl RunMarker {
    /// Creates the marker of an agent that starts to use this spool.
    pub(super) fn new(folder: &Path, counters_epoch: Option<StartEpoch>) -> RunMarker {
        let epoch = counters_epoch.map_or_else(String::new, |epoch| format!("{:016x}", epoch.0));
        RunMarker { path: folder.join(MARKER_FILE), text: format!("{:032x} {epoch}\n", boot().0) }
    }

    /// Returns the previous user of the spool, if it did not shut down in order.
    pub(super) fn previous(folder: &Path) -> Option<PreviousRun> {
        let text = fs::read_to_string(folder.join(MARKER_FILE)).ok()?;
        let mut words = text.split_whitespace();
        let boot = words.next().and_then(|word| u128::from_str_radix(word, 16).ok());
        let epoch = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
        Some(PreviousRun { boot: boot.map(BootId), epoch: epoch.map(StartEpoch) })
    }

    /// Removes the marker at an orderly shutdown.
    pub(super) fn remove(self) {
        if fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            // An unwritable folder is reported at the next write to the spool.
            let _ = fs::remove_file(self.path);
        }
    }

    /// Writes the marker atomically.
    fn write(&self) {
        let next = self.path.with_extension("next");
        // As above.
        let _ = fs::write(&next, &self.text).and_then(|()| fs::rename(next, &self.path));
    }
}

fn boot() -> BootId {
    identity::source().boot
}

impl CrashRecovery {
    /// Finds the crashed runs, and logs them.
    pub(super) fn detect(
        counter_store: &Result<CounterStore, String>,
        spool: Option<&Spool>,
    ) -> CrashRecovery {
        let previous = spool.and_then(|spool| RunMarker::previous(spool.folder()));
        let found = counter_store.as_ref().map_err(String::clone).and_then(CounterStore::unreported_runs);
        let last = spool.and_then(|spool| v1::peek(spool.last_recovered()?).ok());
        let (mut unreported, mut unknown) = (Vec::new(), Vec::new());
        match found {
            Ok(found) => unreported = found,
            Err(why) => unknown.push(why),
        }
        let mut crashed_runs = Vec::new();
        for one in &unreported {
            let last = last.filter(|last| Some(last.source.epoch) == one.epoch).map(|last| last.sequence);
            let losses = one.counters.as_ref().map(|counters| counters.loss_report(last));
            unknown.extend(losses.as_ref().err().map(|why| (*why).clone()));
            crashed_runs.push(CrashedRun { epoch: one.epoch, losses: losses.ok() });
        }
        let is_reported = |previous: PreviousRun| {
            let pinned = matches!(counter_store, Ok(CounterStore::Pins(_))) && previous.boot == Some(boot());
            let found = unreported.iter().any(|one| one.epoch == previous.epoch);
            previous.epoch.is_some() && (found || pinned)
        };
        let mut known_by_marker_only = false;
        match previous {
            Some(previous) if !is_reported(previous) => {
                crashed_runs.push(CrashedRun { epoch: previous.epoch, losses: None });
                known_by_marker_only = true;
            }
            // Without a spool there is no marker, so an earlier crash cannot be ruled out.
            None if spool.is_none() && counter_store.is_err() => {
                crashed_runs.push(CrashedRun { epoch: None, losses: None })
            }
            _ => {}
        }
        report(&crashed_runs, unknown.first().map(String::as_str));
        CrashRecovery { unreported, crashed_runs, known_by_marker_only, marker: None }
    }

    /// Installs the marker of this run.
    pub(super) fn install_marker(&mut self, marker: &RunMarker) {
        if !self.known_by_marker_only {
            marker.write();
        }
        self.marker = Some(marker.clone());
    }

    /// Removes the evidence of the reported runs.
    pub(super) fn acknowledge(self) {
        self.marker.iter().for_each(RunMarker::write);
        self.unreported.into_iter().for_each(UnreportedRun::acknowledge);
    }
}

fn report(crashed_runs: &[CrashedRun], why: Option<&str>) {
    for CrashedRun { epoch, losses } in crashed_runs {
        let run = epoch.map_or("an earlier start".to_owned(), |epoch| format!("start {:016x}", epoch.0));
        match losses {
            Some(losses) => error!(run, "{run} was killed: {}", describe_loss(losses)),
            None => {
                let why = why.unwrap_or("it left a marker file and no counters");
                error!(run, why, "losses of {run}, if it crashed, are unknown: {why}");
            }
        }
    }
}

fn describe_loss(losses: &LossReport) -> String {
    let (lost, unacknowledged) = (losses.lost().total(), losses.unacknowledged.total());
    let mut line = format!("{lost} of {} records are lost", losses.fired.total());
    if unacknowledged > 0 {
        line.push_str(&format!(", or fewer: {unacknowledged} of them were sent and not acknowledged"));
    }
    line
}
