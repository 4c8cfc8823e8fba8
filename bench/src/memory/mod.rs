//! `memory`: memory per request in flight in the join, by the number of open requests, and in the
//! kernel, of the maps and of each thread.
//!
//! *Open requests*: the join receives bios and requests of system calls that have not ended, 1×,
//! 10×, 100× and more of them, and the allocator reports the bytes in use. *In the kernel*: maps
//! have a fixed size from the start; a traced task has state in addition ([`threads`]). [`crate::loss`] has the resident memory of `blkkin run`, by
//! rate.

mod threads;

use anyhow::{Context, Result};
use aya::maps::loaded_maps;
use blkkin_aggregator::join::{JoinConfig, Joiner};
use blkkin_aggregator::trace::Trace;
use blkkin_pipeline::records::{Entries, STEP};
use blkkin_pipeline::stages::{batch, stage_decode_translate};
use blkkin_tracer::Filter;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{DeviceEvent, LayerEvent};
use blkkin_wire::ids::DeviceId;

use crate::frame::number::{count, number};
use crate::frame::{BenchReport, Figure, Table};
use crate::{Setting, harness};
use threads::ThreadMemory;
pub(crate) use threads::load;

/// Numbers of open requests; the last two exceed the join's limit, where memory must not grow.
const OPEN: [u64; 5] = [600, 6_000, 60_000, 100_000, 600_000];
/// Number of disks of one node.
const DEVICES: u32 = 10_000;
const MIB: f64 = (1 << 20) as f64;

/// Runs the benchmark.
pub(crate) fn run(_: &Setting) -> Result<BenchReport> {
    let open: Vec<(u64, u64)> = OPEN.into_iter().map(|requests| (requests, join_memory(requests))).collect();
    let none = Filter { comms: vec!["no-such-name".to_owned()], ..Filter::default() };
    let threads = [
        ("a thread that is traced, in the kernel", threads::measure(Filter::default())?),
        ("a thread that a filter excludes, in the kernel", threads::measure(none)?),
    ];
    Ok(build_report(&open, in_kernel()?, &threads, device_memory()))
}

/// Returns the bytes in use with the names of [`DEVICES`] disks of one node.
fn device_memory() -> u64 {
    let before = in_use();
    let mut joiner = Joiner::new(JoinConfig::default());
    let event = |minor| {
        LayerEvent::Device(DeviceEvent {
            time: MonotonicNs(u64::from(minor) + 1),
            device: DeviceId { major: 259, minor },
            name: format!("nvme{minor}n1").into(),
            partition_of: None,
            disk: None,
        })
    };
    for (sequence, first) in (0..DEVICES).step_by(1_000).enumerate() {
        let events = (first..first + 1_000).map(event).collect();
        let watermark = MonotonicNs(u64::from(first) + 2_000);
        joiner.apply(batch(sequence as u64, events, watermark), &mut |_: &Trace| {});
    }
    let bytes = in_use().saturating_sub(before);
    drop(joiner);
    bytes
}

/// Returns the bytes in use with this number of requests whose system calls are open.
fn join_memory(requests: u64) -> u64 {
    let before = in_use();
    let mut joiner = Joiner::new(JoinConfig::default());
    let mut sequence = 0;
    let mut apply = |entries: &Entries, until: u64, joiner: &mut Joiner| {
        let events = stage_decode_translate(entries);
        joiner.apply(batch(sequence, events, MonotonicNs(until * STEP)), &mut |_: &Trace| {});
        sequence += 1;
    };
    apply(&Entries::names(), 1, &mut joiner);
    let mut entries = Entries::default();
    for n in 1..=requests {
        entries.add_open(n);
        if entries.len() >= blkkin_pipeline::stages::BATCH || n == requests {
            apply(&entries, n + 1, &mut joiner);
            entries = Entries::default();
        }
    }
    // The buffer of the last batch does not belong to the join.
    drop(entries);
    in_use().saturating_sub(before)
}

/// Returns the bytes that the allocator has given out.
fn in_use() -> u64 {
    // SAFETY: no memory is passed; glibc has it since 2.33.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as u64
}

/// Returns the bytes of all maps of a tracer.
fn in_kernel() -> Result<u64> {
    let ids = || loaded_maps().filter_map(Result::ok).map(|map| map.id()).collect::<Vec<_>>();
    let before = ids();
    let tracer = harness::load_tracer()?;
    let mut bytes = 0;
    for map in loaded_maps().filter_map(Result::ok).filter(|map| !before.contains(&map.id())) {
        let fd = map.fd().context("a map of ours cannot be opened")?;
        bytes += locked(&fd)?;
    }
    drop(tracer);
    Ok(bytes)
}

/// Parses `memlock: 4096` in a descriptor's fdinfo.
fn locked(map: &impl std::os::fd::AsFd) -> Result<u64> {
    use std::os::fd::AsRawFd;
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd()))?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("memlock:"));
    bytes.and_then(|bytes| bytes.trim().parse().ok()).context("the map's fdinfo has no memlock")
}

fn build_report(
    open: &[(u64, u64)],
    kernel: u64,
    threads: &[(&'static str, ThreadMemory)],
    devices: u64,
) -> BenchReport {
    let mut by_open = Table::new("The join, by open requests", &["open", "in use, KiB", "bytes a request"]);
    for (requests, bytes) in open {
        let each = *bytes as f64 / *requests as f64;
        by_open.row([count(*requests), number(*bytes as f64 / 1024.0), number(each)]);
    }
    let maps = Figure::new("maps in the kernel", kernel as f64 / MIB, 0.0, "MiB")
        .note("rings of 8 MiB a CPU are most of it; without the state of traced threads");
    let threads = threads.iter().map(|(what, memory)| {
        let note = format!("by {} threads that make one call each", count(memory.threads as u64));
        Figure::new(*what, memory.bytes_each, 0.0, "bytes").note(note)
    });
    let names = Figure::new("a disk's name, in the join", devices as f64 / f64::from(DEVICES), 0.0, "bytes")
        .note(format!("of {} disks of one node", count(u64::from(DEVICES))));
    let how = format!(
        "Bios and requests of calls that have not ended, passed to the join alone; it keeps at most {} traces open.",
        count(JoinConfig::default().open_max as u64),
    );
    BenchReport {
        how,
        figures: [per_request(open), maps].into_iter().chain(threads).chain([names]).collect(),
        tables: vec![by_open],
        ..BenchReport::default()
    }
}

/// Computed between 6,000 and 60,000, which excludes the constant part.
fn per_request(open: &[(u64, u64)]) -> Figure {
    let [(few, small), (many, large)] = [open[1], open[2]];
    let each = large.saturating_sub(small) as f64 / (many - few) as f64;
    Figure::new("a request in flight, in the join", each, 0.0, "bytes")
        .note("with its bio and its share of the tables, whose size doubles: between 6,000 and 60,000 open")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_with_open_requests() {
        let [few, many] = [600, 6_000].map(join_memory);
        assert!(few > 0 && many > 4 * few, "{few} {many}");
        assert!(device_memory() > 0);
    }
}
