//! Destinations that fail while a command runs: its status is its own, and what did not arrive is counted and said.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use common::Run;
use support::recording::assert_calls_not_lost;
use support::tools::{capture, tool};
use support::{needs, or_skip};

/// CMD's own status.
const STATUS: i32 = 7;
/// Each cat is some twenty calls, each call a span of some hundred bytes as JSON: more than fits into the small disk.
const SCRIPT: &str = "i=0; while [ $i -lt 100 ]; do cat /etc/hostname > /dev/null; i=$((i+1)); done; exit 7";

#[test]
fn a_full_disk() {
    needs!();
    let full = or_skip!(SmallDisk::mount());
    let file = full.0.join("trace.json");
    let folder = tempfile::tempdir().unwrap();
    let destination = format!("zipkin={}", file.display());
    let (run, losses) = run_to(&destination, folder.path());
    assert_lost(&run, &losses, &destination);
    assert!(run.stderr.contains("No space left"), "{}", run.stderr);
    assert!(run.stderr.contains("try: a file on a disk that has room"), "{}", run.stderr);
    assert!(!run.stderr.contains("spans sent to"), "there is no such file: {}", run.stderr);
    assert!(run.stderr.contains("trace.json.partial") && !file.exists(), "{}", run.stderr);
}

/// Half a report would read as a broken one.
#[test]
fn a_report_for_which_there_is_no_room_is_not_left_in_half() {
    needs!();
    let full = or_skip!(SmallDisk::mount());
    let (room, file) = (full.0.join("room"), full.0.join("report.json"));
    std::fs::write(&room, vec![0; 252 << 10]).unwrap();
    let json = format!("--json={}", file.display());
    let run = common::run(&["run", &json, "--", "sh", "-c", SCRIPT]);
    assert_eq!(run.code, Some(STATUS), "{run:?}");
    assert!(run.stderr.contains("cannot write"), "{run:?}");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 0);
}

#[test]
fn a_server_that_is_away() {
    needs!();
    // A port that was free a moment ago and that nobody listens on.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    let destination = format!("zipkin=http://127.0.0.1:{port}");
    let (run, losses) = run_to(&destination, folder.path());
    assert_lost(&run, &losses, &destination);
}

/// What arrives is whole JSON and nothing of it is counted as lost.
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
    let said = run.stderr.lines().find(|line| line.contains("spans were not delivered to")).unwrap();
    assert!(said.contains(destination.trim_start_matches("zipkin=")), "{said}");
    assert!(said.contains(&format!("blkkin: {dropped} of ")), "{said}");
    let table = run.stderr.lines().find(|line| line.starts_with("lost: ")).unwrap();
    assert!(!table.contains("nothing"), "{table}");
}

/// 256 KiB, in memory.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount() -> Result<SmallDisk, String> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("blkkin-full-{}-{number}", std::process::id()));
        fs::create_dir(&path).map_err(|error| error.to_string())?;
        let disk = SmallDisk(path);
        capture(tool("mount").args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(&disk.0))?;
        Ok(disk)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = capture(tool("umount").arg(&self.0)).inspect_err(|error| println!("{error}"));
        let _ = fs::remove_dir(&self.0);
    }
}
