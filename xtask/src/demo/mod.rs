//! `demo`: SQLite on ext4 over a loop device, traced from system call to block request, after a
//! program whose data the kernel writes back later ([`buffered`]). Other scenarios: `--cluster`
//! with three nodes ([`cluster`]), `--nbd` with a storage daemon ([`nbd`]), `--application` with an
//! application that exports its own spans ([`application`]), `--vm` with two virtual machines ([`vm`]).
//!
//! Set-up and build run as the user. The rest needs root (loop device, mount, eBPF): for a user
//! this task starts itself again through sudo with `--traced-part`. The file system and the loop
//! device are removed however the demo ends. The remains of a killed demo are found by fixed paths
//! below `target/demo` and removed first.

pub(crate) mod application;
pub(crate) mod buffered;
mod cluster;
mod disk;
pub(crate) mod nbd;
mod output;
mod services;
mod summaries;
mod traced;
pub(crate) mod vm;
mod workload;
pub(crate) mod zipkin_pages;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::cargo_build;
use crate::dist;
use crate::interrupt;
use crate::setup::{self, Purpose};
use crate::shell;
use crate::timing::Timings;
use crate::workspace::Workspace;

pub(crate) use cluster::with_machine_id;
pub(crate) use disk::Disk;
pub(crate) use workload::Workload;

/// Scenario of the demo.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Single machine, one traced program, a report.
    OneMachine,
    /// Several nodes, through Kafka into Zipkin.
    Cluster,
    /// Instrumented storage daemon.
    Nbd,
    /// Application that exports its own spans.
    Application,
    /// Two virtual machines, through Kafka into Zipkin.
    VirtualMachines,
}

impl Scenario {
    fn flag(self) -> Option<&'static str> {
        match self {
            Self::OneMachine => None,
            Self::Cluster => Some("--cluster"),
            Self::Nbd => Some("--nbd"),
            Self::Application => Some("--application"),
            Self::VirtualMachines => Some("--vm"),
        }
    }

    fn purposes(self) -> &'static [Purpose] {
        match self {
            Self::OneMachine => &[Purpose::Build, Purpose::Demo],
            Self::Cluster => &[Purpose::Build, Purpose::Cluster],
            Self::Nbd | Self::Application => &[Purpose::Build, Purpose::Daemons],
            Self::VirtualMachines => VIRTUAL_MACHINES,
        }
    }

    fn build(self, workspace: &Workspace) -> Result<PathBuf> {
        match self {
            Self::OneMachine | Self::Cluster => build(workspace, &[]),
            // Only these need LTTng's headers.
            Self::Nbd => build(workspace, &["--package", "blkkin-nbd"]),
            Self::Application => {
                build(workspace, &["--package", "blkkin-ust", "--bins", "--example", "shop"])
            }
            // The guests have none of its libraries.
            Self::VirtualMachines => dist::static_release(workspace),
        }
    }
}

/// Purposes of a set-up for [`vm`].
pub(crate) const VIRTUAL_MACHINES: &[Purpose] =
    &[Purpose::Build, Purpose::Demo, Purpose::Cluster, Purpose::Guests];

/// Cargo arguments that select additional targets.
pub(crate) type ExtraTargets = &'static [&'static str];
/// Targets of all screenshots.
pub(crate) const ALL_TARGETS: ExtraTargets =
    &["--package", "blkkin-nbd", "--package", "blkkin-ust", "--bins", "--example", "shop"];

/// Sets up, builds and runs the scenario.
pub(crate) fn run(workspace: &Workspace, scenario: Scenario) -> Result<ExitCode> {
    let mut timings = Timings::default();
    timings.time("set-up", || setup::run(workspace, scenario.purposes()))?;
    println!("demo: building blkkin (release; the first build takes a minute or two)");
    let blkkin = timings.time("build", || scenario.build(workspace))?;
    // Made by the user, so that the user can delete the files that root creates in it.
    let folder = workspace.demo_dir();
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let code = timings.time("traced run", || {
        if shell::is_root() {
            traced_part(workspace, &blkkin, scenario)
        } else {
            traced_part_by_sudo(workspace, &blkkin, scenario)
        }
    })?;
    println!("demo: {}", timings.summary());
    Ok(code)
}

/// Runs the part that needs root. The exit code is blkkin's.
pub(crate) fn traced_part(workspace: &Workspace, blkkin: &Path, scenario: Scenario) -> Result<ExitCode> {
    if !shell::is_root() {
        bail!("this part of the demo needs root: run `cargo xtask demo`, which uses sudo");
    }
    // Ctrl-C ends the traced program, which reports the events so far. This process continues and
    // cleans up.
    interrupt::catch()?;
    match scenario {
        Scenario::OneMachine => one_machine(workspace, blkkin),
        Scenario::Cluster => cluster::run(workspace, blkkin),
        Scenario::Nbd => nbd::run(workspace, blkkin),
        Scenario::Application => application::run(workspace, blkkin),
        Scenario::VirtualMachines => vm::run(workspace, blkkin),
    }
}

fn one_machine(workspace: &Workspace, blkkin: &Path) -> Result<ExitCode> {
    let folder = workspace.demo_dir();
    let disk = Disk::make(&folder)?;
    let workload = Workload::prepare(&folder, disk.mount_point())?;
    let trace = folder.join("trace.json");
    remove_old(&trace)?;
    buffered::run(blkkin, disk.mount_point())?;
    println!("demo: {}", Workload::DESCRIPTION);
    println!("demo: on ext4 on {}, a loop device over {}\n", disk.device(), disk.image().display());
    let status = traced::run(&mut command_of(blkkin, &trace, &workload), disk)?;
    if trace.is_file() {
        println!(
            "\ndemo: the trace is in {} (Zipkin v2 JSON)",
            trace.strip_prefix(workspace.root()).unwrap_or(&trace).display()
        );
    }
    traced::require_success(status)?;
    Ok(ExitCode::SUCCESS)
}

/// Builds the command line of the demo, the only place that defines its options.
fn command_of(blkkin: &Path, trace: &Path, workload: &Workload) -> Command {
    let mut command = Command::new(blkkin);
    command.args(["run", "--slowest", "3", "--to"]).arg(format!("zipkin={}", trace.display()));
    command.arg("--").arg("sh").arg(workload.script()).stdin(Stdio::null());
    command
}

fn traced_part_by_sudo(workspace: &Workspace, blkkin: &Path, scenario: Scenario) -> Result<ExitCode> {
    interrupt::catch()?;
    let mut command =
        shell::privileged("env", "a loop device, a mount, and eBPF programs for the traced run")?;
    let this = std::env::current_exe().context("cannot find this program")?;
    // sudo clears the environment, and the task finds the workspace by this variable.
    command.arg(format!("CARGO_MANIFEST_DIR={}", workspace.root().join("xtask").display()));
    command.arg(this).arg("demo").arg("--traced-part").arg(blkkin);
    command.args(scenario.flag());
    shell::run(&mut command).map(|()| ExitCode::SUCCESS)
}

/// Builds blkkin and the additional targets, and returns blkkin's path.
pub(crate) fn build(workspace: &Workspace, extra_targets: ExtraTargets) -> Result<PathBuf> {
    cargo_build::release(workspace, "blkkin", "blkkin", extra_targets)
}

fn remove_old(file: &Path) -> Result<()> {
    let removed = if file.exists() { std::fs::remove_file(file) } else { Ok(()) };
    removed.with_context(|| format!("cannot remove the trace of an earlier demo, {}", file.display()))
}
