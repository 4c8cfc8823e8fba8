//! `cargo xtask demo --cluster` without a terminal: its accounting agrees and no device or mount
//! remains.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use std::path::Path;
use std::process::Command;

use support::{assert_fits_a_terminal, left_behind, skip_reason};

#[test]
fn accounting_agrees_after_aggregator_kill_and_nothing_remains() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let xtask = Path::new(env!("CARGO_BIN_EXE_xtask"));
    let blkkin = xtask.with_file_name("blkkin");
    if let Some(why) = skip_reason(workspace, &blkkin) {
        return println!("skipped: {why}");
    }
    let mut demo = Command::new(xtask);
    demo.args(["demo", "--cluster", "--traced-part"]).arg(&blkkin);
    let output = demo.env("CARGO_MANIFEST_DIR", env!("CARGO_MANIFEST_DIR")).output().unwrap();
    // Fails if another demo left files in it.
    let _ = std::fs::remove_dir(workspace.join("target/demo"));
    let stdout = String::from_utf8_lossy(&output.stdout);
    println!("{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}", output.status);
    assert!(
        stdout.contains("kill -9") && stdout.contains("all agree"),
        "no kill or no agreement in the output"
    );
    assert_fits_a_terminal(&stdout);
    assert_eq!(left_behind(&workspace.join("target/demo")), Vec::<String>::new());
}
