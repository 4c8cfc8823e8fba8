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
use std::time::{Duration, Instant};

use blkkin_tracer::{AttachKind, TracerConfig};
use blkkin_wire::ids::Pid;

use support::needs_guest;
use support::recording::Recorder;

const CALLS: u32 = 4000;
const ROUNDS: usize = 5;

/// Reads of a byte that is in memory, by a process that is traced; and calls that nobody follows, of one that is not.
#[test]
fn what_a_call_costs_by_each_kind() {
    needs_guest!();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, b"byte").unwrap();
    let file = File::open(&path).unwrap();
    let read = || {
        file.read_at(&mut [0], 0).unwrap();
    };
    let other = || {
        // SAFETY: no memory is passed.
        unsafe { libc::syscall(libc::SYS_getppid) };
    };
    let untraced = (fastest(read), fastest(other));
    println!("untraced: read {:?}, getppid {:?}", untraced.0, untraced.1);
    for kind in AttachKind::ALL {
        let config = TracerConfig { attach: Some(kind), ..TracerConfig::default() };
        let recorder = Recorder::start(&config, &[Pid(std::process::id())]);
        let (read, other) = (fastest(read), fastest(other));
        let recording = recorder.finish();
        // The books are the proof that it was traced: each call is there.
        recording.assert_balanced();
        let seen = recording.named("pread64").len() + recording.accounts.calls.dropped as usize;
        assert!(seen >= CALLS as usize * ROUNDS, "{kind}: {:#?}", recording.accounts);
        let above = |traced: Duration, untraced: Duration| traced.saturating_sub(untraced);
        println!(
            "{kind}: read {read:?} (+{:?}), getppid {other:?} (+{:?})",
            above(read, untraced.0),
            above(other, untraced.1)
        );
    }
}

/// A call's time in the fastest of some rounds.
fn fastest(call: impl Fn()) -> Duration {
    let round = |_| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        start.elapsed() / CALLS
    };
    (0..ROUNDS).map(round).min().unwrap()
}
