//! fired = recorded + dropped, kind by kind; and with rings of the usual size nothing is dropped.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::ffi::CString;
use std::path::Path;

use blkkin_tracer::TracerConfig;
use blkkin_wire::batch::RecordStats;
use serde_json::Value;

use support::actor::Actor;
use support::disk::Disk;
use support::fio::Fio;
use support::one::text;
use support::recording::record;
use support::{needs, or_skip};

/// The least that there is: a page, 25 calls.
const TOO_SMALL: usize = 4096;
/// Fits into a ring of the usual size even if nobody drains it: that nothing is lost does not hang on how fast this
/// machine is.
const CALLS: usize = 40_000;
const DISK: u64 = 64 << 20;

#[test]
fn a_ring_too_small_drops_calls_and_counts_each() {
    needs!();
    let mut actor = reader(CALLS);
    let recording =
        record(&TracerConfig { ring_bytes: Some(TOO_SMALL), ..TracerConfig::default() }, &mut [&mut actor]);
    recording.assert_balanced();
    let books = &recording.accounts;
    // One open and the reads: all of them known, whatever became of their records.
    let expected = CALLS as u64 + 1;
    assert_eq!((books.calls_entered, books.calls.fired), (expected, expected));
    assert!(books.calls.dropped > 0, "{books:#?}");
    assert_eq!(recording.calls().count() as u64, expected - books.calls.dropped);
    assert_eq!(books.lost(), books.calls.dropped + books.names.dropped, "{books:#?}");
}

#[test]
fn a_ring_too_small_drops_bios_and_requests_and_counts_each() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(DISK));
    let account = disk.beside("fio.json");
    let mut actor = Actor::program(&fio(disk.node(), &account).words(), &disk.beside("fio.out"));
    let recording =
        record(&TracerConfig { ring_bytes: Some(TOO_SMALL), ..TracerConfig::default() }, &mut [&mut actor]);
    recording.assert_balanced();
    let books = &recording.accounts;
    for (account, begun) in [(books.bios, books.bios_queued), (books.requests, books.requests_started)] {
        assert!(account.dropped > 0, "{books:#?}");
        assert!(begun >= account.fired && begun - account.fired <= books.ends_missed + 1, "{books:#?}");
    }
    // What lost its record is missed by name where another record tells of it.
    assert!(recording.traces.iter().any(|trace| trace.missing.bios > 0 || trace.missing.root));
}

#[test]
fn the_usual_rings_drop_nothing() {
    needs!();
    let (mut one, mut other) = (reader(CALLS / 2), reader(CALLS / 2));
    let recording = record(&TracerConfig::default(), &mut [&mut one, &mut other]);
    recording.assert_balanced();
    let dropped = |account: RecordStats| account.dropped;
    let books = &recording.accounts;
    let all = [books.calls, books.bios, books.requests, books.commits, books.names].map(dropped);
    assert_eq!(all, [0; 5], "{books:#?}");
    assert_eq!(books.lost(), 0, "{books:#?}");
}

#[test]
fn the_report_says_what_was_dropped() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(DISK));
    let (account, report) = (disk.beside("fio.json"), disk.beside("run.json"));
    let (fio, json) = (fio(disk.node(), &account), format!("--json={}", report.display()));
    let mut words = vec!["run", "--ring-size", "4K", &json, "--"];
    let command = fio.words();
    words.extend(command.iter().map(String::as_str));
    let run = common::run(&words);
    assert_eq!(run.code, Some(0), "{run:?}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    let losses = &report["losses"];
    let number = |name: &str| losses[name].as_u64().unwrap();
    let dropped: u64 = ["calls", "bios", "requests", "commits", "names"]
        .iter()
        .map(|kind| number(&format!("{kind}_dropped")))
        .sum();
    assert!(number("calls_dropped") > 0 && number("requests_dropped") > 0, "{losses:#}");
    assert_eq!(number("fired"), number("recorded") + dropped, "{losses:#}");
    assert_eq!(losses["balances"], true, "{losses:#}");
    assert!(number("total") >= dropped, "{losses:#}");
    let line = run.stderr.lines().find(|line| line.starts_with("lost: ")).unwrap();
    assert!(!line.contains("nothing"), "{line}");
}

/// Opens a file that is there and reads it so often.
fn reader(reads: usize) -> Actor {
    let path: CString = text(Path::new("/proc/self/exe"));
    Actor::new(move || {
        let mut byte = 0u8;
        // SAFETY: one byte, which outlives the call.
        unsafe {
            let fd = libc::open(path.as_ptr(), libc::O_RDONLY);
            for _ in 0..reads {
                libc::pread(fd, (&raw mut byte).cast(), 1, 0);
            }
        }
        0
    })
}

fn fio<'a>(target: &'a Path, account: &'a Path) -> Fio<'a> {
    Fio { target, pattern: "randread", jobs: 2, requests: 5000, bytes: 4096, account }
}
