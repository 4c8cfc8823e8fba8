//! `lint`: formatting, vocabulary, module cycles, features of dependencies, clippy, documentation, the book, packages of crates, and the
//! licences and sources of dependencies.
//!
//! All checks run even when one fails, so one run shows every error. Known vulnerabilities are
//! checked only with `--advisories`. Their database is fetched and changes daily, so the same
//! commit could pass today and fail tomorrow, and fails without that network.

mod cycles;
mod features;

#[path = "../../tracer/ebpf_build.rs"]
mod ebpf_build;
mod source;
mod words;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::docs;
use crate::setup::{self, Purpose};
use crate::shell;
use crate::timing::Timings;
use crate::toolchain::Toolchain;
use crate::workspace::Workspace;

use ebpf_build::EbpfToolchain;

const DENY_VERSION: &str = "0.20.2";
/// Crates that programs outside this project can use.
const PUBLISHABLE: [&str; 3] = ["blkkin-ust", "blkkin-lttng-live", "blkkin-otel-context"];
/// Checks by tools that are built from source, once.
const TOOL_CHECKS: [&str; 2] = ["pages", "dependencies"];

/// Runs all checks, or those with a name that contains `only`.
pub(crate) fn run(workspace: &Workspace, advisories: bool, only: Option<&str>) -> Result<()> {
    setup::run(workspace, &[Purpose::Build, Purpose::Lint])?;
    let mut timings = Timings::default();
    let checks: [(&str, &dyn Fn() -> Result<()>); 12] = [
        ("format", &|| shell::run(workspace.cargo().args(["fmt", "--all", "--check"]))),
        ("format of kprobe-ebpf", &|| shell::run(ebpf_cargo(workspace).args(["fmt", "--check"]))),
        ("format of fuzz", &|| {
            let mut command = workspace.cargo();
            shell::run(command.current_dir(workspace.root().join("fuzz")).args(["fmt", "--check"]))
        }),
        ("vocabulary", &|| {
            let files = words::Files {
                sources: workspace.sources(&["rs", "c", "h", "cc", "hpp"])?,
                others: workspace.sources(&["toml", "sh", "service", "yaml", "yml", "proto", "py", "bt"])?,
                pages: workspace.sources(&["md"])?,
            };
            words::check(workspace.root(), &files)
        }),
        ("module cycles", &|| cycles::check(workspace.root(), &workspace.sources(&["rs"])?)),
        ("features", &|| features::check(workspace)),
        ("clippy", &|| clippy(workspace)),
        ("the compiler's lints of kprobe-ebpf", &|| ebpf_warnings(workspace)),
        ("documentation", &|| documentation(workspace)),
        ("pages", &|| docs::run(workspace)),
        ("crates", &|| package_crates(workspace)),
        ("dependencies", &|| dependencies(workspace, advisories)),
    ];
    let mut failed = Vec::new();
    let selected: Vec<_> =
        checks.into_iter().filter(|(name, _)| only.is_none_or(|only| name.contains(only))).collect();
    if selected.is_empty() {
        bail!("no check's name contains `{}`", only.unwrap_or_default());
    }
    std::thread::scope(|scope| {
        // Its first checks leave a CPU idle now and then.
        let mut tools = selected
            .iter()
            .any(|(name, _)| TOOL_CHECKS.contains(name))
            .then(|| scope.spawn(|| build_tools(workspace)));
        for (name, check) in selected {
            println!("lint: {name}");
            if let Some(tools) = tools.take_if(|_| TOOL_CHECKS.contains(&name)) {
                timings.time("tools", || drop(tools.join()));
            }
            if let Err(error) = timings.time(name, check) {
                eprintln!("lint: {name}: {error:#}");
                failed.push(name);
            }
        }
    });

    println!("lint: {}", timings.summary());
    if !failed.is_empty() {
        bail!("lint found something in: {}", failed.join(", "));
    }
    Ok(())
}

/// Builds the tools of [`TOOL_CHECKS`]. A failure is that of its check, which tries again.
fn build_tools(workspace: &Workspace) {
    let _ = docs::mdbook(workspace);
    let _ = cargo_deny(workspace);
}

/// Packs each publishable crate as for a registry, and compiles the one with C code from its package.
fn package_crates(workspace: &Workspace) -> Result<()> {
    let command = |verify: &[&str], crates: &[&str]| {
        let mut command = workspace.cargo();
        command.args(["package", "--quiet", "--locked", "--allow-dirty"]).args(verify);
        command.args(crates.iter().flat_map(|name| ["--package", name]));
        shell::run(&mut command)
    };
    command(&["--no-verify"], &PUBLISHABLE[1..])?;
    command(&[], &PUBLISHABLE[..1])
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

/// Returns the path of `cargo-deny` of the pinned version.
fn cargo_deny(workspace: &Workspace) -> Result<PathBuf> {
    workspace.installed_tool(
        "cargo-deny",
        DENY_VERSION,
        &[],
        "checks licences and sources (about a minute, once)",
    )
}
