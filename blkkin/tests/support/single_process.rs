//! Recordings of one process that makes a few known system calls.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use blkkin_wire::event::SyscallEvent;
use blkkin_wire::ids::DeviceId;

use super::gated_process::GatedProcess;
use super::recording::{Recording, record_one};

/// Returns (device, inode) of a call's primary file.
pub(crate) fn file_of(call: &SyscallEvent) -> Option<(DeviceId, u64)> {
    call.file.map(|open| (open.file.device, open.file.ino))
}

/// Records a forked process that executes `body`; each of its system calls is recorded.
pub(crate) fn record_process(body: impl FnOnce() -> i32) -> Recording {
    let mut process = GatedProcess::new(body);
    let recording = record_one(&mut process);
    recording.assert_calls_complete();
    recording
}

/// Creates a file of `bytes` bytes.
pub(crate) fn create_file(folder: &Path, name: &str, bytes: usize) -> PathBuf {
    let path = folder.canonicalize().unwrap().join(name);
    fs::write(&path, vec![b'.'; bytes]).unwrap();
    path
}

/// Returns the path as system calls take it.
pub(crate) fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}
