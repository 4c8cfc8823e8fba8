//! Loads a shared object that was embedded: in, its bytes; out, a handle of it, and of the probe its table, or why not.
//!
//! It becomes a file without a name (memfd), so nothing has to be installed beside the daemon and no directory has to be
//! written to. The loader of shared objects opens it by its descriptor, and finds liblttng-ust on the way, or does not.

use std::ffi::{CStr, CString, c_void};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};

#[cfg(blkkin_probe)]
use crate::probe::Table;

#[cfg(blkkin_probe)]
const PROBE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/blkkin-probe.so"));

/// `BLKKIN_PROBE_ABI` of `c/probe/probe.h`.
#[cfg(blkkin_probe)]
const ABI: u32 = 2;

/// MFD_EXEC of Linux 6.3 (include/uapi/linux/memfd.h): without it, a machine with sysctl vm.memfd_noexec = 1 maps no code
/// of it. An older kernel refuses the word.
const MFD_EXEC: u32 = 0x10;

#[cfg(blkkin_probe)]
pub(crate) fn probe() -> Result<&'static Table, String> {
    let handle = object(c"blkkin-probe", PROBE)?;
    // SAFETY: the handle is of an object that is loaded, the name ends in a NUL.
    let table: *const Table = unsafe { libc::dlsym(handle, c"blkkin_probe".as_ptr()) }.cast();
    // SAFETY: it is null or the probe's constant table, which is never unloaded and begins with `abi` and `size`.
    let table = unsafe { table.as_ref() }.ok_or_else(complaint)?;
    match (table.abi, table.size as usize >= size_of::<Table>()) {
        (ABI, true) => Ok(table),
        (abi, _) => Err(format!("the probe has interface {abi} and not {ABI}")),
    }
}

/// Loads what is never unloaded.
pub(crate) fn object(name: &CStr, bytes: &[u8]) -> Result<*mut c_void, String> {
    let mut file = memfd(name).map_err(|why| format!("no memory file for it: {why}"))?;
    file.write_all(bytes).map_err(|why| format!("cannot write it: {why}"))?;
    // The loader knows objects by the path that they were opened by: behind a number that one of ours had before it would find that.
    let mut taken = Vec::new();
    while taken.len() < NUMBERS_MAX && is_loaded(&path_of(&file)) {
        let next = file.try_clone().map_err(|why| format!("no descriptor for it: {why}"))?;
        taken.push(std::mem::replace(&mut file, next));
    }
    let path = path_of(&file);
    // SAFETY: the path ends in a NUL. The constructors that this runs are ours and LTTng's.
    let handle =
        unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE) };
    if handle.is_null() { Err(complaint()) } else { Ok(handle) }
}

/// Copies of us in one process, times two objects, with a wide margin.
const NUMBERS_MAX: usize = 64;

fn path_of(file: &File) -> CString {
    CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("a number has no NUL")
}

fn is_loaded(path: &CStr) -> bool {
    // SAFETY: the path ends in a NUL; nothing is loaded that is not there, and what was is given back.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        !handle.is_null() && libc::dlclose(handle) == 0
    }
}

fn memfd(name: &CStr) -> io::Result<File> {
    let make = |flags| {
        // SAFETY: the name ends in a NUL.
        let descriptor = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        // SAFETY: the descriptor was just made and is nobody else's.
        (descriptor >= 0).then(|| unsafe { File::from_raw_fd(descriptor) })
    };
    let made = make(libc::MFD_CLOEXEC | MFD_EXEC).or_else(|| make(libc::MFD_CLOEXEC));
    made.ok_or_else(io::Error::last_os_error)
}

/// What the loader of shared objects says.
fn complaint() -> String {
    // SAFETY: null, or a string that stays until the next call on this thread.
    let said = unsafe { libc::dlerror().as_ref() };
    match said {
        // SAFETY: as above; it ends in a NUL.
        Some(said) => unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned(),
        None => "no reason was given".to_owned(),
    }
}
