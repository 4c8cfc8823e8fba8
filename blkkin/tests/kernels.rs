//! What must hold in every kernel that blkkin is for: on this machine, and inside each guest of `xtask/src/vm`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;

use blkkin_tracer::AttachKind;
use serde_json::Value;

use support::disk::Disk;
use support::recording::{check_attach_kind, saw_all_ends, until_all_ends_seen};
use support::{needs, or_skip};

const DISK: u64 = 32 << 20;
/// Writes, then as many direct reads, of one block each.
const REQUESTS: u64 = 96;
const BLOCK: u64 = 4096;
/// Writes to one fsync.
const WRITES_A_SYNC: u64 = 8;
const JOURNAL: &str = "journal commit";

#[test]
fn doctor_finds_every_probe_at_work() {
    needs!();
    let run = common::run(&["doctor", "--json"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let said: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(said["works"], true, "{said:#}");
    for check in said["checks"].as_array().unwrap() {
        assert_eq!(check["status"], "ok", "{check:#}");
    }
    let probes = said["probes"].as_array().unwrap();
    assert_eq!(probes.len(), blkkin_tracer::attach::probes::PROBES.len());
    for probe in probes {
        assert_eq!((&probe["verdict"], &probe["attach"]), (&"works".into(), &"tp_btf".into()), "{probe:#}");
    }
    assert_each_kind_is_said(&said);
}

/// By tracepoints each probe works; by functions it does, or there is a reason why not.
fn assert_each_kind_is_said(said: &Value) {
    let of_kinds = said["kinds"].as_array().unwrap();
    let offered = AttachKind::ALL.map(|kind| (kind, check_attach_kind(kind).is_ok()));
    assert_eq!(of_kinds.len(), blkkin_tracer::attach::probes::PROBES.len());
    for probe in of_kinds {
        for (kind, offered) in offered {
            let one = &probe["kinds"][kind.name()];
            match one["result"].as_str().unwrap() {
                "works" => assert!(one["at"].is_string(), "{probe:#}"),
                "keeps" if kind.uses_functions() => assert!(one["reason"].is_string(), "{probe:#}"),
                "refused" if !offered => assert!(one["reason"].is_string(), "{probe:#}"),
                _ => panic!("{probe:#}"),
            }
        }
    }
}

#[test]
fn a_program_is_followed_by_typed_tracepoints() {
    followed_by("tp_btf");
}

#[test]
fn a_program_is_followed_by_raw_tracepoints() {
    followed_by("raw_tp");
}

#[test]
fn a_program_is_followed_by_functions_typed() {
    followed_by("fentry");
}

#[test]
fn a_program_is_followed_by_functions_untyped() {
    followed_by("kprobe");
}

/// Buffered writes with an fsync now and then, and direct reads, on ext4: calls as the program says, every request below
/// the call that caused it, nothing lost.
fn followed_by(kind: &str) {
    needs!("fio", "losetup", "mkfs.ext4");
    or_skip!(check_attach_kind(AttachKind::by_name(kind).unwrap()));
    let disk = or_skip!(Disk::ext4_with(DISK, &["-b", "4096"]));
    let file = disk.mount_point().join("data");
    fs::write(&file, vec![7u8; (REQUESTS * BLOCK) as usize]).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    // As in `until_complete`: an end that the kernel showed to no program is said, and makes it another run.
    let run = until_all_ends_seen(|| trace(kind, &file, &disk), |run| saw_all_ends(&run.report["losses"]));
    let losses = &run.report["losses"];
    assert_eq!((&losses["total"], &losses["balances"]), (&0.into(), &true.into()), "{losses:#}");
    // fio does not count the one at the end of its file (--end_fsync).
    let syncs = run.said["jobs"][0]["sync"]["total_ios"].as_u64().unwrap() + 1;
    assert_eq!(syncs, REQUESTS / WRITES_A_SYNC);
    for (call, count) in [("pwrite64", REQUESTS), ("fsync", syncs), ("pread64", REQUESTS)] {
        assert_eq!(run.count(call), count, "{call}: {:#}", run.report["calls"]);
    }
    let below = run.requests_below_calls(disk.name());
    println!("{below:?}");
    // A block each, none of them beside another that is asked for at the same time: nothing to merge. (A direct read may
    // also write: a page that is still dirty goes to the disk first.)
    assert_eq!(below[&("pread64", "request read")], REQUESTS, "{below:?}");
    assert!(!below.keys().any(|(call, _)| *call == "pwrite64"), "they are buffered: {below:?}");
    assert!(below[&("fsync", "request write")] >= syncs, "{below:?}");
    assert!(below.contains_key(&(JOURNAL, "request write")), "{below:?}");
    // The report has the commits' own beside the calls', and this one has only what is about the file.
    let calls =
        below.iter().filter(|((call, _), _)| *call != JOURNAL).map(|(_, requests)| requests).sum::<u64>();
    assert_eq!(calls, run.requests_at(disk.name()), "{below:?}");
}

/// A run of fio below blkkin.
struct Traced {
    /// fio's own account.
    said: Value,
    report: Value,
    /// Zipkin's spans.
    spans: Vec<Value>,
}

fn trace(kind: &str, file: &Path, disk: &Disk) -> Traced {
    let [account, report, spans] = ["fio.json", "report.json", "spans.json"].map(|name| disk.file(name));
    let (json, to) = (format!("--json={}", report.display()), format!("zipkin={}", spans.display()));
    let mut words: Vec<String> =
        ["run", "--attach", kind, &json, "--to", &to, "--path", file.to_str().unwrap(), "--"]
            .map(str::to_owned)
            .to_vec();
    words.extend(fio(file, &account));
    let run = common::run(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(run.code, Some(0), "{run:?}");
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let said = read(&account);
    Traced {
        // Remarks may stand before the object.
        said: serde_json::from_str(&said[said.find('{').unwrap()..]).unwrap(),
        report: serde_json::from_str(&read(&report)).unwrap(),
        spans: serde_json::from_str(&read(&spans)).unwrap(),
    }
}

/// Two jobs, one after the other.
fn fio(file: &Path, account: &Path) -> Vec<String> {
    let mut words = vec!["fio".to_owned(), "--output-format=json".to_owned(), "--eta=never".to_owned()];
    words.push(format!("--output={}", account.display()));
    for job in [
        format!("--name=write --rw=randwrite --fsync={WRITES_A_SYNC}"),
        "--stonewall --name=read --rw=randread --direct=1".to_owned(),
    ] {
        words.extend(job.split(' ').map(str::to_owned));
        let size = REQUESTS * BLOCK;
        words.extend([
            format!("--filename={}", file.display()),
            format!("--size={size}"),
            format!("--bs={BLOCK}"),
        ]);
        words.extend(["--ioengine=psync", "--allow_file_create=0", "--end_fsync=1"].map(str::to_owned));
    }
    words
}

impl Traced {
    fn count(&self, call: &str) -> u64 {
        let row = self.report["calls"].as_array().unwrap().iter().find(|row| row["call"] == call);
        row.map_or(0, |row| row["count"].as_u64().unwrap())
    }

    fn requests_at(&self, name: &str) -> u64 {
        let devices = self.report["devices"].as_array().unwrap().iter();
        let operations = devices
            .filter(|device| device["device"] == name)
            .flat_map(|d| d["operations"].as_array().unwrap());
        operations.map(|operation| operation["requests"].as_u64().unwrap()).sum()
    }

    /// How many requests of the device, by name, are below calls of each name, and of these how many a journal commit made for the
    /// call; one that is below none fails.
    fn requests_below_calls(&self, device: &str) -> HashMap<(&str, &str), u64> {
        let by_id: HashMap<_, _> = self.spans.iter().map(|span| (&span["id"], span)).collect();
        let mut below = HashMap::new();
        for request in self.spans.iter().filter(|span| span["localEndpoint"]["serviceName"] == device) {
            let (mut top, mut name) = (request, None);
            while let Some(parent) = top.get("parentId") {
                top = by_id.get(parent).unwrap_or_else(|| panic!("no parent of {top:#}"));
                name = name.or(Some(JOURNAL).filter(|journal| top["name"] == *journal));
            }
            assert_eq!(
                (&top["kind"], &top["traceId"]),
                (&"CLIENT".into(), &request["traceId"]),
                "{request:#}"
            );
            let words = (name.unwrap_or(top["name"].as_str().unwrap()), request["name"].as_str().unwrap());
            *below.entry(words).or_default() += 1;
        }
        below
    }
}
