//! `lint`: formatting, vocabulary, module cycles, clippy, documentation, and the licences and
//! sources of dependencies.
//!
//! All checks run even when one fails, so one run shows every error. Known vulnerabilities are
//! checked only with `--advisories`. Their database is fetched and changes daily, so the same
//! commit could pass today and fail tomorrow, and fails without that network.

mod cycles;
#[path = "../../tracer/ebpf_build.rs"]
mod ebpf_build;
mod source;
mod words;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup::{self, Purpose};
use crate::shell;
use crate::timing::Timings;
use crate::toolchain::Toolchain;
use crate::workspace::Workspace;

use ebpf_build::EbpfToolchain;

const DENY_VERSION: &str = "0.20.2";

/// Runs all checks, or those with a name that contains `only`.
pub(crate) fn run(workspace: &Workspace, advisories: bool, only: Option<&str>) -> Result<()> {
    setup::run(workspace, &[Purpose::Build, Purpose::Lint])?;
    let mut timings = Timings::default();
    let checks: [(&str, &dyn Fn() -> Result<()>); 9] = [
        ("format", &|| shell::run(workspace.cargo().args(["fmt", "--all", "--check"]))),
        ("format of kprobe-ebpf", &|| shell::run(ebpf_cargo(workspace).args(["fmt", "--check"]))),
        ("format of fuzz", &|| {
            let mut command = workspace.cargo();
            shell::run(command.current_dir(workspace.root().join("fuzz")).args(["fmt", "--check"]))
        }),
        ("vocabulary", &|| {
            words::check(workspace.root(), &sources(workspace, &["rs", "c", "h", "cc", "hpp"])?)
        }),
        ("module cycles", &|| cycles::check(workspace.root(), &sources(workspace, &["rs"])?)),
        ("clippy", &|| clippy(workspace)),
        ("the compiler's lints of kprobe-ebpf", &|| ebpf_warnings(workspace)),
        ("documentation", &|| documentation(workspace)),
        ("dependencies", &|| dependencies(workspace, advisories)),
    ];
    let mut failed = Vec::new();
    let selected: Vec<_> =
        checks.into_iter().filter(|(name, _)| only.is_none_or(|only| name.contains(only))).collect();
    if selected.is_empty() {
        bail!("no check's name contains `{}`", only.unwrap_or_default());
    }
    for (name, check) in selected {
        println!("lint: {name}");
        if let Err(error) = timings.time(name, check) {
            eprintln!("lint: {name}: {error:#}");
            failed.push(name);
        }
    }
    println!("lint: {}", timings.summary());
    if !failed.is_empty() {
        bail!("lint found something in: {}", failed.join(", "));
    }
    Ok(())
}

/// Lists the files with one of these extensions that git tracks or would track.
fn sources(workspace: &Workspace, extensions: &[&str]) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.arg("-C").arg(workspace.root()).args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let listed = shell::capture(&mut git).context("cannot list the sources")?;
    let wanted =
        |file: &&str| file.rsplit_once('.').is_some_and(|(_, extension)| extensions.contains(&extension));
    let mut files: Vec<String> = listed.lines().filter(wanted).map(str::to_owned).collect();
    // A file that was removed and not committed is still listed.
    files.retain(|file| workspace.root().join(file).is_file());
    Ok(files)
}

fn clippy(workspace: &Workspace) -> Result<()> {
    let mut command = workspace.cargo();
    shell::run(command.args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}

fn documentation(workspace: &Workspace) -> Result<()> {
    let mut command = workspace.cargo();
    shell::run(
        command.args(["doc", "--quiet", "--no-deps", "--workspace"]).env("RUSTDOCFLAGS", "-D warnings"),
    )
}

/// Returns cargo for the eBPF programs, which have a workspace of their own.
fn ebpf_cargo(workspace: &Workspace) -> Command {
    let mut command = workspace.cargo();
    command.current_dir(workspace.root().join("kprobe-ebpf"));
    command
}

/// Fails on a warning of the compiler in kprobe-ebpf. The build script of `blkkin-tracer` ran the same command, so
/// cargo repeats what that build printed. The compiler with the BPF target's core library has no clippy.
fn ebpf_warnings(workspace: &Workspace) -> Result<()> {
    let Toolchain { rustc, linker, library_path } = Toolchain::recorded(workspace)?;
    let toolchain = EbpfToolchain { rustc, linker, library_path };
    let target_dir = workspace.root().join("target/ebpf");
    let arch = std::env::consts::ARCH;
    let cargo = workspace.cargo();
    let output = ebpf_build::command(cargo.get_program(), workspace.root(), &target_dir, &toolchain, arch)
        .output()
        .context("cannot start cargo")?;
    let printed = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || !printed.trim().is_empty() {
        bail!("the compiler of kprobe-ebpf ended with {} and printed:\n{printed}", output.status);
    }
    Ok(())
}

fn dependencies(workspace: &Workspace, advisories: bool) -> Result<()> {
    let deny = cargo_deny(workspace)?;
    let manifests = ["Cargo.toml", "kprobe-ebpf/Cargo.toml", "fuzz/Cargo.toml"];
    let checks = ["bans", "licenses", "sources"].into_iter().chain(advisories.then_some("advisories"));
    let checks: Vec<&str> = checks.collect();
    for manifest in manifests {
        let mut command = Command::new(&deny);
        command.current_dir(workspace.root()).arg("--manifest-path").arg(workspace.root().join(manifest));
        command.args(["--config", "deny.toml", "--log-level", "warn"]);
        command.args(["check", "--hide-inclusion-graph"]).args(&checks);
        shell::run(&mut command)?;
    }
    Ok(())
}

/// Returns the path of `cargo-deny`, installed in the tool chain's folder: the version is pinned,
/// and the user's `~/.cargo/bin` stays unchanged.
fn cargo_deny(workspace: &Workspace) -> Result<PathBuf> {
    let prefix = workspace.toolchain_dir();
    let program = prefix.join("bin/cargo-deny");
    let found = shell::capture(Command::new(&program).arg("--version")).unwrap_or_default();
    if found.trim().ends_with(DENY_VERSION) {
        return Ok(program);
    }
    println!(
        "  building cargo-deny {DENY_VERSION} into target/toolchain: checks licences and sources (about a minute, once)"
    );
    let scratch = prefix.join("build-deny");
    shell::run(&mut workspace.cargo_install("cargo-deny", DENY_VERSION, &prefix, &scratch))
        .context("cannot build cargo-deny")?;
    std::fs::remove_dir_all(&scratch).with_context(|| format!("cannot remove {}", scratch.display()))?;
    Ok(program)
}
