//! A rustc with its own library source, which `-Z build-std=core` compiles for the eBPF target.
//!
//! Three ways, in this order: the compiler of this workspace where its source is there already; Debian's packages,
//! unpacked below `target/toolchain` with nothing installed; rustup's `rust-src` component. The second comes before
//! the third because it also works where only a distribution's mirror is reachable.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::debian;
use crate::packages::Manager;
use crate::shell;
use crate::toolchain::{compiler_release, source_of};
use crate::workspace::Workspace;

/// A compiler and the LLVM that it is built on.
pub(super) struct Compiler {
    pub(super) rustc: PathBuf,
    /// The shared library itself, not a link to it.
    pub(super) llvm: PathBuf,
    /// Folder of the libraries that the compiler needs beside it, where they are in no standard place.
    pub(super) library_path: Option<PathBuf>,
}

pub(super) fn find_or_make(workspace: &Workspace) -> Result<Compiler> {
    let here = match of_workspace(workspace) {
        Ok(compiler) => return Ok(compiler),
        Err(error) => error,
    };
    println!("  the workspace's own rustc cannot build eBPF programs: {here:#}");
    let debian = match debian::find_or_make(workspace) {
        Ok(compiler) => return Ok(compiler),
        Err(error) => error,
    };
    println!("  Debian's rustc-web cannot be used: {debian:#}");
    add_rust_source(workspace).and_then(|()| of_workspace(workspace)).map_err(|rustup| {
        anyhow::anyhow!(
            "no rustc with its own library source can be had here\n  workspace: {here:#}\n  Debian: {debian:#}\n  \
             rustup: {rustup:#}\nto get one: {}\nor build elsewhere and give the object by {}",
            Manager::of_this_machine().rust_source_remedy(),
            crate::toolchain::READY_OBJECT_VARIABLE
        )
    })
}

/// The compiler that builds this workspace, if its library source is installed.
fn of_workspace(workspace: &Workspace) -> Result<Compiler> {
    let sysroot =
        shell::capture(Command::new("rustc").current_dir(workspace.root()).args(["--print", "sysroot"]))?;
    let sysroot = Path::new(sysroot.trim());
    let rustc = sysroot.join("bin/rustc");
    let release = compiler_release(&rustc)?;
    source_of(&rustc, &release)?;
    Ok(Compiler { llvm: llvm_of(&sysroot.join("lib"))?, rustc, library_path: None })
}

/// rustup keeps LLVM beside the compiler's driver; a distribution's driver names the system's.
fn llvm_of(libraries: &Path) -> Result<PathBuf> {
    let files = || debian::files_in(libraries);
    let named = |file: &PathBuf, start: &str| {
        file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))
    };
    if let Some(own) = files()?.into_iter().find(|file| named(file, "libLLVM.so.")) {
        return Ok(own);
    }
    let driver = files()?.into_iter().find(|file| named(file, "librustc_driver"));
    let driver = driver.with_context(|| format!("no librustc_driver in {}", libraries.display()))?;
    let loaded = shell::capture(Command::new("ldd").arg(&driver))?;
    let llvm = loaded.lines().find_map(|line| {
        line.trim().strip_prefix("libLLVM")?.split_whitespace().find(|word| word.starts_with('/'))
    });
    match llvm {
        Some(path) => Ok(PathBuf::from(path)),
        None => bail!("{} has LLVM linked in: no shared libLLVM for the linker", driver.display()),
    }
}

fn add_rust_source(workspace: &Workspace) -> Result<()> {
    if shell::which("rustup").is_none() {
        bail!("rustup is not installed");
    }
    println!("  rustup component add rust-src: the library source of the pinned rustc");
    shell::run_quietly(Command::new("rustup").current_dir(workspace.root()).args([
        "component",
        "add",
        "rust-src",
    ]))
}
