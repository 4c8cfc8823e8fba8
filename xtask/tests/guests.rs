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
    // The first sentences, and a call of the database with operations of QEMU and requests of the host's disk.
    assert!(stdout.contains("virtual machine db: "), "{stdout}");
    assert!(stdout.contains("\n  sqlite3 fdatasync "), "no call of the guest is drawn: {stdout}");
    let of_host = |name: &str| stdout.lines().filter(|line| line.trim_start().starts_with(name)).count();
    assert!(
        of_host("qemu-system-x86_64 ") >= 2 && of_host("loop") >= 2,
        "no operations of the host are drawn: {stdout}"
    );
}
