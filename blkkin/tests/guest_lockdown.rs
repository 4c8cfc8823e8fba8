//! A kernel that is locked down (`lockdown=confidentiality`): blkkin refuses to trace, with one
//! error and its remedy.
//!
//! *Input*: a guest that boots such a kernel (`xtask/src/vm`). The state is read from
//! `/sys/kernel/security/lockdown`.

use std::path::Path;
use std::process::Command;

use crate::common::{EACH_KIND, Run, blkkin, run};
use crate::support::needs_guest;

const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
const REMEDY: &str = "boot without lockdown=confidentiality";

#[test]
fn a_trace_is_refused_with_one_error_and_the_command_does_not_run() {
    needs_guest!();
    assert_locked_down();
    for attach in EACH_KIND {
        assert_refused(&run(&[&["run"], attach, &["--", "touch", "/tmp/ran"]].concat()));
    }
    run(&["trace", "--for", "1s"]).assert_refused(125, "cannot trace", REMEDY);
}

/// Without securityfs only the verifier reports the lockdown, in a thousand lines about other
/// things.
#[test]
fn a_trace_is_also_refused_where_securityfs_is_hidden() {
    needs_guest!();
    let inner = blkkin(&["run", "--", "touch", "/tmp/ran"]);
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs none /sys/kernel/security && exec \"$@\"";
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(inner.get_program()).args(inner.get_args());
    assert_refused(&Run::from(command.output().unwrap()));
}

#[test]
fn doctor_reports_the_lockdown_and_tries_no_probe() {
    needs_guest!();
    assert_locked_down();
    let run = run(&["doctor", "--json"]).expect_code(1);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["works"], false);
    let check =
        report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "lockdown").unwrap();
    assert_eq!(check["status"], "fails", "{check:#}");
    assert!(check["remedy"].as_str().unwrap().starts_with(REMEDY), "{check:#}");
    for probe in report["probes"].as_array().unwrap() {
        assert_eq!(probe["verdict"], "unknown", "{probe:#}");
        assert!(probe["reason"].as_str().unwrap().contains("locked down"), "{probe:#}");
    }
}

fn assert_refused(run: &Run) {
    run.assert_refused(125, "cannot trace", REMEDY);
    assert!(run.stderr.contains("the kernel is locked down (confidentiality)"), "{run:?}");
    assert!(!Path::new("/tmp/ran").exists(), "the command ran untraced");
}

fn assert_locked_down() {
    let report = std::fs::read_to_string(LOCKDOWN).unwrap();
    assert!(report.contains("[confidentiality]"), "{report}");
}
