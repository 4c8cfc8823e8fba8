//! SQLite with full durability on ext4: each sync has the writes and the flush that made it durable
//! as descendants or span links.
//!
//! *Input*: `sqlite3` with a rollback journal and with a write-ahead log. The number of each system
//! call is compared with `strace -c`.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use blkkin_aggregator::trace::Trace;
use blkkin_wire::event::RequestEvent;
use blkkin_wire::ids::FileId;
use blkkin_wire::syscalls::{SyscallClass, SyscallId};

use crate::support::disk::Disk;
use crate::support::gated_process::GatedProcess;
use crate::support::missed_ends::until_complete;
use crate::support::recording::{Recording, record_one};
use crate::support::tools::{capture, tool};
use crate::support::{needs, or_skip};

const DISK: u64 = 64 << 20;
/// Number of inserts, each of which is a durable transaction.
const INSERTS: usize = 30;

#[test]
fn syncs_of_a_rollback_journal_have_their_writes_and_flushes() {
    syncs("DELETE");
}

#[test]
fn syncs_of_a_write_ahead_log_have_their_writes_and_flushes() {
    syncs("WAL");
}

#[test]
fn strace_counts_the_same_with_a_rollback_journal() {
    counts("DELETE");
}

#[test]
fn strace_counts_the_same_with_a_write_ahead_log() {
    counts("WAL");
}

fn syncs(journal: &str) {
    needs!("sqlite3", "losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let mut round = 0;
    let recording = until_complete(|| {
        round += 1;
        trace(&disk, &folder(&disk, &format!("{round}")), journal)
    });
    let mut roots: Vec<_> = recording.traces.iter().filter(|trace| trace.call().is_some()).collect();
    roots.sort_by_key(|trace| trace.start());
    let mut dirty: HashSet<FileId> = HashSet::new();
    let mut checked = 0;
    for trace in roots {
        let call = trace.call().unwrap();
        let Some(file) = call.file.map(|open| open.file).filter(|file| file.device == disk.device()) else {
            continue;
        };
        match call.call.spec().class {
            SyscallClass::Write | SyscallClass::Truncate => {
                dirty.insert(file);
            }
            SyscallClass::Sync if dirty.remove(&file) => {
                assert_durable(trace, &disk);
                checked += 1;
            }
            _ => {}
        }
    }
    println!("{checked} syncs of changed files, {} commits", recording.commits().count());
    assert!(checked >= INSERTS, "only {checked} syncs");
}

/// Asserts that data was written and the device's cache flushed. The requests are the call's own,
/// those that its bios were merged into, and those of the commit that it waited for.
#[track_caller]
fn assert_durable(trace: &Trace, disk: &Disk) {
    let commits = trace.waited_for.iter().flat_map(|cause| &cause.trace.requests);
    let carried = trace.merged_into.iter().map(|carried| &carried.request);
    let requests: Vec<&RequestEvent> = trace.requests.iter().chain(carried).chain(commits).collect();
    assert!(requests.iter().all(|request| request.device == disk.device()), "{trace:#?}");
    assert!(
        requests.iter().any(|request| request.op.is_write() && request.bytes > 0),
        "no write: {trace:#?}"
    );
    assert!(requests.iter().any(|request| request.op.is_preflush()), "no flush: {trace:#?}");
    // Durable means that the requests completed before the call returned.
    let end = trace.end();
    assert!(requests.iter().all(|request| request.complete <= end), "a request ends too late: {trace:#?}");
}

fn counts(journal: &str) {
    needs!("sqlite3", "strace", "losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let recording = trace(&disk, &folder(&disk, "1"), journal);
    recording.assert_balanced();
    let mut by_blkkin: BTreeMap<String, u64> =
        recording.counts().into_iter().map(|(name, count)| (name.to_owned(), count as u64)).collect();
    let mut by_strace = strace(&disk, &folder(&disk, "2"), journal);
    // strace resolves the program's path itself; the traced process tries each folder of PATH.
    assert_eq!(by_strace.remove("execve"), Some(1));
    assert!(by_blkkin.remove("execve").is_some_and(|count| count >= 1));
    assert_eq!(by_blkkin, by_strace);
}

/// Returns strace's counts of the calls that blkkin traces.
fn strace(disk: &Disk, folder: &Path, journal: &str) -> BTreeMap<String, u64> {
    let table = disk.file("strace.txt");
    let mut command = tool("strace");
    command.args(["-f", "-c", "-o"]).arg(&table).args(args(folder, journal));
    capture(command.stdin(Stdio::null())).unwrap();
    let known: HashSet<&str> = SyscallId::all().map(SyscallId::name).collect();
    // % time, seconds, usecs/call, calls, errors (or nothing), name
    let rows = fs::read_to_string(table).unwrap();
    let rows = rows.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|args| args.last().is_some_and(|name| known.contains(name)))
        .map(|args| (args.last().unwrap().to_string(), args[3].parse().unwrap()))
        .collect()
}

fn trace(disk: &Disk, folder: &Path, journal: &str) -> Recording {
    let mut process = GatedProcess::program(&args(folder, journal), &disk.file("sqlite.out"));
    let recording = record_one(&mut process);
    let output = fs::read_to_string(disk.file("sqlite.out")).unwrap();
    assert!(output.ends_with(&format!("\n{INSERTS}\n")), "{output}");
    recording
}

fn folder(disk: &Disk, name: &str) -> PathBuf {
    let folder = disk.mount_point().join(name);
    fs::create_dir(&folder).unwrap();
    fs::File::open(&folder).unwrap().sync_all().unwrap();
    folder
}

fn args(folder: &Path, journal: &str) -> Vec<String> {
    let mut script =
        format!("PRAGMA journal_mode = {journal}; PRAGMA synchronous = FULL; CREATE TABLE t (a, b);");
    for row in 0..INSERTS {
        script += &format!("INSERT INTO t VALUES ({row}, zeroblob(2000));");
    }
    script += "SELECT count(*) FROM t;";
    let database = folder.join("t.db").to_str().unwrap().to_owned();
    ["sqlite3", "-batch", "-init", "/dev/null"]
        .map(str::to_owned)
        .into_iter()
        .chain([database, script])
        .collect()
}
