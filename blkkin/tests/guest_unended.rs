//! Devices that are taken away, stop, or hold more than the kernel side's tables do, where that can be had: in a guest, with
//! the device-mapper and null_blk. What has not ended is shown as that, what was not followed is counted, and no link is wrong.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use blkkin_tracer::TracerConfig;
use blkkin_wire::event::{BioEvent, Submitter};
use blkkin_wire::ids::SpanId;
use serde_json::{Value, json};

use support::aio::Aio;
use support::direct::{self, BLOCK};
use support::gated_process::GatedProcess;
use support::live::{LiveTrace, eventually};
use support::needs_guest;
use support::recording::Recorder;
use support::tools::{capture, device_number, tool};

const WRITES: u64 = 32;
const REPORT: &str = "/tmp/report.json";
/// How long something is stuck at the least.
const AGE: Duration = Duration::from_millis(100);

/// The mapped device is removed while its tracer looks.
#[test]
fn a_device_that_is_removed() {
    needs_guest!();
    let disk = Given::find();
    let live = LiveTrace::trace(&["--device", &disk.node], REPORT.into());
    direct::write(Path::new(&disk.node), 0..WRITES);
    capture(tool("dmsetup").args(["remove", "blkkin"])).unwrap();
    assert!(eventually(|| !Path::new("/sys/block/dm-0").exists()));
    let report = live.finish();
    assert_eq!(report["devices_lost"], json!([{ "device": "dm-0", "fate": "gone" }]), "{report:#}");
    assert_eq!(report["totals"]["bios"], WRITES, "{report:#}");
    assert_eq!(report["losses"]["beside"]["in_flight"], 0, "{report:#}");
    assert_balanced(&report);
}

/// A suspended device keeps what it is asked for.
#[test]
fn a_device_that_is_suspended() {
    needs_guest!();
    let disk = Given::find();
    let suspended = Suspended::suspend();
    let live = LiveTrace::trace(&["--device", &disk.node], REPORT.into());
    let (report, mut writer) = stuck(&disk, live);
    drop(suspended);
    assert_eq!(writer.run_to_exit(), 0);
    let [bio] = &report["in_flight"].as_array().unwrap()[..] else { panic!("{report:#}") };
    assert_is_write(bio, "bio", "dm-0");
    assert_eq!(bio["at_device_ns"], Value::Null, "{bio:#}");
    // And the call.
    assert_eq!(report["losses"]["beside"]["in_flight"], 2, "{report:#}");
    assert_eq!((&report["totals"]["bios"], &report["totals"]["requests"]), (&json!(0), &json!(0)));
    assert_balanced(&report);
}

/// A device that takes a request and is silent.
#[test]
fn a_device_that_is_silent() {
    needs_guest!();
    let disk = Given::find();
    let live = LiveTrace::trace(&["--device", &disk.node], REPORT.into());
    let (report, mut writer) = stuck(&disk, live);
    assert_eq!(writer.run_to_exit(), 0);
    let [bio, request] = &report["in_flight"].as_array().unwrap()[..] else { panic!("{report:#}") };
    assert_is_write(bio, "bio", &disk.name);
    assert_is_write(request, "request", &disk.name);
    assert!(request["at_device_ns"].as_u64().unwrap() >= AGE.as_nanos() as u64, "{request:#}");
    assert_eq!(report["losses"]["beside"]["in_flight"], 3, "{report:#}");
    assert_eq!((&report["totals"]["bios"], &report["totals"]["requests"]), (&json!(0), &json!(0)));
    assert_balanced(&report);
}

/// One block is written while the tracer looks, and is not done when it ends.
fn stuck(disk: &Given, live: LiveTrace) -> (Value, GatedProcess) {
    let (told, mut tells) = std::io::pipe().unwrap();
    let target = PathBuf::from(&disk.node);
    let mut writer = GatedProcess::new(move || {
        let device = direct::open(&target);
        tells.write_all(b"o").unwrap();
        i32::from(direct::write_at(&device, 2 * BLOCK as u64).is_err())
    });
    writer.release();
    (&told).read_exact(&mut [0]).unwrap();
    // Inside the write, and asleep there.
    let state = format!("/proc/{}/stat", writer.pid().0);
    let waits =
        || fs::read_to_string(&state).unwrap().rsplit(')').next().unwrap().trim_start().starts_with('D');
    assert!(eventually(waits), "it does not wait");
    std::thread::sleep(AGE);
    (live.finish(), writer)
}

fn assert_is_write(one: &Value, layer: &str, device: &str) {
    let said = ["layer", "device", "operation"].map(|key| one[key].as_str().unwrap());
    assert_eq!(said, [layer, device, "write"], "{one:#}");
    assert_eq!((&one["sector"], &one["bytes"]), (&json!(2 * BLOCK / 512), &json!(BLOCK)), "{one:#}");
    assert!(one["age_ns"].as_u64().unwrap() >= AGE.as_nanos() as u64, "{one:#}");
}

#[track_caller]
fn assert_balanced(report: &Value) {
    let losses = &report["losses"];
    assert_eq!((&losses["balances"], &losses["total"]), (&json!(true), &json!(0)), "{losses:#}");
}

/// More than the 65,536 places of the table of bios.
const FLOOD: usize = 70_000;
const A_CALL: usize = 1_000;
const BYTES: usize = 512;
/// A sector of every so many is read: none of them lies beside another, to be merged with.
const STRIDE: usize = 4;

/// The device is suspended until all have been asked for. What had no room is counted, each that had room is below its own
/// call, and what is made of it below below it.
#[test]
fn a_table_that_is_too_small() {
    needs_guest!();
    let disk = Given::find();
    fs::write("/proc/sys/fs/aio-max-nr", "1000000").unwrap();
    let (told, mut tells) = std::io::pipe().unwrap();
    let target = PathBuf::from(&disk.node);
    let mut reader = GatedProcess::new(move || {
        let device = direct::open(&target);
        let mut aio = Aio::new(FLOOD);
        for call in 0..FLOOD / A_CALL {
            let offsets: Vec<u64> =
                (call * A_CALL..(call + 1) * A_CALL).map(|read| (read * STRIDE * BYTES) as u64).collect();
            aio.read(&device, &offsets, BYTES);
        }
        tells.write_all(b"a").unwrap();
        aio.wait(FLOOD, BYTES);
        0
    });
    let suspended = Suspended::suspend();
    let config = TracerConfig { ring_bytes: Some(64 << 20), ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[reader.pid()]);
    reader.release();
    (&told).read_exact(&mut [0]).unwrap();
    drop(suspended);
    assert_eq!(reader.run_to_exit(), 0);
    let recording = recorder.finish();
    recording.assert_balanced();
    let books = &recording.stats;
    let device = device_number(&fs::read_to_string(format!("/sys/block/{}/dev", disk.name)).unwrap());
    let (upper, lower): (Vec<&BioEvent>, Vec<&BioEvent>) =
        recording.bios().partition(|bio| bio.device == device);
    println!("{} of {FLOOD} followed, {} below them; {books:?}", upper.len(), lower.len());
    assert!(upper.len() < FLOOD && upper.len() > FLOOD / 2, "{books:#?}");
    // Of those that were followed above, some had no room below; nothing else is missing.
    assert_eq!(books.untracked, (FLOOD - lower.len()) as u64, "{books:#?}");
    assert_eq!(books.lost(), books.untracked, "{books:#?}");
    assert_eq!((books.bios_queued, books.requests_started), (books.bios.fired, books.requests.fired));
    // Calls in their order: each asked for sectors of its own.
    let mut calls = recording.calls_named("io_submit");
    calls.sort_by_key(|call| call.enter);
    assert_eq!(calls.len(), FLOOD / A_CALL);
    let number: HashMap<SpanId, usize> = calls.iter().enumerate().map(|(at, call)| (call.span, at)).collect();
    let mut sectors: HashMap<SpanId, u64> = HashMap::new();
    for bio in &upper {
        let Submitter::Span(call) = bio.submitter else { panic!("{bio:#?}") };
        assert_eq!(bio.sector.0 as usize / STRIDE / A_CALL, number[&call], "{bio:#?}");
        assert!(sectors.insert(bio.span, bio.sector.0).is_none());
    }
    let requests: HashMap<SpanId, _> = recording.requests().map(|request| (request.span, request)).collect();
    for bio in &lower {
        let Submitter::Span(above) = bio.submitter else { panic!("{bio:#?}") };
        assert_eq!(sectors.remove(&above).map(|sector| sector + 2048), Some(bio.sector.0), "{bio:#?}");
        let request = requests[&bio.request.unwrap()];
        assert_eq!((request.sector, request.parent), (bio.sector, Some(bio.span)), "{request:#?}");
    }
    assert_eq!(requests.len(), lower.len());
}

/// The disk that the guest has made.
struct Given {
    node: String,
    name: String,
}

impl Given {
    fn find() -> Given {
        let node = std::env::var("BLKKIN_TEST_DISK").unwrap();
        let name = node.trim_start_matches("/dev/").to_owned();
        Given { node, name }
    }
}

/// A mapped device that does nothing while this lives.
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
