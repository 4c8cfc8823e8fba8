//! Boots a guest in QEMU and reads its output until it ends.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result};
use blkkin_guest_boot::UnpackedKernel;
use blkkin_guest_boot::qemu::Boot;

use super::guest::Guest;
use super::protocol::{ProgramResult, Reader};
use crate::shell;
use crate::test::{TestStats, each_line};

/// Time limit of a guest. At full depth, with every attach kind, it takes 3,600 s while two others
/// compete for its CPU.
const GUEST_SECONDS_MAX: u32 = 7200;
/// Memory for four fio processes, the in-memory disks, and twice the archive (722 MB with all test
/// programs at full depth), because the kernel limits the unpacked archive to half of the memory.
const MEMORY_MIB: u32 = 3072;
/// Largest disk that the tests need.
const DISK_BYTES: u64 = 256 << 20;
/// Maximum number of console lines that an error shows.
const CONSOLE_LINES_MAX: usize = 60;

/// Result of a guest.
pub(super) struct Outcome {
    lines: Vec<String>,
    programs: Vec<ProgramResult>,
    /// Failure of the guest itself, independent of the test results.
    failure: Option<String>,
    skipped: Option<&'static str>,
}

/// Boots the guest and returns after it has powered off, died or exceeded its time limit.
/// `expected` is the number of programs that it runs.
pub(super) fn boot(
    guest: &Guest,
    kernel: &UnpackedKernel,
    archive: &Path,
    folder: &Path,
    expected: usize,
) -> Result<Outcome> {
    let (console, disks) = (folder.join("console"), ["vda", "vdb"].map(|name| folder.join(name)));
    for disk in &disks {
        // Recreated each time, sparse.
        let _ = fs::remove_file(disk);
        let made = File::create(disk).and_then(|file| file.set_len(DISK_BYTES));
        made.with_context(|| format!("cannot make {}", disk.display()))?;
    }
    let mut reader = Reader::new(guest.name);
    let mut lines = Vec::new();
    let status = each_line(qemu(guest, kernel, archive, &console, &disks)?, |line| {
        if reader.line(line) {
            lines.push(line.to_owned());
        }
    })?;
    let is_done = reader.is_done();
    let programs = reader.programs();
    let failure = match is_done {
        false => Some(death_reason(status, &console)),
        // A program that did not fit into memory does not run, and no other check detects it.
        true => (programs.len() != expected)
            .then(|| format!("ran {} of {expected} programs: {}", programs.len(), lines.join("; "))),
    };
    Ok(Outcome { lines, programs, failure, skipped: None })
}

fn qemu(
    guest: &Guest,
    kernel: &UnpackedKernel,
    initramfs: &Path,
    console: &Path,
    disks: &[PathBuf],
) -> Result<Command> {
    let program = shell::which("qemu-system-x86_64").context("qemu-system-x86_64 is not installed")?;
    let mut command = Command::new("timeout");
    // In the foreground, so that Ctrl-C reaches it too.
    command.args(["--foreground", "--kill-after=10", &GUEST_SECONDS_MAX.to_string()]).arg(program);
    let parameters = format!("loglevel=5 {}", guest.command_line);
    let boot = Boot { kernel, initramfs, console, cpus: 2, memory_mib: MEMORY_MIB, parameters: &parameters };
    command.args(boot.arguments()).args(["-serial", "stdio"]);
    for disk in disks {
        command.args(["-drive", &format!("file={},if=virtio,format=raw,cache=unsafe", disk.display())]);
    }
    Ok(command)
}

/// Describes the exit without a `done` mark, with the end of the kernel's console.
fn death_reason(status: ExitStatus, console: &Path) -> String {
    let how = match status.code() {
        Some(124 | 137) => format!("did not finish within {GUEST_SECONDS_MAX} s and was killed"),
        _ => format!("ended before its tests were done ({status})"),
    };
    let log = fs::read(console).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().map(str::trim_end).collect();
    let lines = lines[lines.len().saturating_sub(CONSOLE_LINES_MAX)..].join("\n    ");
    format!("{how}; the end of its console ({}):\n    {lines}", console.display())
}

impl Outcome {
    /// Returns the result of a guest whose kernel is not available; set-up printed the reason.
    pub(super) fn without_kernel() -> Self {
        let why = "no kernel for this guest: see the output of set-up above";
        Self { lines: Vec::new(), programs: Vec::new(), failure: None, skipped: Some(why) }
    }

    /// Prints the guest's output and counts its tests.
    pub(super) fn report(self, guest: &Guest, stats: &mut TestStats) {
        println!("\n== guest {}", guest.name);
        self.lines.iter().for_each(|line| println!("{line}"));
        for ran in self.programs {
            stats.add(ran.count, ran.status);
        }
        if let Some(why) = self.failure {
            stats.add_error(&format!("guest {}", guest.name), &anyhow::anyhow!(why));
        }
        if let Some(why) = self.skipped {
            stats.add_skipped(&format!("guest {}", guest.name), why);
        }
    }
}
