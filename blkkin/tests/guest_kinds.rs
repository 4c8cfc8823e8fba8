//! Cost of a system call for each attach kind, measured in one kernel.
//!
//! Numbers of one guest are not comparable with those of another guest or of a real machine,
//! because every instruction is emulated. The test asserts only that each kind records every call;
//! the costs are printed.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use blkkin_tracer::{AttachKind, TracerConfig};

use crate::support::gated_process::GatedProcess;
use crate::support::needs_guest;
use crate::support::recording::record;

const CALLS: u32 = 2000;
const ROUNDS: usize = 15;

/// Traced reads of a byte in memory, and untraced calls.
#[test]
fn cost_of_a_call_by_each_kind() {
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
        // A separate process, because the tracer does not trace its own calls.
        let mut process = GatedProcess::new(|| {
            let [read, other] = measure();
            i32::from(fs::write(&result, format!("{read} {other}")).is_err())
        });
        let recording = record(&config, &mut [&mut process]);
        recording.assert_complete();
        assert_eq!(recording.calls_named("pread64").len(), CALLS as usize * ROUNDS, "by {kind}");
        let output = fs::read_to_string(&result).unwrap();
        let costs: Vec<u64> = output.split(' ').map(|word| word.parse().unwrap()).collect();
        let added = |n: usize| costs[n].saturating_sub(untraced[n]);
        println!("{kind}: read {} ns (+{}), getppid {} ns (+{})", costs[0], added(0), costs[1], added(1));
    }
}

/// Returns the ns of a call in the fastest of `ROUNDS` rounds.
fn fastest(call: impl Fn()) -> u64 {
    let round = |_| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        (start.elapsed() / CALLS).as_nanos() as u64
    };
    (0..ROUNDS).map(round).min().unwrap()
}
