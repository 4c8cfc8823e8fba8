//! Who holds an agent's counters when it is killed.
//!
//! *In*: what a tracer bequeaths. *Out*: what those before it had bequeathed. The service manager where it keeps descriptors
//! (`FileDescriptorStoreMax=` of systemd): it takes no right at all, and it alone knows that the process is gone. Else a pin in a BPF
//! file system, which takes the right to write there: /sys/fs/bpf is root's.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use blkkin_tracer::estate::DeadBooks;
use blkkin_tracer::{Dead, Estate, Estates, Legacy};
use blkkin_wire::ids::StartEpoch;

use crate::service::Store;

const COUNTERS: &str = "counters";
const LEDGER: &str = "ledger";

/// Holds what outlives an agent.
pub(super) enum Keeper {
    Manager(Store),
    Pins(Estates),
}

/// One who is dead.
pub(super) struct Departed {
    pub(super) epoch: Option<StartEpoch>,
    pub(super) books: Result<DeadBooks, String>,
    held: Held,
}

enum Held {
    Pinned(Box<Dead>),
    Stored(Store, StartEpoch),
}

/// Our own: held until it is dropped, or for good if that does not happen.
pub(super) enum Own {
    Pinned { _estate: Estate },
    Stored(Store, StartEpoch),
}

impl Keeper {
    /// The manager, or a BPF file system that is mounted there; or why there is nobody.
    pub(super) fn find(bpffs: &Path) -> Result<Keeper, String> {
        // Ours, and those of one that was killed before it could tell of another.
        match Store::found(4) {
            Some(store) => Ok(Keeper::Manager(store)),
            None => Estates::open(bpffs).map(Keeper::Pins),
        }
    }

    /// Those who are dead, and whom nobody has told of yet.
    pub(super) fn departed(&self) -> Result<Vec<Departed>, String> {
        match self {
            Keeper::Manager(store) => Ok(stored(*store)),
            Keeper::Pins(estates) => {
                let dead = estates.dead().map_err(|error| error.to_string())?;
                let departed = |dead: Dead| Departed {
                    epoch: dead.epoch,
                    books: dead.books.clone(),
                    held: Held::Pinned(Box::new(dead)),
                };
                Ok(dead.into_iter().map(departed).collect())
            }
        }
    }

    /// From now on it outlives us.
    pub(super) fn keep(&self, legacy: &Legacy) -> Result<Own, String> {
        match self {
            Keeper::Manager(store) => {
                let epoch = legacy.epoch;
                let both = [(LEDGER, &legacy.ledger_map), (COUNTERS, &legacy.counters)];
                let kept =
                    both.into_iter().try_for_each(|(what, map)| store.keep(&name(what, epoch), map.as_fd()));
                kept.map(|()| Own::Stored(*store, epoch))
                    .map_err(|error| format!("the service manager: {error}"))
            }
            Keeper::Pins(estates) => {
                let estate = estates.leave(legacy).map_err(|error| error.to_string())?;
                Ok(Own::Pinned { _estate: estate })
            }
        }
    }
}

impl Departed {
    /// It was heard.
    pub(super) fn forget(self) {
        match self.held {
            // What cannot be removed is told once more.
            Held::Pinned(dead) => drop(dead.forget()),
            Held::Stored(store, epoch) => forget(store, epoch),
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Own::Stored(store, epoch) = self {
            forget(*store, *epoch);
        }
    }
}

fn forget(store: Store, epoch: StartEpoch) {
    [COUNTERS, LEDGER].iter().for_each(|what| store.forget(&name(what, epoch)));
}

fn name(what: &str, epoch: StartEpoch) -> String {
    format!("{what}-{:016x}", epoch.0)
}

fn stored(store: Store) -> Vec<Departed> {
    let mut found = BTreeMap::<u64, [Option<OwnedFd>; 2]>::new();
    for (name, descriptor) in store.kept() {
        let Some((what, epoch)) = name.split_once('-') else { continue };
        let Ok(epoch) = u64::from_str_radix(epoch, 16) else { continue };
        let [counters, ledger] = found.entry(epoch).or_default();
        match what {
            COUNTERS => *counters = Some(descriptor),
            LEDGER => *ledger = Some(descriptor),
            _ => {}
        }
    }
    let departed = |(epoch, both): (u64, [Option<OwnedFd>; 2])| {
        let books = match both {
            [Some(counters), Some(ledger)] => DeadBooks::kept(counters, ledger),
            _ => Err("the service manager has only a half of its counters".to_owned()),
        };
        let epoch = StartEpoch(epoch);
        Departed { epoch: Some(epoch), books, held: Held::Stored(store, epoch) }
    };
    found.into_iter().map(departed).collect()
}
