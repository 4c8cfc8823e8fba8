//! `dist`: what is brought to other machines, in `target/dist`.
//!
//! ```text
//! cargo rustc --release ── static binary, stripped ── target/dist/blkkin ── configs/deploy/install.sh
//!                                                            └── buildah ── target/dist/blkkin-VERSION.oci.tar
//! ```
//!
//! *Out*: one file that needs no library of the machine that it runs on, and a container image that holds that file and
//! nothing else. *Invariant*: what the tests put into a container and onto hosts is made by the same steps, of the same
//! crates: only the last link differs from the binary that all other tests run ([`static_link`]).

mod image;
mod static_link;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::setup::{self, Purpose};
use crate::workspace::Workspace;

pub(crate) use static_link::Profile;

/// Makes the binary, and the image where that is asked for; says how large they are.
pub(crate) fn run(workspace: &Workspace, with_image: bool) -> Result<()> {
    let purposes: &[Purpose] = if with_image { &[Purpose::Build, Purpose::Image] } else { &[Purpose::Build] };
    setup::run(workspace, purposes)?;
    println!("dist: building blkkin (release, static; the first build takes some minutes)");
    let binary = static_link::build(workspace, Profile::Release)?;
    told(workspace, &binary)?;
    if with_image {
        told(workspace, &image::build(workspace, &binary)?)?;
    }
    Ok(())
}

/// The static binary that tests bring to other roots: unoptimised, as all that is tested.
pub(crate) fn for_tests(workspace: &Workspace) -> Result<PathBuf> {
    static_link::build(workspace, Profile::Dev)
}

/// Where it is then.
pub(crate) fn test_binary(workspace: &Workspace) -> PathBuf {
    static_link::place(workspace, Profile::Dev)
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.root().join("target/dist")
}

fn told(workspace: &Workspace, file: &Path) -> Result<()> {
    let size = std::fs::metadata(file).with_context(|| format!("no {}", file.display()))?.len();
    let shown = file.strip_prefix(workspace.root()).unwrap_or(file);
    println!("dist: {} ({:.1} MiB)", shown.display(), size as f64 / f64::from(1 << 20));
    Ok(())
}
