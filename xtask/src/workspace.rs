//! Paths of the workspace, and of the files that the tasks keep below its `target/`.
//!
//! The tools are in `target/toolchain` of the *workspace*, independent of CARGO_TARGET_DIR:
//! `tracer/build.rs` must find them with any target directory, and several target directories share
//! one tool chain.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// Checkout that the task works on.
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Finds the workspace by the environment that cargo sets, or by `cargo locate-project` without
    /// it.
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
        let root = Path::new(manifest.trim()).parent().context("cargo printed no folder of the workspace")?;
        Ok(Self { root: root.to_owned() })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folder of compilers, linker and test tools. It can be deleted; `setup` makes it
    /// again.
    pub(crate) fn toolchain_dir(&self) -> PathBuf {
        self.root.join("target/toolchain")
    }

    /// Returns the folder of the demo's trace, and of its disk while it runs.
    pub(crate) fn demo_dir(&self) -> PathBuf {
        self.root.join("target/demo")
    }

    /// Returns the folder of the guests' kernels and files. It can be deleted.
    pub(crate) fn vm_dir(&self) -> PathBuf {
        self.root.join("target/vm")
    }

    /// Returns the folder of the fuzz targets, their inputs and crashes. It can be deleted.
    pub(crate) fn fuzz_dir(&self) -> PathBuf {
        self.root.join("target/fuzz")
    }

    /// Prepares `cargo ARGS` in the workspace, with the cargo that runs this task.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(cargo());
        command.current_dir(&self.root);
        command
    }

    /// Prepares `cargo install` of a tool's version into `prefix`, without optimisation and debug information.
    pub(crate) fn cargo_install(&self, tool: &str, version: &str, prefix: &Path, target: &Path) -> Command {
        let mut command = self.cargo();
        command.args(["install", "--quiet", "--locked", "--force", "--debug", tool, "--version", version]);
        command.arg("--root").arg(prefix).arg("--target-dir").arg(target).env("CARGO_PROFILE_DEV_DEBUG", "0");
        command
    }

    /// Returns the path of a tool of a version in the tool chain's folder, and installs it there if it is missing. The
    /// user's `~/.cargo/bin` stays unchanged.
    pub(crate) fn installed_tool(
        &self,
        tool: &str,
        version: &str,
        features: &[&str],
        purpose: &str,
    ) -> Result<PathBuf> {
        let prefix = self.toolchain_dir();
        let program = prefix.join("bin").join(tool);
        let found = shell::capture(Command::new(&program).arg("--version")).unwrap_or_default();
        if found.trim().ends_with(version) {
            return Ok(program);
        }
        println!("  building {tool} {version} into target/toolchain: {purpose}");
        let scratch = prefix.join(format!("build-{tool}"));
        shell::run(self.cargo_install(tool, version, &prefix, &scratch).args(features))
            .with_context(|| format!("cannot build {tool}"))?;
        std::fs::remove_dir_all(&scratch).with_context(|| format!("cannot remove {}", scratch.display()))?;
        Ok(program)
    }

    /// Returns what the workspace's compiler prints as its version: `rustc 1.95.0 (59807616e 2026-04-14)`.
    pub(crate) fn compiler_version(&self) -> Result<String> {
        let printed = shell::capture(Command::new("rustc").current_dir(&self.root).arg("--version"))?;
        Ok(printed.trim().to_owned())
    }

    /// Lists the files with one of these extensions that git tracks or would track, as paths below the root.
    pub(crate) fn sources(&self, extensions: &[&str]) -> Result<Vec<String>> {
        let mut git = Command::new("git");
        git.arg("-C").arg(&self.root).args(["ls-files", "--cached", "--others", "--exclude-standard"]);
        let listed = shell::capture(&mut git).context("cannot list the sources")?;
        let wanted =
            |file: &&str| file.rsplit_once('.').is_some_and(|(_, extension)| extensions.contains(&extension));
        let mut files: Vec<String> = listed.lines().filter(wanted).map(str::to_owned).collect();
        // A file that was removed and not committed is still listed.
        files.retain(|file| self.root.join(file).is_file());
        Ok(files)
    }
}

fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
