//! QEMU's own log of requests, and the difference of the clocks that it bounds.

use std::collections::BTreeMap;

use super::recorded::Recorded;
use super::{GUESTS, JOURNAL, Operation, PROBED, SHARED};

/// A request that QEMU took up, by its log:
/// `4711@1764287325.123456:virtio_blk_handle_write vdev 0x55d0 req 0x55d1 sector 80 nsectors 8`.
pub(super) struct Logged {
    /// Wall clock of the host, us.
    pub(super) time: i64,
    pub(super) device: String,
    pub(super) operation: Operation,
}

impl Logged {
    pub(super) fn parse(line: &str) -> Option<Logged> {
        let (_, line) = line.split_once('@')?;
        let (time, line) = line.split_once(':')?;
        let (seconds, micros) = time.split_once('.')?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [
            "virtio_blk_handle_write" | "virtio_blk_handle_read",
            "vdev",
            device,
            "req",
            _,
            "sector",
            sector,
            "nsectors",
            count,
        ] = words[..]
        else {
            return None;
        };
        let bytes = |sectors: &str| sectors.parse::<u64>().unwrap() * 512;
        let operation = if words[0].ends_with("write") { 'w' } else { 'r' };
        Some(Logged {
            time: seconds.parse::<i64>().ok()? * 1_000_000 + micros.parse::<i64>().ok()?,
            device: device.to_owned(),
            operation: (operation, bytes(sector), bytes(count)),
        })
    }
}

/// Asserts that the difference of a guest's clock by its QEMU's log is within each bound that the host's agent reported.
pub(super) fn assert_clocks(mode: &str, guest: usize, recorded: &Recorded, log: &[Logged]) {
    // The script reads this sector of the first disk alone, a mount reads ext4's superblock, and no read-only disk is
    // written.
    let device_of = |is_its: fn(&Logged) -> bool| &log.iter().find(|logged| is_its(logged)).unwrap().device;
    let first = device_of(|logged| logged.operation.1 == PROBED * 512);
    let journal = device_of(|logged| logged.operation == ('r', 1_024, 1_024));
    let is_written =
        |device: &str| log.iter().any(|other| other.device == device && other.operation.0 == 'w');
    let mut taken_up = BTreeMap::<(String, Operation), Vec<i64>>::new();
    for Logged { time, device, operation } in log {
        let disk = match device == first {
            true => "vda",
            false if device == journal => JOURNAL,
            false if is_written(device) => "vdb",
            false => SHARED,
        };
        taken_up.entry((format!("{}/{disk}", GUESTS[guest]), *operation)).or_default().push(*time);
    }
    let offsets = &recorded.offsets[guest];
    let (mut low, mut high, mut count) = (i64::MIN, i64::MAX, 0);
    for (key, requests) in &recorded.guest {
        let Some(times) = taken_up.get(key).filter(|times| times.len() == requests.len()) else { continue };
        for (span, time) in requests.iter().zip(times) {
            let [issue, complete] = recorded.times[span].map(|time| time as i64);
            // The log's time is cut to us.
            let host = time * 1_000 - recorded.wall;
            (low, high) = (low.max(host - complete), high.min(host + 1_000 - issue));
            count += 1;
        }
    }
    let widths: Vec<i64> = offsets.iter().map(|offset| (offset.high - offset.low) / 2_000).collect();
    println!(
        "{mode}: by QEMU's log of {count} requests the clocks of host and {} differ by {} +/- {} us; {} bounds by pings: +/- {} to {} us",
        GUESTS[guest],
        (low + high) / 2_000,
        (high - low) / 2_000,
        widths.len(),
        widths.iter().min().unwrap(),
        widths.iter().max().unwrap(),
    );
    assert!(count > 1_000 && low <= high, "{count} requests: {low} to {high}");
    for offset in offsets {
        assert!(offset.low <= high && low <= offset.high, "{mode}: {offset:?} is not {low} to {high}");
    }
}
