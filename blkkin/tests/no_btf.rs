//! A kernel without type information (BTF): blkkin refuses to trace, with one error and its remedy.
//!
//! *Input*: a mount namespace in which an empty file system covers `/sys/kernel/btf`.

use std::process::Command;

use crate::common::{Run, blkkin};
use crate::support::needs;

/// Folder in which the kernel publishes its types.
const TYPES: &str = "/sys/kernel/btf";

#[test]
fn a_trace_is_refused_with_one_error_and_the_command_does_not_run() {
    needs!("unshare", "mount");
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("ran");
    for attach in ["tp_btf", "raw_tp", "fentry", "kprobe"] {
        let run = without_types(&["run", "--attach", attach, "--", "touch", mark.to_str().unwrap()]);
        run.assert_refused(125, "cannot trace", "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y");
        assert!(run.stderr.contains("/sys/kernel/btf/vmlinux: No such file or directory"), "{run:?}");
        assert!(!mark.exists(), "the command ran untraced");
    }
}

#[test]
fn doctor_reports_the_missing_types_and_tries_no_probe() {
    needs!("unshare", "mount");
    let run = without_types(&["doctor", "--json"]).expect_code(1);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["works"], false);
    let types = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "type information");
    assert_eq!(types.unwrap()["status"], "fails", "{report:#}");
    assert!(types.unwrap()["remedy"].as_str().unwrap().contains("CONFIG_DEBUG_INFO_BTF=y"), "{report:#}");
    for probe in report["probes"].as_array().unwrap() {
        assert_eq!(probe["verdict"], "unknown", "{probe:#}");
        assert!(probe["reason"].as_str().unwrap().contains("no type information"), "{probe:#}");
    }
}

/// Runs blkkin in a mount namespace in which the folder of types is empty.
fn without_types(args: &[&str]) -> Run {
    let inner = blkkin(args);
    let mut command = Command::new("unshare");
    let script = format!("mount -t tmpfs none {TYPES} && exec \"$@\"");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(inner.get_program()).args(inner.get_args());
    Run::from(command.env("COLUMNS", "80").output().unwrap())
}
