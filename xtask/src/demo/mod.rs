//! `demo`: SQLite on ext4 over a loop device, traced from system call to block request; with `--cluster` three nodes, see
//! [`cluster`], with `--nbd` a storage daemon, see [`nbd`], with `--application` a service that traces itself, see [`application`].
//!
//! Set-up and build run as the user. The rest needs root (loop device, mount, eBPF): for a user this task starts
//! itself again by sudo with `--traced-part`. Whatever ends the demo, the file system and the loop device go;
//! what a killed demo left is found by its fixed paths below `target/demo` and removed first.

pub(crate) mod application;
mod cluster;
mod disk;
pub(crate) mod look;
pub(crate) mod nbd;
mod story;
mod traced;
mod workload;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::interrupt;
use crate::setup::{self, Purpose};
use crate::shell;
use crate::timing::Timings;
use crate::workspace::Workspace;

pub(crate) use cluster::as_machine;
pub(crate) use disk::Disk;
pub(crate) use workload::Workload;

/// Which demo.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// One machine, one program, a report.
    OneMachine,
    /// Several nodes, by way of Kafka into Zipkin.
    Cluster,
    /// A storage daemon that says what it does.
    Nbd,
    /// A service that traces itself.
    Application,
}

impl Which {
    pub(crate) fn of(cluster: bool, nbd: bool, application: bool) -> Self {
        match (cluster, nbd, application) {
            (true, ..) => Self::Cluster,
            (_, true, _) => Self::Nbd,
            (.., true) => Self::Application,
            _ => Self::OneMachine,
        }
    }

    fn flag(self) -> Option<&'static str> {
        match self {
            Self::OneMachine => None,
            Self::Cluster => Some("--cluster"),
            Self::Nbd => Some("--nbd"),
            Self::Application => Some("--application"),
        }
    }

    fn purpose(self) -> Purpose {
        match self {
            Self::OneMachine => Purpose::Demo,
            Self::Cluster => Purpose::Cluster,
            Self::Nbd | Self::Application => Purpose::Daemons,
        }
    }

    /// What is built beside blkkin, and only where it is wanted: it is built with LTTng's headers.
    fn beside(self) -> Beside {
        match self {
            Self::OneMachine | Self::Cluster => &[],
            Self::Nbd => &["--package", "blkkin-nbd"],
            Self::Application => &["--package", "blkkin-ust", "--bins", "--example", "shop"],
        }
    }
}

/// Words for cargo that name more to build.
pub(crate) type Beside = &'static [&'static str];
/// All that the pictures are made of.
pub(crate) const EVERYTHING: Beside =
    &["--package", "blkkin-nbd", "--package", "blkkin-ust", "--bins", "--example", "shop"];

/// Sets up, builds, traces.
pub(crate) fn run(workspace: &Workspace, which: Which) -> Result<ExitCode> {
    let mut timings = Timings::default();
    timings.time("set-up", || setup::run(workspace, &[Purpose::Build, which.purpose()]))?;
    println!("demo: building blkkin (release; the first build takes a minute or two)");
    let blkkin = timings.time("build", || build(workspace, which.beside()))?;
    // By the user, who can then delete what root puts there.
    let folder = workspace.demo_dir();
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let code = timings.time("traced run", || {
        if shell::is_root() {
            traced_part(workspace, &blkkin, which)
        } else {
            traced_part_by_sudo(workspace, &blkkin, which)
        }
    })?;
    println!("demo: {}", timings.summary());
    Ok(code)
}

/// What needs root. The exit code is blkkin's.
pub(crate) fn traced_part(workspace: &Workspace, blkkin: &Path, which: Which) -> Result<ExitCode> {
    if !shell::is_root() {
        bail!("this part of the demo needs root: run `cargo xtask demo`, which asks for it");
    }
    // Ctrl-C ends the traced program, which reports what it has, and not this one, which must clean up.
    interrupt::catch()?;
    match which {
        Which::OneMachine => one_machine(workspace, blkkin),
        Which::Cluster => cluster::run(workspace, blkkin),
        Which::Nbd => nbd::run(workspace, blkkin),
        Which::Application => application::run(workspace, blkkin),
    }
}

fn one_machine(workspace: &Workspace, blkkin: &Path) -> Result<ExitCode> {
    let folder = workspace.demo_dir();
    let disk = Disk::make(&folder)?;
    let workload = Workload::prepare(&folder, disk.mount_point())?;
    let trace = folder.join("trace.json");
    remove_old(&trace)?;
    println!("demo: {}", Workload::DESCRIPTION);
    println!("demo: on ext4 on {}, a loop device over {}\n", disk.device(), disk.image().display());
    let status = traced::run(&mut command_of(blkkin, &trace, &workload), disk)?;
    if trace.is_file() {
        println!(
            "\ndemo: the trace is in {} (Zipkin v2 JSON)",
            trace.strip_prefix(workspace.root()).unwrap_or(&trace).display()
        );
    }
    traced::succeeded(status)?;
    Ok(ExitCode::SUCCESS)
}

/// The command that the demo shows: the one place of its flags.
fn command_of(blkkin: &Path, trace: &Path, workload: &Workload) -> Command {
    let mut command = Command::new(blkkin);
    command.arg("run").arg("--to").arg(format!("zipkin={}", trace.display()));
    command.arg("--").arg("sh").arg(workload.script()).stdin(Stdio::null());
    command
}

fn traced_part_by_sudo(workspace: &Workspace, blkkin: &Path, which: Which) -> Result<ExitCode> {
    interrupt::catch()?;
    let mut command =
        shell::privileged("env", "a loop device, a mount, and eBPF programs for the traced run")?;
    let this = std::env::current_exe().context("cannot find this program")?;
    // sudo clears the environment, and this is how the task finds the workspace.
    command.arg(format!("CARGO_MANIFEST_DIR={}", workspace.root().join("xtask").display()));
    command.arg(this).arg("demo").arg("--traced-part").arg(blkkin);
    command.args(which.flag());
    shell::run(&mut command).map(|()| ExitCode::SUCCESS)
}

/// Cargo is asked where the program is: the target directory is the user's to choose.
pub(crate) fn build(workspace: &Workspace, beside: Beside) -> Result<PathBuf> {
    let mut command = workspace.cargo();
    command.args([
        "build",
        "--release",
        "--locked",
        "--package",
        "blkkin",
        "--message-format",
        "json-render-diagnostics",
    ]);
    command.args(beside);
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("blkkin does not build: see above");
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let programs = messages
        .filter(|message| message["target"]["name"] == "blkkin" && message["target"]["kind"][0] == "bin");
    let executable =
        programs.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back();
    executable.context("cargo built no program called blkkin")
}

fn remove_old(file: &Path) -> Result<()> {
    let removed = if file.exists() { std::fs::remove_file(file) } else { Ok(()) };
    removed.with_context(|| format!("cannot remove the trace of an earlier demo, {}", file.display()))
}
