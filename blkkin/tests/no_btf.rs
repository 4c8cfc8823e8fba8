//! A kernel without type information, as far as blkkin can see: in a mount namespace of its own nothing lies where the
//! kernel says its types.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::process::Command;

use common::{Run, blkkin};
use support::needs;

/// Where the kernel says its types.
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
fn doctor_says_what_is_missing_and_that_nothing_was_tried() {
    needs!("unshare", "mount");
    let run = without_types(&["doctor", "--json"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let said: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(said["works"], false);
    let types = said["checks"].as_array().unwrap().iter().find(|check| check["name"] == "type information");
    assert_eq!(types.unwrap()["status"], "fails", "{said:#}");
    assert!(types.unwrap()["remedy"].as_str().unwrap().contains("CONFIG_DEBUG_INFO_BTF=y"), "{said:#}");
    for probe in said["probes"].as_array().unwrap() {
        assert_eq!(probe["verdict"], "unknown", "{probe:#}");
        assert!(probe["reason"].as_str().unwrap().contains("no type information"), "{probe:#}");
    }
}

/// blkkin where its view of the kernel's types is an empty folder; nobody else's is.
fn without_types(words: &[&str]) -> Run {
    let inner = blkkin(words);
    let mut command = Command::new("unshare");
    let script = format!("mount -t tmpfs none {TYPES} && exec \"$@\"");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(inner.get_program()).args(inner.get_args());
    Run::from(command.env("COLUMNS", "80").output().unwrap())
}
