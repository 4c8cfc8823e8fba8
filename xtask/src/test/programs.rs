//! Test programs of the workspace, from cargo's build messages.
//!
//! The binary's tests are one executable ([`INTEGRATION`]), because each executable would link most of the
//! workspace. Each of its modules is a program here, with its own tier and its own process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::cargo_build;
use crate::shell;
use crate::workspace::Workspace;

/// Way in which a test program runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tier {
    /// By the calling user, tests in parallel.
    Quick,
    /// Like quick, at idle priority while all others run.
    Idle,
    /// With root, one test at a time: they share the machine's block devices and tracepoints.
    System,
    /// With root, one test at a time, while guests run.
    Service,
    /// With root, one test at a time, together with guests, services and quick tests.
    Waiting,
    /// Only inside a guest, because the tests need a kernel that rejects something.
    Guest,
}

/// Target of the binary's tests, `blkkin/tests/main.rs`.
pub(crate) const INTEGRATION: &str = "integration";

/// Name prefix of modules of the guest tier.
const GUEST: &str = "guest_";

/// Modules of the service tier. They run services, brokers and servers, wait for them, and
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

/// Modules of the waiting tier: like [`SERVICES`], and most of their time they wait for a process or a time limit.
/// They share no device, session of LTTng or port with the tests of the other tiers. All pass together with four busy
/// loops on two CPUs, in at most twice their time.
const WAITING: &[&str] = &[
    "agent",
    "cluster",
    "context",
    "install",
    "manifests",
    "outputs",
    "package",
    "publishing",
    "remote_links",
    "service",
    "systemd",
    "upgrade",
    "vm_disks",
    "vm_guest",
    "vm_nbd",
    "vm_report",
];

/// Programs of the idle tier: they compute or build, and assert no times.
const IDLE: &[&str] =
    &["aggregator (blkkin_aggregator)", "ust-provider/tests/published", "wire (blkkin_wire)"];

/// Compiled test program, or a module of one.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct TestProgram {
    /// Name, for example `blkkin/tests/fio` or `wire`.
    pub(crate) name: String,
    pub(crate) executable: PathBuf,
    /// Full names of the module's tests; `None` if the program is not split.
    pub(crate) module_tests: Option<Vec<String>>,
    /// Folder of the crate, which is the working directory of the tests.
    pub(super) folder: PathBuf,
    pub(super) tier: Tier,
}

/// Builds all test programs. The output of rustc goes to standard error.
pub(crate) fn build(workspace: &Workspace) -> Result<Vec<TestProgram>> {
    let mut command = workspace.cargo();
    command.args(["test", "--no-run", "--quiet", "--workspace"]).args(cargo_build::MESSAGES);
    let mut programs = Vec::new();
    for built in cargo_build::run(&mut command, "a test")?.iter().filter_map(program) {
        if built.name == format!("blkkin/tests/{INTEGRATION}") {
            let tests =
                shell::capture(Command::new(&built.executable).args(["--list", "--format", "terse"]))?;
            programs.extend(modules(&built, &tests));
        } else {
            programs.push(built);
        }
    }
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    for name in IDLE {
        ensure!(programs.iter().any(|program| program.name == *name), "no test program {name}: see IDLE");
    }
    Ok(programs)
}

/// Splits the integration tests by module; `list` is their list in libtest's terse format.
fn modules(integration: &TestProgram, list: &str) -> Vec<TestProgram> {
    let mut modules = BTreeMap::<&str, Vec<String>>::new();
    for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let module = test.split_once("::").map_or("main", |(module, _)| module);
        modules.entry(module).or_default().push(test.to_owned());
    }
    let program = |(module, tests): (&str, Vec<String>)| TestProgram {
        name: format!("blkkin/tests/{module}"),
        executable: integration.executable.clone(),
        module_tests: Some(tests),
        folder: integration.folder.clone(),
        tier: match module {
            _ if module.starts_with(GUEST) => Tier::Guest,
            _ if SERVICES.contains(&module) => Tier::Service,
            _ if WAITING.contains(&module) => Tier::Waiting,
            _ => Tier::System,
        },
    };
    modules.into_iter().map(program).collect()
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
    // The test of the demo loads eBPF programs too.
    let loads_programs = integration && ["blkkin", "xtask"].contains(&package);
    let tier = match () {
        _ if loads_programs => Tier::System,
        _ if IDLE.contains(&&*name) => Tier::Idle,
        _ => Tier::Quick,
    };
    Some(TestProgram { name, executable, module_tests: None, folder, tier })
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
        assert_eq!(tier("blkkin", "test", INTEGRATION), Tier::System);
        assert_eq!(tier("blkkin", "bin", "blkkin"), Tier::Quick);
        assert_eq!(tier("wire", "test", "golden"), Tier::Quick);
        assert_eq!(tier("wire", "lib", "blkkin_wire"), Tier::Idle);
        assert_eq!(tier("xtask", "test", "cluster"), Tier::System);
        assert_eq!(tier("xtask", "bin", "xtask"), Tier::Quick);
    }

    #[test]
    fn each_module_of_the_integration_tests_is_a_program_with_its_own_tier() {
        let integration = reported("blkkin", "test", INTEGRATION).expect("a test program");
        let list = "fio::reads: test\nsoak::kills: test\nagent::starts: test\nguest_scsi::writes: test\nfio::deep::writes: test\n\n4 tests\n";
        let modules = modules(&integration, list);
        let modules: Vec<_> =
            modules.iter().map(|one| (&*one.name, one.tier, one.module_tests.as_deref())).collect();
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(
            modules,
            [
                ("blkkin/tests/agent", Tier::Waiting, Some(&*names(&["agent::starts"]))),
                ("blkkin/tests/fio", Tier::System, Some(&*names(&["fio::reads", "fio::deep::writes"]))),
                ("blkkin/tests/guest_scsi", Tier::Guest, Some(&*names(&["guest_scsi::writes"]))),
                ("blkkin/tests/soak", Tier::Service, Some(&*names(&["soak::kills"]))),
            ]
        );
    }

    /// A file that `main.rs` does not declare would not be compiled.
    #[test]
    fn each_file_of_the_integration_tests_is_a_module() {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("blkkin").join("tests");
        let main = std::fs::read_to_string(tests.join("main.rs")).expect("main.rs");
        let is_module = |name: &str| main.contains(&format!("\nmod {name};\n"));
        for name in SERVICES.iter().chain(WAITING) {
            assert!(is_module(name), "{name}");
        }
        for entry in std::fs::read_dir(&tests).expect("the folder of tests") {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
            let is_source = path.extension().is_some_and(|extension| extension == "rs");
            assert!(!is_source || name == "main" || is_module(name), "main.rs has no `mod {name};`");
        }
    }

    #[test]
    fn other_cargo_messages_are_ignored() {
        assert_eq!(program(&json!({ "reason": "build-finished", "success": true })), None);
    }
}
