//! Devices that are removed, that stop, or that have more in flight than the kernel-side tables
//! hold. Operations in flight are reported as such, untracked ones are counted, and no parent is
//! wrong.
//!
//! *Input*: device-mapper and null_blk devices (guests only). The expected numbers are those of the
//! writes and reads that the test submits.

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use blkkin_tracer::TracerConfig;
use blkkin_wire::event::{BioEvent, Submitter};
use blkkin_wire::ids::SpanId;
use serde_json::{Value, json};

use crate::support::aio::Aio;
use crate::support::direct::{self, BLOCK};
use crate::support::gated_process::GatedProcess;
use crate::support::live::{LiveTrace, eventually};
use crate::support::needs_guest;
use crate::support::recording::Recorder;
use crate::support::tools::{block_device, capture, tool};

const WRITES: u64 = 32;
const REPORT: &str = "/tmp/report.json";
/// Minimum age of an operation that is stuck.
const AGE: Duration = Duration::from_millis(100);

/// The mapped device is removed while it is traced.
#[test]
fn a_device_that_is_removed() {
    needs_guest!();
    let disk = GuestDisk::find();
    let live = LiveTrace::trace(&["--device", &disk.node], REPORT.into());
    direct::write(Path::new(&disk.node), 0..WRITES);
    capture(tool("dmsetup").args(["remove", "blkkin"])).unwrap();
    assert!(eventually(|| !Path::new("/sys/block/dm-0").exists()));
    let report = live.finish();
    assert_eq!(report["devices_lost"], json!([{ "device": "dm-0", "fate": "gone" }]), "{report:#}");
    assert_eq!(report["totals"]["bios"], WRITES, "{report:#}");
    assert_eq!(report["losses"]["other_counts"]["in_flight"], 0, "{report:#}");
    assert_balanced(&report);
}

/// A suspended device keeps the bios that it receives.
#[test]
fn a_device_that_is_suspended() {
    needs_guest!();
    let disk = GuestDisk::find();
    let suspended = Suspended::suspend();
    let live = LiveTrace::trace(&["--device", &disk.node], REPORT.into());
    let (report, mut writer) = write_in_flight(&disk, live);
    drop(suspended);
    assert_eq!(writer.run_to_exit(), 0);
    let [bio] = &report["in_flight"].as_array().unwrap()[..] else { panic!("{report:#}") };
    assert_is_write(bio, "bio", "dm-0");
    assert_eq!(bio["at_device_ns"], Value::Null, "{bio:#}");
    // The second one is the system call.
    assert_eq!(report["losses"]["other_counts"]["in_flight"], 2, "{report:#}");
    assert_eq!((&report["totals"]["bios"], &report["totals"]["requests"]), (&json!(0), &json!(0)));
    assert_balanced(&report);
}

/// A device accepts a request and never completes it.
#[test]
fn a_device_that_is_silent() {
    needs_guest!();
    let disk = GuestDisk::find();
    let live = LiveTrace::trace(&["--device", &disk.node], REPORT.into());
    let (report, mut writer) = write_in_flight(&disk, live);
    assert_eq!(writer.run_to_exit(), 0);
    let [bio, request] = &report["in_flight"].as_array().unwrap()[..] else { panic!("{report:#}") };
    assert_is_write(bio, "bio", &disk.name);
    assert_is_write(request, "request", &disk.name);
    assert!(request["at_device_ns"].as_u64().unwrap() >= AGE.as_nanos() as u64, "{request:#}");
    assert_eq!(report["losses"]["other_counts"]["in_flight"], 3, "{report:#}");
    assert_eq!((&report["totals"]["bios"], &report["totals"]["requests"]), (&json!(0), &json!(0)));
    assert_balanced(&report);
}

/// Writes one block while the tracer runs; the write is still in flight when the tracer stops.
fn write_in_flight(disk: &GuestDisk, live: LiveTrace) -> (Value, GatedProcess) {
    let (submitted, mut submitting) = std::io::pipe().unwrap();
    let target = PathBuf::from(&disk.node);
    let mut writer = GatedProcess::new(move || {
        let device = direct::open(&target);
        submitting.write_all(b"o").unwrap();
        i32::from(direct::write_at(&device, 2 * BLOCK as u64).is_err())
    });
    writer.release();
    (&submitted).read_exact(&mut [0]).unwrap();
    // The task sleeps inside the write.
    let state = format!("/proc/{}/stat", writer.pid().0);
    let waits =
        || fs::read_to_string(&state).unwrap().rsplit(')').next().unwrap().trim_start().starts_with('D');
    assert!(eventually(waits), "it does not wait");
    std::thread::sleep(AGE);
    (live.finish(), writer)
}

fn assert_is_write(one: &Value, layer: &str, device: &str) {
    let shown = ["layer", "device", "operation"].map(|key| one[key].as_str().unwrap());
    assert_eq!(shown, [layer, device, "write"], "{one:#}");
    assert_eq!((&one["sector"], &one["bytes"]), (&json!(2 * BLOCK / 512), &json!(BLOCK)), "{one:#}");
    assert!(one["age_ns"].as_u64().unwrap() >= AGE.as_nanos() as u64, "{one:#}");
}

#[track_caller]
fn assert_balanced(report: &Value) {
    let losses = &report["losses"];
    assert_eq!((&losses["balances"], &losses["total"]), (&json!(true), &json!(0)), "{losses:#}");
}

/// Number of bios, more than the 65,536 entries of the table of bios.
const FLOOD: usize = 70_000;
const READS_PER_CALL: usize = 1_000;
const BYTES: usize = 512;
/// Distance of two reads in sectors, so that no two are adjacent and merged.
const STRIDE: usize = 4;

/// The device is suspended until all reads are submitted. Bios without a table entry are counted.
/// Each bio with an entry is a child of its call, and each lower bio a child of its upper bio.
#[test]
fn a_table_that_is_too_small() {
    needs_guest!();
    let disk = GuestDisk::find();
    fs::write("/proc/sys/fs/aio-max-nr", "1000000").unwrap();
    let (submitted, mut submitting) = std::io::pipe().unwrap();
    let target = PathBuf::from(&disk.node);
    let mut reader = GatedProcess::new(move || {
        let device = direct::open(&target);
        let mut aio = Aio::new(FLOOD);
        for call in 0..FLOOD / READS_PER_CALL {
            let offsets: Vec<u64> = (call * READS_PER_CALL..(call + 1) * READS_PER_CALL)
                .map(|read| (read * STRIDE * BYTES) as u64)
                .collect();
            aio.read(&device, &offsets, BYTES);
        }
        submitting.write_all(b"a").unwrap();
        aio.wait(FLOOD, BYTES);
        0
    });
    let suspended = Suspended::suspend();
    let config = TracerConfig { ring_bytes: Some(64 << 20), ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[reader.pid()]);
    reader.release();
    (&submitted).read_exact(&mut [0]).unwrap();
    drop(suspended);
    assert_eq!(reader.run_to_exit(), 0);
    let recording = recorder.finish();
    recording.assert_balanced();
    let stats = &recording.stats;
    let device = block_device(&disk.name);
    let (upper, lower): (Vec<&BioEvent>, Vec<&BioEvent>) =
        recording.bios().partition(|bio| bio.device == device);
    println!("{} of {FLOOD} tracked, {} children; {stats:?}", upper.len(), lower.len());
    assert!(upper.len() < FLOOD && upper.len() > FLOOD / 2, "{stats:#?}");
    // Some tracked upper bios have an untracked lower bio; nothing else is missing.
    assert_eq!(stats.untracked, (FLOOD - lower.len()) as u64, "{stats:#?}");
    assert_eq!(stats.lost(), stats.untracked, "{stats:#?}");
    assert_eq!((stats.bios_queued, stats.requests_started), (stats.bios.fired, stats.requests.fired));
    // Each call, in order, reads its own sectors.
    let mut calls = recording.calls_named("io_submit");
    calls.sort_by_key(|call| call.enter);
    assert_eq!(calls.len(), FLOOD / READS_PER_CALL);
    let number: HashMap<SpanId, usize> = calls.iter().enumerate().map(|(at, call)| (call.span, at)).collect();
    let mut sectors: HashMap<SpanId, u64> = HashMap::new();
    for bio in &upper {
        let Submitter::Span(call) = bio.submitter else { panic!("{bio:#?}") };
        assert_eq!(bio.sector.0 as usize / STRIDE / READS_PER_CALL, number[&call], "{bio:#?}");
        assert!(sectors.insert(bio.span, bio.sector.0).is_none());
    }
    let requests: HashMap<SpanId, _> = recording.requests().map(|request| (request.span, request)).collect();
    for bio in &lower {
        let Submitter::Span(upper_span) = bio.submitter else { panic!("{bio:#?}") };
        assert_eq!(sectors.remove(&upper_span).map(|sector| sector + 2048), Some(bio.sector.0), "{bio:#?}");
        let request = requests[&bio.request.unwrap()];
        assert_eq!((request.sector, request.parent), (bio.sector, Some(bio.span)), "{request:#?}");
    }
    assert_eq!(requests.len(), lower.len());
}

/// The disk that the guest has made.
struct GuestDisk {
    node: String,
    name: String,
}

impl GuestDisk {
    fn find() -> GuestDisk {
        let node = std::env::var("BLKKIN_TEST_DISK").unwrap();
        let name = node.trim_start_matches("/dev/").to_owned();
        GuestDisk { node, name }
    }
}

/// A mapped device that is suspended while this value lives.
struct Suspended;

impl Suspended {
    fn suspend() -> Suspended {
        capture(tool("dmsetup").args(["suspend", "blkkin"])).unwrap();
        Suspended
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        capture(tool("dmsetup").args(["resume", "blkkin"])).unwrap();
    }
}
