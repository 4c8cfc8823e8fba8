//! A static program that publishes what its threads work for: `publisher` of `ust-provider/examples`, for musl, with the one word that its
//! linker has to be told. The tests find it below `target/TARGET/debug/examples`, and are skipped where it cannot be made.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::shell;
use crate::workspace::Workspace;

const EXPORTS: &str = "-Clink-arg=-Wl,--export-dynamic-symbol=otel_thread_ctx_v1";

/// Builds it; where the standard library for that target is missing, rustup is asked for it.
pub(super) fn build(workspace: &Workspace) -> Result<()> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let mut asks = Command::new("rustc");
    asks.args(["--print", "target-libdir", "--target", &target]).current_dir(workspace.root());
    if !Path::new(shell::capture(&mut asks)?.trim()).exists() {
        let mut adds = Command::new("rustup");
        adds.args(["target", "add", &target]).current_dir(workspace.root());
        shell::run(&mut adds).with_context(|| format!("no standard library for {target}"))?;
    }
    let mut command = workspace.cargo();
    command.args(["rustc", "--locked", "--quiet", "--package", "blkkin-ust", "--example", "publisher"]);
    command.args(["--target", &target, "--", EXPORTS]);
    if !command.stdin(Stdio::null()).status().context("cannot start cargo")?.success() {
        bail!("it does not build: see above");
    }
    Ok(())
}
