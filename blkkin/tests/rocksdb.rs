//! RocksDB with direct reads on ext4: flushes, compactions, the log and the reads of its user are separate,
//! at the calls and at the disk.
//!
//! *Input*: `db_bench` fills a database, compacts it and reads it. RocksDB's flush threads are called
//! `rocksdb:high`, its compaction threads `rocksdb:low`. *Independent count*: RocksDB's own statistics of the
//! same run, in bytes.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use serde_json::Value;

use crate::common;
use crate::support::disk::{Disk, sync};
use crate::support::missed_ends::{Missed, until_all_ends_seen};
use crate::support::nbd::spans;
use crate::support::{needs, or_skip};

const DISK: u64 = 256 << 20;
const BLOCK: u64 = 4096;
const PUTS: u64 = 20_000;
/// Bytes of a record's header in the log (rocksdb/db/log_format.h, `kHeaderSize`).
const LOG_HEADER: u64 = 7;
const USER: &str = "db_bench";
const FLUSH: &str = "rocksdb:high";
const COMPACTION: &str = "rocksdb:low";

#[test]
fn flushes_compactions_and_reads_have_the_bytes_that_rocksdb_counts() {
    needs!("db_bench", "losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let run = until_all_ends_seen(|| Traced::make(&disk), |run| vec![Missed::in_report(&run.report)]);
    println!("{:?}\n{:?}", run.calls, run.at_disk);
    assert_eq!(run.report["losses"]["total"], 0, "{:#}", run.report["losses"]);

    // RocksDB counts a flush's record in the manifest as a part of the flush.
    let flushed = run.called("write", FLUSH, "sst");
    assert_eq!(flushed + run.called("write", FLUSH, "manifest"), run.counted("flush.write.bytes"));
    let compacted = run.called("write", COMPACTION, "sst");
    assert_eq!(compacted, run.counted("compact.write.bytes"));
    // Not counted by RocksDB: footers and properties, which a compaction reads when it opens its files.
    let (input, counted) = (run.called("pread64", COMPACTION, "sst"), run.counted("compact.read.bytes"));
    assert!((counted..=counted + counted / 100).contains(&input), "{input} {counted}");
    // A record that crosses a block of the log has a header in each, and the rest of a block may stay empty.
    let (log, counted) = (run.called("write", USER, "log"), run.counted("wal.bytes") + PUTS * LOG_HEADER);
    assert!((counted..=counted + counted / 1_000).contains(&log), "{log} {counted}");

    // Direct reads: the disk reads what the calls ask for, in whole blocks, and for the same threads.
    for thread in [USER, COMPACTION] {
        let (asked, read) = (run.called("pread64", thread, "sst"), run.of_disk("bio read", thread, "sst"));
        let blocks = run.calls.get(&key("pread64", thread, "sst")).map_or(0, |(count, _)| count * BLOCK);
        assert!((asked..=asked + blocks).contains(&read), "{thread}: {asked} {read}");
    }
    // A flush and a compaction sync their files. A commit may write out some blocks before.
    let commits = run.of_disk("bio write", "journal", "sst");
    for (thread, written) in [(FLUSH, flushed), (COMPACTION, compacted)] {
        let synced = run.of_disk("bio write", thread, "sst");
        let files = run.calls.get(&key("fdatasync", thread, "sst")).map_or(0, |(count, _)| count * BLOCK);
        assert!(synced <= written + files && synced + commits >= written, "{thread}: {written} {synced}");
    }
    let row = run.report["explained"].as_array().unwrap().iter().find(|row| row["device"] == disk.name());
    let part = |name: &str| row.unwrap()[name].as_u64().unwrap();
    assert!((part("unknown") + part("not_recorded")) * 1_000 <= part("bytes"), "{row:?}");
}

/// Kind of span, thread, and kind of file.
type Key = (String, String, String);

fn key(name: &str, thread: &str, file: &str) -> Key {
    (name.to_owned(), thread.to_owned(), file.to_owned())
}

/// A traced run of `db_bench`.
struct Traced {
    report: Value,
    /// RocksDB's statistics.
    statistics: String,
    /// Calls with their number, and the bytes that they transferred.
    calls: BTreeMap<Key, (u64, u64)>,
    /// Bytes of the disk's bios, by the thread of the call above them, or by `journal`.
    at_disk: BTreeMap<Key, u64>,
}

impl Traced {
    fn make(disk: &Disk) -> Traced {
        const WORK: &str = "db_bench --benchmarks=fillrandom,compact,readrandom --num=PUTS --reads=2000 --value_size=400 \
            --write_buffer_size=1048576 --target_file_size_base=1048576 --max_bytes_for_level_base=2097152 \
            --compression_type=none --use_direct_reads=true --statistics --db=DB >OUT 2>&1; sync -f DB";
        let database = disk.mount_point().join("db");
        let _ = fs::remove_dir_all(&database);
        sync(&disk.mount_point());
        let [report, spans_file, output] =
            ["report.json", "spans.json", "db_bench.out"].map(|name| disk.file(name));
        let work = WORK.replace("PUTS", &PUTS.to_string()).replace("DB", database.to_str().unwrap());
        let work = work.replace("OUT", output.to_str().unwrap());
        let (json, to) = (format!("--json={}", report.display()), format!("zipkin={}", spans_file.display()));
        common::run(&["run", &json, "--to", &to, "--", "sh", "-c", &work]).expect_code(0);
        let mut traced = Traced {
            report: serde_json::from_slice(&fs::read(&report).unwrap()).unwrap(),
            statistics: fs::read_to_string(&output).unwrap(),
            calls: BTreeMap::new(),
            at_disk: BTreeMap::new(),
        };
        traced.add(&spans(spans_file.parent().unwrap()), disk.name());
        traced
    }

    fn add(&mut self, spans: &[Value], disk: &str) {
        let by_id: HashMap<&str, &Value> =
            spans.iter().map(|span| (span["id"].as_str().unwrap(), span)).collect();
        for span in spans {
            let (name, tags) = (span["name"].as_str().unwrap(), &span["tags"]);
            // The span of the file system's part has the same name, and no thread.
            if let ("write" | "pread64" | "fdatasync", Some(thread)) = (name, tags["thread.name"].as_str()) {
                let key = key(name, thread, file_kind(tags));
                let transferred = tags["blkkin.bytes"].as_str().map_or(0, |bytes| bytes.parse().unwrap());
                let (count, bytes) = self.calls.entry(key).or_default();
                (*count, *bytes) = (*count + 1, *bytes + transferred);
            }
            if ["bio read", "bio write"].contains(&name) && tags["system.device"] == disk {
                let mut above = span;
                while above["tags"]["thread.name"].is_null() {
                    above = by_id[above["parentId"].as_str().unwrap()];
                }
                let thread = above["tags"]["thread.name"].as_str().unwrap();
                let thread = if thread.starts_with("jbd2/") { "journal" } else { thread };
                // A bio of an earlier write has its own file, a direct one that of its call.
                let file = if tags["file.path"].is_null() { &above["tags"] } else { tags };
                let bytes: u64 = tags["blkkin.bytes"].as_str().unwrap().parse().unwrap();
                *self.at_disk.entry(key(name, thread, file_kind(file))).or_default() += bytes;
            }
        }
    }

    /// Returns the bytes of RocksDB's own count of this name.
    fn counted(&self, name: &str) -> u64 {
        let prefix = format!("rocksdb.{name} COUNT : ");
        let count = self.statistics.lines().find_map(|line| line.strip_prefix(&prefix));
        count.unwrap_or_else(|| panic!("no {name}:\n{}", self.statistics)).trim().parse().unwrap()
    }

    fn called(&self, call: &str, thread: &str, file: &str) -> u64 {
        self.calls.get(&key(call, thread, file)).map_or(0, |(_, bytes)| *bytes)
    }

    fn of_disk(&self, bio: &str, thread: &str, file: &str) -> u64 {
        self.at_disk.get(&key(bio, thread, file)).copied().unwrap_or(0)
    }
}

/// Returns the kind of a RocksDB file: table (`sst`), log of writes (`log`), `manifest`, or another one.
fn file_kind(tags: &Value) -> &'static str {
    let path = tags["file.path"].as_str().unwrap_or_default();
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let (_, name) = path.rsplit_once('/').unwrap_or_default();
    match name.rsplit_once('.') {
        Some((_, "sst")) => "sst",
        Some((_, "log")) => "log",
        _ if name.starts_with("MANIFEST-") => "manifest",
        _ => "other",
    }
}
