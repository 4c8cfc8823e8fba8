//! Compiler with its own library source, which `-Z build-std=core` compiles for the eBPF target.
//!
//! Three sources, in this order: the compiler of this workspace, if its library source is
//! installed; Debian's packages, unpacked below `target/toolchain` without installing them;
//! rustup's `rust-src` component. Debian precedes rustup because it also works if only a
//! distribution mirror is reachable.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Compiler, debian};
use crate::packages::Manager;
use crate::shell;
use crate::toolchain::{compiler_release, source_of};
use crate::workspace::Workspace;

pub(super) fn find_or_make(workspace: &Workspace) -> Result<Compiler> {
    let own_error = match of_workspace(workspace) {
        Ok(compiler) => return Ok(compiler),
        Err(error) => error,
    };
    println!("  the workspace's own rustc cannot build eBPF programs: {own_error:#}");
    let debian = match debian::find_or_make(workspace) {
        Ok(compiler) => return Ok(compiler),
        Err(error) => error,
    };
    println!("  Debian's rustc-web cannot be used: {debian:#}");
    add_rust_source(workspace).and_then(|()| of_workspace(workspace)).map_err(|rustup| {
        anyhow::anyhow!(
            "no rustc with its own library source is available\n  workspace: {own_error:#}\n  Debian: {debian:#}\n  \
             rustup: {rustup:#}\nto get one: {}\nor build the object elsewhere and name its path in {}",
            Manager::detect().rust_source_remedy(),
            crate::toolchain::READY_OBJECT_VARIABLE
        )
    })
}

/// Returns the compiler that builds this workspace, if its library source is installed.
fn of_workspace(workspace: &Workspace) -> Result<Compiler> {
    let sysroot =
        shell::capture(Command::new("rustc").current_dir(workspace.root()).args(["--print", "sysroot"]))?;
    let sysroot = Path::new(sysroot.trim());
    let rustc = sysroot.join("bin/rustc");
    let release = compiler_release(&rustc)?;
    source_of(&rustc, &release)?;
    Ok(Compiler { llvm: llvm_of(&rustc)?, rustc, library_path: None })
}

/// Returns the LLVM that the compiler loads. rustup keeps it in the compiler's folder, a
/// distribution in the system.
fn llvm_of(rustc: &Path) -> Result<PathBuf> {
    let loaded = shell::capture(Command::new("ldd").arg(rustc))?;
    let line = loaded.lines().map(str::trim).find(|line| line.starts_with("libLLVM"));
    let path = line.and_then(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    let path = path.with_context(|| format!("{} loads no shared libLLVM", rustc.display()))?;
    Path::new(path).canonicalize().with_context(|| format!("no {path}"))
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
