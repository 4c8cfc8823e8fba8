//! A device's cache flush serves all who wait for one: how often one was served, in sum, is how often it was asked for. Runs
//! inside a guest only, on disks with a cache.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use blkkin_tracer::TracerConfig;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::BioEvent;

use support::direct::{self, BLOCK};
use support::gated_process::GatedProcess;
use support::needs_guest;
use support::recording::{Recorder, Recording};

const WRITERS: u64 = 6;
const ROUNDS: u64 = 25;

/// Some programs write and sync at once, some write durably (O_DSYNC: FUA, or a flush after the data where the device has not
/// that).
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
    let mut actors: Vec<GatedProcess> = (0..WRITERS).map(writer).collect();
    let before = flushes(&name);
    let recording = together(&mut actors);
    let by_device = flushes(&name) - before;
    recording.assert_complete();
    let asked_before = recording.bios().filter(|bio| bio.op.is_preflush()).count() as u64;
    let durable = |bio: &&BioEvent| bio.op.is_fua();
    let asked_after = if has_fua { 0 } else { recording.bios().filter(durable).count() as u64 };
    let served = recording.stats.flushes_served;
    // Those of one flush were at the device from one moment on.
    let mut together: HashMap<MonotonicNs, u64> = HashMap::new();
    for request in recording.requests().filter(|request| request.op.is_preflush()) {
        *together.entry(request.issue.unwrap()).or_default() += 1;
    }
    println!(
        "{name}, FUA {has_fua}: {asked_before} before and {asked_after} after data, served {served} times by {by_device} \
         flushes, of those before in {} at the most {:?} together",
        together.len(),
        together.values().max()
    );
    // A durable write to a device's own file is followed by a flush of all the same (blkdev_write_iter, block/fops.c).
    let durables = recording.bios().filter(durable).count() as u64;
    assert_eq!((asked_before, durables), (WRITERS * ROUNDS, WRITERS / 3 * ROUNDS));
    assert_eq!(served, asked_before + asked_after);
    assert!(by_device <= served && by_device >= together.len() as u64);
    assert_eq!(recording.stats.flush_overflow, 0);
}

/// What they do when all are let go before the first is waited for.
fn together(actors: &mut [GatedProcess]) -> Recording {
    let pids: Vec<_> = actors.iter().map(GatedProcess::pid).collect();
    let recorder = Recorder::start(&TracerConfig::default(), &pids);
    actors.iter_mut().for_each(GatedProcess::release);
    for actor in actors {
        assert_eq!(actor.run_to_exit(), 0);
    }
    recorder.finish()
}

/// Flushes that the device has done (Documentation/block/stat.rst: the 16th word).
fn flushes(name: &str) -> u64 {
    let text = fs::read_to_string(Path::new("/sys/block").join(name).join("stat")).unwrap();
    text.split_whitespace().nth(15).unwrap().parse().unwrap()
}
