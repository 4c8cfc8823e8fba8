//! Slow devices in a guest: for each of the slowest operations, the report's diagnosis names the
//! layer and the device. The tracer gets no hint.
//!
//! *Input*: fio on a disk that `xtask/src/vm/init.sh` has made slow (dm-delay or null_blk, guests
//! only). The expected layer is the one with the planted delay of 100 ms.

use std::path::Path;

use crate::common;
use crate::support::fio::Fio;
use crate::support::needs_guest;

/// Number of traces that the report draws.
const SLOWEST: usize = 5;

/// dm-delay holds each bio for 100 ms before it passes it to the lower disk.
#[test]
fn a_delay_above_the_disk() {
    needs_guest!();
    assert_diagnosis_names("in the block queue of dm-0");
}

/// null_blk completes each request 100 ms after it received it.
#[test]
fn a_slow_device() {
    needs_guest!();
    assert_diagnosis_names("at the device nullb1");
}

/// fio reads from the disk. The planted delay exceeds every other delay of an emulated machine.
fn assert_diagnosis_names(layer: &str) {
    let disk = std::env::var("BLKKIN_TEST_DISK").unwrap();
    let report = Path::new("/tmp/fio.json");
    let fio =
        Fio { target: Path::new(&disk), pattern: "randread", jobs: 1, requests: 10, bytes: 4096, report };
    let mut args = vec!["run", "--show", "slowest", "--syscall", "pread64", "--"];
    let command = fio.args();
    args.extend(command.iter().map(String::as_str));
    let run = common::run(&args).expect_code(0);
    let sentences: Vec<&str> = run
        .stderr
        .lines()
        .map(str::trim)
        .filter(|line| line.contains(" % ") && line.contains(layer))
        .collect();
    println!("{sentences:#?}");
    // `97.1 % in the block queue of dm-0, …`: the largest part comes first.
    let first = |line: &&&str| {
        let (share, rest) = line.split_once(" % ").unwrap();
        rest.starts_with(layer) && share.parse::<f64>().is_ok_and(|share| share > 50.0)
    };
    assert_eq!(sentences.iter().filter(first).count(), SLOWEST, "{}", run.stderr);
}
