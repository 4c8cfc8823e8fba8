//! Destinations that fail while `blkkin run` traces a command: the exit status is the command's,
//! and spans that were not delivered are counted and reported.
//!
//! *Input*: a real `tmpfs` of 256 KiB that fills up, and a closed TCP port. The loss is checked in
//! two places: the text on standard error and the JSON report.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::common;
use crate::common::Run;
use crate::support::recording::assert_calls_not_lost;
use crate::support::tmpfs::Tmpfs;
use crate::support::{needs, or_skip};

/// Exit status of the traced command.
const STATUS: i32 = 7;
/// Each `cat` makes about twenty calls, and each call is a span of some hundred bytes of JSON. The
/// sum does not fit on the small disk.
const SCRIPT: &str = "i=0; while [ $i -lt 100 ]; do cat /etc/hostname > /dev/null; i=$((i+1)); done; exit 7";

#[test]
fn a_full_disk() {
    needs!();
    let full = or_skip!(small_disk());
    let file = full.path().join("trace.json");
    let folder = tempfile::tempdir().unwrap();
    let destination = format!("zipkin={}", file.display());
    let (run, losses) = run_to(&destination, folder.path());
    assert_lost(&run, &losses, &destination);
    assert!(run.stderr.contains("No space left"), "{}", run.stderr);
    assert!(run.stderr.contains("try: a file on a disk that has room"), "{}", run.stderr);
    assert!(!run.stderr.contains("spans sent to"), "there is no such file: {}", run.stderr);
    assert!(run.stderr.contains("trace.json.partial") && !file.exists(), "{}", run.stderr);
}

/// A truncated report would look like a broken one, so the file is emptied.
#[test]
fn a_report_that_does_not_fit_leaves_an_empty_file() {
    needs!();
    let full = or_skip!(small_disk());
    let (room, file) = (full.path().join("room"), full.path().join("report.json"));
    std::fs::write(&room, vec![0; 252 << 10]).unwrap();
    let json = format!("--json={}", file.display());
    let run = common::run(&["run", &json, "--", "sh", "-c", SCRIPT]);
    assert_eq!(run.code, Some(STATUS), "{run:?}");
    assert!(run.stderr.contains("cannot write"), "{run:?}");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 0);
}

#[test]
fn an_unreachable_server() {
    needs!();
    // A port that was free a moment ago and has no listener.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    let destination = format!("zipkin=http://127.0.0.1:{port}");
    let (run, losses) = run_to(&destination, folder.path());
    assert_lost(&run, &losses, &destination);
}

/// A destination that works receives valid JSON, and no span counts as lost.
#[test]
fn a_file_that_can_be_written() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let (run, losses) = run_to(&format!("zipkin={}", file.display()), folder.path());
    assert_eq!((run.code, &losses["spans_dropped"]), (Some(STATUS), &0.into()));
    assert_calls_not_lost(&losses);
    let spans: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let spans = spans.as_array().unwrap().len();
    assert!(spans > 1000, "{spans}");
    assert!(run.stderr.contains("spans sent to"), "{}", run.stderr);
}

fn run_to(destination: &str, folder: &Path) -> (Run, Value) {
    let report = folder.join("report.json");
    let json = format!("--json={}", report.display());
    let run = common::run(&["run", "--to", destination, &json, "--", "sh", "-c", SCRIPT]);
    let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    (run, report["losses"].clone())
}

#[track_caller]
fn assert_lost(run: &Run, losses: &Value, destination: &str) {
    assert_eq!(run.code, Some(STATUS), "{run:?}");
    let dropped = losses["spans_dropped"].as_u64().unwrap();
    assert!(dropped > 0, "{losses:#}");
    assert!(losses["total"].as_u64().unwrap() >= dropped, "{losses:#}");
    let message = run.stderr.lines().find(|line| line.contains("spans were not delivered to")).unwrap();
    assert!(message.contains(destination.trim_start_matches("zipkin=")), "{message}");
    assert!(message.contains(&format!("blkkin: {dropped} of ")), "{message}");
    let summary = run.stderr.lines().find(|line| line.starts_with("lost: ")).unwrap();
    assert!(!summary.contains("nothing"), "{summary}");
}

/// A `tmpfs` of 256 KiB.
fn small_disk() -> Result<Tmpfs, String> {
    static CREATED: AtomicU32 = AtomicU32::new(0);
    let number = CREATED.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("blkkin-full-{}-{number}", std::process::id()));
    Tmpfs::mount(path, "256k")
}
