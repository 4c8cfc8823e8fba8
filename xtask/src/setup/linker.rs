//! bpf-linker from crates.io, built against the compiler's LLVM.
//!
//! Only LLVM's shared library is needed. The linker searches `libLLVM.so` in a folder `lib`, so
//! links are made there. It records the folder's path, so a workspace that was moved needs a new
//! linker.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Compiler;
use crate::shell;
use crate::toolchain::{LINKER_VERSION, LLVM_MAJOR, Toolchain};
use crate::workspace::Workspace;

/// Returns the tool chain of `compiler` and its linker, which is built unless the existing one
/// works.
pub(super) fn install(workspace: &Workspace, compiler: Compiler) -> Result<Toolchain> {
    let prefix = workspace.toolchain_dir();
    link_llvm(&compiler.llvm, &prefix.join("lib"))?;
    let toolchain = Toolchain {
        rustc: compiler.rustc,
        linker: prefix.join("bin/bpf-linker"),
        library_path: compiler.library_path,
    };
    if toolchain.check_linker().is_ok() {
        return Ok(toolchain);
    }
    println!(
        "  building bpf-linker {LINKER_VERSION} from crates.io against {} (about half a minute)",
        compiler.llvm.display()
    );
    build(workspace, &prefix, toolchain.library_path.as_ref())?;
    Ok(toolchain)
}

/// Links LLVM under its plain name for the build, and under its own name for the run.
fn link_llvm(llvm: &Path, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let own_name = llvm.file_name().with_context(|| format!("{} is not a file", llvm.display()))?;
    for link in [folder.join("libLLVM.so"), folder.join(own_name)] {
        if link.symlink_metadata().is_ok() {
            std::fs::remove_file(&link).with_context(|| format!("cannot remove {}", link.display()))?;
        }
        symlink(llvm, &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    Ok(())
}

/// Builds without optimisation and debug information: a link takes well under a second, all of it
/// in LLVM.
fn build(workspace: &Workspace, prefix: &Path, library_path: Option<&PathBuf>) -> Result<()> {
    let scratch = prefix.join("build");
    let mut command = workspace.cargo_install("bpf-linker", LINKER_VERSION, prefix, &scratch);
    command.args(["--no-default-features", "--features", &format!("llvm-{LLVM_MAJOR}")]);
    command.env("LLVM_PREFIX", prefix);
    // These variables of the caller are for the workspace, not for this tool.
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
        command.env_remove(name);
    }
    if let Some(library_path) = library_path {
        command.env("LD_LIBRARY_PATH", library_path);
    }
    shell::run(&mut command).context("cannot build bpf-linker")?;
    std::fs::remove_dir_all(&scratch).with_context(|| format!("cannot remove {}", scratch.display()))
}
