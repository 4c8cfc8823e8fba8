//! Static publisher of thread contexts: the example `publisher` of `ust-provider`, linked with musl
//! and with its symbol exported. The tests find it below `target/TARGET/debug/examples`, and are
//! skipped if it cannot be built.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::shell;
use crate::workspace::Workspace;

const EXPORTS: &str = "-Clink-arg=-Wl,--export-dynamic-symbol=otel_thread_ctx_v1";

/// Builds the publisher. If the target's standard library is missing, rustup installs it.
pub(super) fn build(workspace: &Workspace) -> Result<()> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let mut query = Command::new("rustc");
    query.args(["--print", "target-libdir", "--target", &target]).current_dir(workspace.root());
    if !Path::new(shell::capture(&mut query)?.trim()).exists() {
        let mut install = Command::new("rustup");
        install.args(["target", "add", &target]).current_dir(workspace.root());
        shell::run(&mut install).with_context(|| format!("no standard library for {target}"))?;
    }
    let mut command = workspace.cargo();
    command.args(["rustc", "--locked", "--quiet", "--package", "blkkin-ust", "--example", "publisher"]);
    command.args(["--target", &target, "--", EXPORTS]);
    if !command.stdin(Stdio::null()).status().context("cannot start cargo")?.success() {
        bail!("the static publisher does not build: see above");
    }
    Ok(())
}
