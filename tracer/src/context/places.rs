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
    left: HashMap<MapData, u32, [u64; 2]>,
    version: Array<MapData, u64>,
    changes: u64,
}

impl Places {
    /// Takes it out of what was loaded; the programs hold it too.
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Places, TracerError> {
        let mut map = |name: &'static str| ebpf.take_map(name).ok_or_else(|| missing_map(name));
        let (places, left, version) = (map("PLACES")?, map("LEFT")?, map("PLACES_VERSION")?);
        let fail = |map: &'static str| {
            move |error: aya::maps::MapError| TracerError::Map { map, reason: chain(&error) }
        };
        Ok(Places {
            places: HashMap::try_from(places).map_err(fail("PLACES"))?,
            left: HashMap::try_from(left).map_err(fail("LEFT"))?,
            version: Array::try_from(version).map_err(fail("PLACES_VERSION"))?,
            changes: 0,
        })
    }

    /// Puts in a process's place, or takes it out. It counts once [`Places::publish`] was called. False where there is no room.
    pub(crate) fn set(&mut self, pid: u32, place: Option<Place>) -> bool {
        match place {
            Some(place) => self.places.insert(pid, Value(place), 0).is_ok(),
            // The kernel side may have done so itself.
            None => {
                let _ = self.places.remove(&pid);
                true
            }
        }
    }

    /// Puts in that a process's library is there, and nothing to be read in it yet but by what its parent has. False where there is no room.
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

    /// Whether a process has unmapped what its parent's place lies in, which it had a copy of.
    pub(crate) fn has_left(&self, pid: u32, place: Place) -> bool {
        self.left.get(&pid, 0).is_ok_and(|left| left == [place.start_stack, place.start_code])
    }

    /// How often the kernel side has taken one out itself: whose library was unmapped.
    pub(crate) fn taken(&self) -> u64 {
        self.version.get(&1, 0).unwrap_or_default()
    }

    /// Whether a process has one.
    pub(crate) fn has(&self, pid: u32) -> bool {
        self.places.get(&pid, 0).is_ok()
    }

    /// Has every task look again. False where the kernel refuses.
    pub(crate) fn publish(&mut self) -> bool {
        self.changes += 1;
        self.version.set(0, self.changes, 0).is_ok()
    }
}
