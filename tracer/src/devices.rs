//! Names of block devices: those of the start, and those that are first met later.
//!
//! *Why those of the start too*: a device may be taken away between its last completion and the moment at which that is read.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::DeviceEvent;
use blkkin_wire::ids::DeviceId;
use blkkin_wire::unended::{Fate, LostDevice};

/// Devices that are known. Bounded by the devices of the machine.
#[derive(Debug, Default)]
pub struct DeviceNamer {
    known: HashMap<DeviceId, Identity>,
    named: HashSet<DeviceId>,
    /// The two met last: a run of events is of one device nearly always, or of a partition and its disk.
    last: [Option<DeviceId>; 2],
}

/// What sysfs says of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    name: Box<str>,
    /// The disk's own number, which no other disk of this boot ever has (since Linux 5.15); a loop device has a new one for
    /// each file.
    sequence: Option<u64>,
    /// A loop device without a file, and a drive without a medium, have none. A loop device loses it before it has a new number.
    has_room: bool,
}

impl DeviceNamer {
    /// Knows the devices that there are now.
    pub fn of_now() -> Self {
        let entries = fs::read_dir("/sys/dev/block").into_iter().flatten().flatten();
        let devices = entries.filter_map(|entry| parse(entry.file_name().to_str()?));
        let known = devices.filter_map(|device| Some((device, Identity::read(device)?))).collect();
        DeviceNamer { known, ..DeviceNamer::default() }
    }

    /// The device's name, if it was not said before.
    pub fn meet(&mut self, device: DeviceId, time: MonotonicNs) -> Option<DeviceEvent> {
        if self.last.contains(&Some(device)) {
            return None;
        }
        self.last = [Some(device), self.last[0]];
        if !self.named.insert(device) {
            return None;
        }
        Some(DeviceEvent { time, device, name: self.name(device), partition_of: disk_of_partition(device) })
    }

    /// Its name when it was met; its numbers where it had none any more. It is met by this.
    pub fn name(&mut self, device: DeviceId) -> Box<str> {
        self.named.insert(device);
        self.know(device).map_or_else(|| device.to_string().into(), |known| known.name.clone())
    }

    /// Those that were met and are not what they were.
    pub fn lost(&self) -> Vec<LostDevice> {
        let fates = self.named.iter().filter_map(|device| {
            let known = self.known.get(device)?;
            let fate = fate(known, Identity::read(*device))?;
            Some(LostDevice { device: *device, name: known.name.clone(), fate })
        });
        let mut lost: Vec<_> = fates.collect();
        lost.sort_by_key(|one| one.device);
        lost
    }

    /// As it was when it was first seen.
    fn know(&mut self, device: DeviceId) -> Option<&Identity> {
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
            has_room: fs::read_to_string(format!("/sys/dev/block/{device}/size"))
                .is_ok_and(|size| size.trim() != "0"),
        })
    }
}

/// What became of a device that is `now` like this; nothing where it is what it was.
fn fate(then: &Identity, now: Option<Identity>) -> Option<Fate> {
    let Some(now) = now else { return Some(Fate::Gone) };
    let other = (&now.name, now.sequence) != (&then.name, then.sequence);
    match (other, now.has_room) {
        (true, true) => Some(Fate::Replaced),
        (true, false) => Some(Fate::Gone),
        (false, false) if then.has_room => Some(Fate::Gone),
        (false, _) => None,
    }
}

fn disk_of_partition(device: DeviceId) -> Option<DeviceId> {
    fs::metadata(format!("/sys/dev/block/{device}/partition")).ok()?;
    let disk = fs::read_to_string(format!("/sys/dev/block/{device}/../dev")).ok()?;
    parse(disk.trim())
}

/// `major:minor`.
pub fn parse(text: &str) -> Option<DeviceId> {
    let (major, minor) = text.split_once(':')?;
    Some(DeviceId { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_lost_if_it_is_gone_empty_or_another() {
        let disk = |sequence, has_room| Identity { name: "loop0".into(), sequence: Some(sequence), has_room };
        let was = disk(1, true);
        assert_eq!(fate(&was, Some(disk(1, true))), None);
        assert_eq!(fate(&was, None), Some(Fate::Gone));
        assert_eq!(fate(&was, Some(disk(2, false))), Some(Fate::Gone));
        assert_eq!(fate(&was, Some(disk(1, false))), Some(Fate::Gone), "it has no new number yet");
        assert_eq!(fate(&was, Some(disk(2, true))), Some(Fate::Replaced));
        assert_eq!(fate(&disk(1, false), Some(disk(1, false))), None, "a drive without a medium");
    }
}
