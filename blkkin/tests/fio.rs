//! fio, direct random reads and writes: what it says itself, what the kernel counts of the device, and what the
//! tracer says must be the same, to the last request.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use blkkin_aggregator::trace::Trace;
use blkkin_tracer::TracerConfig;
use blkkin_wire::event::Submitter;
use blkkin_wire::ids::{DeviceId, SpanId};
use serde_json::Value;

use support::disk::{Disk, Statistics};
use support::fio::Fio;
use support::gated_process::GatedProcess;
use support::live::LiveTrace;
use support::recording::{Recording, record, saw_all_ends, until_all_ends_seen, until_complete};
use support::tools::identity;
use support::{needs, or_skip};

const BLOCK: u32 = 4096;
const REQUESTS: u32 = 3000;
/// For four jobs, and ext4's own.
const DISK: u64 = 160 << 20;

#[test]
fn reads_of_the_device() {
    on_the_device("randread", 1);
}

#[test]
fn reads_of_the_device_by_four() {
    on_the_device("randread", 4);
}

#[test]
fn writes_to_the_device() {
    on_the_device("randwrite", 1);
}

#[test]
fn writes_to_the_device_by_four() {
    on_the_device("randwrite", 4);
}

#[test]
fn reads_of_a_file() {
    on_a_file("randread", 1);
}

#[test]
fn reads_of_a_file_by_four() {
    on_a_file("randread", 4);
}

#[test]
fn writes_to_a_file() {
    on_a_file("randwrite", 1);
}

#[test]
fn writes_to_a_file_by_four() {
    on_a_file("randwrite", 4);
}

/// One in three runs has to agree: fio's clock is read in user space, and a CPU that is given to others between its
/// reading and the call makes a run differ.
#[test]
fn calls_take_as_long_as_fio_says() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(DISK));
    let account = disk.file("fio.json");
    let fio = random(disk.node(), "randread", 1, &account);
    let run = || {
        let (recording, _) = follow(&fio, &disk);
        let times = ours(&recording, &fio).iter().map(|trace| trace.duration().0).collect::<Vec<_>>();
        let mean = times.iter().sum::<u64>() as f64 / times.len() as f64;
        (mean, fio.parse_report().mean_ns)
    };
    let runs = [run(), run(), run()];
    println!("(ours, fio's) mean in ns: {runs:?}");
    assert!(runs.iter().any(|(ours, theirs)| (ours - theirs).abs() <= theirs / 10.0), "{runs:?}");
}

/// The same by the binary, as a person would ask it; beside it, the whole device by a second tracer.
#[test]
fn the_report_says_what_fio_and_the_kernel_say() {
    needs!("fio", "losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let account = disk.file("fio.json");
    let file = file_for_four(&disk);
    let fio = random(&file, "randwrite", 4, &account);
    // As in `until_complete`: a completion that no program could see is said in the report, and makes it another run.
    let shown = |(run, device, _): &(Value, Value, Statistics)| {
        [run, device].iter().all(|report| saw_all_ends(&report["losses"]))
    };
    let (run, device, counted) = until_all_ends_seen(|| reports(&fio, &disk), shown);
    let row = run["calls"].as_array().unwrap().iter().find(|row| row["call"] == fio.call()).unwrap();
    assert_eq!(row["count"], fio.parse_report().requests, "{row}");
    assert_eq!(at_device(&device, disk.name()), counted, "{device:#}");
    for report in [&run, &device] {
        assert_eq!(report["losses"]["total"], 0, "{:#}", report["losses"]);
        assert_eq!(report["losses"]["balances"], true, "{:#}", report["losses"]);
    }
}

/// The report of `run` about fio, that of `trace` about the device, and the kernel's account of it.
fn reports(fio: &Fio<'_>, disk: &Disk) -> (Value, Value, Statistics) {
    let live = LiveTrace::trace(&["--device", disk.name()], disk.file("device.json"));
    let before = disk.statistics();
    let report = disk.file("run.json");
    let (json, path) = (format!("--json={}", report.display()), fio.target.to_str().unwrap());
    let mut words = vec!["run", &json, "--path", path, "--"];
    let command = fio.args();
    words.extend(command.iter().map(String::as_str));
    let run = common::run(&words);
    assert_eq!(run.code, Some(0), "{run:?}");
    std::fs::File::open(fio.target).unwrap().sync_all().unwrap();
    let counted = disk.statistics().since(before);
    let run = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    (run, live.finish(), counted)
}

fn on_the_device(pattern: &'static str, jobs: u32) {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(DISK));
    let account = disk.file("fio.json");
    let fio = random(disk.node(), pattern, jobs, &account);
    let (recording, counted) = follow(&fio, &disk);
    assert_every_request_is_below_its_call(&recording, &fio, disk.device());
    // Nobody but fio uses the device, so all that the kernel counted is fio's.
    let seen: Vec<_> = recording.requests().filter(|request| request.device == disk.device()).collect();
    let sectors = seen.iter().map(|request| u64::from(request.bytes) / 512).sum();
    assert_eq!(Statistics { requests: seen.len() as u64, sectors }, counted);
    for trace in ours(&recording, &fio) {
        assert_inside_the_range(trace);
    }
}

fn on_a_file(pattern: &'static str, jobs: u32) {
    needs!("fio", "losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let account = disk.file("fio.json");
    let file = file_for_four(&disk);
    let fio = random(&file, pattern, jobs, &account);
    let (recording, _) = follow(&fio, &disk);
    assert_every_request_is_below_its_call(&recording, &fio, disk.device());
}

fn random<'a>(target: &'a Path, pattern: &'static str, jobs: u32, account: &'a Path) -> Fio<'a> {
    Fio { target, pattern, jobs, requests: REQUESTS / jobs, bytes: BLOCK, report: account }
}

/// A file that is there already, written through, so that direct I/O finds every block where it is.
fn file_for_four(disk: &Disk) -> PathBuf {
    let file = disk.mount_point().join("data");
    std::fs::write(&file, vec![7u8; (REQUESTS * BLOCK) as usize]).unwrap();
    std::fs::File::open(&file).unwrap().sync_all().unwrap();
    file
}

/// What the tracer saw of a run, and what the kernel counted of the disk meanwhile.
fn follow(fio: &Fio<'_>, disk: &Disk) -> (Recording, Statistics) {
    let mut counted = disk.statistics();
    let recording = until_complete(|| {
        let before = disk.statistics();
        let mut actor = GatedProcess::program(&fio.args(), &disk.file("fio.out"));
        let recording = record(&TracerConfig::default(), &mut [&mut actor]);
        counted = disk.statistics().since(before);
        recording
    });
    (recording, counted)
}

/// fio's requests: its calls on the target, and nothing that a loader did by the same call.
fn ours<'a>(recording: &'a Recording, fio: &Fio<'_>) -> Vec<&'a Trace> {
    let target = identity(fio.target);
    let is_ours = |trace: &&Trace| {
        trace.call().is_some_and(|call| {
            let file = call.file.map(|open| (open.file.device, open.file.ino));
            call.call.name() == fio.call() && file == Some(target)
        })
    };
    recording.traces.iter().filter(is_ours).collect()
}

fn assert_every_request_is_below_its_call(recording: &Recording, fio: &Fio<'_>, device: DeviceId) {
    let ours = ours(recording, fio);
    assert_eq!(ours.len() as u64, fio.parse_report().requests);
    let mut below = 0;
    for trace in &ours {
        assert!(!trace.bios.is_empty() && !trace.requests.is_empty(), "{trace:#?}");
        let bios: HashMap<SpanId, _> = trace.bios.iter().map(|bio| (bio.span, bio)).collect();
        for bio in &trace.bios {
            assert_eq!(bio.submitter, Submitter::Span(trace.root_span), "{trace:#?}");
            assert_eq!((bio.root, bio.device), (trace.root_span, device), "{trace:#?}");
        }
        for request in &trace.requests {
            assert!(request.parent.is_some_and(|parent| bios.contains_key(&parent)), "{trace:#?}");
            assert_eq!((request.root, request.device), (trace.root_span, device), "{trace:#?}");
            assert!(request.issue.is_some(), "{trace:#?}");
        }
        let bytes: u64 = trace.bios.iter().map(|bio| u64::from(bio.bytes)).sum();
        assert_eq!(bytes, u64::from(BLOCK), "{trace:#?}");
        below += trace.requests.len();
    }
    // And nothing else: what carries data in this direction is all of it fio's.
    let write = fio.pattern == "randwrite";
    let data = |op: blkkin_wire::event::BlockOp| op.is_write() == write && !op.is_meta();
    let all = recording.requests().filter(|r| r.device == device && data(r.op) && r.bytes > 0).count();
    assert_eq!(below, all);
}

/// On the raw device a call's offset and length are its sectors: ground truth that no tracer made.
fn assert_inside_the_range(trace: &Trace) {
    let call = trace.call().unwrap();
    let (length, offset) = (call.args[2], call.args[3]);
    for request in &trace.requests {
        let from = request.sector.0 * 512;
        assert!(from >= offset && from + u64::from(request.bytes) <= offset + length, "{trace:#?}");
    }
    let bytes: u64 = trace.requests.iter().map(|request| u64::from(request.bytes)).sum();
    assert_eq!(bytes, length, "{trace:#?}");
}

/// Requests and sectors that a report has for a device.
fn at_device(report: &Value, name: &str) -> Statistics {
    let mut sum = Statistics { requests: 0, sectors: 0 };
    for device in report["devices"].as_array().unwrap().iter().filter(|device| device["device"] == name) {
        for operation in device["operations"].as_array().unwrap() {
            sum.requests += operation["requests"].as_u64().unwrap();
            sum.sectors += operation["bytes"].as_u64().unwrap() / 512;
        }
    }
    sum
}
