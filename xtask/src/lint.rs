//! `lint`: formatting, clippy, documentation, and the licences and sources of dependencies.
//!
//! All run even when one fails, so that one run shows everything there is to mend. Known vulnerabilities are asked
//! for apart (`--advisories`): their database changes daily and is fetched, so that the same commit passes today and
//! fails tomorrow, and a machine without that network cannot pass at all.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup::{self, Purpose};
use crate::shell;
use crate::timing::Timings;
use crate::workspace::Workspace;

const DENY_VERSION: &str = "0.20.2";

/// Runs them all.
pub(crate) fn run(workspace: &Workspace, advisories: bool) -> Result<()> {
    setup::run(workspace, &[Purpose::Build])?;
    let mut timings = Timings::default();
    let checks: [(&str, &dyn Fn() -> Result<()>); 6] = [
        ("format", &|| shell::run(workspace.cargo().args(["fmt", "--all", "--check"]))),
        ("format of kprobe-ebpf", &|| shell::run(ebpf_cargo(workspace).args(["fmt", "--check"]))),
        ("clippy", &|| clippy(workspace)),
        ("clippy of kprobe-ebpf", &|| ebpf_clippy(workspace)),
        ("documentation", &|| documentation(workspace)),
        ("dependencies", &|| dependencies(workspace, advisories)),
    ];
    let mut failed = Vec::new();
    for (name, check) in checks {
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

/// The eBPF programs are a workspace of their own.
fn ebpf_cargo(workspace: &Workspace) -> Command {
    let mut command = workspace.cargo();
    command.current_dir(workspace.root().join("kprobe-ebpf"));
    command
}

/// For the host: clippy is at home in the pinned compiler, and the one that builds for BPF may have none. Intrinsics
/// that exist for BPF alone are never linked by a check.
fn ebpf_clippy(workspace: &Workspace) -> Result<()> {
    let mut command = ebpf_cargo(workspace);
    command.args(["clippy", "--quiet", "--target-dir"]).arg(workspace.root().join("target/ebpf-clippy"));
    command
        .args(["--", "-D", "warnings"])
        .env("RUSTFLAGS", format!("--cfg=bpf_target_arch=\"{}\"", std::env::consts::ARCH));
    shell::run(&mut command)
}

fn dependencies(workspace: &Workspace, advisories: bool) -> Result<()> {
    let deny = cargo_deny(workspace)?;
    let manifests = [workspace.root().join("Cargo.toml"), workspace.root().join("kprobe-ebpf/Cargo.toml")];
    let checks = ["bans", "licenses", "sources"].into_iter().chain(advisories.then_some("advisories"));
    let checks: Vec<&str> = checks.collect();
    for manifest in manifests {
        let mut command = Command::new(&deny);
        command.current_dir(workspace.root()).arg("--manifest-path").arg(manifest);
        command.args(["--config", "deny.toml", "--log-level", "warn"]);
        command.args(["check", "--hide-inclusion-graph"]).args(&checks);
        shell::run(&mut command)?;
    }
    Ok(())
}

/// Our own copy: the version is pinned, and nobody's `~/.cargo/bin` changes.
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
    let mut command = workspace.cargo();
    command.args([
        "install",
        "--quiet",
        "--locked",
        "--force",
        "--debug",
        "cargo-deny",
        "--version",
        DENY_VERSION,
    ]);
    command.arg("--root").arg(&prefix).arg("--target-dir").arg(&scratch).env("CARGO_PROFILE_DEV_DEBUG", "0");
    shell::run(&mut command).context("cannot build cargo-deny")?;
    std::fs::remove_dir_all(&scratch).with_context(|| format!("cannot remove {}", scratch.display()))?;
    Ok(program)
}
