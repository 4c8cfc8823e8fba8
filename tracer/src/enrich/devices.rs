//! Names of block devices: those present at start, and those first used later.
//!
//! *Why a snapshot at start*: a device may disappear between its last completion and the moment at
//! which the record is read.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::DeviceEvent;
use blkkin_wire::ids::DeviceId;
use blkkin_wire::in_flight::{DeviceChange, LostDevice};

/// Known devices. Bounded by the devices of the machine.
#[derive(Debug, Default)]
pub struct DeviceNames {
    known: HashMap<DeviceId, Identity>,
    reported: HashSet<DeviceId>,
    machine_disks: HashMap<Box<str>, Box<str>>,
    /// Two most recent devices. A run of events nearly always concerns one device, or a partition
    /// and its disk.
    last: [Option<DeviceId>; 2],
}

/// Identity of a device in sysfs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    name: Box<str>,
    /// Sequence number of the disk, unique within a boot (since Linux 5.15). A loop device gets a
    /// new one for each file.
    sequence: Option<u64>,
    /// True if the device has a size. A loop device without a file, and a drive without a medium,
    /// have none. A loop device loses its size before it gets a new sequence number.
    has_capacity: bool,
}

impl DeviceNames {
    /// Reads all present devices.
    pub fn snapshot() -> Self {
        let entries = fs::read_dir("/sys/dev/block").into_iter().flatten().flatten();
        let devices = entries.filter_map(|entry| parse(entry.file_name().to_str()?));
        let known = devices.filter_map(|device| Some((device, Identity::read(device)?))).collect();
        DeviceNames { known, ..DeviceNames::default() }
    }

    /// Sets the names of a virtual machine's disks, by their names below /dev.
    pub(crate) fn set_machine_disks(&mut self, disks: HashMap<Box<str>, Box<str>>) {
        self.machine_disks = disks;
    }

    /// Returns the event that names the device, at its first use.
    pub fn first_use(&mut self, device: DeviceId, time: MonotonicNs) -> Option<DeviceEvent> {
        if self.last.contains(&Some(device)) {
            return None;
        }
        self.last = [Some(device), self.last[0]];
        if !self.reported.insert(device) {
            return None;
        }
        let name = self.name(device);
        let disk = self.machine_disks.get(&name).cloned();
        Some(DeviceEvent { time, device, name, partition_of: disk_of_partition(device), disk })
    }

    /// Returns the device's name at its first use, or its numbers if it had none any more. Counts
    /// as a use.
    pub fn name(&mut self, device: DeviceId) -> Box<str> {
        self.reported.insert(device);
        self.identity_of(device).map_or_else(|| device.to_string().into(), |known| known.name.clone())
    }

    /// Lists used devices that have been removed or replaced since.
    pub fn changed(&self) -> Vec<LostDevice> {
        let changes = self.reported.iter().filter_map(|device| {
            let known = self.known.get(device)?;
            let change = change(known, Identity::read(*device))?;
            Some(LostDevice { device: *device, name: known.name.clone(), change })
        });
        let mut lost: Vec<_> = changes.collect();
        lost.sort_by_key(|lost| lost.device);
        lost
    }

    /// Returns the device's identity at its first read.
    fn identity_of(&mut self, device: DeviceId) -> Option<&Identity> {
        match self.known.entry(device) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(unknown) => Some(unknown.insert(Identity::read(device)?)),
        }
    }
}

impl Identity {
    fn read(device: DeviceId) -> Option<Identity> {
        let uevent = fs::read_to_string(format!("/sys/dev/block/{device}/uevent")).ok()?;
        let value = |key: &str| uevent.lines().find_map(|line| line.strip_prefix(key));
        Some(Identity {
            name: value("DEVNAME=")?.into(),
            sequence: value("DISKSEQ=").and_then(|number| number.parse().ok()),
            has_capacity: fs::read_to_string(format!("/sys/dev/block/{device}/size"))
                .is_ok_and(|size| size.trim() != "0"),
        })
    }
}

/// Compares a device's first identity with its current one.
fn change(then: &Identity, now: Option<Identity>) -> Option<DeviceChange> {
    let Some(now) = now else { return Some(DeviceChange::Gone) };
    let other = (&now.name, now.sequence) != (&then.name, then.sequence);
    match (other, now.has_capacity) {
        (true, true) => Some(DeviceChange::Replaced),
        (true, false) => Some(DeviceChange::Gone),
        (false, false) if then.has_capacity => Some(DeviceChange::Gone),
        (false, _) => None,
    }
}

/// Returns the disk of a partition; `None` for a disk.
pub fn disk_of_partition(device: DeviceId) -> Option<DeviceId> {
    fs::metadata(format!("/sys/dev/block/{device}/partition")).ok()?;
    let disk = fs::read_to_string(format!("/sys/dev/block/{device}/../dev")).ok()?;
    parse(disk.trim())
}

/// Parses `major:minor`.
pub fn parse(text: &str) -> Option<DeviceId> {
    let (major, minor) = text.split_once(':')?;
    Some(DeviceId { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_emptied_or_replaced_device_is_reported() {
        let disk = |sequence, has_capacity| Identity {
            name: "loop0".into(),
            sequence: Some(sequence),
            has_capacity,
        };
        let was = disk(1, true);
        assert_eq!(change(&was, Some(disk(1, true))), None);
        assert_eq!(change(&was, None), Some(DeviceChange::Gone));
        assert_eq!(change(&was, Some(disk(2, false))), Some(DeviceChange::Gone));
        assert_eq!(change(&was, Some(disk(1, false))), Some(DeviceChange::Gone), "it has no new number yet");
        assert_eq!(change(&was, Some(disk(2, true))), Some(DeviceChange::Replaced));
        assert_eq!(change(&disk(1, false), Some(disk(1, false))), None, "a drive without a medium");
    }
}
