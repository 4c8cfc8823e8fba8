//! Container image: the static binary in an empty file system, built by buildah, which needs no
//! daemon.
//!
//! *Out*: an OCI archive, which `podman load`, `docker load`, `ctr image import` and `skopeo copy`
//! accept. buildah stores everything below `target/dist` and does not touch the machine's images or
//! its configuration.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::folder;
use crate::shell;
use crate::workspace::Workspace;

/// Image name with the version of all crates.
const NAME: &str = concat!("blkkin:", env!("CARGO_PKG_VERSION"));

pub(super) fn build(workspace: &Workspace, binary: &Path) -> Result<PathBuf> {
    let (context, storage) = (folder(workspace).join("context"), folder(workspace).join("storage"));
    std::fs::create_dir_all(&context).with_context(|| format!("cannot make {}", context.display()))?;
    std::fs::copy(binary, context.join("blkkin")).context("cannot copy the binary")?;
    let archive = folder(workspace).join(concat!("blkkin-", env!("CARGO_PKG_VERSION"), ".oci.tar"));
    let _ = std::fs::remove_file(&archive);
    let containerfile = workspace.root().join("configs/deploy/Containerfile");
    let mut bud = buildah(&storage);
    bud.args(["bud", "--quiet", "--isolation", "chroot", "--tag", NAME, "--file"]);
    shell::run_quietly(bud.arg(containerfile).arg(&context)).context("cannot build the image")?;
    let mut push = buildah(&storage);
    push.args(["push", "--quiet", NAME]).arg(format!("oci-archive:{}:{NAME}", archive.display()));
    shell::run_quietly(&mut push).context("cannot write the image")?;
    // buildah's storage contains a copy of the archive.
    shell::run_quietly(buildah(&storage).args(["rmi", "--all", "--force"]))?;
    Ok(archive)
}

/// Prepares buildah with the vfs storage driver: plain folders, which work on any file system.
fn buildah(storage: &Path) -> Command {
    let mut command = Command::new("buildah");
    command.arg("--root").arg(storage.join("root")).arg("--runroot").arg(storage.join("run"));
    command.args(["--storage-driver", "vfs"]);
    command
}
