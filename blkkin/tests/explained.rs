//! The share of a disk's own byte count that a report explains.
//!
//! *Input*: `dd` on a file, direct and through the page cache. The disk's count comes from
//! `/sys/block/NAME/stat`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints what it recorded"
)]

mod common;
mod support;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Duration;

use serde_json::Value;

use support::disk::Disk;
use support::{needs, or_skip};

const DISK: u64 = 64 << 20;
const WRITTEN: u64 = 16 << 20;

const DIRECT: &str = "dd if=/dev/zero of=FILE bs=1M count=16 oflag=direct status=none";
const UNSYNCED: &str = "dd if=/dev/zero of=FILE bs=1M count=16 status=none";
const COPIED: &str = "dd if=/dev/urandom of=FILE bs=1M count=16 status=none; cp FILE FILE.copy; sync -f FILE";
const BUFFERED: &str = "dd if=/dev/zero of=FILE bs=1M count=16 status=none; sync -f FILE";

#[test]
fn direct_writes_are_explained_by_their_calls() {
    needs!("dd", "losetup", "mkfs.ext4");
    let row = explained(&or_skip!(Disk::ext4(DISK)), DIRECT, &[]);
    assert!(row.calls >= WRITTEN, "{row:?}");
    assert!(row.not_recorded * 100 <= row.bytes, "{row:?}");
}

/// Workers write the data while `sync` waits for them: no call of the command submits it.
#[test]
fn data_that_workers_write_is_explained_by_earlier_writes() {
    needs!("dd", "sync", "losetup", "mkfs.ext4");
    let row = explained(&or_skip!(Disk::ext4(DISK)), BUFFERED, &[]);
    assert!(row.earlier_writes >= WRITTEN, "{row:?}");
    assert_explained(&row);
}

#[test]
fn a_copy_is_explained() {
    needs!("cp", "dd", "sync", "losetup", "mkfs.ext4");
    let row = explained(&or_skip!(Disk::ext4(DISK)), COPIED, &[]);
    assert!(row.earlier_writes >= 2 * WRITTEN, "{row:?}");
    assert_explained(&row);
}

/// The command has exited when its data reach the disk.
#[test]
fn write_back_after_the_command_is_awaited() {
    needs!("dd", "losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let folder = File::open(disk.mount_point()).unwrap();
    let sync = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(3));
        // SAFETY: passes a number only.
        unsafe { libc::syncfs(folder.as_raw_fd()) }
    });
    let row = explained(&disk, UNSYNCED, &["--await-writeback", "60s"]);
    assert_eq!(sync.join().unwrap(), 0);
    assert!(row.earlier_writes >= WRITTEN, "{row:?}");
}

/// Of the disk's own count, at most one byte in a thousand has no cause.
fn assert_explained(row: &Row) {
    assert!((row.unknown + row.not_recorded) * 1_000 <= row.bytes, "{row:?}");
}

/// A filter of traces hides rows of the other tables, and explains no byte less.
#[test]
fn a_filter_of_traces_changes_no_share() {
    needs!("dd", "losetup", "mkfs.ext4");
    let row = explained(&or_skip!(Disk::ext4(DISK)), DIRECT, &["--slower-than", "1000s"]);
    assert!(row.calls >= WRITTEN, "{row:?}");
}

/// Row of the disk.
#[derive(Debug)]
struct Row {
    bytes: u64,
    calls: u64,
    earlier_writes: u64,
    unknown: u64,
    not_recorded: u64,
}

/// Runs the command line with a file of the disk for `FILE`, and returns the disk's row, which must
/// divide the bytes that the disk counted among the causes.
fn explained(disk: &Disk, command: &str, options: &[&str]) -> Row {
    let command = command.replace("FILE", disk.mount_point().join("file").to_str().unwrap());
    let before = disk.statistics();
    let run = common::run(&[&["run", "--json"], options, &["--", "sh", "-c", &command]].concat());
    let counted = disk.statistics().since(before).sectors * 512;
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stderr).unwrap();
    let row = report["explained"].as_array().unwrap().iter().find(|row| row["device"] == disk.name());
    println!("{}", row.unwrap());
    let part = |name: &str| row.unwrap()[name].as_u64().unwrap();
    let causes = [
        "calls",
        "faults",
        "earlier_writes",
        "journal",
        "metadata",
        "other_programs",
        "unknown",
        "not_recorded",
    ];
    let causes: u64 = causes.map(part).iter().sum();
    assert_eq!(part("bytes"), causes, "{report:#}");
    // The disk may have been busy before tracing began, and after it ended.
    assert!(part("bytes") <= counted && part("bytes") >= WRITTEN, "{counted} bytes counted: {row:?}");
    let [bytes, calls, earlier_writes, unknown, not_recorded] =
        ["bytes", "calls", "earlier_writes", "unknown", "not_recorded"].map(part);
    Row { bytes, calls, earlier_writes, unknown, not_recorded }
}
