//! Builds of the C library and of programs that use it, as a user builds them.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::succeed;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// Builds the library with `make` in this directory.
pub(crate) fn library(build: &Path) -> PathBuf {
    succeed(make(build).env("BLKKIN_UST", "require").output().unwrap());
    build.join("libblkkin-ust.a")
}

/// Returns `make` with the environment of a user's shell.
pub(crate) fn make(build: &Path) -> Command {
    let mut make = Command::new("make");
    make.args(["-s", "-f"]).arg(format!("{CRATE}/c/Makefile")).arg(format!("BUILD={}", build.display()));
    make.env_remove("MAKEFLAGS").env_remove("CC").env_remove("CFLAGS").env_remove("BLKKIN_UST");
    make
}

/// Creates a C compiler that does not find LTTng's headers: its include folders have links to all
/// others.
pub(crate) fn without_headers(scratch: &Path) -> PathBuf {
    let search_paths = Command::new("cc").args(["-E", "-v", "-x", "c", "/dev/null"]).output().unwrap();
    let stderr = String::from_utf8(search_paths.stderr).unwrap();
    let list = stderr.split("#include <...> search starts here:").nth(1).unwrap();
    let directories = list.split("End of search list").next().unwrap().split_whitespace();
    let mut script = "#!/bin/sh\nexec cc -nostdinc".to_owned();
    for (number, directory) in directories.enumerate() {
        let links = scratch.join(format!("include-{number}"));
        fs::create_dir(&links).unwrap();
        for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
            if entry.file_name() != "lttng" {
                symlink(entry.path(), links.join(entry.file_name())).unwrap();
            }
        }
        script += &format!(" -isystem {}", links.display());
    }
    let compiler = scratch.join("cc-without-lttng");
    fs::write(&compiler, script + " \"$@\"\n").unwrap();
    fs::set_permissions(&compiler, Permissions::from_mode(0o755)).unwrap();
    compiler
}

/// Compiles `tests/programs/NAME` with the compiler's default flags and all its warnings as errors.
pub(crate) fn compile(build: &Path, library: &Path, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let compiler = if source.ends_with(".cpp") { "c++" } else { "cc" };
    let program = build.join(name);
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"]).args(flags);
    command.arg(format!("-I{CRATE}/c/include")).arg("-o").arg(&program);
    command.arg(format!("{CRATE}/tests/programs/{source}")).arg(library).args(["-ldl", "-lpthread"]);
    succeed(command.output().unwrap());
    program
}
