//! Support of all tests that run the `blkkin` binary.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// User id of the unprivileged user on Debian, Fedora and Arch.
const UNPRIVILEGED: u32 = 65534;

/// Environment variable with the attach kind for tests that choose none, as `--attach` takes it.
pub(crate) const ATTACH: &str = "BLKKIN_TEST_ATTACH";

/// Arguments that select each attach kind, and no arguments.
pub(crate) const EACH_KIND: [&[&str]; 5] =
    [&[], &["--attach", "tp_btf"], &["--attach", "raw_tp"], &["--attach", "fentry"], &["--attach", "kprobe"]];

/// Returns a command of the binary under test with these arguments.
pub(crate) fn blkkin(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blkkin"));
    let mut args = args.to_vec();
    let kind = std::env::var(ATTACH);
    if let (Ok(kind), true) = (&kind, traces_by_default_kind(&args)) {
        args.splice(1..1, ["--attach", kind]);
    }
    command
        .args(args)
        .env_remove("NO_COLOR")
        .env("COLUMNS", "80")
        .env("LANG", "C.UTF-8")
        .env_remove("LC_ALL");
    command
}

/// Checks whether the arguments trace without choosing an attach kind.
fn traces_by_default_kind(args: &[&str]) -> bool {
    matches!(args.first(), Some(&("run" | "trace"))) && !args.contains(&"--attach")
}

/// Runs the binary, and returns its status and output.
pub(crate) fn run(args: &[&str]) -> Run {
    Run::from(blkkin(args).output().unwrap())
}

/// Runs the binary without privileges: as [`UNPRIVILEGED`] if the test runs as root.
pub(crate) fn run_unprivileged(args: &[&str]) -> Run {
    if !is_root() {
        return run(args);
    }
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(copy_for_unprivileged(folder.path()));
    command.args(args).uid(UNPRIVILEGED).gid(UNPRIVILEGED).current_dir("/").env("COLUMNS", "80");
    Run::from(command.output().unwrap())
}

/// Copies the binary to this folder for the unprivileged user, which may not read the build folder.
pub(crate) fn copy_for_unprivileged(folder: &Path) -> PathBuf {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let binary = folder.join("blkkin");
    fs::copy(env!("CARGO_BIN_EXE_blkkin"), &binary).unwrap();
    binary
}

/// Returns whether tests that load eBPF programs can run.
pub(crate) fn is_root() -> bool {
    // SAFETY: returns a number and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Exit code and output of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Run {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Run {
    /// Returns the run. Asserts its exit code.
    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Run {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// Asserts one error of three parts, and its exit code.
    #[track_caller]
    pub(crate) fn assert_refused(&self, code: i32, problem: &str, remedy: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        let mut lines = self.stderr.lines();
        assert!(lines.next().unwrap().starts_with(&format!("blkkin: {problem}")), "{self:?}");
        assert!(lines.next().unwrap().starts_with("  why: "), "{self:?}");
        assert!(self.stderr.contains(&format!("\n  try: {remedy}")), "{self:?}");
        assert_eq!(self.stderr.matches("blkkin: ").count(), 1, "one error, not several: {self:?}");
    }
}
