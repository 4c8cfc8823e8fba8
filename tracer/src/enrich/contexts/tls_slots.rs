//! The kernel side's map of TLS slots, as user space writes it.
//!
//! *Invariants*: a slot is in the map before the version changes, so a task that looks it up under
//! the new version finds it. A slot in a library exists only as long as the library: the kernel
//! side evicts it at the munmap, and a slot evicted while it was claimed does not return
//! ([`TlsSlots::commit`]). The kernel side ignores munmap as long as the version is 0, so a version
//! is published before the first claim.

use aya::Ebpf;
use aya::maps::{Array, HashMap, MapData};
use blkkin_otel_context::{AddressSpace, ThreadContextSlot, TlsLocation};
use blkkin_probe_abi::context::{TLS_CLAIMED, TLS_DYNAMIC, TLS_STATIC, TlsSlot};

use crate::aya_error::{error_chain, missing_map};
use crate::error::TracerError;

/// Flag of bpf(2): update an existing element only (include/uapi/linux/bpf.h).
const BPF_EXIST: u64 = 2;

/// Map value of a slot.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Value(TlsSlot);

// SAFETY: the type is Plain: no padding, and every bit pattern is valid.
unsafe impl aya::Pod for Value {}

/// The map and its version.
pub(crate) struct TlsSlots {
    slots: HashMap<MapData, u32, Value>,
    version: Array<MapData, u64>,
    changes: u64,
}

impl TlsSlots {
    /// Takes the maps out of the loaded object; the programs hold them as well.
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<TlsSlots, TracerError> {
        let mut map = |name: &'static str| ebpf.take_map(name).ok_or_else(|| missing_map(name));
        let (slots, version) = (map("TLS_SLOTS")?, map("TLS_SLOTS_VERSION")?);
        let fail = |map: &'static str| {
            move |error: aya::maps::MapError| TracerError::Map { map, reason: error_chain(&error) }
        };
        Ok(TlsSlots {
            slots: HashMap::try_from(slots).map_err(fail("TLS_SLOTS"))?,
            version: Array::try_from(version).map_err(fail("TLS_SLOTS_VERSION"))?,
            changes: 0,
        })
    }

    /// Stores a process's slot, effective after [`TlsSlots::publish_version`]. Returns false if the
    /// map is full.
    pub(crate) fn insert(&mut self, pid: u32, slot: TlsSlot) -> bool {
        self.slots.insert(pid, Value(slot), 0).is_ok()
    }

    /// Removes a process's slot. Returns false if there is none; the kernel side may have evicted
    /// it.
    pub(crate) fn remove(&mut self, pid: u32) -> bool {
        self.slots.remove(&pid).is_ok()
    }

    /// Stores a claim: the library exists, and the kernel side must not read the slot yet. Returns
    /// false if the map is full.
    pub(crate) fn claim(&mut self, pid: u32, slot: TlsSlot) -> bool {
        // Before the first version, the kernel side ignores munmap.
        if self.changes == 0 && !self.publish_version() {
            return false;
        }
        self.slots.insert(pid, Value(TlsSlot { kind: TLS_CLAIMED, ..slot }), 0).is_ok()
    }

    /// Replaces a claim by the slot. Returns false if the kernel side has evicted the claim.
    pub(crate) fn commit(&mut self, pid: u32, slot: TlsSlot) -> bool {
        self.slots.insert(pid, Value(slot), BPF_EXIST).is_ok()
    }

    /// Returns the number of slots that the kernel side evicted because their library was unmapped.
    pub(crate) fn evictions(&self) -> u64 {
        self.version.get(&1, 0).unwrap_or_default()
    }

    /// Returns whether a process has a slot.
    pub(crate) fn contains(&self, pid: u32) -> bool {
        self.get(pid).is_some()
    }

    /// Returns the slot of a process, found by a scan or inherited at fork.
    pub(crate) fn get(&self, pid: u32) -> Option<TlsSlot> {
        self.slots.get(&pid, 0).ok().map(|Value(slot)| slot)
    }

    /// Returns the pids with a slot.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.slots.keys().flatten().collect()
    }

    /// Makes every task look up its slot again. Returns false if the kernel refuses.
    pub(crate) fn publish_version(&mut self) -> bool {
        self.changes += 1;
        self.version.set(0, self.changes, 0).is_ok()
    }
}

/// Converts a slot in this address space to the kernel side's form.
pub(crate) fn kernel_slot(space: AddressSpace, slot: ThreadContextSlot) -> TlsSlot {
    let bound = TlsSlot {
        start_stack: space.start_stack,
        start_code: space.start_code,
        anchor: slot.library.unwrap_or(0),
        ..TlsSlot::default()
    };
    match slot.location {
        TlsLocation::Static { offset } => TlsSlot { kind: TLS_STATIC, offset, ..bound },
        TlsLocation::Dynamic { module, offset, dtv_offset, dtv_length_offset, dtv_stride } => {
            TlsSlot { kind: TLS_DYNAMIC, module, offset, dtv_offset, dtv_length_offset, dtv_stride, ..bound }
        }
    }
}
