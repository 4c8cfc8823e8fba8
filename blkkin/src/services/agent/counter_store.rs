//! The store that preserves an agent's counters across a crash.
//!
//! *In*: the counters that a tracer exports. *Out*: those of earlier, crashed agents. Preferred is
//! systemd's file descriptor store (`FileDescriptorStoreMax=`): it needs no privilege, and systemd
//! knows that the process has exited. Otherwise the counters are pinned in a BPF file system, which
//! needs write permission there: /sys/fs/bpf belongs to root.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use blkkin_tracer::stats::persistent_counters::CrashedRunStats;
use blkkin_tracer::{CounterHandles, OrphanedCounters, PinDir, PinnedCounters};
use blkkin_wire::ids::StartEpoch;

use crate::service::FdStore;

/// Name of both descriptors of a run: systemd removes them by one message, so a kill in the middle leaves none or both.
const RUN: &str = "run";
/// Names of the descriptors that earlier versions stored.
const EARLIER: [&str; 2] = ["counters", "ledger"];

/// The place that holds an agent's counters while no agent runs.
pub(super) enum CounterStore {
    FdStore(FdStore),
    Pins(PinDir),
}

/// A crashed run that no start has reported yet.
pub(super) struct UnreportedRun {
    pub(super) epoch: Option<StartEpoch>,
    pub(super) counters: Result<CrashedRunStats, String>,
    handle: RunHandle,
}

enum RunHandle {
    Pinned(Box<OrphanedCounters>),
    Stored(FdStore, StartEpoch),
}

/// The counters of this run, removed on drop. A crash skips the drop.
pub(super) enum OwnCounters {
    Pinned { _pins: PinnedCounters },
    Stored(FdStore, StartEpoch),
}

impl CounterStore {
    /// Opens systemd's store, or a mounted BPF file system; the error explains why neither works.
    pub(super) fn open(bpffs: &Path) -> Result<CounterStore, String> {
        // Room for this run's descriptors and those of one crashed run.
        match FdStore::available(4) {
            Some(store) => Ok(CounterStore::FdStore(store)),
            None => PinDir::open(bpffs).map(CounterStore::Pins),
        }
    }

    /// Returns the crashed runs that no start has reported yet.
    pub(super) fn unreported_runs(&self) -> Result<Vec<UnreportedRun>, String> {
        match self {
            CounterStore::FdStore(store) => Ok(stored(*store)),
            CounterStore::Pins(pin_dir) => {
                let orphaned = pin_dir.orphaned().map_err(|error| error.to_string())?;
                let unreported = |counters: OrphanedCounters| UnreportedRun {
                    epoch: counters.epoch,
                    counters: counters.stats.clone(),
                    handle: RunHandle::Pinned(Box::new(counters)),
                };
                Ok(orphaned.into_iter().map(unreported).collect())
            }
        }
    }

    /// Stores the counters of this run.
    pub(super) fn save(&self, handles: &CounterHandles) -> Result<OwnCounters, String> {
        match self {
            CounterStore::FdStore(store) => {
                let epoch = handles.epoch;
                let both = [handles.progress_map.as_fd(), handles.counters.as_fd()];
                store
                    .store(&name(RUN, epoch), &both)
                    .map(|()| OwnCounters::Stored(*store, epoch))
                    .map_err(|error| format!("the service manager: {error}"))
            }
            CounterStore::Pins(pin_dir) => {
                let pins = pin_dir.pin(handles).map_err(|error| error.to_string())?;
                Ok(OwnCounters::Pinned { _pins: pins })
            }
        }
    }
}

impl UnreportedRun {
    /// Removes the run after its report was delivered.
    pub(super) fn acknowledge(self) {
        match self.handle {
            // A run that cannot be removed is reported once more.
            RunHandle::Pinned(dead) => drop(dead.acknowledge()),
            RunHandle::Stored(store, epoch) => remove(store, epoch),
        }
    }
}

impl Drop for OwnCounters {
    fn drop(&mut self) {
        if let OwnCounters::Stored(store, epoch) = self {
            remove(*store, *epoch);
        }
    }
}

fn remove(store: FdStore, epoch: StartEpoch) {
    [RUN].iter().chain(&EARLIER).for_each(|what| store.remove(&name(what, epoch)));
}

fn name(what: &str, epoch: StartEpoch) -> String {
    format!("{what}-{:016x}", epoch.0)
}

fn stored(store: FdStore) -> Vec<UnreportedRun> {
    let mut found = BTreeMap::<u64, Vec<OwnedFd>>::new();
    for (name, descriptor) in store.take() {
        let Some((what, epoch)) = name.split_once('-') else { continue };
        let Ok(epoch) = u64::from_str_radix(epoch, 16) else { continue };
        if what == RUN || EARLIER.contains(&what) {
            found.entry(epoch).or_default().push(descriptor);
        }
    }
    let unreported = |(epoch, maps): (u64, Vec<OwnedFd>)| {
        let counters = match <[OwnedFd; 2]>::try_from(maps) {
            Ok(both) => CrashedRunStats::from_descriptors(both),
            Err(_) => Err("the service manager has only part of its counters".to_owned()),
        };
        let epoch = StartEpoch(epoch);
        UnreportedRun { epoch: Some(epoch), counters, handle: RunHandle::Stored(store, epoch) }
    };
    found.into_iter().map(unreported).collect()
}
