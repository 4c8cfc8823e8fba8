//! Requirements that hold in every supported kernel: on this machine, and in each guest of
//! `xtask/src/vm`.
//!
//! *Input*: buffered writes with fsync, and direct reads, by fio on an ext4. The calls are compared
//! with fio's own counts, the requests with the number of blocks.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use blkkin_tracer::AttachKind;
use blkkin_tracer::attach::probes::{ASYNC_PROBES, PROBES};
use serde_json::Value;

use crate::common;
use crate::support::disk::{self, Disk};
use crate::support::missed_ends::{Missed, until_all_ends_seen};
use crate::support::recording::{check_attach_kind, is_in_module};
use crate::support::{needs, or_skip};

const DISK: u64 = 32 << 20;
/// Writes, followed by as many direct reads, of one block each.
const REQUESTS: u64 = 96;
const BLOCK: u64 = 4096;
/// Writes per fsync.
const WRITES_A_SYNC: u64 = 8;
const JOURNAL: &str = "journal commit";
/// The kernel's worker writes pages of a file that has been dirty for 30 s (vm.dirty_expire_centisecs): in
/// a slow guest, before fio's fsync.
const WRITE_BACK: &str = "write back file";

#[test]
fn doctor_finds_every_probe_at_work() {
    needs!();
    let run = common::run(&["doctor", "--json"]).expect_code(0);
    let output: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(output["works"], true, "{output:#}");
    for check in output["checks"].as_array().unwrap() {
        assert_eq!(check["status"], "ok", "{check:#}");
    }
    let probes = output["probes"].as_array().unwrap();
    assert_eq!(probes.len(), PROBES.len() + ASYNC_PROBES.len());
    for probe in probes {
        let kind = if is_in_module(probe["name"].as_str().unwrap()) { "raw_tp" } else { "tp_btf" };
        assert_eq!((&probe["verdict"], &probe["attach"]), (&"works".into(), &kind.into()), "{probe:#}");
    }
    assert_each_kind_has_a_result(&output);
}

/// Each probe works by tracepoints; by functions it works or there is a reason why not.
fn assert_each_kind_has_a_result(output: &Value) {
    let kinds = output["kinds"].as_array().unwrap();
    let offered = AttachKind::ALL.map(|kind| (kind, check_attach_kind(kind).is_ok()));
    assert_eq!(kinds.len(), PROBES.len());
    for probe in kinds {
        let in_module = is_in_module(probe["name"].as_str().unwrap_or_default());
        for (kind, offered) in offered {
            let one = &probe["kinds"][kind.name()];
            match one["result"].as_str().unwrap() {
                "works" => assert!(one["at"].is_string(), "{probe:#}"),
                "keeps" if kind.uses_functions() => assert!(one["reason"].is_string(), "{probe:#}"),
                "refused" if !offered || in_module => assert!(one["reason"].is_string(), "{probe:#}"),
                _ => panic!("{probe:#}"),
            }
        }
    }
}

#[test]
fn a_program_is_traced_by_typed_tracepoints() {
    assert_traced_by("tp_btf");
}

#[test]
fn a_program_is_traced_by_raw_tracepoints() {
    assert_traced_by("raw_tp");
}

#[test]
fn a_program_is_traced_by_typed_functions() {
    assert_traced_by("fentry");
}

#[test]
fn a_program_is_traced_by_untyped_functions() {
    assert_traced_by("kprobe");
}

/// Buffered writes with fsync, and direct reads, on ext4. Calls agree with fio, every request is a
/// descendant of the call that caused it, and no record is lost.
fn assert_traced_by(kind: &str) {
    needs!("fio", "losetup", "mkfs.ext4");
    or_skip!(check_attach_kind(AttachKind::by_name(kind).unwrap()));
    let disk = or_skip!(Disk::ext4_with(DISK, &["-b", "4096"]));
    let file = disk.mount_point().join("data");
    fs::write(&file, vec![7u8; (REQUESTS * BLOCK) as usize]).unwrap();
    // Unlike an fsync, it makes the inode clean: its 30 s begin with fio's first write.
    disk::sync(&disk.mount_point());
    let missed = |run: &Traced| vec![Missed::in_report(&run.report)];
    let run = until_all_ends_seen(|| trace(kind, &file, &disk), missed);
    let losses = &run.report["losses"];
    assert_eq!((&losses["total"], &losses["balances"]), (&0.into(), &true.into()), "{losses:#}");
    // fio does not count the one at the end of its file (--end_fsync).
    let syncs = run.output["jobs"][0]["sync"]["total_ios"].as_u64().unwrap() + 1;
    assert_eq!(syncs, REQUESTS / WRITES_A_SYNC);
    for (call, count) in [("pwrite64", REQUESTS), ("fsync", syncs), ("pread64", REQUESTS)] {
        assert_eq!(run.count(call), count, "{call}: {:#}", run.report["calls"]);
    }
    let by_call = run.requests_by_call(disk.name());
    println!("{by_call:?}");
    // One block each, and no adjacent blocks in flight, so nothing is merged. (A direct read may
    // also write: a dirty page goes to the disk first.)
    assert_eq!(by_call[&("pread64", "request read")], REQUESTS, "{by_call:?}");
    assert!(!by_call.keys().any(|(call, _)| *call == "pwrite64"), "writes are buffered: {by_call:?}");
    let by_workers = by_call.get(&(WRITE_BACK, "request write")).copied().unwrap_or_default();
    assert!(by_call[&("fsync", "request write")] + by_workers >= syncs, "{by_call:?}");
    assert!(by_call.contains_key(&(JOURNAL, "request write")), "{by_call:?}");
    // The report counts the commits' requests separately, and only those of this file's calls here.
    let calls =
        by_call.iter().filter(|((call, _), _)| *call != JOURNAL).map(|(_, requests)| requests).sum::<u64>();
    assert_eq!(calls, run.requests_at(disk.name()), "{by_call:?}");
}

/// Result of a run of fio under `blkkin run`.
struct Traced {
    /// Output of fio.
    output: Value,
    report: Value,
    /// Zipkin's spans.
    spans: Vec<Value>,
}

fn trace(kind: &str, file: &Path, disk: &Disk) -> Traced {
    let [account, report, spans] = ["fio.json", "report.json", "spans.json"].map(|name| disk.file(name));
    let (json, to) = (format!("--json={}", report.display()), format!("zipkin={}", spans.display()));
    let mut args: Vec<String> =
        ["run", "--attach", kind, &json, "--to", &to, "--path", file.to_str().unwrap(), "--"]
            .map(str::to_owned)
            .to_vec();
    args.extend(fio(file, &account));
    common::run(&args.iter().map(String::as_str).collect::<Vec<_>>()).expect_code(0);
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let output = read(&account);
    Traced {
        // fio may print remarks before the object.
        output: serde_json::from_str(&output[output.find('{').unwrap()..]).unwrap(),
        report: serde_json::from_str(&read(&report)).unwrap(),
        spans: serde_json::from_str(&read(&spans)).unwrap(),
    }
}

/// Builds fio's command with two jobs, one after the other.
fn fio(file: &Path, account: &Path) -> Vec<String> {
    let mut args = vec!["fio".to_owned(), "--output-format=json".to_owned(), "--eta=never".to_owned()];
    args.push(format!("--output={}", account.display()));
    for job in [
        format!("--name=write --rw=randwrite --fsync={WRITES_A_SYNC}"),
        "--stonewall --name=read --rw=randread --direct=1".to_owned(),
    ] {
        args.extend(job.split(' ').map(str::to_owned));
        let size = REQUESTS * BLOCK;
        args.extend([
            format!("--filename={}", file.display()),
            format!("--size={size}"),
            format!("--bs={BLOCK}"),
        ]);
        args.extend(["--ioengine=psync", "--allow_file_create=0", "--end_fsync=1"].map(str::to_owned));
    }
    args
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

    /// Counts the device's requests by name of the call and of the request. Requests that a journal
    /// commit made are under `JOURNAL`, those of write-back under `WRITE_BACK`. Panics for any other request
    /// without a call. A commit for which no call waits is a root: ext4 starts one when the oldest change
    /// is 5 s old (mount option `commit`), in a slow guest before fio's next fsync.
    fn requests_by_call(&self, device: &str) -> HashMap<(&str, &str), u64> {
        let by_id: HashMap<_, _> = self.spans.iter().map(|span| (&span["id"], span)).collect();
        let mut by_call = HashMap::new();
        for request in self.spans.iter().filter(|span| span["localEndpoint"]["serviceName"] == device) {
            let (mut top, mut name) = (request, None);
            while let Some(parent) = top.get("parentId") {
                top = by_id.get(parent).unwrap_or_else(|| panic!("no parent of {top:#}"));
                name = name.or(Some(JOURNAL).filter(|journal| top["name"] == *journal));
            }
            let without_call = [WRITE_BACK, JOURNAL].iter().any(|name| top["name"] == *name);
            let kind = if without_call { "SERVER" } else { "CLIENT" };
            assert_eq!(
                (&top["kind"], &top["traceId"]),
                (&kind.into(), &request["traceId"]),
                "{top:#} {request:#}"
            );
            let key = (name.unwrap_or(top["name"].as_str().unwrap()), request["name"].as_str().unwrap());
            *by_call.entry(key).or_default() += 1;
        }
        by_call
    }
}
