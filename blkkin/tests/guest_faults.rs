//! Slow devices, planted inside a guest: the report's own sentence about each of the slowest requests names the layer and
//! the device, and the tool was not told which. Runs inside a guest only, on disks that `xtask/src/vm/init.sh` has made slow.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::path::Path;

use support::fio::Fio;
use support::needs_guest;

/// As many as the report draws.
const SLOWEST: usize = 5;

/// dm-delay holds each bio for 100 ms before it gives it to the disk below.
#[test]
fn a_delay_above_the_disk() {
    needs_guest!();
    named("in the block queue of dm-0");
}

/// null_blk completes each request 100 ms after it got it.
#[test]
fn a_slow_device() {
    needs_guest!();
    named("at the device nullb1");
}

/// fio reads from the disk; whatever else makes a read slow in an emulated machine, the fault is slower.
fn named(place: &str) {
    let disk = std::env::var("BLKKIN_TEST_DISK").unwrap();
    let account = Path::new("/tmp/fio.json");
    let fio = Fio {
        target: Path::new(&disk),
        pattern: "randread",
        jobs: 1,
        requests: 10,
        bytes: 4096,
        report: account,
    };
    let mut words = vec!["run", "--syscall", "pread64", "--"];
    let command = fio.args();
    words.extend(command.iter().map(String::as_str));
    let run = common::run(&words);
    assert_eq!(run.code, Some(0), "{run:?}");
    let sentences: Vec<&str> = run
        .stderr
        .lines()
        .map(str::trim)
        .filter(|line| line.contains(" % ") && line.contains(place))
        .collect();
    println!("{sentences:#?}");
    // `97.1 % in the block queue of dm-0, …`: the largest part comes first.
    let first = |line: &&&str| {
        let (share, rest) = line.split_once(" % ").unwrap();
        rest.starts_with(place) && share.parse::<f64>().is_ok_and(|share| share > 50.0)
    };
    assert_eq!(sentences.iter().filter(first).count(), SLOWEST, "{}", run.stderr);
}
