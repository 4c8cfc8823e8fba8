//! `dist`: the distributable files, in `target/dist`.
//!
//! ```text
//! cargo rustc --release ── static binary, stripped ── target/dist/blkkin ── configs/deploy/install.sh
//!                                                            └── buildah ── target/dist/blkkin-VERSION.oci.tar
//! ```
//!
//! *Out*: one binary without dependencies on shared libraries, and a container image that contains
//! only this binary. *Invariant*: the tests of containers and hosts use a binary that the same
//! steps build from the same crates. Only its last link step differs from the binary that all other
//! tests run ([`static_link`]).

mod image;
mod static_link;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::setup::{self, Purpose};
use crate::workspace::Workspace;

pub(crate) use static_link::Profile;

/// Builds the binary, and the image if requested, and prints their sizes.
pub(crate) fn run(workspace: &Workspace, with_image: bool) -> Result<()> {
    let purposes: &[Purpose] = if with_image { &[Purpose::Build, Purpose::Image] } else { &[Purpose::Build] };
    setup::run(workspace, purposes)?;
    println!("dist: building blkkin (release, static; the first build takes some minutes)");
    let binary = static_link::build(workspace, Profile::Release)?;
    print_size(workspace, &binary)?;
    if with_image {
        print_size(workspace, &image::build(workspace, &binary)?)?;
    }
    Ok(())
}

/// Builds the static binary of the tests in the dev profile, like all tested code.
pub(crate) fn for_tests(workspace: &Workspace) -> Result<PathBuf> {
    static_link::build(workspace, Profile::Dev)
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
