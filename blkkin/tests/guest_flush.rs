//! Cache flushes of a device, which one flush can serve for several requests: the number of
//! requests served equals the number that asked for a flush.
//!
//! *Input*: programs that write and sync at the same time, on disks with a write cache (guests
//! only). The number of flushes is compared with the device's own count in `/sys/block/*/stat`.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use blkkin_tracer::TracerConfig;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::BioEvent;

use crate::support::direct::{self, BLOCK};
use crate::support::gated_process::GatedProcess;
use crate::support::needs_guest;
use crate::support::recording::{Recorder, Recording};

const WRITERS: u64 = 6;
const ROUNDS: u64 = 25;

/// Some programs write and sync; others write durably (O_DSYNC: FUA, or a flush after the data on a
/// device without FUA).
#[test]
fn each_sync_is_served_once() {
    needs_guest!();
    let node = PathBuf::from(std::env::var("BLKKIN_TEST_DISK").unwrap());
    let name = node.file_name().unwrap().to_str().unwrap().to_owned();
    fs::write(format!("/sys/block/{name}/queue/write_cache"), "write back").unwrap();
    let has_fua = fs::read_to_string(format!("/sys/block/{name}/queue/fua")).unwrap().trim() == "1";
    let writer = |writer: u64| {
        let node = node.clone();
        GatedProcess::new(move || {
            let durable = if writer % 3 == 2 { libc::O_DSYNC } else { 0 };
            let mut options = OpenOptions::new();
            let device = options.write(true).custom_flags(libc::O_DIRECT | durable).open(&node).unwrap();
            for round in 0..ROUNDS {
                direct::write_at(&device, (writer * ROUNDS + round) * BLOCK as u64).unwrap();
                if durable == 0 {
                    device.sync_data().unwrap();
                }
            }
            0
        })
    };
    let mut processes: Vec<GatedProcess> = (0..WRITERS).map(writer).collect();
    let before = flushes(&name);
    let recording = record_concurrently(&mut processes);
    let by_device = flushes(&name) - before;
    recording.assert_complete();
    let flushes_before = recording.bios().filter(|bio| bio.op.is_preflush()).count() as u64;
    let durable = |bio: &&BioEvent| bio.op.is_fua();
    let flushes_after = if has_fua { 0 } else { recording.bios().filter(durable).count() as u64 };
    let served = recording.stats.flushes_served;
    // Requests of one flush have the same issue time.
    let mut by_issue_time: HashMap<MonotonicNs, u64> = HashMap::new();
    for request in recording.requests().filter(|request| request.op.is_preflush()) {
        *by_issue_time.entry(request.issue.unwrap()).or_default() += 1;
    }
    println!(
        "{name}, FUA {has_fua}: {flushes_before} before and {flushes_after} after data, served {served} times by {by_device} \
         flushes, {} of those before data, with up to {:?} requests each",
        by_issue_time.len(),
        by_issue_time.values().max()
    );
    // A durable write to a device file is still followed by a flush of its own (blkdev_write_iter,
    // block/fops.c).
    let durables = recording.bios().filter(durable).count() as u64;
    assert_eq!((flushes_before, durables), (WRITERS * ROUNDS, WRITERS / 3 * ROUNDS));
    assert_eq!(served, flushes_before + flushes_after);
    assert!(by_device <= served && by_device >= by_issue_time.len() as u64);
    assert_eq!(recording.stats.flush_overflow, 0);
}

/// Releases all processes before it waits for the first, and records what they do.
fn record_concurrently(processes: &mut [GatedProcess]) -> Recording {
    let pids: Vec<_> = processes.iter().map(GatedProcess::pid).collect();
    let recorder = Recorder::start(&TracerConfig::default(), &pids);
    processes.iter_mut().for_each(GatedProcess::release);
    for process in processes {
        assert_eq!(process.run_to_exit(), 0);
    }
    recorder.finish()
}

/// Returns the number of flushes that the device has completed (Documentation/block/stat.rst: word
/// 16).
fn flushes(name: &str) -> u64 {
    let text = fs::read_to_string(Path::new("/sys/block").join(name).join("stat")).unwrap();
    text.split_whitespace().nth(15).unwrap().parse().unwrap()
}
