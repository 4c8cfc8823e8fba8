//! Counters of each disk itself over the time of tracing.
//!
//! *In*: `/proc/diskstats` at the start and later, and partitions' disks. *Out*: the bytes
//! between, for each disk that was there both times.
//!
//! *Invariant*: a count that decreased (the disk was replaced by another of the same number) is
//! dropped. A disk with `queue/iostats = 0` counts nothing, and has no row.
//!
//! *Rejected*: `/sys/block/*/stat`: one file per disk, read at different times.

use std::collections::BTreeMap;
use std::fs;

use blkkin_report::collect::coverage::DiskCount;
use blkkin_tracer::enrich::devices::disk_of_partition;
use blkkin_wire::ids::DeviceId;

const DISKSTATS: &str = "/proc/diskstats";
/// The unit of the sectors in `/proc/diskstats`, whatever the disk's block size
/// (Documentation/admin-guide/iostats.rst).
const SECTOR_BYTES: u64 = 512;

/// Bytes of every block device by then.
type Counts = BTreeMap<DeviceId, (String, u64)>;

/// Counts from its start to its stop.
#[derive(Debug, Default)]
pub(crate) struct DiskCounter {
    start: Counts,
    counted: Option<Vec<DiskCount>>,
}

impl DiskCounter {
    pub(crate) fn start() -> DiskCounter {
        DiskCounter { start: read(), counted: None }
    }

    /// Returns what the disks have counted. A disk that came later, or with a count that decreased, has all of its count.
    pub(crate) fn since_start(&self) -> Vec<DiskCount> {
        let end = read();
        let mut start = self.start.clone();
        for (device, (name, bytes)) in &end {
            let before = start.entry(*device).or_insert_with(|| (name.clone(), 0));
            before.1 = if before.1 > *bytes { 0 } else { before.1 };
        }
        since(&start, &end, disk_of_partition)
    }

    /// Returns what the disks counted until the first call.
    pub(crate) fn stop(&mut self) -> Vec<DiskCount> {
        self.counted.get_or_insert_with(|| since(&self.start, &read(), disk_of_partition)).clone()
    }
}

/// Reads the counts. Without a readable file there is nothing to compare with.
fn read() -> Counts {
    parse(&fs::read_to_string(DISKSTATS).unwrap_or_default())
}

fn parse(diskstats: &str) -> Counts {
    diskstats.lines().filter_map(parse_line).collect()
}

/// Parses `MAJOR MINOR NAME` and the counts: the 6th, 10th and 17th fields are the sectors read,
/// written and discarded. Kernels before 4.18 count no discards.
fn parse_line(line: &str) -> Option<(DeviceId, (String, u64))> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let part = |index: usize| fields.get(index)?.parse::<u32>().ok();
    let device = DeviceId { major: part(0)?, minor: part(1)? };
    let sectors = number(5)?.saturating_add(number(9)?).saturating_add(number(16).unwrap_or(0));
    Some((device, ((*fields.get(2)?).to_owned(), sectors.saturating_mul(SECTOR_BYTES))))
}

/// Returns the bytes of each disk between the two, with its partitions.
fn since(start: &Counts, end: &Counts, disk_of: impl Fn(DeviceId) -> Option<DeviceId>) -> Vec<DiskCount> {
    let mut disks = BTreeMap::new();
    let mut partitions: Vec<(DeviceId, DeviceId)> = Vec::new();
    for (device, (name, bytes)) in end {
        if let Some(disk) = disk_of(*device) {
            partitions.push((disk, *device));
        } else if let Some(bytes) = start.get(device).and_then(|(_, before)| bytes.checked_sub(*before)) {
            let count =
                DiskCount { disk: *device, name: name.as_str().into(), partitions: Vec::new(), bytes };
            disks.insert(*device, count);
        }
    }
    for (disk, partition) in partitions {
        if let Some(count) = disks.get_mut(&disk) {
            count.partitions.push(partition);
        }
    }
    disks.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = "   8       0 sda 10 0 80 5 20 0 160 9 0 14 14 1 0 8 0 2 1
   8       1 sda1 9 0 72 5 20 0 160 9 0 14 14 1 0 8 0 2 1
   7       0 loop0 1 0 8000 5 2 0 16 9 0 14 14
 garbage
";

    #[test]
    fn a_disk_has_its_bytes_of_the_time_and_its_partitions() {
        let end = START
            .replace(" sda 10 0 80 5 20 0 160 9 0 14 14 1 0 8", " sda 11 0 88 5 21 0 176 9 0 14 14 1 0 16");
        let sda = DeviceId { major: 8, minor: 0 };
        let disk_of = |device: DeviceId| (device.major == 8 && device.minor > 0).then_some(sda);
        let counts = since(&parse(START), &parse(&end), disk_of);
        let sda1 = DeviceId { major: 8, minor: 1 };
        assert_eq!(counts.len(), 2);
        assert_eq!((counts[1].disk, &*counts[1].name, counts[1].bytes), (sda, "sda", (8 + 16 + 8) * 512));
        assert_eq!((&counts[1].partitions[..], counts[0].bytes), (&[sda1][..], 0));
    }

    #[test]
    fn a_replaced_disk_is_left_out() {
        let end = START.replace(" loop0 1 0 8000", " loop0 1 0 8");
        let names = since(&parse(START), &parse(&end), |_| None);
        assert!(names.iter().all(|count| &*count.name != "loop0"), "{names:?}");
    }
}
