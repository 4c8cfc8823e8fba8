//! Loads the probe that was embedded: in, its bytes; out, its table, or why not.
//!
//! It becomes a file without a name (memfd), so nothing has to be installed beside the daemon and no directory has to be
//! written to. The loader of shared objects opens it by its descriptor, and finds liblttng-ust on the way, or does not.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Write};
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd};

use crate::probe::Table;

const PROBE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/blkkin-probe.so"));

/// `BLKKIN_PROBE_ABI` of `c/probe/probe.h`.
const ABI: u32 = 1;

/// MFD_EXEC of Linux 6.3 (include/uapi/linux/memfd.h): without it, a machine with sysctl vm.memfd_noexec = 1 maps no code
/// of it. An older kernel refuses the word.
const MFD_EXEC: u32 = 0x10;

pub(crate) fn probe() -> Result<&'static Table, String> {
    let mut file = memfd().map_err(|why| format!("no memory file for the probe: {why}"))?;
    file.write_all(PROBE).map_err(|why| format!("cannot write the probe: {why}"))?;
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("a number has no NUL");
    // SAFETY: the path ends in a NUL. The constructors that this runs are the probe's and LTTng's.
    let handle =
        unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE) };
    if handle.is_null() {
        return Err(complaint());
    }
    // SAFETY: the handle is of an object that is loaded, the name ends in a NUL.
    let table: *const Table = unsafe { libc::dlsym(handle, c"blkkin_probe".as_ptr()) }.cast();
    // SAFETY: it is null or the probe's constant table, which is never unloaded and begins with `abi` and `size`.
    let table = unsafe { table.as_ref() }.ok_or_else(complaint)?;
    match (table.abi, table.size as usize >= size_of::<Table>()) {
        (ABI, true) => Ok(table),
        (abi, _) => Err(format!("the probe has interface {abi} and not {ABI}")),
    }
}

fn memfd() -> io::Result<File> {
    let make = |flags| {
        // SAFETY: the name ends in a NUL.
        let descriptor = unsafe { libc::memfd_create(c"blkkin-probe".as_ptr(), flags) };
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
