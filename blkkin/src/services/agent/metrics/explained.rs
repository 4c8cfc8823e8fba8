//! Share of each disk's own byte count that the agent's records explain.
//!
//! *In*: the tracer's bytes by device and cause, and what the kernel counted for each disk since the
//! agent started (`/proc/diskstats`). *Out*: two metric families, and a line of /health for each disk.
//! *Invariant*: the causes and `not recorded` add up to the disk's own count, unless more was recorded
//! than the disk counted.
//!
//! *Both counts are of one time.* A record is read up to 70 ms after its event, and the origin of pages is
//! complete 100 ms behind its bio's end. So the disks' counts are read once a second, and paired with
//! the records of [`RECORDS_BEHIND`] later.
//!
//! A disk that came later, or was replaced under its number, has its count from zero. With a device
//! filter only the disks that it selects are compared, and none of which it selects a partition alone.
//!
//! *Rejected*: both counts at the time of the scrape. What the scraping program itself had just read from
//! the disk was then not recorded: 11 of 150 MB, on a machine with an empty page cache.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use blkkin_report::collect::coverage::DiskCount;
use blkkin_report::text::units;
use blkkin_tracer::stats::device_bytes::{DeviceBytes, DeviceBytesHandle};
use blkkin_wire::cause::{BytesByCause, Cause};
use blkkin_wire::ids::DeviceId;

use crate::disk_counts::DiskCounter;
use crate::service::{Labels, MetricFamily, MetricKind, Sample};

/// Maximum number of disks in /health: those with most bytes.
const DISKS_SHOWN: usize = 8;
const UPPER_DEVICE: &str = "device above";
const NOT_RECORDED: &str = "not recorded";

/// Time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which the records of what a disk has counted are read.
const RECORDS_BEHIND: Duration = Duration::from_millis(250);

/// Both counts.
#[derive(Debug)]
pub(crate) struct Explained {
    recorded: DeviceBytesHandle,
    disks: DiskCounter,
    /// Disks that the device filter selects; empty for all.
    selected: Vec<DeviceId>,
    next: NextSample,
    rows: Vec<Row>,
}

/// Progress of the next sample.
#[derive(Debug)]
enum NextSample {
    /// The disks' counts are due at this time.
    Due(Instant),
    /// The disks' counts of this time wait for their records.
    Counted(Instant, Vec<DiskCount>),
}

/// Bytes of one disk.
#[derive(Clone, Debug)]
struct Row {
    name: String,
    counted: u64,
    by_cause: BytesByCause,
    of_upper_device: u64,
}

impl Explained {
    /// Starts to count the disks: these, or all if the list is empty.
    pub(crate) fn start(recorded: DeviceBytesHandle, selected: Vec<DeviceId>) -> Explained {
        let (disks, next) = (DiskCounter::start(), NextSample::Due(Instant::now()));
        Explained { recorded, disks, selected, next, rows: Vec::new() }
    }

    /// Takes a sample if it is due, or the records of the last one. The agent calls it for each batch.
    pub(crate) fn sample(&mut self) {
        match &mut self.next {
            NextSample::Due(at) if *at <= Instant::now() => {
                let mut counted = self.disks.since_start();
                counted.retain(|disk| self.selected.is_empty() || self.selected.contains(&disk.disk));
                self.next = NextSample::Counted(Instant::now(), counted);
            }
            NextSample::Counted(read, counted) if read.elapsed() >= RECORDS_BEHIND => {
                self.rows = rows(&self.recorded.get(), std::mem::take(counted));
                self.next = NextSample::Due(*read + SAMPLE_INTERVAL);
            }
            _ => {}
        }
    }

    pub(crate) fn metric_families(&self) -> Vec<MetricFamily> {
        families(&self.rows)
    }

    /// Returns a line for each of the disks with most bytes.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut rows = self.rows.clone();
        rows.sort_by_key(|row| std::cmp::Reverse(row.counted));
        rows.iter().take(DISKS_SHOWN).map(Row::line).collect()
    }
}

fn rows(recorded: &[DeviceBytes], disks: Vec<DiskCount>) -> Vec<Row> {
    let by_device: BTreeMap<DeviceId, &DeviceBytes> = recorded.iter().map(|row| (row.device, row)).collect();
    let row = |disk: DiskCount| {
        let mut row = Row {
            name: disk.name.to_string(),
            counted: disk.bytes,
            by_cause: BytesByCause::default(),
            of_upper_device: 0,
        };
        for device in disk.partitions.iter().chain([&disk.disk]).filter_map(|device| by_device.get(device)) {
            row.of_upper_device += device.of_upper_device;
            row.by_cause.iter_mut().zip(device.by_cause).for_each(|(sum, bytes)| *sum += bytes);
        }
        row
    };
    disks.into_iter().map(row).filter(|row| row.counted > 0 || row.explained() > 0).collect()
}

impl Row {
    /// Returns name and bytes of each cause.
    fn causes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let named = Cause::ALL.into_iter().map(|cause| (cause.name(), self.by_cause[cause as usize]));
        let explained = self.explained();
        let unknown = self.by_cause[Cause::Unknown as usize];
        let not_recorded = self.counted.saturating_sub(explained + unknown);
        named.chain([(UPPER_DEVICE, self.of_upper_device), (NOT_RECORDED, not_recorded)])
    }

    /// Returns the bytes with a known cause.
    fn explained(&self) -> u64 {
        let recorded: u64 = self.by_cause.iter().sum();
        recorded - self.by_cause[Cause::Unknown as usize] + self.of_upper_device
    }

    fn line(&self) -> String {
        let all: u64 = self.causes().map(|(_, bytes)| bytes).sum();
        let percent = |bytes: u64| format!("{:.1} %", bytes as f64 * 100.0 / all.max(1) as f64);
        let parts: Vec<String> = self
            .causes()
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(name, bytes)| format!("{name} {}", percent(bytes)))
            .collect();
        let (explained, counted) = (percent(self.explained()), units::bytes(self.counted));
        format!("{}: {explained} of {counted} explained: {}", self.name, parts.join(", "))
    }
}

fn families(rows: &[Row]) -> Vec<MetricFamily> {
    let disk = |row: &Row| ("disk", row.name.clone());
    let by_cause = rows.iter().flat_map(|row| {
        let recorded = row.causes().filter(|(cause, _)| *cause != NOT_RECORDED);
        recorded.map(move |(cause, bytes)| {
            let labels: Labels = vec![disk(row), ("cause", cause.to_owned())];
            (labels, Sample::Number(bytes as f64))
        })
    });
    let counted = rows.iter().map(|row| (vec![disk(row)], Sample::Number(row.counted as f64)));
    let family = |name, help, samples| MetricFamily { name, help, kind: MetricKind::Counter, samples };
    vec![
        family("disk_bytes", "Recorded bytes of each disk, by cause", by_cause.collect()),
        family(
            "disk_counted_bytes",
            "Bytes that the kernel counted for each disk since the agent started; what no cause has is not recorded",
            counted.collect(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SDA: DeviceId = DeviceId { major: 8, minor: 0 };
    const SDA1: DeviceId = DeviceId { major: 8, minor: 1 };

    /// A disk of which the partition has two causes, and the disk two.
    fn sda(counted: u64) -> Vec<Row> {
        let mut partition =
            DeviceBytes { device: SDA1, by_cause: BytesByCause::default(), of_upper_device: 100 };
        partition.by_cause[Cause::Call as usize] = 500;
        let mut whole = DeviceBytes { device: SDA, of_upper_device: 0, ..partition };
        whole.by_cause = BytesByCause::default();
        (whole.by_cause[Cause::Journal as usize], whole.by_cause[Cause::Unknown as usize]) = (300, 50);
        let disk =
            |disk, name: &str, partitions, bytes| DiskCount { disk, name: name.into(), partitions, bytes };
        let loop0 = disk(DeviceId { major: 7, minor: 0 }, "loop0", vec![], 0);
        rows(&[partition, whole], vec![disk(SDA, "sda", vec![SDA1], counted), loop0])
    }

    #[test]
    fn causes_and_the_rest_add_up_to_the_count_of_the_disk() {
        let rows = sda(1_000);
        let [row] = &rows[..] else { panic!("a disk without bytes has no row: {rows:?}") };
        assert_eq!(row.causes().map(|(_, bytes)| bytes).sum::<u64>(), 1_000);
        assert_eq!(
            row.line(),
            "sda: 90.0 % of 1,000 B explained: calls 50.0 %, journal 30.0 %, unknown 5.0 %, device above 10.0 %, \
             not recorded 5.0 %"
        );
        let families = families(&rows);
        let number = |(_, sample): &(Labels, Sample)| match sample {
            Sample::Number(number) => *number,
            Sample::Histogram(_) => panic!("{families:?}"),
        };
        assert_eq!(families[0].samples.iter().map(number).sum::<f64>(), 950.0);
        assert_eq!(families[1].samples[0].1, Sample::Number(1_000.0));
    }

    #[test]
    fn more_records_than_the_disk_counted_leave_no_rest() {
        assert_eq!(sda(900)[0].causes().last(), Some((NOT_RECORDED, 0)));
    }
}
