//! The exporter with a file.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use blkkin_wire::clock::WallclockNs;
use blkkin_zipkin_export::{Destination, ExportConfig, ExportStats, Exporter};
use support::or_skip;
use support::spans::{fdatasync, spans};

const LONG: Duration = Duration::from_secs(60);
const START: WallclockNs = WallclockNs(1_700_000_000_123_456_789);
const TRACE: u128 = 0x0123_4567_89ab_cdef << 64 | 0x1001;

fn open(path: &Path) -> Exporter {
    Exporter::open(Destination::File(path.to_owned()), ExportConfig::default()).unwrap()
}

fn sound(stats: ExportStats) -> bool {
    stats.balances() && stats.pending == 0
}

/// The bytes are a contract: comparisons and replays of traces rely on them.
#[test]
fn bytes_are_as_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.json");
    let exporter = open(&path);
    exporter.offer(fdatasync(TRACE, START));
    assert_eq!(exporter.finish(LONG).sent, 4);
    let written = fs::read_to_string(&path).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/fdatasync.json");
    if std::env::var_os("BLKKIN_WRITE_GOLDEN").is_some() {
        fs::write(&golden, &written).unwrap();
    }
    assert_eq!(written, fs::read_to_string(&golden).unwrap());
}

#[test]
fn more_spans_than_the_queue_holds_are_all_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.json");
    let config = ExportConfig { queue_spans_max: 10, batch_spans_max: 7, ..ExportConfig::default() };
    let exporter = Exporter::open(Destination::File(path.clone()), config).unwrap();
    (0..20).for_each(|n| exporter.offer(spans(TRACE, n * 100 + 1, 100, START)));
    let stats = exporter.finish(LONG);
    assert_eq!((stats.sent, exporter.last_error()), (2000, None));
    assert!(sound(stats));
    let list: Vec<serde_json::Value> = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(list.len(), 2000);
    assert_eq!(list[1999]["id"], format!("{:016x}", 2000));
}

#[test]
fn nothing_offered_is_an_empty_list() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.json");
    assert!(sound(open(&path).finish(LONG)));
    assert_eq!(fs::read(&path).unwrap(), b"[\n]\n");
}

#[test]
fn dropped_exporter_leaves_no_final_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.json");
    drop(open(&path));
    assert!(!path.exists());
}

/// Environment variable with the path for the killed run.
const KILLED: &str = "BLKKIN_TEST_KILLED";

#[test]
fn killed_run_leaves_a_valid_list_of_written_spans() {
    if let Some(path) = std::env::var_os(KILLED) {
        return write_and_be_killed(Path::new(&path));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.json");
    let mut run = Command::new(std::env::current_exe().unwrap());
    run.args(["--exact", "killed_run_leaves_a_valid_list_of_written_spans"]).env(KILLED, &path);
    assert_eq!(run.output().unwrap().status.signal(), Some(libc::SIGKILL));
    assert!(!path.exists());
    let kept = fs::read(dir.path().join("x.json.partial")).unwrap();
    let list: Vec<serde_json::Value> = serde_json::from_slice(&kept).unwrap();
    assert_eq!(list.len(), 100);
}

fn write_and_be_killed(path: &Path) {
    let exporter = open(path);
    exporter.offer(spans(TRACE, 1, 100, START));
    while exporter.stats().sent < 100 {
        std::thread::yield_now();
    }
    // SAFETY: raise has no preconditions.
    unsafe { libc::raise(libc::SIGKILL) };
}

#[test]
fn unwritable_path_is_an_error_at_start() {
    for path in ["/proc/x.json", "/nowhere/x.json", "/dev/null"] {
        let opened = Exporter::open(Destination::File(path.into()), ExportConfig::default());
        let error = opened.err().unwrap().to_string();
        assert!(error.contains(path) && error.contains("; name a file"), "{error}");
    }
}

#[test]
fn full_disk_keeps_written_spans_and_counts_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mount) = or_skip(Mount::small(dir.path())) else { return };
    let path = dir.path().join("x.json");
    let config = ExportConfig { batch_spans_max: 50, ..ExportConfig::default() };
    let exporter = Exporter::open(Destination::File(path.clone()), config).unwrap();
    exporter.offer(spans(TRACE, 1, 5000, START));
    let stats = exporter.finish(LONG);
    assert!(sound(stats) && stats.sent > 0 && stats.dropped_undeliverable > 0, "{stats:?}");
    let error = exporter.last_error().unwrap();
    assert!(error.contains("No space left on device"), "{error}");
    assert!(error.contains(&format!("the {} spans before", stats.sent)), "{error}");
    assert!(!path.exists());
    let kept = fs::read(dir.path().join("x.json.partial")).unwrap();
    let list: Vec<serde_json::Value> = serde_json::from_slice(&kept).unwrap();
    assert_eq!(list.len() as u64, stats.sent);
}

/// A file system of 256 KiB.
struct Mount<'a>(&'a Path);

impl Mount<'_> {
    fn small(at: &Path) -> Result<Mount<'_>, String> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k", "blkkin-test"]).arg(at);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then_some(Mount(at)).ok_or_else(|| "a small file system cannot be mounted here".to_owned())
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}
