//! Conservation of records: fired = recorded + dropped for each kind, and rings of the default size
//! drop nothing.
//!
//! *Input*: processes with a known number of reads, and fio on a loop device, with the smallest
//! rings and with default ones. *Independent count*: the known number of calls; the counts of
//! begins in the kernel.

use std::ffi::CString;
use std::path::Path;

use blkkin_tracer::TracerConfig;
use blkkin_wire::batch::RecordStats;
use serde_json::Value;

use crate::common;
use crate::support::disk::Disk;
use crate::support::fio::Fio;
use crate::support::gated_process::GatedProcess;
use crate::support::recording::record;
use crate::support::single_process::c_path;
use crate::support::{needs, or_skip};

/// The smallest ring: a page, 25 calls.
const SMALLEST_RING: usize = 4096;
/// Fits into a ring of the default size even if it is not drained, so the test does not depend on
/// the speed of the machine.
const CALLS: usize = 40_000;
const DISK: u64 = 64 << 20;

#[test]
fn a_small_ring_drops_calls_and_counts_each() {
    needs!();
    let mut process = reader(CALLS);
    let recording = record(
        &TracerConfig { ring_bytes: Some(SMALLEST_RING), ..TracerConfig::default() },
        &mut [&mut process],
    );
    recording.assert_balanced();
    let stats = &recording.stats;
    // One open and the reads are counted, also those whose records were dropped.
    let expected = CALLS as u64 + 1;
    assert_eq!((stats.calls_entered, stats.calls.fired), (expected, expected));
    assert!(stats.calls.dropped > 0, "{stats:#?}");
    assert_eq!(recording.calls().count() as u64, expected - stats.calls.dropped);
    // The kernel may write back data of other programs meanwhile: its bios do not fit either, and their ends may be
    // hidden. Nothing else is lost.
    let dropped: u64 = stats.kinds().iter().map(|(_, records)| records.dropped).sum();
    assert_eq!(stats.lost(), dropped + stats.ends_missed, "{stats:#?}");
}

#[test]
fn a_small_ring_drops_bios_and_requests_and_counts_each() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(DISK));
    let fio_report = disk.file("fio.json");
    let mut process = GatedProcess::program(&fio(disk.node(), &fio_report).args(), &disk.file("fio.out"));
    let recording = record(
        &TracerConfig { ring_bytes: Some(SMALLEST_RING), ..TracerConfig::default() },
        &mut [&mut process],
    );
    recording.assert_balanced();
    let stats = &recording.stats;
    for (records, started) in [(stats.bios, stats.bios_queued), (stats.requests, stats.requests_started)] {
        assert!(records.dropped > 0, "{stats:#?}");
        assert!(started >= records.fired && started - records.fired <= stats.ends_missed + 1, "{stats:#?}");
    }
    // A dropped record is reported as missing where another record refers to it.
    assert!(recording.traces.iter().any(|trace| trace.incomplete.bios > 0 || trace.incomplete.root));
}

#[test]
fn rings_of_the_default_size_drop_nothing() {
    needs!();
    let (mut first, mut second) = (reader(CALLS / 2), reader(CALLS / 2));
    let recording = record(&TracerConfig::default(), &mut [&mut first, &mut second]);
    recording.assert_balanced();
    let dropped = |records: RecordStats| records.dropped;
    let stats = &recording.stats;
    let all = [stats.calls, stats.bios, stats.requests, stats.commits, stats.names].map(dropped);
    assert_eq!(all, [0; 5], "{stats:#?}");
    assert_eq!(stats.lost(), 0, "{stats:#?}");
}

#[test]
fn the_report_shows_what_was_dropped() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(DISK));
    let (fio_report, report) = (disk.file("fio.json"), disk.file("run.json"));
    let (fio, json) = (fio(disk.node(), &fio_report), format!("--json={}", report.display()));
    let mut args = vec!["run", "--ring-size", "4K", &json, "--"];
    let command = fio.args();
    args.extend(command.iter().map(String::as_str));
    let run = common::run(&args).expect_code(0);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    let losses = &report["losses"];
    let number = |name: &str| losses[name].as_u64().unwrap();
    let kinds =
        ["calls", "bios", "requests", "commits", "names", "faults", "page_origins", "waits", "sleeps"];
    let dropped: u64 = kinds.iter().map(|kind| number(&format!("{kind}_dropped"))).sum();
    assert!(number("calls_dropped") > 0 && number("requests_dropped") > 0, "{losses:#}");
    assert_eq!(number("fired"), number("recorded") + dropped, "{losses:#}");
    assert_eq!(losses["balances"], true, "{losses:#}");
    assert!(number("total") >= dropped, "{losses:#}");
    let line = run.stderr.lines().find(|line| line.starts_with("lost: ")).unwrap();
    assert!(!line.contains("nothing"), "{line}");
}

/// Opens an existing file and reads it `reads` times.
fn reader(reads: usize) -> GatedProcess {
    let path: CString = c_path(Path::new("/proc/self/exe"));
    GatedProcess::new(move || {
        let mut byte = 0u8;
        // SAFETY: reads one byte, which outlives the call.
        unsafe {
            let fd = libc::open(path.as_ptr(), libc::O_RDONLY);
            for _ in 0..reads {
                libc::pread(fd, (&raw mut byte).cast(), 1, 0);
            }
        }
        0
    })
}

fn fio<'a>(target: &'a Path, report: &'a Path) -> Fio<'a> {
    Fio { target, pattern: "randread", jobs: 2, requests: 5000, bytes: 4096, report }
}
