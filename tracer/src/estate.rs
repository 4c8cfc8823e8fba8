//! What outlives a tracer that is killed: its counters, so that the next start can say what was lost.
//!
//! ```text
//! /sys/fs/bpf/blkkin/EPOCH/   locked by whoever lives
//!     counters                the kernel side's (LOCALS): what fired, and what had no room
//!     ledger                  user space's: what it read, what it has put where it stays
//! ```
//!
//! Two maps, of which somebody else has to hold a descriptor ([`Legacy`]): a pin in a BPF file system, as above, or a service
//! manager.
//!
//! *In*: a tracer's maps, when it starts; the folders of others. *Out*: [`Remains`] of those that are dead. *Invariant*: who lives
//! is not taken for dead: its folder is locked by a descriptor that dies with it, and whoever looks holds the lock of all
//! meanwhile, as does whoever removes one. Who is dead is told until somebody has made sure that it was heard ([`Dead::forget`]).
//!
//! The counters that user space reads while it lives say nothing of the end: programs go on to write into rings that nobody reads
//! until the process is gone. The map itself has the last word, since nothing but the pin holds it then. Programs and links are
//! not pinned: a tracer that is dead costs nothing.
//!
//! *Rejected*: a file that is written every so often (its end is not the counters' end); a lock or a pid in a file elsewhere (may
//! be gone, or of another boot, where the pins are not; a pid comes again); pinned rings (what lies in them could be read by the
//! next start: 8 MiB a CPU that nobody gives back if there is none).

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aya::maps::{MapData, PerCpuArray};
use blkkin_wire::ids::StartEpoch;
use blkkin_wire::killed::{Remains, Tally};

use crate::accounts::{KernelCounters, Recorded, balance};
use crate::ledger::{Entries, Ledger};
use crate::load::Tracer;

/// In a file system of the BPF kind (include/uapi/linux/magic.h, BPF_FS_MAGIC).
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
const OURS: &str = "blkkin";
const COUNTERS: &str = "counters";
const LEDGER: &str = "ledger";

/// Where tracers leave what outlives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estates {
    folder: PathBuf,
}

/// What is to outlive a tracer.
#[derive(Debug)]
pub struct Legacy {
    /// Of which start.
    pub epoch: StartEpoch,
    /// The kernel side's counters.
    pub counters: OwnedFd,
    /// User space's, as a map, and to write to.
    pub ledger_map: OwnedFd,
    /// The same.
    pub ledger: Arc<Ledger>,
}

/// Our own, pinned. Removed when dropped: who ends in order leaves nothing.
#[derive(Debug)]
pub struct Estate {
    home: Estates,
    folder: PathBuf,
    _lock: File,
}

/// That of one who is dead.
#[derive(Debug)]
pub struct Dead {
    home: Estates,
    folder: PathBuf,
    _lock: File,
    /// Which start it was; none where the folder's name says none.
    pub epoch: Option<StartEpoch>,
    /// What its counters say; or why nobody knows.
    pub books: Result<DeadBooks, String>,
}

/// The counters of a dead tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadBooks {
    fired: Tally,
    dropped: Tally,
    entries: Entries,
}

impl Estates {
    /// In a file system for BPF objects, mounted there; or why that does not work.
    pub fn open(mounted: &Path) -> Result<Estates, String> {
        let said = |error: io::Error| format!("{}: {error}", mounted.display());
        if filesystem(mounted).map_err(said)? != BPF_FS_MAGIC {
            return Err(format!("{} is no BPF file system", mounted.display()));
        }
        let folder = mounted.join(OURS);
        make(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Estates { folder })
    }

    /// Those whose owners are dead. Each is held until it is dropped, so that nobody else tells it meanwhile.
    pub fn dead(&self) -> io::Result<Vec<Dead>> {
        let _all = self.lock()?;
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let folder = entry?.path();
            let lock = File::open(&folder)?;
            if lock.try_lock().is_err() {
                continue;
            }
            let name = folder.file_name().and_then(|name| name.to_str());
            let epoch = name.and_then(|name| u64::from_str_radix(name, 16).ok()).map(StartEpoch);
            let books = DeadBooks::pinned(&folder);
            found.push(Dead { home: self.clone(), folder, _lock: lock, epoch, books });
        }
        Ok(found)
    }

    /// Pins it until the estate is dropped, or for good if that does not happen.
    pub fn leave(&self, legacy: &Legacy) -> io::Result<Estate> {
        let _all = self.lock()?;
        let folder = self.folder.join(format!("{:016x}", legacy.epoch.0));
        make(&folder)?;
        let lock = File::open(&folder)?;
        lock.lock()?;
        // Counters last: who has them has a ledger.
        let pins = [(LEDGER, &legacy.ledger_map), (COUNTERS, &legacy.counters)];
        match pins.into_iter().try_for_each(|(name, map)| pin(&folder.join(name), map)) {
            Ok(()) => Ok(Estate { home: self.clone(), folder, _lock: lock }),
            Err(error) => {
                // As far as it got.
                let _ = remove(&folder);
                Err(error)
            }
        }
    }

    fn lock(&self) -> io::Result<File> {
        let lock = File::open(&self.folder)?;
        lock.lock()?;
        Ok(lock)
    }
}

fn pin(path: &Path, map: &OwnedFd) -> io::Result<()> {
    let map = MapData::from_fd(map.try_clone()?).map_err(io::Error::other)?;
    map.pin(path).map_err(|error| io::Error::other(crate::load::chain(&error)))
}

impl Drop for Estate {
    fn drop(&mut self) {
        // What is left is told by the next start: the books as they were at the end.
        let _ = self.home.lock().and_then(|_all| remove(&self.folder));
    }
}

impl Dead {
    /// It was heard: it is removed.
    pub fn forget(self) -> io::Result<()> {
        let _all = self.home.lock()?;
        remove(&self.folder)
    }
}

impl DeadBooks {
    /// From descriptors that somebody has kept.
    pub fn kept(counters: OwnedFd, ledger: OwnedFd) -> Result<DeadBooks, String> {
        let open = |map| MapData::from_fd(map).map_err(|error| crate::load::chain(&error));
        DeadBooks::read(open(counters)?, &open(ledger)?)
    }

    fn pinned(folder: &Path) -> Result<DeadBooks, String> {
        let open =
            |name: &str| MapData::from_pin(folder.join(name)).map_err(|error| crate::load::chain(&error));
        DeadBooks::read(open(COUNTERS)?, &open(LEDGER)?)
    }

    fn read(counters: MapData, ledger: &MapData) -> Result<DeadBooks, String> {
        let said = |error: io::Error| format!("its ledger: {error}");
        let entries = Ledger::open(ledger).map_err(said)?.entries();
        let counters = PerCpuArray::try_from(aya::maps::Map::PerCpuArray(counters));
        let counters = KernelCounters::new(counters.map_err(|error| crate::load::chain(&error))?);
        let counters = counters.read().map_err(|error| error.to_string())?;
        let accounts = balance(&counters, &Recorded::default(), 0);
        let kinds = [accounts.calls, accounts.bios, accounts.requests, accounts.commits, accounts.names];
        Ok(DeadBooks {
            fired: Tally::from_numbers(kinds.map(|kind| kind.fired)),
            dropped: Tally::from_numbers(kinds.map(|kind| kind.dropped)),
            entries,
        })
    }

    /// What became of its records, if the last one that was put where it stays, as the place itself says, is `last`.
    pub fn remains(&self, last: Option<u64>) -> Remains {
        let Entries { read, kept, prepared, sent, answered } = self.entries;
        let there = prepared.filter(|(sequence, _)| last == Some(*sequence));
        Remains {
            fired: self.fired,
            dropped: self.dropped,
            read,
            kept: there.map_or(kept, |(_, total)| total).plus(&answered),
            doubtful: sent.minus(&answered),
        }
    }
}

impl Tracer {
    /// What fired, and, from now on, what became of it: to be held by somebody who lives longer.
    pub fn bequeath(&mut self) -> io::Result<Legacy> {
        let (map, ledger) = Ledger::create()?;
        let ledger = Arc::new(ledger);
        self.ledger = Some(Arc::clone(&ledger));
        Ok(Legacy {
            epoch: self.source.epoch,
            counters: self.counters_pages.try_clone()?,
            ledger_map: map.fd().as_fd().try_clone_to_owned()?,
            ledger,
        })
    }
}

/// Nobody but its owner looks into it.
fn make(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn remove(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        fs::remove_file(entry?.path())?;
    }
    fs::remove_dir(folder)
}

fn filesystem(folder: &Path) -> io::Result<u64> {
    let folder = File::open(folder)?;
    // SAFETY: all zeros are one.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `about` is writable, the descriptor open.
    let result = unsafe { libc::fstatfs(std::os::fd::AsRawFd::as_raw_fd(&folder.as_fd()), &raw mut about) };
    // The type's width and sign differ by architecture.
    if result == 0 { Ok(u64::from(about.f_type as u32)) } else { Err(io::Error::last_os_error()) }
}
