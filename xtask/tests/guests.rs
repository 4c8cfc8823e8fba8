//! `cargo xtask demo --vm` without a terminal: the guests' requests continue in QEMU, and no device or mount remains.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use std::path::Path;
use std::process::Command;

use support::{assert_fits_a_terminal, left_behind, skip_reason};

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
    let mut demo = Command::new(env!("CARGO_BIN_EXE_xtask"));
    demo.args(["demo", "--vm", "--traced-part"]).arg(&blkkin);
    let output = demo.env("CARGO_MANIFEST_DIR", env!("CARGO_MANIFEST_DIR")).output().unwrap();
    // Fails if another demo left files in it.
    let _ = std::fs::remove_dir(workspace.join("target/demo"));
    let stdout = String::from_utf8_lossy(&output.stdout);
    println!("{stdout}{}", String::from_utf8_lossy(&output.stderr));
    // It fails if more than one request of a hundred has no operation of QEMU.
    assert!(output.status.success(), "{}", output.status);
    // Times of both machines, below a call of the database.
    assert!(stdout.contains("  guest sqlite3 fdatasync "), "no call of the guest is drawn");
    let of_host = stdout.lines().filter(|line| line.starts_with("  host ") && line.contains('█'));
    assert!(of_host.count() >= 4, "no operations of the host are drawn");
    assert_fits_a_terminal(&stdout);
    assert_eq!(left_behind(&workspace.join("target/demo")), Vec::<String>::new());
}
