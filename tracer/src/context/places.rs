//! The kernel side's table of places, as user space writes it.
//!
//! *Invariants*: what a process publishes is in the table before the version says that something changed: a task that has looked
//! under the new version has seen it. And what lies in a library is there only as long as the library: the kernel side takes
//! a place out at the munmap, and what it took out while it was claimed does not come in again ([`Places::keep`]). A munmap is looked at
//! once there is a version, so there is one before the first claim.

use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData};
use blkkin_probe_abi::context::{PLACE_CLAIMED, Place};

use crate::error::TracerError;
use crate::load::{chain, missing_map};

/// Of bpf(2): change what is there, and put in nothing (include/uapi/linux/bpf.h).
const BPF_EXIST: u64 = 2;

/// A place as a map's value.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Value(Place);

// SAFETY: it is Plain: without padding, and every bit pattern is a value.
unsafe impl aya::Pod for Value {}

/// The table.
pub(crate) struct Places {
    places: HashMap<MapData, u32, Value>,
    version: Array<MapData, u64>,
    changes: u64,
}

impl Places {
    /// Takes it out of what was loaded; the programs hold it too.
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Places, TracerError> {
        let mut map = |name: &'static str| ebpf.take_map(name).ok_or_else(|| missing_map(name));
        let (places, version) = (map("PLACES")?, map("PLACES_VERSION")?);
        let fail = |map: &'static str| {
            move |error: aya::maps::MapError| TracerError::Map { map, reason: chain(&error) }
        };
        Ok(Places {
            places: HashMap::try_from(places).map_err(fail("PLACES"))?,
            version: Array::try_from(version).map_err(fail("PLACES_VERSION"))?,
            changes: 0,
        })
    }

    /// Puts in a process's place. It counts once [`Places::publish`] was called. False where there is no room.
    pub(crate) fn put(&mut self, pid: u32, place: Place) -> bool {
        self.places.insert(pid, Value(place), 0).is_ok()
    }

    /// Takes a process's place out. False where there is none; the kernel side may have taken it out itself.
    pub(crate) fn remove(&mut self, pid: u32) -> bool {
        self.places.remove(&pid).is_ok()
    }

    /// Puts in that a process's library is there, and nothing to be read in it yet. False where there is no room.
    pub(crate) fn claim(&mut self, pid: u32, place: Place) -> bool {
        // As long as nothing was ever changed, the kernel side does not look at what is unmapped.
        if self.changes == 0 && !self.publish() {
            return false;
        }
        self.places.insert(pid, Value(Place { kind: PLACE_CLAIMED, ..place }), 0).is_ok()
    }

    /// Puts in a place whose library was claimed, or changes nothing. False where the kernel side has taken it out since.
    pub(crate) fn keep(&mut self, pid: u32, place: Place) -> bool {
        self.places.insert(pid, Value(place), BPF_EXIST).is_ok()
    }

    /// How often the kernel side has taken one out itself: whose library was unmapped.
    pub(crate) fn taken(&self) -> u64 {
        self.version.get(&1, 0).unwrap_or_default()
    }

    /// Whether a process has one.
    pub(crate) fn has(&self, pid: u32) -> bool {
        self.of(pid).is_some()
    }

    /// A process's place: found by user space, or its parent's, with which it was forked.
    pub(crate) fn of(&self, pid: u32) -> Option<Place> {
        self.places.get(&pid, 0).ok().map(|Value(place)| place)
    }

    /// Those that have one.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.places.keys().flatten().collect()
    }

    /// Has every task look again. False where the kernel refuses.
    pub(crate) fn publish(&mut self) -> bool {
        self.changes += 1;
        self.version.set(0, self.changes, 0).is_ok()
    }
}
