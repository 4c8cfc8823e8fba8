//! A kernel older than blkkin's minimum (Linux 5.10): blkkin refuses to trace, with one error that
//! names the missing field and the remedy.
//!
//! *Input*: a guest that boots such a kernel (`xtask/src/vm`).

use crate::common::{EACH_KIND, run};
use crate::support::needs_guest;

#[test]
fn a_trace_is_refused_with_one_error_and_the_command_does_not_run() {
    needs_guest!();
    for attach in EACH_KIND {
        let args = [&["run"], attach, &["--", "touch", "/tmp/ran"]].concat();
        let run = run(&args);
        run.assert_refused(125, "cannot trace", "boot Linux 6.1 or later");
        assert!(run.stderr.contains("this kernel is too old: Linux 5.10"), "{run:?}");
        assert!(run.stderr.contains("it has no field") && run.stderr.contains("bio.bi_bdev"), "{run:?}");
        assert!(!std::path::Path::new("/tmp/ran").exists(), "the command ran untraced");
    }
    run(&["trace", "--for", "1s"]).assert_refused(125, "cannot trace", "boot Linux 6.1 or later");
}

#[test]
fn doctor_names_what_the_kernel_lacks() {
    needs_guest!();
    let run = run(&["doctor", "--json"]).expect_code(1);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["works"], false);
    let kernel = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "kernel").unwrap();
    assert_eq!(kernel["status"], "fails", "{kernel:#}");
    assert!(kernel["found"].as_str().unwrap().contains("6.1 or later is needed"), "{kernel:#}");
    let probes = report["probes"].as_array().unwrap();
    let queue = probes.iter().find(|probe| probe["name"] == "bio_queue").unwrap();
    assert_eq!(queue["verdict"], "missing", "{queue:#}");
    assert!(queue["reason"].as_str().unwrap().contains("no field bio.bi_bdev"), "{queue:#}");
}
