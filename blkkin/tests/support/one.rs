//! One task that does a few calls, all of them known.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use blkkin_tracer::TracerConfig;
use blkkin_wire::event::SyscallEvent;
use blkkin_wire::ids::DeviceId;

use super::actor::Actor;
use super::recording::{Recording, record};

/// (device, inode) of a call's primary file.
pub(crate) fn file_of(call: &SyscallEvent) -> Option<(DeviceId, u64)> {
    call.file.map(|open| (open.file.device, open.file.ino))
}

/// Follows what the task does; each of its calls is recorded.
pub(crate) fn act(what: impl FnOnce() -> i32) -> Recording {
    let mut actor = Actor::new(what);
    let recording = record(&TracerConfig::default(), &mut [&mut actor]);
    recording.assert_calls_whole();
    recording
}

/// A new file of so many bytes.
pub(crate) fn file(folder: &Path, name: &str, bytes: usize) -> PathBuf {
    let path = folder.canonicalize().unwrap().join(name);
    fs::write(&path, vec![b'.'; bytes]).unwrap();
    path
}

/// As a call takes it.
pub(crate) fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}
