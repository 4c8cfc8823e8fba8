//! fio with direct random reads and writes. Three counts must agree to the last request: fio's own,
//! the kernel's for the device (`/sys/block/*/stat`), and the tracer's.
//!
//! *Parents*: each block of the file contains its own offset. So the data at a request's sector
//! names the call that the request belongs to, which the tracer does not know. A recording with
//! two calls' requests exchanged must fail the same checks.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use blkkin_aggregator::trace::Trace;
use blkkin_probe_abi::record::WALK_MAX;
use blkkin_wire::event::{RequestEvent, Submitter};
use blkkin_wire::ids::{DeviceId, SpanId};
use serde_json::Value;

use crate::common;
use crate::support::direct;
use crate::support::disk::{Disk, Statistics};
use crate::support::fio::Fio;
use crate::support::gated_process::GatedProcess;
use crate::support::live::LiveTrace;
use crate::support::missed_ends::{HiddenEnds, Missed, until_all_ends_seen, until_complete};
use crate::support::planted::exchange_children;
use crate::support::recording::{Recording, record_one};
use crate::support::tools::identity;
use crate::support::{needs, or_skip};

const BLOCK: u32 = 4096;
const REQUESTS: u32 = 3000;
/// Space for four jobs, and for ext4's own blocks.
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

/// fio's readings enclose the call, so its mean is the larger one. Three runs at a load average
/// of 17 to 50 on two CPUs differed by 1.5 to 2.1 %; preemption between a reading and the call adds
/// to that.
#[test]
fn call_durations_agree_with_fio() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(DISK));
    let report = disk.file("fio.json");
    let fio = random(disk.node(), "randread", 1, &report);
    let (recording, _) = trace_run(&fio, &disk);
    let times = calls_of(&recording, &fio).iter().map(|trace| trace.duration().0).collect::<Vec<_>>();
    let mean = times.iter().sum::<u64>() as f64 / times.len() as f64;
    let by_fio = fio.parse_report().mean_ns;
    println!("mean in ns of blkkin and of fio: {mean} and {by_fio}");
    assert!(mean <= by_fio && by_fio - mean <= by_fio / 10.0, "{mean} and {by_fio}");
}

/// Compares the binary's report with both counts. A second tracer records the whole device.
#[test]
fn the_report_agrees_with_fio_and_the_kernel() {
    needs!("fio", "losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let report = disk.file("fio.json");
    let file = file_for_four(&disk);
    let fio = random(&file, "randwrite", 4, &report);
    let missed =
        |(run, device, _): &(Value, Value, Statistics)| [run, device].map(Missed::in_report).to_vec();
    let (run, device, counted) = until_all_ends_seen(|| reports(&fio, &disk), missed);
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
    common::run(&args).expect_code(0);
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
    assert_only_exchanged_calls_are_found(&recording, &fio, outside_of_their_range);
    // Only fio uses the device, so the kernel counts only fio's requests.
    let recorded: Vec<_> = recording.requests().filter(|request| request.device == disk.device()).collect();
    let sectors = recorded.iter().map(|request| u64::from(request.bytes) / 512).sum();
    assert_eq!(Statistics { requests: recorded.len() as u64, sectors }, counted);
}

fn on_a_file(pattern: &'static str, jobs: u32) {
    needs!("fio", "losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let report = disk.file("fio.json");
    let file = file_for_four(&disk);
    let fio = random(&file, pattern, jobs, &report);
    let (recording, _) = trace_run(&fio, &disk);
    assert_every_request_is_a_child_of_its_call(&recording, &fio, disk.device());
    let device = direct::open(disk.node());
    assert_only_exchanged_calls_are_found(&recording, &fio, |calls| with_data_of_others(calls, &device));
}

fn random<'a>(target: &'a Path, pattern: &'static str, jobs: u32, report: &'a Path) -> Fio<'a> {
    Fio { target, pattern, jobs, requests: REQUESTS / jobs, bytes: BLOCK, report }
}

/// Creates a file whose blocks are on the device, so that direct I/O finds all of them. Each block
/// begins with its offset.
fn file_for_four(disk: &Disk) -> PathBuf {
    let file = disk.mount_point().join("data");
    let mut data = vec![7u8; (REQUESTS * BLOCK) as usize];
    for (number, block) in data.chunks_mut(BLOCK as usize).enumerate() {
        block[..8].copy_from_slice(&(number as u64 * u64::from(BLOCK)).to_le_bytes());
    }
    std::fs::write(&file, data).unwrap();
    std::fs::File::open(&file).unwrap().sync_all().unwrap();
    file
}

/// Returns the recording of a run, and the kernel's counts of the disk for it.
fn trace_run(fio: &Fio<'_>, disk: &Disk) -> (Recording, Statistics) {
    let mut counted = disk.statistics();
    let recording = until_complete(|| {
        let before = disk.statistics();
        let mut process = GatedProcess::program(&fio.args(), &disk.file("fio.out"));
        let recording = record_one(&mut process);
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

/// Asserts that the check finds no wrong call in the recording, and exactly two where their requests
/// were exchanged.
fn assert_only_exchanged_calls_are_found(
    recording: &Recording,
    fio: &Fio<'_>,
    wrong: impl Fn(&[&Trace]) -> Vec<SpanId>,
) {
    let calls = calls_of(recording, fio);
    assert_eq!(wrong(&calls), [], "calls with requests of others");
    // The first and the last are of different processes where there are several.
    let mut exchanged = [calls[0].root_span, calls[calls.len() - 1].root_span];
    let planted = exchange_children(recording, exchanged);
    let mut found = wrong(&calls_of(&planted, fio));
    exchanged.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, exchanged, "the check does not find a planted fault");
}

/// Returns the calls with a request outside of their range. On the raw device a call's offset and
/// length determine its sectors, independently of the tracer.
fn outside_of_their_range(calls: &[&Trace]) -> Vec<SpanId> {
    let is_wrong = |trace: &&&Trace| {
        let call = trace.call().unwrap();
        let (length, offset) = (call.args[2], call.args[3]);
        let is_inside = |request: &RequestEvent| {
            let from = request.sector.0 * 512;
            from >= offset && from + u64::from(request.bytes) <= offset + length
        };
        let bytes: u64 = trace.requests.iter().map(|request| u64::from(request.bytes)).sum();
        bytes != length || !trace.requests.iter().all(is_inside)
    };
    calls.iter().filter(is_wrong).map(|trace| trace.root_span).collect()
}

/// Returns the calls with a request at whose sector the device has another call's data.
fn with_data_of_others(calls: &[&Trace], device: &File) -> Vec<SpanId> {
    let is_wrong = |trace: &&&Trace| {
        let is_of_call = |request: &RequestEvent| {
            // A flush has no data.
            request.bytes == 0
                || direct::first_word(device, request.sector.0 * 512) == trace.call().unwrap().args[3]
        };
        !trace.requests.iter().all(is_of_call)
    };
    calls.iter().filter(is_wrong).map(|trace| trace.root_span).collect()
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

#[test]
fn a_hidden_completion_explains_its_request_and_at_most_a_bio_for_each_sector() {
    let lines = [
        "   fio-9 (      9) [000] d.h1.  12.000100: block_rq_complete: 7,0 R () 2048 + 8 none,0,0 [0]",
        "   fio-9 (      9) [000] d.h1.  12.000100: block_bio_complete: 7,0 R 2048 + 8 [0]",
        "   fio-9 (      9) [000] d.h1.  12.000100: block_rq_complete: 254,0 WS () 4096 + 4096 none,0,0 [0]",
    ];
    let hidden = HiddenEnds::parse(&lines.map(str::to_owned));
    let disk = HashSet::from([DeviceId { major: 7, minor: 0 }]);
    let one = hidden.explain(Some(&disk), 0);
    assert_eq!((one.requests, one.bios), (1, 9));
    let all = hidden.explain(None, 1);
    assert_eq!((all.requests, all.bios), (3, 9 + 2 * WALK_MAX as u64));
}

#[test]
fn losses_are_read_from_the_printed_lines() {
    let lost =
        "lost: 2 bio or request ends missed, 1 probe runs skipped by\n  the kernel (7 records fired)\n";
    assert_eq!(Missed::in_output(lost), Missed { ends: 2, in_flight: 0, skipped: 1 });
    assert_eq!(Missed::in_output("blkkin: lost: nothing"), Missed::default());
}
