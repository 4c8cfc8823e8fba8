//! What a call costs by each kind of probe, side by side in one kernel: no figure of a guest is comparable with another's, nor
//! with a machine's own, since every instruction of it is emulated.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use blkkin_tracer::{AttachKind, TracerConfig};

use support::gated_process::GatedProcess;
use support::needs_guest;
use support::recording::record;

const CALLS: u32 = 2000;
const ROUNDS: usize = 15;

/// Reads of a byte that is in memory, which are followed; and calls that nobody follows.
#[test]
fn what_a_call_costs_by_each_kind() {
    needs_guest!();
    let folder = tempfile::tempdir().unwrap();
    let (path, result) = (folder.path().join("file"), folder.path().join("result"));
    fs::write(&path, b"byte").unwrap();
    let file = File::open(&path).unwrap();
    let measure = || {
        let read = fastest(|| assert_eq!(file.read_at(&mut [0], 0).unwrap(), 1));
        // SAFETY: no memory is passed.
        let other = fastest(|| assert!(unsafe { libc::syscall(libc::SYS_getppid) } > 0));
        [read, other]
    };
    let untraced = measure();
    println!("untraced: read {} ns, getppid {} ns", untraced[0], untraced[1]);
    for kind in AttachKind::ALL {
        let config = TracerConfig { attach: Some(kind), ..TracerConfig::default() };
        // Another process: what the tracer does itself is not to be traced.
        let mut actor = GatedProcess::new(|| {
            let [read, other] = measure();
            i32::from(fs::write(&result, format!("{read} {other}")).is_err())
        });
        let recording = record(&config, &mut [&mut actor]);
        recording.assert_complete();
        assert_eq!(recording.calls_named("pread64").len(), CALLS as usize * ROUNDS, "by {kind}");
        let said = fs::read_to_string(&result).unwrap();
        let costs: Vec<u64> = said.split(' ').map(|word| word.parse().unwrap()).collect();
        let above = |n: usize| costs[n].saturating_sub(untraced[n]);
        println!("{kind}: read {} ns (+{}), getppid {} ns (+{})", costs[0], above(0), costs[1], above(1));
    }
}

/// A call's ns in the fastest of some rounds.
fn fastest(call: impl Fn()) -> u64 {
    let round = |_| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        (start.elapsed() / CALLS).as_nanos() as u64
    };
    (0..ROUNDS).map(round).min().unwrap()
}
