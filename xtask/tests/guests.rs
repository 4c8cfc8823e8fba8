//! `cargo xtask demo --vm` without a terminal: the guests' requests continue in QEMU, and no device or mount remains.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use std::path::Path;

use support::{run_demo, skip_reason};

#[test]
fn requests_of_guests_continue_in_qemu_and_nothing_remains() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let blkkin = workspace.join("target/dist/test/blkkin");
    if let Some(why) = skip_reason(workspace, &blkkin) {
        return println!("skipped: {why}");
    }
    if !workspace.join("target/vm/linux-6.12/vmlinuz").is_file() {
        return println!("skipped: no kernel for a guest: cargo xtask setup --tests fetches one");
    }
    // It fails if more than one request of a hundred has no operation of QEMU.
    let stdout = run_demo(workspace, "--vm", &blkkin);
    // Times of both machines, below a call of the database.
    assert!(stdout.contains("  guest sqlite3 fdatasync "), "no call of the guest is drawn");
    let of_host = stdout.lines().filter(|line| line.starts_with("  host ") && line.contains('█'));
    assert!(of_host.count() >= 4, "no operations of the host are drawn");
}
