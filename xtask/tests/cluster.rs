//! `cargo xtask demo --cluster` without a terminal: its accounting agrees and no device or mount
//! remains.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use std::path::Path;

use support::{run_demo, skip_reason};

#[test]
fn accounting_agrees_after_aggregator_kill_and_nothing_remains() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let blkkin = Path::new(env!("CARGO_BIN_EXE_xtask")).with_file_name("blkkin");
    if let Some(why) = skip_reason(workspace, &blkkin) {
        return println!("skipped: {why}");
    }
    let stdout = run_demo(workspace, "--cluster", &blkkin);
    assert!(
        stdout.contains("kill -9") && stdout.contains("all agree"),
        "no kill or no agreement in the output"
    );
}
