//! Boots a guest in QEMU and listens until it ends.
//!
//! KVM is not asked for: not every machine has it, and where it is nested it may not run these kernels. Emulated, a
//! kernel is in user space after 2 s, and verifies our programs in 4.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result};

use super::guest::Guest;
use super::kernel::Unpacked;
use super::protocol::{Ran, Reader};
use crate::shell;
use crate::test::{Tally, each_line};

/// A guest that runs longer hangs: at full depth, by each kind of probe, it takes 3,600 s where two others compete for its CPU.
const GUEST_SECONDS_MAX: u32 = 7200;
/// For four processes of fio, their disk in memory, and twice what the archive holds: some 350 MB with all test programs, of which
/// the kernel gives half of the memory to the unpacked one.
const MEMORY_MIB: u32 = 2048;
/// What the tests ask for at most.
const DISK_BYTES: u64 = 256 << 20;
/// Lines of a console that are shown.
const CONSOLE_LINES_MAX: usize = 60;

/// What became of a guest.
pub(super) struct Outcome {
    lines: Vec<String>,
    programs: Vec<Ran>,
    /// Why it is a failure whatever the tests said, if it is.
    broken: Option<String>,
    skipped: Option<&'static str>,
}

/// Boots it; comes back when it has powered off, died or hung too long.
/// It has so many programs to run.
pub(super) fn boot(
    guest: &Guest,
    kernel: &Unpacked,
    archive: &Path,
    folder: &Path,
    due: usize,
) -> Result<Outcome> {
    let (console, disks) = (folder.join("console"), ["vda", "vdb"].map(|name| folder.join(name)));
    for disk in &disks {
        // New each time, and as long as it says without taking room.
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
    let broken = match is_done {
        false => Some(died(status, &console)),
        // What did not fit into its memory is not run, and nobody else would miss it.
        true => (programs.len() != due)
            .then(|| format!("ran {} of {due} programs: {}", programs.len(), lines.join("; "))),
    };
    Ok(Outcome { lines, programs, broken, skipped: None })
}

fn qemu(
    guest: &Guest,
    kernel: &Unpacked,
    archive: &Path,
    console: &Path,
    disks: &[PathBuf],
) -> Result<Command> {
    let program = shell::which("qemu-system-x86_64").context("qemu-system-x86_64 is not installed")?;
    let mut command = Command::new("timeout");
    // In the foreground, so that Ctrl-C reaches it too.
    command.args(["--foreground", "--kill-after=10", &GUEST_SECONDS_MAX.to_string()]).arg(program);
    command.args(["-nodefaults", "-no-reboot", "-display", "none", "-monitor", "none"]);
    // One thread for both CPUs: with two, one of them may run an instruction that the other has replaced already, and a
    // kernel that patches itself (a tracepoint is switched on) stumbles over its own breakpoint.
    command.args([
        "-accel",
        "tcg,thread=single",
        "-cpu",
        "qemu64",
        "-smp",
        "2",
        "-m",
        &MEMORY_MIB.to_string(),
    ]);
    command.args(["-serial", &format!("file:{}", console.display()), "-serial", "stdio"]);
    for disk in disks {
        command.args(["-drive", &format!("file={},if=virtio,format=raw,cache=unsafe", disk.display())]);
    }
    command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(archive);
    // A panic restarts the machine at once, which -no-reboot makes its end.
    command.args(["-append", &format!("console=ttyS0 loglevel=5 panic=-1 {}", guest.command_line)]);
    Ok(command)
}

/// Why it did not say that it was done, and what its kernel said last.
fn died(status: ExitStatus, console: &Path) -> String {
    let how = match status.code() {
        Some(124 | 137) => format!("was not done after {GUEST_SECONDS_MAX} s and was ended"),
        _ => format!("ended without being done ({status})"),
    };
    let said = fs::read(console).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let last: Vec<&str> = said.lines().map(str::trim_end).collect();
    let last = last[last.len().saturating_sub(CONSOLE_LINES_MAX)..].join("\n    ");
    format!("{how}; the end of its console ({}):\n    {last}", console.display())
}

impl Outcome {
    /// A kernel that could not be had: set-up has said why.
    pub(super) fn without_kernel() -> Self {
        let why = "no kernel for it, see what set-up says above";
        Self { lines: Vec::new(), programs: Vec::new(), broken: None, skipped: Some(why) }
    }

    /// Shows what was said, and counts it.
    pub(super) fn report(self, guest: &Guest, tally: &mut Tally) {
        println!("\n== guest {}", guest.name);
        self.lines.iter().for_each(|line| println!("{line}"));
        for ran in self.programs {
            tally.add(ran.count, ran.status);
        }
        if let Some(why) = self.broken {
            tally.broken(&format!("guest {}", guest.name), &anyhow::anyhow!(why));
        }
        if let Some(why) = self.skipped {
            tally.skipped_by_itself(&format!("guest {}", guest.name), why);
        }
    }
}
