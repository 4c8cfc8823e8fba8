//! `dist`: the distributable files, in `target/dist`.
//!
//! ```text
//! cargo rustc --release ── static binary, stripped ── target/dist/blkkin ──┬── configs/deploy/install.sh
//!                                                                          ├── dpkg-deb, rpmbuild, tar ── packages
//!                                                                          └── buildah ── blkkin-VERSION.oci.tar
//! ```
//!
//! *Out*: one binary without dependencies on shared libraries, packages of it with its units, options, completions
//! and manual pages, a bill of materials ([`sbom`]), the sums of all of them, and a container image that contains only this binary. *Invariant*: the tests of containers and hosts use a binary that the same
//! steps build from the same crates. Only its last link step differs from the binary that all other
//! tests run ([`static_link`]).

mod image;
mod package;
mod rpm;
mod sbom;
mod static_link;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::setup::{self, Purpose};
use crate::shell;
use crate::workspace::Workspace;

pub(crate) use static_link::Profile;

/// Compression level of packages: gzip's best, and its fastest for tests.
const LEVEL: u32 = 9;
const LEVEL_TESTS: u32 = 1;

/// Builds the binary and the packages, and the image if requested, and prints their sizes.
pub(crate) fn run(workspace: &Workspace, with_image: bool) -> Result<()> {
    let purposes: &[Purpose] = if with_image { &[Purpose::Build, Purpose::Image] } else { &[Purpose::Build] };
    setup::run(workspace, purposes)?;
    println!("dist: building blkkin (release, static; the first build takes some minutes)");
    let binary = static_link::build(workspace, Profile::Release)?;
    let packages = package::build(workspace, &binary, &folder(workspace), LEVEL)?;
    let mut files = vec![binary, packages.archive];
    files.extend(packages.debian.into_iter().chain(packages.rpm));
    if with_image {
        files.push(image::build(workspace, &files[0])?);
    }
    files.push(sbom::build(workspace, &folder(workspace))?);
    files.iter().try_for_each(|file| print_size(workspace, file))?;
    write_sums(workspace, &files)
}

/// Writes the SHA-256 sums of the files, which `sha256sum --check SHA256SUMS` compares.
fn write_sums(workspace: &Workspace, files: &[PathBuf]) -> Result<()> {
    let mut command = Command::new("sha256sum");
    command.current_dir(folder(workspace)).args(files.iter().filter_map(|file| file.file_name()));
    let path = folder(workspace).join("SHA256SUMS");
    std::fs::write(&path, shell::capture(&mut command)?)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Builds the static binary of the tests in the dev profile, like all tested code, and its packages.
pub(crate) fn for_tests(workspace: &Workspace) -> Result<()> {
    let binary = static_link::build(workspace, Profile::Dev)?;
    let folder = folder(workspace).join("test");
    package::build(workspace, &binary, &folder, LEVEL_TESTS)?;
    sbom::build(workspace, &folder)?;
    Ok(())
}

/// Builds the static binary of a release.
pub(crate) fn static_release(workspace: &Workspace) -> Result<PathBuf> {
    static_link::build(workspace, Profile::Release)
}

/// Returns the path of the static binary of a release.
pub(crate) fn release_binary(workspace: &Workspace) -> PathBuf {
    static_link::output_path(workspace, Profile::Release)
}

/// Returns the path of the static binary of the tests.
pub(crate) fn test_binary(workspace: &Workspace) -> PathBuf {
    static_link::output_path(workspace, Profile::Dev)
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.root().join("target/dist")
}

fn print_size(workspace: &Workspace, file: &Path) -> Result<()> {
    let size = std::fs::metadata(file).with_context(|| format!("no {}", file.display()))?.len();
    let shown = file.strip_prefix(workspace.root()).unwrap_or(file);
    println!("dist: {} ({:.1} MiB)", shown.display(), size as f64 / f64::from(1 << 20));
    Ok(())
}
