//! What all tests of the command line need.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// nobody's user id on Debian, Fedora and Arch.
const NOBODY: u32 = 65534;

/// The kind of probe to use where a test asks for none, as `--attach` has it.
pub(crate) const ATTACH: &str = "BLKKIN_TEST_ATTACH";

/// `--attach` with each kind of probe, and without any.
pub(crate) const EACH_KIND: [&[&str]; 5] =
    [&[], &["--attach", "tp_btf"], &["--attach", "raw_tp"], &["--attach", "fentry"], &["--attach", "kprobe"]];

/// The binary under test with these arguments.
pub(crate) fn blkkin(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blkkin"));
    let mut args = args.to_vec();
    let kind = std::env::var(ATTACH);
    if let (Ok(kind), true) = (&kind, traces(&args)) {
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

/// Whether these words trace, by no kind in particular.
fn traces(args: &[&str]) -> bool {
    matches!(args.first(), Some(&("run" | "trace"))) && !args.contains(&"--attach")
}

/// Runs it, for its status and its words.
pub(crate) fn run(args: &[&str]) -> Run {
    Run::from(blkkin(args).output().unwrap())
}

/// The same without privilege: as nobody where the test runs as root.
pub(crate) fn run_unprivileged(args: &[&str]) -> Run {
    if !is_root() {
        return run(args);
    }
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(for_nobody(folder.path()));
    command.args(args).uid(NOBODY).gid(NOBODY).current_dir("/").env("COLUMNS", "80");
    Run::from(command.output().unwrap())
}

/// The binary in this folder, where nobody finds it: where it was built nobody may not look.
pub(crate) fn for_nobody(folder: &Path) -> PathBuf {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    let binary = folder.join("blkkin");
    fs::copy(env!("CARGO_BIN_EXE_blkkin"), &binary).unwrap();
    binary
}

/// Whether tests that load programs can work here.
pub(crate) fn is_root() -> bool {
    // SAFETY: returns a number and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// How a run ended and what it said.
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
    /// One error of three parts, and the status that goes with it.
    #[track_caller]
    pub(crate) fn assert_refused(&self, code: i32, what: &str, remedy: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        let mut lines = self.stderr.lines();
        assert!(lines.next().unwrap().starts_with(&format!("blkkin: {what}")), "{self:?}");
        assert!(lines.next().unwrap().starts_with("  why: "), "{self:?}");
        assert!(self.stderr.contains(&format!("\n  try: {remedy}")), "{self:?}");
        assert_eq!(self.stderr.matches("blkkin: ").count(), 1, "one error, not several: {self:?}");
    }
}
