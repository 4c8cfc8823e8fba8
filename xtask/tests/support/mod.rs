//! Shared parts of the tests of the demos.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// Returns the reason why a demo with services cannot run here.
pub(crate) fn skip_reason(workspace: &Path, blkkin: &Path) -> Option<&'static str> {
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
        () if !blkkin.is_file() => Some("blkkin was not built for this test"),
        () => None,
    }
}

/// Lists loop devices over the demo's files, their mounts, and processes that name them.
fn left_behind(folder: &Path) -> Vec<String> {
    let folder = folder.to_string_lossy();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mounts = mounts.lines().filter(|line| line.contains(&*folder)).map(str::to_owned);
    let blocks = fs::read_dir("/sys/block").unwrap().flatten();
    let files = blocks.filter_map(|block| fs::read_to_string(block.path().join("loop/backing_file")).ok());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let processes = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    let processes = processes.map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "));
    mounts.chain(files.chain(processes).filter(|text| text.contains(&*folder))).collect()
}

/// Asserts that the lines have at most 80 columns, but for addresses.
fn assert_fits_a_terminal(stdout: &str) {
    let wide = stdout.lines().find(|line| line.chars().count() > 80 && !line.contains("http://"));
    assert_eq!(wide, None, "wider than a terminal");
}

/// Runs the part of a demo that needs root, and prints and returns its output. Asserts that it succeeds, fits a terminal
/// and leaves nothing.
pub(crate) fn run_demo(workspace: &Path, scenario: &str, blkkin: &Path) -> String {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_xtask"));
    demo.args(["demo", scenario, "--traced-part"]).arg(blkkin);
    let output = demo.env("CARGO_MANIFEST_DIR", env!("CARGO_MANIFEST_DIR")).output().unwrap();
    // Fails if another demo left files in it.
    let _ = fs::remove_dir(workspace.join("target/demo"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}", output.status);
    assert_fits_a_terminal(&stdout);
    assert_eq!(left_behind(&workspace.join("target/demo")), Vec::<String>::new());
    stdout
}
