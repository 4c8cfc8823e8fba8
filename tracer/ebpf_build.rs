//! The command that compiles kprobe-ebpf. The build script of this crate and `cargo xtask lint` run it, in one
//! target directory, so that the lint finds the build done and only reads its warnings.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The BPF target of both little-endian machines that blkkin supports.
pub(crate) const TARGET: &str = "bpfel-unknown-none";

/// The compiler with the BPF target's library source, and its linker.
pub(crate) struct EbpfToolchain {
    pub(crate) rustc: PathBuf,
    pub(crate) linker: PathBuf,
    /// Folder of the compiler's shared libraries, if they are not in the system's.
    pub(crate) library_path: Option<PathBuf>,
}

/// Returns the command. `arch` is the architecture of the kernel that will run the programs.
///
/// The child must not inherit the settings of an outer cargo (flags, wrappers, target directory).
pub(crate) fn command(
    cargo: &OsStr,
    workspace: &Path,
    target_dir: &Path,
    toolchain: &EbpfToolchain,
    arch: &str,
) -> Command {
    let flags = [
        format!("--cfg=bpf_target_arch=\"{arch}\""),
        format!("-Clinker={}", toolchain.linker.display()),
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
    ];
    let mut command = Command::new(cargo);
    command
        .current_dir(workspace.join("kprobe-ebpf"))
        .args(["build", "--locked", "--release", "--quiet", "-Zbuild-std=core", "--target", TARGET])
        .arg("--target-dir")
        .arg(target_dir)
        .env("RUSTC", &toolchain.rustc)
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    // RUSTUP_TOOLCHAIN is kept: it selects the running cargo, not the compiler.
    for inherited in [
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTFLAGS",
        // The units of an incremental build link to BTF that the kernel rejects.
        "CARGO_INCREMENTAL",
        "CARGO_BUILD_TARGET",
        "CARGO_TARGET_DIR",
        "CARGO_MAKEFLAGS",
        "LD_LIBRARY_PATH",
        // A build script has it; a dependency is built again when it differs.
        "HOST",
    ] {
        command.env_remove(inherited);
    }
    if let Some(path) = &toolchain.library_path {
        command.env("LD_LIBRARY_PATH", path);
    }
    command
}
