//! The test programs of the workspace, as cargo reports them while it builds them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::workspace::Workspace;

/// How a test program is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tier {
    /// By the user, its tests in parallel.
    Quick,
    /// As root, one test at a time: they share the machine's block devices and tracepoints.
    System,
    /// Inside a guest only: what its kernel refuses.
    Guest,
}

/// Test programs of the third tier are named so.
const GUEST: &str = "guest_";

/// One program of tests.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct TestProgram {
    /// `blkkin/tests/fio` or `wire`.
    pub(crate) name: String,
    pub(crate) executable: PathBuf,
    /// The folder of its crate: tests run there.
    pub(super) folder: PathBuf,
    pub(super) tier: Tier,
}

/// Builds them all. What rustc has to say goes to standard error.
pub(crate) fn build(workspace: &Workspace) -> Result<Vec<TestProgram>> {
    let mut command = workspace.cargo();
    command.args([
        "test",
        "--no-run",
        "--quiet",
        "--workspace",
        "--message-format",
        "json-render-diagnostics",
    ]);
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the tests do not build: see above");
    }
    let mut programs: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().filter_map(program).collect();
    programs.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(programs)
}

/// The test program that this line of cargo's reports; none if it reports something else.
fn program(line: &str) -> Option<TestProgram> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["profile"]["test"] != Value::Bool(true) {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = folder.file_name()?.to_str()?;
    let target = message["target"]["name"].as_str()?;
    let integration = message["target"]["kind"][0] == "test";
    let name =
        if integration { format!("{package}/tests/{target}") } else { format!("{package} ({target})") };
    let tier = match integration && package == "blkkin" {
        true if target.starts_with(GUEST) => Tier::Guest,
        true => Tier::System,
        // The demo traces.
        false if integration && package == "xtask" => Tier::System,
        false => Tier::Quick,
    };
    Some(TestProgram { name, executable, folder, tier })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(folder: &str, kind: &str, name: &str) -> Option<TestProgram> {
        program(&format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/w/{folder}/Cargo.toml","executable":"/t/{name}",
            "target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":true}}}}"#
        ))
    }

    #[test]
    fn only_the_integration_tests_of_the_binary_and_of_the_demo_need_root() {
        let tier = |folder, kind, name| reported(folder, kind, name).expect("a test program").tier;
        assert_eq!(tier("blkkin", "test", "fio"), Tier::System);
        assert_eq!(tier("blkkin", "test", "guest_lockdown"), Tier::Guest);
        assert_eq!(tier("blkkin", "bin", "blkkin"), Tier::Quick);
        assert_eq!(tier("wire", "test", "golden"), Tier::Quick);
        assert_eq!(tier("xtask", "test", "cluster"), Tier::System);
        assert_eq!(tier("xtask", "bin", "xtask"), Tier::Quick);
    }

    #[test]
    fn other_messages_are_no_test_programs() {
        assert_eq!(program(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(program("warning: not JSON"), None);
    }
}
