//! Release builds of the measured and the measuring programs.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::workspace::Workspace;

/// Builds the program `name` of `package` only.
pub(super) fn program(workspace: &Workspace, package: &str, name: &str) -> Result<PathBuf> {
    // Cargo reports the path, because users can choose the target directory.
    println!("bench: building {name} (release)");
    let mut command = workspace.cargo();
    command.args(["build", "--release", "--locked", "--package", package, "--bin", name]);
    command.args(["--message-format", "json-render-diagnostics"]);
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("{name} does not build: see above");
    }
    let mut built = executables(&String::from_utf8_lossy(&output.stdout));
    built.remove(name).with_context(|| format!("cargo built no program named {name}"))
}

/// Parses cargo's messages into paths by program name.
fn executables(messages: &str) -> HashMap<String, PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages
        .filter(|message| message["target"]["kind"][0] == "bin")
        .filter_map(|message| {
            let name = message["target"]["name"].as_str()?.to_owned();
            Some((name, PathBuf::from(message["executable"].as_str()?)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_cargo_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"blkkin","kind":["bin"]},"executable":"/t/blkkin"}
{"reason":"compiler-artifact","target":{"name":"blkkin","kind":["lib"]},"executable":null}
not json"#;
        let found = executables(messages);
        assert_eq!(found.get("blkkin"), Some(&PathBuf::from("/t/blkkin")));
        assert_eq!(found.len(), 1);
    }
}
