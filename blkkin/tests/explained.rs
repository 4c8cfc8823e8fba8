//! The share of a disk's own byte count that a report explains.
//!
//! *Input*: `dd` on a file, direct and through the page cache; real programs on ext4, xfs and btrfs.
//! The disk's count comes from `/sys/block/NAME/stat`.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::Value;

use crate::common;
use crate::support::disk::{Disk, sync};
use crate::support::live::eventually;
use crate::support::metrics::{address, get, series, value};
use crate::support::missed_ends::{Missed, until_all_ends_seen};
use crate::support::postgres::Cluster;
use crate::support::service::Service;
use crate::support::tools::{capture, tool};
use crate::support::{needs, or_skip};

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
    let folder = disk.mount_point();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(3));
        sync(&folder);
    });
    let row = explained(&disk, UNSYNCED, &["--await-writeback", "60s"]);
    thread.join().unwrap();
    assert!(row.earlier_writes >= WRITTEN, "{row:?}");
}

/// The file system frees the blocks in a commit, and a worker discards them afterwards.
#[test]
fn discards_of_a_file_system_are_explained() {
    const WORK: &str = "discarded() { awk '{ print $14 }' /sys/block/DISK/stat; }; \
        dd if=/dev/zero of=FILE bs=1M count=16 status=none; sync -f FILE; before=$(discarded); \
        rm FILE; tries=0; \
        while sync -f FOLDER; [ $(discarded) -lt $((before + 32768)) ] && [ $tries -lt 300 ]; do sleep 0.1; tries=$((tries + 1)); done";
    needs!("losetup", "mkfs.ext4", "mount", "awk", "dd", "sync");
    let disk = or_skip!(Disk::ext4(DISK));
    let folder = disk.mount_point().display().to_string();
    // xfs ignores the option here, and btrfs discards inside the call that commits.
    capture(tool("mount").args(["-o", "remount,discard", &folder])).unwrap();
    let command = WORK.replace("FOLDER", &folder).replace("DISK", disk.name());
    let report = report(&disk, &command, &[]);
    assert_explained(&Row::of(&report, &disk));
    assert!(row_of(&report, &disk)["discards"].as_u64().unwrap() >= WRITTEN, "{report:#}");
}

/// Programs that write many files, sync or not, and write through a database.
const PROGRAMS: [(&str, &str); 5] = [
    ("cp", "cp -r TREE FILE.copy; sync -f FILE.copy"),
    ("tar", "mkdir FILE.tar; tar -C TREE -cf - . | tar -C FILE.tar -xf -; sync -f FILE.tar"),
    ("rsync", "rsync -a TREE/ FILE.rsync; sync -f FILE.rsync"),
    (
        "make",
        "mkdir FILE.make; cd FILE.make; for n in 1 2 3 4 5 6 7 8; do echo \"int f$n(void) { return $n; }\" >f$n.c; done; \
         echo 'int main(void) { return 0; }' >main.c; make -s -j2 main f1.o f2.o f3.o f4.o f5.o f6.o f7.o f8.o; sync -f .",
    ),
    (
        "sqlite3",
        "sqlite3 FILE.db 'PRAGMA mmap_size=268435456; PRAGMA journal_mode=WAL; CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT); \
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000) \
         INSERT INTO t SELECT i, hex(randomblob(50)) FROM n; PRAGMA wal_checkpoint(TRUNCATE); SELECT count(b) FROM t;' \
         >/dev/null; sync -f FILE.db",
    ),
];

#[test]
fn real_programs_are_explained_on_each_file_system() {
    needs!("losetup", "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "cp", "tar", "rsync", "make", "gcc", "sqlite3");
    let tree = concat!(env!("CARGO_MANIFEST_DIR"), "/../aggregator");
    for system in ["ext4", "xfs", "btrfs"] {
        for (program, command) in PROGRAMS {
            let disk = or_skip!(Disk::with_file_system(320 << 20, system));
            let row = Row::of(&report(&disk, &command.replace("TREE", tree), &[]), &disk);
            println!("{program} on {system}");
            assert!(row.bytes > 0, "{program} on {system}");
            assert_explained(&row);
        }
    }
}

/// The server's processes write the log and, at a checkpoint, the tables.
#[test]
fn a_database_with_checkpoints_is_explained() {
    const OPTIONS: &str = "-c listen_addresses= -c shared_buffers=16MB";
    const WORK: &str = "$PSQL -c 'set client_min_messages to warning' -c 'drop table if exists t' -c 'create table t(a int primary key, b text)' \
        -c 'insert into t select i, repeat(md5(i::text), 8) from generate_series(1, 20000) i' -c checkpoint \
        -c \"update t set b = b || 'x' where a % 3 = 0\" -c checkpoint; \
        $PSQL -Atc \"select pg_relation_filepath('t'), pg_relation_size('t'), pg_current_wal_lsn() - '0/0'\" >table";
    needs!("psql", "losetup", "mkfs.ext4", "setpriv");
    let cluster = or_skip!(Cluster::make(512 << 20));
    let report = report(&cluster.disk, &cluster.script(OPTIONS, WORK), &[]);
    assert_explained(&Row::of(&report, &cluster.disk));
    let table = fs::read_to_string(cluster.path("table")).unwrap();
    let [path, size, _] = table.trim().split('|').collect::<Vec<_>>()[..] else { panic!("{table}") };
    let written = |part: &str| -> u64 {
        let rows = report["written_by"]["rows"].as_array().unwrap().iter();
        let rows = rows.filter(|row| row["file"].as_str().unwrap().contains(part));
        rows.inspect(|row| assert_eq!(row["program"], "postgres"))
            .map(|row| row["bytes"].as_u64().unwrap())
            .sum()
    };
    println!("{table}: {} bytes of the table, {} of the log", written(path), written("/pg_wal/"));
    assert!(written(path) >= size.parse().unwrap(), "{report:#}");
    assert!(written("/pg_wal/") > 0, "{report:#}");
}

/// Bytes of the disk by an agent's account.
#[derive(Debug)]
struct AgentRow {
    /// Bounds of the disk's own count while the agent counted.
    range: RangeInclusive<u64>,
    counted: u64,
    /// Recorded bytes: all, unknown, of calls and of earlier writes.
    recorded: [u64; 4],
    /// Line of /health.
    line: String,
    missed: Missed,
}

impl AgentRow {
    fn is_explained(&self) -> bool {
        let [all, unknown, ..] = self.recorded;
        self.range.contains(&self.counted) && all - unknown >= self.counted - self.counted / 1_000
    }
}

/// An agent has no whole traces. Its metrics and /health divide each disk's own count all the same.
#[test]
fn an_agent_states_the_share_of_each_disk() {
    needs!("dd", "sync", "losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let row = until_all_ends_seen(|| agent_row(&disk), |row| vec![row.missed]);
    println!("{row:?}");
    assert!(row.is_explained(), "{row:?}");
    let [all, _, calls, earlier] = row.recorded;
    assert!(all <= *row.range.end() && calls >= 2 * WRITTEN && earlier >= WRITTEN, "{row:?}");
    assert!(row.line.contains(": 100.0 % of ") && row.line.contains("earlier writes "), "{row:?}");
}

fn agent_row(disk: &Disk) -> AgentRow {
    const WORK: &str = "dd if=/dev/zero of=FILE bs=1M count=16 oflag=direct status=none; \
        dd if=/dev/zero of=FILE.buffered bs=1M count=16 status=none; sync -f FILE; \
        dd if=FILE of=/dev/null bs=1M iflag=direct status=none";
    remove_files(disk);
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording");
    let before_agent = disk.statistics();
    let args = ["agent", "--record", recording.to_str().unwrap(), "--metrics", "127.0.0.1:0"];
    let agent = Service::start(folder.path(), "agent", &args);
    agent.wait_for_output("tracing; events go", Duration::from_secs(60));
    let before_work = disk.statistics();
    let work = WORK.replace("FILE", disk.mount_point().join("file").to_str().unwrap());
    capture(tool("sh").args(["-c", &work])).unwrap();
    let address = address(&agent.output()).to_owned();
    let sample = || {
        let at_least = disk.statistics().since(before_work).sectors * 512;
        let text = get(&address, "/metrics");
        let metrics = series(&text);
        let bytes = |family: &str, cause: &str| -> u64 {
            let is_wanted = |labels: &BTreeMap<String, String>| {
                labels["__name__"] == family
                    && labels["disk"] == disk.name()
                    && labels.get("cause").is_none_or(|of| cause.is_empty() || of == cause)
            };
            metrics.iter().filter(|(labels, _)| is_wanted(labels)).map(|(_, bytes)| *bytes as u64).sum()
        };
        let incomplete = |reason: &str| {
            value(&text, &format!("blkkin_records_incomplete_total{{reason=\"{reason}\"}}")) as u64
        };
        let health = get(&address, "/health");
        let line = health.lines().find(|line| line.starts_with(&format!("{}: ", disk.name())));
        AgentRow {
            range: at_least..=disk.statistics().since(before_agent).sectors * 512,
            counted: bytes("blkkin_disk_counted_bytes_total", ""),
            recorded: ["", "unknown", "calls", "earlier writes"]
                .map(|cause| bytes("blkkin_disk_bytes_total", cause)),
            line: line.unwrap_or_default().to_owned(),
            missed: Missed {
                ends: incomplete("end missed"),
                in_flight: 0,
                skipped: incomplete("program skipped"),
            },
        }
    };
    // A sample is up to a second old, and may be taken before a busy machine has read all records.
    let mut row = sample();
    eventually(|| {
        row = sample();
        row.is_explained()
    });
    agent.finish_without_error();
    row
}

/// Removes what an earlier run has written, so that its command can run again.
fn remove_files(disk: &Disk) {
    for entry in fs::read_dir(disk.mount_point()).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with("file") {
            let path = entry.path();
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
        }
    }
    sync(&disk.mount_point());
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
    let row = Row::of(&report(disk, command, options), disk);
    assert!(row.bytes >= WRITTEN, "{row:?}");
    row
}

/// Returns the disk's row of the report.
fn row_of<'r>(report: &'r Value, disk: &Disk) -> &'r Value {
    let rows = report["explained"].as_array().unwrap();
    rows.iter().find(|row| row["device"] == disk.name()).unwrap()
}

/// Runs the command line, and returns the report. Its row of the disk must divide the bytes that the
/// disk counted.
fn report(disk: &Disk, command: &str, options: &[&str]) -> Value {
    let command = command.replace("FILE", disk.mount_point().join("file").to_str().unwrap());
    let args = [&["run", "--json"], options, &["--", "sh", "-c", &command]].concat();
    // The bytes of a bio whose end was missed are not recorded.
    let run = || {
        remove_files(disk);
        let before = disk.statistics();
        let run = common::run(&args);
        let counted = disk.statistics().since(before).sectors * 512;
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        (counted, serde_json::from_str::<Value>(&run.stderr).unwrap())
    };
    let (counted, report) = until_all_ends_seen(run, |(_, report)| vec![Missed::in_report(report)]);
    let row = row_of(&report, disk);
    println!("{row}");
    let part = |name: &str| row[name].as_u64().unwrap();
    let causes = [
        "calls",
        "faults",
        "earlier_writes",
        "journal",
        "metadata",
        "discards",
        "other_programs",
        "unknown",
        "not_recorded",
    ];
    let causes: u64 = causes.map(part).iter().sum();
    assert_eq!(part("bytes"), causes, "{report:#}");
    // The disk may have been busy before tracing began, and after it ended.
    assert!(part("bytes") <= counted, "{counted} bytes counted: {row:?}");
    report
}

impl Row {
    fn of(report: &Value, disk: &Disk) -> Row {
        let row = row_of(report, disk);
        let part = |name: &str| row[name].as_u64().unwrap();
        let [bytes, calls, earlier_writes, unknown, not_recorded] =
            ["bytes", "calls", "earlier_writes", "unknown", "not_recorded"].map(part);
        Row { bytes, calls, earlier_writes, unknown, not_recorded }
    }
}
