//! Builds by cargo, and the paths of the programs that they made.
//!
//! The paths come from cargo's messages, because users can choose the target directory.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::workspace::Workspace;

/// Option that makes cargo report its artifacts as JSON on standard output.
pub(crate) const MESSAGES: [&str; 2] = ["--message-format", "json-render-diagnostics"];

/// Builds the program `name` of `package` for release, and what `others` selects.
pub(crate) fn release(workspace: &Workspace, package: &str, name: &str, others: &[&str]) -> Result<PathBuf> {
    let mut command = workspace.cargo();
    command.args(["build", "--release", "--locked", "--package", package]).args(others).args(MESSAGES);
    executable(&run(&mut command, name)?, name)
}

/// Runs `command` with [`MESSAGES`] and returns them. The output of rustc goes to standard error.
pub(crate) fn run(command: &mut Command, what: &str) -> Result<Vec<Value>> {
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("{what} does not build: see above");
    }
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

fn parse(output: &str) -> Vec<Value> {
    output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Returns the path of the program or test program `name`.
pub(crate) fn executable(messages: &[Value], name: &str) -> Result<PathBuf> {
    let mut named = messages.iter().rev().filter(|message| message["target"]["name"] == name);
    let path = named.find_map(|message| message["executable"].as_str().map(PathBuf::from));
    path.with_context(|| format!("cargo built no program named {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_cargo_messages() {
        let messages = parse(
            r#"{"reason":"compiler-artifact","target":{"name":"blkkin","kind":["lib"]},"executable":null}
{"reason":"compiler-artifact","target":{"name":"blkkin","kind":["bin"]},"executable":"/t/blkkin"}
{"target":{"name":"soak"},"profile":{"test":true},"executable":"/t/soak-1"}
not json"#,
        );
        assert_eq!(executable(&messages, "blkkin").ok(), Some(PathBuf::from("/t/blkkin")));
        assert_eq!(executable(&messages, "soak").ok(), Some(PathBuf::from("/t/soak-1")));
        assert!(executable(&messages, "blkkin_wire").is_err());
    }
}
