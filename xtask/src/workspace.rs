//! Where things are: the workspace, and what the tasks keep below its `target/`.
//!
//! The tools are kept in `target/toolchain` of the *workspace*, whatever CARGO_TARGET_DIR says: `tracer/build.rs`
//! must find them with any target directory, and several target directories should share one tool chain.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// The checkout that this task works on.
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// The workspace that cargo started this task in; by asking cargo where the task was started by hand.
    pub(crate) fn find() -> Result<Self> {
        if let Some(root) =
            std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).as_deref().and_then(Path::parent)
        {
            return Ok(Self { root: root.to_owned() });
        }
        let mut locate = Command::new(cargo());
        locate.args(["locate-project", "--workspace", "--message-format", "plain"]);
        let manifest =
            shell::capture(&mut locate).context("cannot find the workspace: run this inside the checkout")?;
        let root = Path::new(manifest.trim()).parent().context("cargo named no folder for the workspace")?;
        Ok(Self { root: root.to_owned() })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Compilers, linker and test tools that the tasks fetched: safe to delete, `setup` makes it again.
    pub(crate) fn toolchain_dir(&self) -> PathBuf {
        self.root.join("target/toolchain")
    }

    /// What the demo leaves for the reader, and its disk while it runs.
    pub(crate) fn demo_dir(&self) -> PathBuf {
        self.root.join("target/demo")
    }

    /// Kernels of guests, and what the guests leave: safe to delete.
    pub(crate) fn vm_dir(&self) -> PathBuf {
        self.root.join("target/vm")
    }

    /// `cargo ARGS` in the workspace, by the cargo that runs this task.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(cargo());
        command.current_dir(&self.root);
        command
    }
}

fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
