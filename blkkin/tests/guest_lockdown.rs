//! A kernel that nobody may read (`lockdown=confidentiality`). Runs inside such a kernel only: see `xtask/src/vm`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::path::Path;
use std::process::Command;

use common::{EACH_KIND, Run, blkkin, run};
use support::needs_guest;

const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
const REMEDY: &str = "boot without lockdown=confidentiality";

#[test]
fn a_trace_is_refused_with_one_error_and_the_command_does_not_run() {
    needs_guest!();
    assert_locked_down();
    for attach in EACH_KIND {
        refused(&run(&[&["run"], attach, &["--", "touch", "/tmp/ran"]].concat()));
    }
    run(&["trace", "--for", "1s"]).assert_refused(125, "cannot trace", REMEDY);
}

/// Then the only one to say so is the verifier, in a thousand lines about other things.
#[test]
fn the_same_where_the_kernel_does_not_say_that_it_is_locked_down() {
    needs_guest!();
    let inner = blkkin(&["run", "--", "touch", "/tmp/ran"]);
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs none /sys/kernel/security && exec \"$@\"";
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(inner.get_program()).args(inner.get_args());
    refused(&Run::from(command.output().unwrap()));
}

#[test]
fn doctor_says_so_and_that_nothing_was_tried() {
    needs_guest!();
    assert_locked_down();
    let run = run(&["doctor", "--json"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let said: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(said["works"], false);
    let check = said["checks"].as_array().unwrap().iter().find(|check| check["name"] == "lockdown").unwrap();
    assert_eq!(check["status"], "fails", "{check:#}");
    assert!(check["remedy"].as_str().unwrap().starts_with(REMEDY), "{check:#}");
    for probe in said["probes"].as_array().unwrap() {
        assert_eq!(probe["verdict"], "unknown", "{probe:#}");
        assert!(probe["reason"].as_str().unwrap().contains("locked down"), "{probe:#}");
    }
}

fn refused(run: &Run) {
    run.assert_refused(125, "cannot trace", REMEDY);
    assert!(run.stderr.contains("the kernel is locked down (confidentiality)"), "{run:?}");
    assert!(!Path::new("/tmp/ran").exists(), "the command ran untraced");
}

fn assert_locked_down() {
    let said = std::fs::read_to_string(LOCKDOWN).unwrap();
    assert!(said.contains("[confidentiality]"), "{said}");
}
