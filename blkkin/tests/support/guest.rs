//! Support of tests that run in a guest and use the disk that the guest provides for them.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use blkkin_aggregator::trace::Trace;

use super::gated_process::GatedProcess;
use super::recording::{Recording, record_one};

/// Issues an ioctl with a range and returns whether it succeeded.
pub(crate) fn ioctl(device: &File, request: u32, range: &[u64; 2]) -> bool {
    // SAFETY: the kernel reads two words, which outlive the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), request as libc::Ioctl, range.as_ptr()) };
    if result != 0 {
        println!("{request:#x} {range:?}: {}", std::io::Error::last_os_error());
    }
    result == 0
}

/// Records a forked process that executes `body`, with no loss.
pub(crate) fn recorded(body: impl FnOnce() -> i32) -> Recording {
    let recording = record_one(&mut GatedProcess::new(body));
    recording.assert_complete();
    recording
}

/// Returns the traces of calls of this name that submitted block I/O, in their order.
pub(crate) fn traces<'a>(recording: &'a Recording, call: &str) -> Vec<&'a Trace> {
    let submitted_io =
        |trace: &&Trace| trace.call().is_some_and(|root| root.call.name() == call && root.bios > 0);
    let mut traces: Vec<&Trace> = recording.traces.iter().filter(submitted_io).collect();
    traces.sort_by_key(|trace| trace.start());
    traces
}

/// Returns the disk that `xtask/src/vm/init.sh` has made for the test.
pub(crate) fn node() -> PathBuf {
    std::env::var("BLKKIN_TEST_DISK").unwrap().into()
}

/// Returns the name of that disk.
pub(crate) fn name() -> String {
    node().file_name().unwrap().to_str().unwrap().to_owned()
}
