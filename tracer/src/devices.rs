//! Names of block devices, looked up when one is first met.

use std::collections::HashSet;
use std::fs;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::DeviceEvent;
use blkkin_wire::ids::DeviceId;

/// Devices that were named. Bounded by the devices of the machine.
#[derive(Debug, Default)]
pub struct DeviceNamer {
    named: HashSet<DeviceId>,
    /// The two met last: a run of events is of one device nearly always, or of a partition and its disk.
    last: [Option<DeviceId>; 2],
}

impl DeviceNamer {
    /// The device's name, if it was not said before.
    pub fn meet(&mut self, device: DeviceId, time: MonotonicNs) -> Option<DeviceEvent> {
        if self.last.contains(&Some(device)) {
            return None;
        }
        self.last = [Some(device), self.last[0]];
        if !self.named.insert(device) {
            return None;
        }
        Some(DeviceEvent {
            time,
            device,
            name: name(device).unwrap_or_else(|| device.to_string()).into(),
            partition_of: disk_of_partition(device),
        })
    }
}

/// The device's name below /dev.
pub fn name(device: DeviceId) -> Option<String> {
    let uevent = fs::read_to_string(format!("/sys/dev/block/{device}/uevent")).ok()?;
    uevent.lines().find_map(|line| line.strip_prefix("DEVNAME=")).map(str::to_owned)
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
