//! Record of the eBPF tool chain, `target/toolchain/toolchain.json`. `setup` writes it and
//! `tracer/build.rs` reads it.
//!
//! The record is not trusted: [`Toolchain::check`] runs the recorded compiler and linker, and
//! compares the compiler's release with that of its library source. The two must match exactly,
//! because `core` is compiled from that source and uses the compiler's internals.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::shell;
use crate::workspace::Workspace;

/// Path of a prebuilt eBPF object for machines without a tool chain. `tracer/build.rs` uses it
/// unchanged.
pub(crate) const READY_OBJECT_VARIABLE: &str = "BLKKIN_EBPF_OBJECT";
/// Alternative path of the record, for a tool chain that was set up by hand.
pub(crate) const RECORD_VARIABLE: &str = "BLKKIN_TOOLCHAIN_JSON";

/// Version of the linker that turns LLVM bitcode into an eBPF object; tested with aya's releases.
pub(crate) const LINKER_VERSION: &str = "0.13.0";
/// LLVM version of the linker. It must read the compiler's bitcode, so the major version must be
/// equal.
pub(crate) const LLVM_MAJOR: u32 = 22;

/// Absolute paths of the tools that build the eBPF programs.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Toolchain {
    /// Compiler with its own library source below its sysroot.
    pub(crate) rustc: PathBuf,
    /// Linker of eBPF objects (bpf-linker).
    pub(crate) linker: PathBuf,
    /// Value of LD_LIBRARY_PATH for the build, if the libraries are not in a standard folder.
    pub(crate) library_path: Option<PathBuf>,
}

impl Toolchain {
    /// Reads the tool chain that an earlier `setup` recorded, and checks it. The error states what
    /// does not work.
    pub(crate) fn recorded(workspace: &Workspace) -> Result<Self> {
        let path = record_path(workspace);
        let text = std::fs::read_to_string(&path).with_context(|| format!("no record {}", path.display()))?;
        let recorded: Self =
            serde_json::from_str(&text).with_context(|| format!("bad record {}", path.display()))?;
        recorded.check().map(|_| recorded)
    }

    /// Replaces the record atomically, so that a build never reads half of it.
    pub(crate) fn record(&self, workspace: &Workspace) -> Result<()> {
        let path = record_path(workspace);
        let partial = path.with_extension("partial");
        let text = serde_json::to_string_pretty(self).context("cannot write the tool chain as JSON")? + "\n";
        std::fs::write(&partial, text)
            .and_then(|()| std::fs::rename(&partial, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Runs both programs and returns the compiler's release if all versions fit.
    pub(crate) fn check(&self) -> Result<Release> {
        let compiler = compiler_release(&self.rustc)?;
        source_of(&self.rustc, &compiler)?;
        self.check_linker()?;
        Ok(compiler)
    }

    /// Checks that the linker exists, has the required version and finds its LLVM.
    pub(crate) fn check_linker(&self) -> Result<()> {
        let mut command = Command::new(&self.linker);
        command.arg("--version").env_remove("LD_LIBRARY_PATH");
        if let Some(library_path) = &self.library_path {
            command.env("LD_LIBRARY_PATH", library_path);
        }
        let output = shell::capture(&mut command)?;
        ensure!(
            output.split_whitespace().any(|word| word == LINKER_VERSION),
            "bpf-linker {LINKER_VERSION} is needed, found {}",
            output.trim()
        );
        Ok(())
    }
}

/// Returns the path of the record, which may not exist.
pub(crate) fn record_path(workspace: &Workspace) -> PathBuf {
    let elsewhere = std::env::var_os(RECORD_VARIABLE).map(PathBuf::from);
    elsewhere.unwrap_or_else(|| workspace.toolchain_dir().join("toolchain.json"))
}

/// Release and LLVM version from the output of `rustc -vV`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) version: String,
    pub(crate) llvm_major: u32,
}

impl Release {
    fn parse(output: &str) -> Option<Self> {
        let value = |key: &str| output.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let llvm = value("LLVM version:")?;
        let llvm_major = llvm.split('.').next()?.parse().ok()?;
        Some(Self { version: value("release:")?.to_owned(), llvm_major })
    }
}

/// Returns the release of `rustc`, if the linker reads its bitcode.
pub(crate) fn compiler_release(rustc: &Path) -> Result<Release> {
    let output = shell::capture(Command::new(rustc).arg("-vV"))?;
    let release = Release::parse(&output).with_context(|| {
        format!("`{} -vV` has no release and LLVM version in its output: {output}", rustc.display())
    })?;
    if release.llvm_major != LLVM_MAJOR {
        bail!(
            "rustc {} is built on LLVM {}, bpf-linker {LINKER_VERSION} here on {LLVM_MAJOR}",
            release.version,
            release.llvm_major
        );
    }
    Ok(release)
}

/// Returns the folder of `rustc`'s own library source, which must be of the same release.
///
/// rustup's source component always matches its compiler. Debian's is a link to a folder named by
/// version, which differs if only one of the two packages was upgraded.
pub(crate) fn source_of(rustc: &Path, release: &Release) -> Result<PathBuf> {
    let sysroot = shell::capture(Command::new(rustc).args(["--print", "sysroot"]))?;
    let linked = Path::new(sysroot.trim()).join("lib/rustlib/src/rust");
    let source = linked.canonicalize().with_context(|| {
        format!("rustc {} has no library source at {}", release.version, linked.display())
    })?;
    let core = source.join("library/core/src/lib.rs");
    ensure!(
        core.is_file(),
        "the library source of rustc {} is incomplete: no {}",
        release.version,
        core.display()
    );
    let versioned = source.file_name().and_then(|name| name.to_str()?.strip_prefix("rustc-"));
    if let Some(version) = versioned.filter(|version| !same_release(version, &release.version)) {
        bail!("rustc {} has the library source of {version}", release.version);
    }
    Ok(source)
}

/// Compares versions without the suffix that Debian adds to its source packages (`+dfsg1`).
fn same_release(source: &str, compiler: &str) -> bool {
    let upstream = |version: &str| version.split(['+', '-', '~']).next().map(str::to_owned);
    upstream(source) == upstream(compiler)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_and_llvm_are_parsed_from_rustc_output() {
        let output =
            "rustc 1.96.0 (ac68faa20 2026-05-25)\nbinary: rustc\nrelease: 1.96.0\nLLVM version: 22.1.8\n";
        assert_eq!(Release::parse(output), Some(Release { version: "1.96.0".into(), llvm_major: 22 }));
        assert_eq!(Release::parse("rustc: no such thing"), None);
    }

    #[test]
    fn library_source_of_other_release_is_rejected() {
        assert!(same_release("1.96.0", "1.96.0"));
        assert!(same_release("1.96.0+dfsg1", "1.96.0"));
        assert!(!same_release("1.85.0", "1.96.0"));
    }

    #[test]
    fn record_format_is_stable() {
        let toolchain =
            Toolchain { rustc: "/t/rustc".into(), linker: "/t/bpf-linker".into(), library_path: None };
        let text = serde_json::to_string(&toolchain).expect("plain data");
        assert_eq!(text, r#"{"rustc":"/t/rustc","linker":"/t/bpf-linker","library_path":null}"#);
    }
}
