//! The C library and programs that use it, as a C user makes them.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::succeed;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// Makes the library with `make`, in a directory of its own.
pub(crate) fn library(build: &Path) -> PathBuf {
    let mut make = Command::new("make");
    make.args(["-s", "-f"]).arg(format!("{CRATE}/c/Makefile")).arg(format!("BUILD={}", build.display()));
    succeed(make.env_remove("MAKEFLAGS").env("BLKKIN_UST", "require").output().unwrap());
    build.join("libblkkin-ust.a")
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
