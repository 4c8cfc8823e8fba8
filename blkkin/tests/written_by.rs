//! Statements of a report and of the spans of a run about write-back.
//!
//! *Input*: `dd` through the page cache with a later `sync`, whose data the kernel's worker submits;
//! and another program that writes to the same disk meanwhile. Each link `written_by` must lead to
//! the span of a write call whose own tags have the file and the range of the bio.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use serde_json::Value;

use crate::common;
use crate::support::disk::{self, Disk};
use crate::support::live::LiveTrace;
use crate::support::tools::{capture, tool};
use crate::support::{needs, or_skip};

const DISK: u64 = 128 << 20;
const WRITTEN: u64 = 4 << 20;
/// Bytes of another program, which the run does not trace.
const OF_OTHERS: u64 = 6 << 20;
const LINKS_MAX: usize = 8;

#[test]
fn write_back_names_the_calls_of_the_command_and_no_other_program() {
    needs!("dd", "sync", "losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let [ours, others] = ["ours", "others"].map(|name| disk.mount_point().join(name));
    fs::write(&others, vec![7; OF_OTHERS as usize]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let spans = folder.path().join("spans.json");
    let script = format!("dd if=/dev/zero of={0} bs=64k count=64 status=none; sync -f {0}", ours.display());
    let to = format!("zipkin={}", spans.display());
    let run = common::run(&["run", "--json", "--to", &to, "--", "sh", "-c", &script]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let report: Value = serde_json::from_str(json_of(&run.stderr)).unwrap();
    check_report(&report, &disk, &ours);
    let spans: Vec<Value> = serde_json::from_slice(&fs::read(&spans).unwrap()).unwrap();
    check_links(&spans, &ours);
}

/// `--device` of a disk records a buffered write to a file on its partition, so its write-back has a writer.
#[test]
fn a_write_to_a_partition_of_the_disk_is_recorded() {
    needs!("losetup", "mkfs.ext4", "addpart");
    let disk = or_skip!(Disk::raw(DISK));
    let partition = or_skip!(disk.half());
    let folder = disk.mount_point();
    fs::create_dir(&folder).unwrap();
    capture(tool("mkfs.ext4").args(["-q", "-E", "lazy_itable_init=0"]).arg(&partition)).unwrap();
    capture(tool("mount").arg(&partition).arg(&folder)).unwrap();
    let live = LiveTrace::trace(&["--device", disk.name()], disk.file("report.json"));
    fs::write(folder.join("buffered"), vec![7; WRITTEN as usize]).unwrap();
    disk::sync(&folder);
    let report = live.finish();
    let rows = report["written_by"]["rows"].as_array().unwrap();
    let ours =
        rows.iter().find(|row| row["file"].as_str().is_some_and(|file| file.ends_with("/mnt/buffered")));
    assert_eq!(ours.map(|row| &row["bytes"]), Some(&WRITTEN.into()), "{rows:#?}");
}

/// Returns the JSON object at the begin of a text that has notes behind it.
fn json_of(text: &str) -> &str {
    text.rfind("\n}").map_or(text, |end| &text[..end + 2])
}

fn check_report(report: &Value, disk: &Disk, ours: &Path) {
    let rows = report["written_by"]["rows"].as_array().unwrap();
    println!("{rows:#?}");
    let row = rows.iter().find(|row| row["file"] == ours.to_str().unwrap()).unwrap();
    assert_eq!((row["program"].as_str(), row["bytes"].as_u64()), (Some("dd"), Some(WRITTEN)), "{row}");
    assert!(row["age_max_ns"].as_u64().unwrap() > 0, "{row}");
    assert!(rows.iter().all(|row| row["program"] != "unknown program"), "{rows:?}");
    let explained = report["explained"].as_array().unwrap();
    let row = explained.iter().find(|row| row["device"] == disk.name()).unwrap();
    println!("{row}");
    let bytes = |key: &str| row[key].as_u64().unwrap();
    assert!(bytes("earlier_writes") >= WRITTEN && bytes("earlier_writes") < WRITTEN + (1 << 20), "{row}");
    assert!(bytes("other_programs") >= OF_OTHERS, "{row}");
}

/// Checks each link from a bio to a writer against the writer's own span.
fn check_links(spans: &[Value], ours: &Path) {
    let by_id: HashMap<&str, &Value> =
        spans.iter().map(|span| (span["id"].as_str().unwrap(), span)).collect();
    let (mut bios, mut links) = (0, 0);
    // Programs and libraries may be read into the page cache too.
    let writes = |tags: &Value| tags["blkkin.page.kind"] == "file" && tags["disk.io.direction"] == "write";
    for bio in spans.iter().filter(|span| writes(&span["tags"])) {
        let tags = &bio["tags"];
        assert_eq!(tags["file.path"], ours.to_str().unwrap(), "write-back of others is not shown: {bio}");
        bios += 1;
        let range = range(tags, "blkkin.file.offset", "blkkin.bytes");
        let written_by = written_by(tags);
        let writers = number(tags, "blkkin.writers") as usize;
        assert_eq!(written_by.len(), writers.min(LINKS_MAX), "{bio}");
        for (trace, span) in written_by {
            let call = by_id.get(span.as_str()).unwrap_or_else(|| panic!("{span} is not exported: {bio}"));
            assert_eq!((&call["traceId"], &call["name"]), (&trace.into(), &"write".into()), "{call}");
            assert_eq!(call["tags"]["file.path"], tags["file.path"], "{call}");
            let written = self::range(&call["tags"], "blkkin.position.before", "blkkin.bytes");
            assert!(written.start < range.end && range.start < written.end, "{written:?} of {range:?}");
            links += 1;
        }
    }
    println!("{bios} bios, {links} links");
    assert!(bios > 0 && links > 0);
}

fn number(tags: &Value, key: &str) -> u64 {
    tags[key].as_str().and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn range(tags: &Value, from: &str, bytes: &str) -> Range<u64> {
    let from = number(tags, from);
    from..from + number(tags, bytes)
}

/// Returns trace and span of each link to a writer.
fn written_by(tags: &Value) -> Vec<(String, String)> {
    let links = (0..).map_while(|n| tags[format!("link.{n}")].as_str());
    let writers = links.filter(|link| link.contains("relation=written_by (rule: "));
    let part = |link: &str, key: &str| {
        let word = link.split(' ').find_map(|word| word.strip_prefix(key));
        word.unwrap().to_owned()
    };
    writers.map(|link| (part(link, "trace="), part(link, "span="))).collect()
}
