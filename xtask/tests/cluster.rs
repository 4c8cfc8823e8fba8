//! `cargo xtask demo --cluster` without a terminal: its accounting agrees and no device or mount
//! remains.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// Returns the reason why the demo cannot run here.
fn skip_reason(workspace: &Path, blkkin: &Path) -> Option<&'static str> {
    let is_root = fs::metadata("/proc/self").is_ok_and(|owner| owner.uid() == 0);
    let toolchain = workspace.join("target/toolchain");
    let servers = ["kafka-4.4.0", "zipkin-server-3.6.1-exec.jar"];
    let java = Command::new("java").arg("-version").output().is_ok_and(|output| output.status.success());
    match () {
        () if !is_root => Some("root is needed"),
        () if !servers.iter().all(|server| toolchain.join(server).exists()) => {
            Some("no Kafka and Zipkin: cargo xtask setup --tests fetches them")
        }
        () if !java => Some("java is not installed"),
        () if !Path::new("/etc/machine-id").exists() => Some("no /etc/machine-id"),
        () if !blkkin.is_file() => Some("blkkin was not built beside this test"),
        () => None,
    }
}

/// Lists loop devices over the demo's files, and their mounts.
fn left_behind(folder: &Path) -> Vec<String> {
    let folder = folder.to_string_lossy();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts = mounts.lines().filter(|line| line.contains(&*folder)).map(str::to_owned);
    let blocks = fs::read_dir("/sys/block").unwrap().flatten();
    let files = blocks.filter_map(|block| fs::read_to_string(block.path().join("loop/backing_file")).ok());
    mounts.chain(files.filter(|file| file.contains(&*folder))).collect()
}

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
    let _ = fs::remove_dir(workspace.join("target/demo"));
    let stdout = String::from_utf8_lossy(&output.stdout);
    println!("{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}", output.status);
    assert!(
        stdout.contains("kill -9") && stdout.contains("all agree"),
        "no kill or no agreement in the output"
    );
    let wide = stdout.lines().find(|line| line.chars().count() > 80 && !line.contains("http://"));
    assert_eq!(wide, None, "wider than a terminal");
    assert_eq!(left_behind(&workspace.join("target/demo")), Vec::<String>::new());
}
