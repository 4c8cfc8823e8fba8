//! Counters that outlive a killed tracer, so that the next start can report what was lost.
//!
//! ```text
//! /sys/fs/bpf/blkkin/EPOCH/   locked by the live process
//!     counters                the kernel side's map (PER_CPU_STATE): records fired and dropped
//!     ledger                  user space's progress map: records read, and records stored durably
//! ```
//!
//! *In*: a tracer's maps at its start, and the directories of other runs. *Out*: [`LossReport`]s of
//! crashed runs. Another process has to hold a descriptor of the two maps ([`CounterHandles`]): a
//! pin in a BPF file system, as above, or a service manager.
//!
//! *Invariant*: a live run is never taken for a crashed one. Each run holds a lock on its directory
//! by a descriptor that dies with it. A process that scans or removes directories holds the lock of
//! the parent directory meanwhile. A crashed run is reported until [`OrphanedCounters::acknowledge`]
//! confirms that the report arrived.
//!
//! *Why pins*: counters that user space reads while it lives miss the end. Programs go on writing
//! into rings that nothing reads until the process is gone; afterwards only the pin holds the map,
//! so its values are final. Programs and links are not pinned: a dead tracer costs nothing.
//!
//! *Rejected*: a file written periodically (its last state is not the counters' last state). A lock
//! or a pid in a file elsewhere (it may be missing, or from another boot whose pins are gone; pids
//! are reused). Pinned rings (the next start could read their contents, but without a next start 8
//! MiB per CPU are never freed).

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aya::maps::{MapData, MapType, PerCpuArray};
use blkkin_wire::crash_report::{LossReport, RecordCounts};
use blkkin_wire::ids::StartEpoch;

use crate::stats::counters::KernelCounters;
use crate::stats::progress_map::{Progress, ProgressMap};
use crate::stats::source_stats::{DecodeStats, reconcile};

/// Magic number of a BPF file system (include/uapi/linux/magic.h, BPF_FS_MAGIC).
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
const DIR_NAME: &str = "blkkin";
/// Prefix of a directory that is being removed.
const REMOVED: &str = "removed-";
const COUNTERS: &str = "counters";
const PROGRESS: &str = "ledger";

/// Directory in a BPF file system in which tracers pin their counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinDir {
    path: PathBuf,
}

/// Descriptors of the maps that are to outlive a tracer.
#[derive(Debug)]
pub struct CounterHandles {
    /// Epoch of the run.
    pub epoch: StartEpoch,
    /// Map of the kernel side's counters.
    pub counters: OwnedFd,
    /// Map of user space's progress.
    pub progress_map: OwnedFd,
    /// Handle by which user space updates `progress_map`.
    pub progress: Arc<ProgressMap>,
}

/// Pinned counters of this run. Dropping them removes the pins, so an orderly exit leaves nothing.
#[derive(Debug)]
pub struct PinnedCounters {
    dir: PinDir,
    folder: PathBuf,
    _lock: File,
}

/// Pinned counters of a run that ended without removing them.
#[derive(Debug)]
pub struct OrphanedCounters {
    home: PinDir,
    folder: PathBuf,
    _lock: File,
    /// Epoch of the run; none if the directory's name is not an epoch.
    pub epoch: Option<StartEpoch>,
    /// Counters of the run, or why they cannot be read.
    pub stats: Result<CrashedRunStats, String>,
}

/// Final counters of a crashed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashedRunStats {
    fired: RecordCounts,
    dropped: RecordCounts,
    progress: Progress,
}

impl PinDir {
    /// Opens blkkin's directory in the BPF file system mounted at `mounted`, and creates it if
    /// needed.
    pub fn open(mounted: &Path) -> Result<PinDir, String> {
        let with_path = |error: io::Error| format!("{}: {error}", mounted.display());
        if filesystem_type(mounted).map_err(with_path)? != BPF_FS_MAGIC {
            return Err(format!("{} is not a BPF file system", mounted.display()));
        }
        let path = mounted.join(DIR_NAME);
        create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(PinDir { path })
    }

    /// Lists the counters of runs whose process is dead. Each stays locked until dropped, so no
    /// other process reports it.
    pub fn orphaned(&self) -> io::Result<Vec<OrphanedCounters>> {
        let _parent_lock = self.lock()?;
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let folder = entry?.path();
            if is_renamed(&folder) {
                // Its process was killed meanwhile. What remains is removed by a later start.
                let _ = remove_renamed(&folder);
                continue;
            }
            let lock = File::open(&folder)?;
            if lock.try_lock().is_err() {
                continue;
            }
            let name = folder.file_name().and_then(|name| name.to_str());
            let epoch = name.and_then(|name| u64::from_str_radix(name, 16).ok()).map(StartEpoch);
            let stats = CrashedRunStats::from_pins(&folder);
            found.push(OrphanedCounters { home: self.clone(), folder, _lock: lock, epoch, stats });
        }
        Ok(found)
    }

    /// Pins the maps until the returned value is dropped, or for good if the process is killed.
    pub fn pin(&self, handles: &CounterHandles) -> io::Result<PinnedCounters> {
        let _parent_lock = self.lock()?;
        let folder = self.path.join(format!("{:016x}", handles.epoch.0));
        create_dir(&folder)?;
        let lock = File::open(&folder)?;
        lock.lock()?;
        // Counters last: a directory with counters then also has a progress map.
        let pins = [(PROGRESS, &handles.progress_map), (COUNTERS, &handles.counters)];
        match pins.into_iter().try_for_each(|(name, map)| pin_map(&folder.join(name), map)) {
            Ok(()) => Ok(PinnedCounters { dir: self.clone(), folder, _lock: lock }),
            Err(error) => {
                // Removes the pins made so far.
                let _ = remove(&folder);
                Err(error)
            }
        }
    }

    fn lock(&self) -> io::Result<File> {
        let lock = File::open(&self.path)?;
        lock.lock()?;
        Ok(lock)
    }
}

fn pin_map(path: &Path, map: &OwnedFd) -> io::Result<()> {
    let map = MapData::from_fd(map.try_clone()?).map_err(io::Error::other)?;
    map.pin(path).map_err(|error| io::Error::other(crate::aya_error::error_chain(&error)))
}

impl Drop for PinnedCounters {
    fn drop(&mut self) {
        // A directory that cannot be removed is reported by the next start, with its final
        // counters.
        let _ = self.dir.lock().and_then(|_parent_lock| remove(&self.folder));
    }
}

impl OrphanedCounters {
    /// Removes the pins, once the report has arrived.
    pub fn acknowledge(self) -> io::Result<()> {
        let _parent_lock = self.home.lock()?;
        remove(&self.folder)
    }
}

impl CrashedRunStats {
    /// Reads the counters from the descriptors of a run that another process has kept, in any order: the counters are
    /// the map that has a value for each CPU.
    pub fn from_descriptors([one, other]: [OwnedFd; 2]) -> Result<CrashedRunStats, String> {
        let open = |map| MapData::from_fd(map).map_err(|error| crate::aya_error::error_chain(&error));
        let (one, other) = (open(one)?, open(other)?);
        let has_counters =
            one.info().and_then(|info| info.map_type()).is_ok_and(|kind| kind == MapType::PerCpuArray);
        let (counters, progress_map) = if has_counters { (one, other) } else { (other, one) };
        CrashedRunStats::read(counters, &progress_map)
    }

    fn from_pins(folder: &Path) -> Result<CrashedRunStats, String> {
        let open = |name: &str| {
            MapData::from_pin(folder.join(name)).map_err(|error| crate::aya_error::error_chain(&error))
        };
        CrashedRunStats::read(open(COUNTERS)?, &open(PROGRESS)?)
    }

    fn read(counters: MapData, progress_map: &MapData) -> Result<CrashedRunStats, String> {
        let with_path = |error: io::Error| format!("progress map: {error}");
        let progress = ProgressMap::open(progress_map).map_err(with_path)?.progress();
        let counters = PerCpuArray::try_from(aya::maps::Map::PerCpuArray(counters));
        let counters = KernelCounters::new(counters.map_err(|error| crate::aya_error::error_chain(&error))?);
        let counters = counters.read().map_err(|error| error.to_string())?;
        let stats = reconcile(&counters, &DecodeStats::default(), 0);
        let kinds = [stats.calls, stats.bios, stats.requests, stats.commits, stats.names];
        Ok(CrashedRunStats {
            fired: RecordCounts::from_array(kinds.map(|kind| kind.fired)),
            dropped: RecordCounts::from_array(kinds.map(|kind| kind.dropped)),
            progress,
        })
    }

    /// Derives the loss report. `last` is the sequence of the last record found in the durable
    /// store.
    pub fn loss_report(&self, last: Option<u64>) -> LossReport {
        let Progress { read, excluded, durable, prepared, sent, acknowledged } = self.progress;
        // A call that the path filter dropped was not due.
        let due =
            |counts: RecordCounts| RecordCounts { calls: counts.calls.saturating_sub(excluded), ..counts };
        let stored = prepared.filter(|(sequence, _)| last == Some(*sequence));
        LossReport {
            fired: due(self.fired),
            dropped: self.dropped,
            read: due(read),
            persisted: stored.map_or(durable, |(_, total)| total).saturating_add(&acknowledged),
            unacknowledged: sent.saturating_sub(&acknowledged),
        }
    }
}

/// Creates a directory that only its owner may read.
fn create_dir(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Removes a run's directory. It is renamed first: a process that is killed between two pins leaves no run
/// with one of them, whose losses the next start would report as unknown after they were reported.
fn remove(folder: &Path) -> io::Result<()> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let removed = folder.with_file_name(format!("{REMOVED}{name}"));
    fs::rename(folder, &removed)?;
    remove_renamed(&removed)
}

fn remove_renamed(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        fs::remove_file(entry?.path())?;
    }
    fs::remove_dir(folder)
}

fn is_renamed(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(REMOVED.as_bytes()))
}

fn filesystem_type(folder: &Path) -> io::Result<u64> {
    let folder = File::open(folder)?;
    // SAFETY: all zeros is a valid value.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `about` is writable, the descriptor open.
    let result = unsafe { libc::fstatfs(std::os::fd::AsRawFd::as_raw_fd(&folder.as_fd()), &raw mut about) };
    // Width and sign of the type differ by architecture.
    if result == 0 { Ok(u64::from(about.f_type as u32)) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_the_path_filter_dropped_are_not_lost() {
        let calls = |calls| RecordCounts { calls, bios: 7, ..RecordCounts::default() };
        // Of 100 calls 95 were read; of these 40 were dropped by the filter and 50 are in the spool.
        let progress = Progress { read: calls(95), excluded: 40, durable: calls(50), ..Progress::default() };
        let stats = CrashedRunStats { fired: calls(100), dropped: RecordCounts::default(), progress };
        let report = stats.loss_report(None);
        assert_eq!((report.fired.calls, report.read.calls, report.lost().calls), (60, 55, 10));
        assert_eq!(report.lost().bios, 0);
    }

    /// A process that is killed while it removes a run's pins has reported that run.
    #[test]
    fn a_run_that_is_being_removed_is_no_crashed_run() {
        let folder = tempfile::tempdir().unwrap();
        let pins = PinDir { path: folder.path().to_owned() };
        let [removed, crashed] = ["removed-0000000000000001", "0000000000000002"].map(|name| {
            let run = folder.path().join(name);
            fs::create_dir(&run).unwrap();
            fs::write(run.join(PROGRESS), "").unwrap();
            run
        });
        let epochs = || pins.orphaned().unwrap().iter().map(|run| run.epoch).collect::<Vec<_>>();
        assert_eq!(epochs(), [Some(StartEpoch(2))]);
        assert!(!removed.exists() && crashed.exists());
        remove(&crashed).unwrap();
        assert_eq!(epochs(), []);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
