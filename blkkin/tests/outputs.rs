//! Destinations of report and spans, and failures to write them.
//!
//! *Input*: short commands under the real tracer (root only). Standard output, standard error, JSON
//! report and span files are compared with each other.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common;
use crate::common::run;
use crate::manifests::schemas;
use crate::support::{needs, or_skip};
use serde_json::Value;

#[test]
fn stdout_is_the_commands_and_the_report_is_on_stderr() {
    needs!();
    let run = run(&["run", "--", "echo", "words"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(0), "words\n"));
    assert!(run.stderr.contains("echo words"), "{run:?}");
    assert!(run.stderr.contains("lost: nothing"), "{run:?}");
    for line in run.stderr.lines() {
        assert!(!line.contains('\x1b'), "no terminal, no colour: {line}");
    }
}

#[test]
fn processes_left_running_are_reported_in_text_but_not_in_json() {
    needs!();
    // `cat` ends with the test, which then closes its end of the pipe. (A shell redirects the input
    // of background jobs to /dev/null unless it is redirected explicitly.)
    let script = "exec 3<&0; cat <&3 >/dev/null 2>&1 & exit 4";
    for (options, reported) in [
        (&["run", "--", "sh", "-c", script][..], true),
        (&["run", "--json", "--", "sh", "-c", script], false),
    ] {
        let mut child = common::blkkin(options).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _open = child.stdin.take();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(4), "{stderr}");
        assert_eq!(
            stderr.contains("1 process that the command started is still running"),
            reported,
            "{stderr}"
        );
    }
}

#[test]
fn drops_of_a_small_ring_are_counted_and_nothing_unknown_is_reported() {
    needs!();
    let run =
        run(&["run", "--ring-size", "4K", "--", "find", "/usr/share", "-name", "nothing"]).expect_code(0);
    assert!(run.stderr.contains("dropped (ring full)"), "{run:?}");
    assert!(!run.stderr.contains("still running"), "its exit event was lost, so this is unknown: {run:?}");
}

#[test]
fn json_replaces_the_text() {
    needs!();
    let run = run(&["run", "--json", "--", "echo", "words"]);
    let report: Value = serde_json::from_str(&run.stderr).unwrap();
    assert_eq!(report["command"], "echo words");
    assert_eq!(report["losses"]["balances"], true);
}

/// JSON Schema of the report.
const SCHEMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/report.schema.json");
/// Reports and parts of reports with the fields that a short command does not have.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../report/tests/golden");

/// The published schema allows no field that it does not describe, and requires each that it does.
#[test]
fn json_reports_match_their_schema() {
    needs!();
    let schemas = or_skip!(schemas());
    let folder = tempfile::tempdir().unwrap();
    let (made, data) = (folder.path().join("made.json"), folder.path().join("data"));
    let write = format!("dd if=/dev/zero of={} bs=64k count=4 conv=fsync 2>/dev/null", data.display());
    run(&["run", &format!("--json={}", made.display()), "--", "sh", "-c", &write]).expect_code(0);
    let golden = ["report", "waits", "write-back"].map(|name| format!("{GOLDEN}/{name}.json"));
    let without_version = folder.path().join("without_version.json");
    let mut report: Value = serde_json::from_str(&fs::read_to_string(&made).unwrap()).unwrap();
    report.as_object_mut().unwrap().remove("version");
    report["totals"]["another"] = 1.into();
    fs::write(&without_version, report.to_string()).unwrap();
    let check = |part: &str, files: &[&Path]| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/report_schema.py");
        let output = Command::new("python3")
            .arg(script)
            .args([&*schemas, Path::new(SCHEMA)])
            .arg(part)
            .args(files)
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let reports: Vec<&Path> = golden.iter().map(Path::new).chain([&*made]).collect();
    assert_eq!(check("", &reports), "");
    let operations = format!("{GOLDEN}/operations.json");
    assert_eq!(check("properties/slowest_operations", &[Path::new(&operations)]), "");
    let violations = check("", &[&without_version]);
    assert!(violations.contains("'version' is a required property"), "{violations}");
    assert!(violations.contains("totals: Additional properties are not allowed"), "{violations}");
}

#[test]
fn json_and_spans_go_to_the_given_files() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let (report, spans) = (folder.path().join("report.json"), folder.path().join("spans.json"));
    let (json, to) = (format!("--json={}", report.display()), format!("zipkin={}", spans.display()));
    let run = run(&["run", &json, "--to", &to, "--", "cat", "/etc/hostname"]).expect_code(0);
    let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    let spans: Vec<Value> = serde_json::from_str(&fs::read_to_string(spans).unwrap()).unwrap();
    let calls = report["totals"]["calls"].as_u64().unwrap();
    assert!(calls > 0);
    assert!(spans.len() as u64 >= calls, "every call is a span: {} of {calls}", spans.len());
    assert!(run.stderr.contains(&format!("{} spans sent to", spans.len())), "{run:?}");
}

#[test]
fn detail_2_has_every_argument() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let spans = folder.path().join("spans.json");
    let to = format!("zipkin={}", spans.display());
    run(&["run", "--detail", "2", "--syscall", "close", "--to", &to, "--", "true"]).expect_code(0);
    let spans: Vec<Value> = serde_json::from_str(&fs::read_to_string(spans).unwrap()).unwrap();
    // Its pages may come from the disk, so there can be spans of bios.
    let calls: Vec<&Value> = spans.iter().filter(|span| span["name"] == "close").collect();
    assert!(!calls.is_empty());
    for span in calls {
        assert!(span["tags"]["blkkin.arg.0"].as_str().unwrap().starts_with("0x"), "{span}");
        assert_eq!(span["tags"]["blkkin.arg.1"], Value::Null, "close has one argument");
    }
}

#[test]
fn json_in_a_file_is_written_without_a_text_report() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let (json, spans) = (folder.path().join("report.json"), folder.path().join("spans.json"));
    let arguments = [format!("--json={}", json.display()), format!("--to=zipkin={}", spans.display())];
    let run = run(&["run", "--no-report", &arguments[0], &arguments[1], "--", "true"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(!run.stderr.contains("system calls"), "{}", run.stderr);
    let report: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert!(report["losses"]["total"].is_number(), "{report}");
    assert!(fs::metadata(&spans).unwrap().len() > 2);
}

#[test]
fn no_report_prints_nothing() {
    needs!();
    let run = run(&["run", "--no-report", "--", "true"]);
    assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (Some(0), "", ""));
}

#[test]
fn a_full_disk_is_reported_and_the_status_is_the_commands() {
    needs!();
    let run = run(&["run", "--json=/dev/full", "--", "sh", "-c", "exit 3"]).expect_code(3);
    assert!(run.stderr.contains("blkkin: cannot write /dev/full"), "{run:?}");
    common::run(&["trace", "--for", "1ms", "--json=/dev/full"]).expect_code(1);
}

#[test]
fn an_unreachable_server_is_reported_and_the_status_is_the_commands() {
    needs!();
    // A port that was free a moment ago, without a listener.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let run = run(&["run", "--to", &format!("zipkin=http://127.0.0.1:{port}"), "--", "sh", "-c", "exit 3"])
        .expect_code(3);
    assert!(run.stderr.contains("spans were not delivered to zipkin=http://127.0.0.1"), "{run:?}");
    assert!(run.stderr.contains("blkkin: waiting up to 10 s for zipkin=http://127.0.0.1"), "{run:?}");
    assert!(run.stderr.contains("spans not exported"), "the report counts them: {run:?}");
}

#[test]
fn filters_keep_matching_calls_only() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data.bin");
    let script = format!("echo words > {0}; cat {0} /etc/hostname > /dev/null", file.display());
    let calls = |options: &[&str]| {
        let args = [&["run", "--json"], options, &["--", "sh", "-c", &script]].concat();
        let run = run(&args);
        let report: Value = serde_json::from_str(&run.stderr).unwrap_or_else(|_| panic!("{run:?}"));
        let rows = report["calls"].as_array().unwrap().clone();
        rows.into_iter()
            .map(|row| (row["call"].as_str().unwrap().to_owned(), row["count"].clone()))
            .collect::<Vec<_>>()
    };
    let only = calls(&["--syscall", "write", "--path", file.to_str().unwrap()]);
    assert_eq!(only, [("write".to_owned(), Value::from(1))]);
    let only = calls(&["--syscall", "read", "--path", "data.bin"]);
    assert_eq!(only, [("read".to_owned(), Value::from(2))], "the data, and the end of file");
    let only = calls(&["--syscall", "write", "--comm", "cat", "--path", "data.bin"]);
    assert_eq!(only, [], "sh wrote, not cat");
    assert_eq!(calls(&["--slower-than", "1h"]), []);
    let failed = calls(&[
        "--errors-only",
        "--syscall",
        "openat,openat2,open",
        "--path",
        folder.path().to_str().unwrap(),
    ]);
    assert_eq!(failed, []);
}
