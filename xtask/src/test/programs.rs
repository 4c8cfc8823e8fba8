//! Test programs of the workspace, from cargo's build messages.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::Value;

use crate::cargo_build;
use crate::workspace::Workspace;

/// Way in which a test program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tier {
    /// By the calling user, tests in parallel.
    Quick,
    /// With root, one test at a time: they share the machine's block devices and tracepoints.
    System,
    /// With root, one test at a time, while guests run.
    Service,
    /// Only inside a guest, because the tests need a kernel that rejects something.
    Guest,
}

/// Name prefix of test programs of the guest tier.
const GUEST: &str = "guest_";

/// Test programs of the service tier. They run services, brokers and servers, wait for them, and
/// assert neither durations nor the absence of losses in the kernel.
const SERVICES: &[&str] = &[
    "aggregator",
    "broker_full",
    "destinations",
    "exporter",
    "kafka_or_direct",
    "monitoring",
    "replay",
    "secured",
    "soak",
    "spool",
];

/// Compiled test program.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct TestProgram {
    /// Name, for example `blkkin/tests/fio` or `wire`.
    pub(crate) name: String,
    pub(crate) executable: PathBuf,
    /// Folder of the crate, which is the working directory of the tests.
    pub(super) folder: PathBuf,
    pub(super) tier: Tier,
}

/// Builds all test programs. The output of rustc goes to standard error.
pub(crate) fn build(workspace: &Workspace) -> Result<Vec<TestProgram>> {
    let mut command = workspace.cargo();
    command.args(["test", "--no-run", "--quiet", "--workspace"]).args(cargo_build::MESSAGES);
    let mut programs: Vec<_> = cargo_build::run(&mut command, "a test")?.iter().filter_map(program).collect();
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(programs)
}

/// Parses a message of cargo; `None` if it does not report a test program.
fn program(message: &Value) -> Option<TestProgram> {
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
        true if SERVICES.contains(&target) => Tier::Service,
        true => Tier::System,
        // The test of the demo loads eBPF programs.
        false if integration && package == "xtask" => Tier::System,
        false => Tier::Quick,
    };
    Some(TestProgram { name, executable, folder, tier })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reported(folder: &str, kind: &str, name: &str) -> Option<TestProgram> {
        program(&json!({
            "manifest_path": format!("/w/{folder}/Cargo.toml"), "executable": format!("/t/{name}"),
            "target": { "kind": [kind], "name": name }, "profile": { "test": true },
        }))
    }

    #[test]
    fn only_integration_tests_of_blkkin_and_xtask_need_root() {
        let tier = |folder, kind, name| reported(folder, kind, name).expect("a test program").tier;
        assert_eq!(tier("blkkin", "test", "fio"), Tier::System);
        assert_eq!(tier("blkkin", "test", "guest_lockdown"), Tier::Guest);
        assert_eq!(tier("blkkin", "test", "soak"), Tier::Service);
        assert_eq!(tier("blkkin", "bin", "blkkin"), Tier::Quick);
        assert_eq!(tier("wire", "test", "golden"), Tier::Quick);
        assert_eq!(tier("xtask", "test", "cluster"), Tier::System);
        assert_eq!(tier("xtask", "bin", "xtask"), Tier::Quick);
    }

    #[test]
    fn each_program_of_the_service_tier_exists() {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("blkkin").join("tests");
        for name in SERVICES {
            assert!(tests.join(name).with_extension("rs").exists(), "{name}");
        }
    }

    #[test]
    fn other_cargo_messages_are_ignored() {
        assert_eq!(program(&json!({ "reason": "build-finished", "success": true })), None);
    }
}
