//! C libraries that a benchmark compiles and loads into its load, for code that needs a C compiler
//! or an assembler.

use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::process;

/// Compiles `source` into a library with this name in `folder`, with an additional `flag`.
pub(crate) fn compile(folder: &Path, name: &str, source: &str, flag: &str) -> Result<PathBuf> {
    let (text, made) = (folder.join(format!("{name}.c")), folder.join(format!("lib{name}.so")));
    std::fs::write(&text, source)?;
    let words = ["-O2", "-shared", "-fPIC", flag, "-o"];
    process::run(Command::new("cc").args(words).arg(&made).arg(&text))?;
    Ok(made)
}

/// Loads the library, for the life of the process, and returns the address of this function.
pub(crate) fn function(library: &str, name: &str) -> Result<*mut c_void> {
    let (path, symbol) = (CString::new(library)?, CString::new(name)?);
    // SAFETY: both names end in a NUL; the library has no constructors.
    let function = unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        if handle.is_null() { handle } else { libc::dlsym(handle, symbol.as_ptr()) }
    };
    if function.is_null() {
        bail!("{library} cannot be loaded, or has no {name}");
    }
    Ok(function)
}
