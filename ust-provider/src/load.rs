//! Loader of the embedded shared objects.
//!
//! *In*: the bytes of an object. *Out*: its handle, or the reason of the failure.
//!
//! The bytes are written to a file without a name (memfd), so nothing has to be installed next to
//! the daemon and no directory must be writable. The dynamic loader opens the file by its
//! descriptor and resolves liblttng-ust if it is installed.

use std::ffi::{CStr, CString, c_void};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};

/// MFD_EXEC of Linux 6.3 (include/uapi/linux/memfd.h). Without it, a machine with sysctl
/// vm.memfd_noexec = 1 does not map the file as code. Older kernels reject the flag.
const MFD_EXEC: u32 = 0x10;

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
pub(crate) fn loader_error() -> String {
    // SAFETY: null, or a string that stays until the next call on this thread.
    let error = unsafe { libc::dlerror().as_ref() };
    match error {
        // SAFETY: it stays until the next call on this thread and ends in a NUL.
        Some(error) => unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned(),
        None => "no reason was given".to_owned(),
    }
}
