//! What tests do with the disk that a guest has for them.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use blkkin_aggregator::trace::Trace;
use blkkin_tracer::TracerConfig;

use super::actor::Actor;
use super::recording::{Recording, record};

/// Asks for something about a range; whether it was done.
pub(crate) fn ioctl(device: &File, request: u32, range: &[u64; 2]) -> bool {
    // SAFETY: the kernel reads two words, which outlive the call.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), request as libc::Ioctl, range.as_ptr()) };
    if done != 0 {
        println!("{request:#x} {range:?}: {}", std::io::Error::last_os_error());
    }
    done == 0
}

/// What a task does, recorded: with nothing lost.
pub(crate) fn recorded(act: impl FnOnce() -> i32) -> Recording {
    let recording = record(&TracerConfig::default(), &mut [&mut Actor::new(act)]);
    recording.assert_whole();
    recording
}

/// Those of the calls of this name that asked for block I/O, in their order.
pub(crate) fn traces<'a>(recording: &'a Recording, call: &str) -> Vec<&'a Trace> {
    let asks = |trace: &&Trace| trace.call().is_some_and(|root| root.call.name() == call && root.bios > 0);
    let mut traces: Vec<&Trace> = recording.traces.iter().filter(asks).collect();
    traces.sort_by_key(|trace| trace.start());
    traces
}

/// The disk that `xtask/src/vm/init.sh` has made for the test.
pub(crate) fn node() -> PathBuf {
    std::env::var("BLKKIN_TEST_DISK").unwrap().into()
}
