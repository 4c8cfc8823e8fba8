//! fio with direct random reads and writes. Three counts must agree to the last request: fio's own,
//! the kernel's for the device (`/sys/block/*/stat`), and the tracer's.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what it recorded"
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
/// LttngNamespace for four jobs, and for ext4's own blocks.
const DISK: u64 = 160 << 20;

#[test]
fn reads_of_the_device() {
    on_the_device("randread", 1);
}

#[test]
fn reads_of_the_device_by_four_jobs() {
    on_the_device("randread", 4);
}

#[test]
fn writes_to_the_device() {
    on_the_device("randwrite", 1);
}

#[test]
fn writes_to_the_device_by_four_jobs() {
    on_the_device("randwrite", 4);
}

#[test]
fn reads_of_a_file() {
    on_a_file("randread", 1);
}

#[test]
fn reads_of_a_file_by_four_jobs() {
    on_a_file("randread", 4);
}

#[test]
fn writes_to_a_file() {
    on_a_file("randwrite", 1);
}

#[test]
fn writes_to_a_file_by_four_jobs() {
    on_a_file("randwrite", 4);
}

/// At least one of three runs has to agree. fio reads its clock in user space, so a run differs if
/// the task is preempted between that and the call.
#[test]
fn call_durations_agree_with_fio() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(DISK));
    let report = disk.file("fio.json");
    let fio = random(disk.node(), "randread", 1, &report);
    let run = || {
        let (recording, _) = trace_run(&fio, &disk);
        let times = calls_of(&recording, &fio).iter().map(|trace| trace.duration().0).collect::<Vec<_>>();
        let mean = times.iter().sum::<u64>() as f64 / times.len() as f64;
        (mean, fio.parse_report().mean_ns)
    };
    let runs = [run(), run(), run()];
    println!("mean in ns of blkkin and of fio: {runs:?}");
    assert!(runs.iter().any(|(calls_of, by_fio)| (calls_of - by_fio).abs() <= by_fio / 10.0), "{runs:?}");
}

/// Compares the binary's report with both counts. A second tracer records the whole device.
#[test]
fn the_report_agrees_with_fio_and_the_kernel() {
    needs!("fio", "losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let report = disk.file("fio.json");
    let file = file_for_four(&disk);
    let fio = random(&file, "randwrite", 4, &report);
    // As in `until_complete`: an unseen completion is in the report, and causes another run.
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

/// Returns the report of `run` about fio, that of `trace` about the device, and the kernel's
/// counts.
fn reports(fio: &Fio<'_>, disk: &Disk) -> (Value, Value, Statistics) {
    let live = LiveTrace::trace(&["--device", disk.name()], disk.file("device.json"));
    let before = disk.statistics();
    let report = disk.file("run.json");
    let (json, path) = (format!("--json={}", report.display()), fio.target.to_str().unwrap());
    let mut args = vec!["run", &json, "--path", path, "--"];
    let command = fio.args();
    args.extend(command.iter().map(String::as_str));
    let run = common::run(&args);
    assert_eq!(run.code, Some(0), "{run:?}");
    std::fs::File::open(fio.target).unwrap().sync_all().unwrap();
    let counted = disk.statistics().since(before);
    let run = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    (run, live.finish(), counted)
}

fn on_the_device(pattern: &'static str, jobs: u32) {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(DISK));
    let report = disk.file("fio.json");
    let fio = random(disk.node(), pattern, jobs, &report);
    let (recording, counted) = trace_run(&fio, &disk);
    assert_every_request_is_a_child_of_its_call(&recording, &fio, disk.device());
    // Only fio uses the device, so the kernel counts only fio's requests.
    let recorded: Vec<_> = recording.requests().filter(|request| request.device == disk.device()).collect();
    let sectors = recorded.iter().map(|request| u64::from(request.bytes) / 512).sum();
    assert_eq!(Statistics { requests: recorded.len() as u64, sectors }, counted);
    for trace in calls_of(&recording, &fio) {
        assert_inside_the_range(trace);
    }
}

fn on_a_file(pattern: &'static str, jobs: u32) {
    needs!("fio", "losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let report = disk.file("fio.json");
    let file = file_for_four(&disk);
    let fio = random(&file, pattern, jobs, &report);
    let (recording, _) = trace_run(&fio, &disk);
    assert_every_request_is_a_child_of_its_call(&recording, &fio, disk.device());
}

fn random<'a>(target: &'a Path, pattern: &'static str, jobs: u32, report: &'a Path) -> Fio<'a> {
    Fio { target, pattern, jobs, requests: REQUESTS / jobs, bytes: BLOCK, report }
}

/// Creates a file whose blocks are on the device, so that direct I/O finds all of them.
fn file_for_four(disk: &Disk) -> PathBuf {
    let file = disk.mount_point().join("data");
    std::fs::write(&file, vec![7u8; (REQUESTS * BLOCK) as usize]).unwrap();
    std::fs::File::open(&file).unwrap().sync_all().unwrap();
    file
}

/// Returns the recording of a run, and the kernel's counts of the disk for it.
fn trace_run(fio: &Fio<'_>, disk: &Disk) -> (Recording, Statistics) {
    let mut counted = disk.statistics();
    let recording = until_complete(|| {
        let before = disk.statistics();
        let mut process = GatedProcess::program(&fio.args(), &disk.file("fio.out"));
        let recording = record(&TracerConfig::default(), &mut [&mut process]);
        counted = disk.statistics().since(before);
        recording
    });
    (recording, counted)
}

/// Returns fio's calls on the target, without calls of the same name by the loader.
fn calls_of<'a>(recording: &'a Recording, fio: &Fio<'_>) -> Vec<&'a Trace> {
    let target = identity(fio.target);
    let is_ours = |trace: &&Trace| {
        trace.call().is_some_and(|call| {
            let file = call.file.map(|open| (open.file.device, open.file.ino));
            call.call.name() == fio.call() && file == Some(target)
        })
    };
    recording.traces.iter().filter(is_ours).collect()
}

fn assert_every_request_is_a_child_of_its_call(recording: &Recording, fio: &Fio<'_>, device: DeviceId) {
    let calls_of = calls_of(recording, fio);
    assert_eq!(calls_of.len() as u64, fio.parse_report().requests);
    let mut children = 0;
    for trace in &calls_of {
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
        children += trace.requests.len();
    }
    // All data in this direction is fio's.
    let write = fio.pattern == "randwrite";
    let data = |op: blkkin_wire::event::BlockOp| op.is_write() == write && !op.is_meta();
    let all = recording.requests().filter(|r| r.device == device && data(r.op) && r.bytes > 0).count();
    assert_eq!(children, all);
}

/// On the raw device a call's offset and length determine its sectors, independently of the tracer.
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

/// Returns the requests and sectors that a report has for a device.
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
