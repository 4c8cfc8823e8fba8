//! Loader of the embedded shared objects.
//!
//! *In*: the bytes of an object. *Out*: its handle, and for the probe its table, or the reason of
//! the failure.
//!
//! The bytes are written to a file without a name (memfd), so nothing has to be installed next to
//! the daemon and no directory must be writable. The dynamic loader opens the file by its
//! descriptor and resolves liblttng-ust if it is installed.

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
const ABI: u32 = 3;

/// MFD_EXEC of Linux 6.3 (include/uapi/linux/memfd.h). Without it, a machine with sysctl
/// vm.memfd_noexec = 1 does not map the file as code. Older kernels reject the flag.
const MFD_EXEC: u32 = 0x10;

/// Loads the probe and returns its table.
#[cfg(blkkin_probe)]
pub(crate) fn probe() -> Result<&'static Table, String> {
    let handle = object(c"blkkin-probe", PROBE)?;
    // SAFETY: the handle is of an object that is loaded, the name ends in a NUL.
    let table: *const Table = unsafe { libc::dlsym(handle, c"blkkin_probe".as_ptr()) }.cast();
    // SAFETY: it is null or the probe's constant table, which is never unloaded and begins with
    // `abi` and `size`.
    let table = unsafe { table.as_ref() }.ok_or_else(loader_error)?;
    match (table.abi, table.size as usize >= size_of::<Table>()) {
        (ABI, true) => Ok(table),
        (abi, _) => Err(format!("the probe has interface {abi} and not {ABI}")),
    }
}

/// Loads an object, which is never unloaded.
pub(crate) fn object(name: &CStr, bytes: &[u8]) -> Result<*mut c_void, String> {
    let mut file = memfd(name).map_err(|error| format!("no memory file for it: {error}"))?;
    file.write_all(bytes).map_err(|error| format!("cannot write it: {error}"))?;
    // The loader identifies objects by path. If another object was loaded by the same descriptor
    // number, that one would be found.
    let mut used = Vec::new();
    while used.len() < DESCRIPTORS_MAX && is_loaded(&path_of(&file)) {
        let next = file.try_clone().map_err(|error| format!("no descriptor for it: {error}"))?;
        used.push(std::mem::replace(&mut file, next));
    }
    let path = path_of(&file);
    // SAFETY: the path ends in a NUL. The constructors that this runs are those of blkkin and
    // LTTng.
    let handle =
        unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE) };
    if handle.is_null() { Err(loader_error()) } else { Ok(handle) }
}

/// Maximum descriptor numbers to try. Each copy of this library in the process uses two.
const DESCRIPTORS_MAX: usize = 64;

fn path_of(file: &File) -> CString {
    CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("a number has no NUL")
}

fn is_loaded(path: &CStr) -> bool {
    // SAFETY: the path ends in a NUL. RTLD_NOLOAD loads nothing, and the reference is released.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        !handle.is_null() && libc::dlclose(handle) == 0
    }
}

fn memfd(name: &CStr) -> io::Result<File> {
    let create = |flags| {
        // SAFETY: the name ends in a NUL.
        let descriptor = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        // SAFETY: the descriptor was just created and has no other owner.
        (descriptor >= 0).then(|| unsafe { File::from_raw_fd(descriptor) })
    };
    let file = create(libc::MFD_CLOEXEC | MFD_EXEC).or_else(|| create(libc::MFD_CLOEXEC));
    file.ok_or_else(io::Error::last_os_error)
}

/// Returns the last error of the dynamic loader.
fn loader_error() -> String {
    // SAFETY: null, or a string that stays until the next call on this thread.
    let error = unsafe { libc::dlerror().as_ref() };
    match error {
        // SAFETY: it stays until the next call on this thread and ends in a NUL.
        Some(error) => unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned(),
        None => "no reason was given".to_owned(),
    }
}
