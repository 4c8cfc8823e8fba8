//! Initramfs of a guest: kernel modules, test programs, the tools that they run, and the libraries
//! of all of these, at the paths of this machine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use blkkin_guest_boot::programs::{self as machine_programs, libraries_of, stripped};
use blkkin_guest_boot::{Archive, UnpackedKernel};

use super::guest::TestRun;
use crate::shell;
use crate::test::TestProgram;

const INIT: &str = include_str!("init.sh");

/// Programs that the tests and their scripts run.
const TOOLS: &[&str] = &[
    "sh",
    "cat",
    "cp",
    "env",
    "touch",
    "unshare",
    "false",
    "ln",
    "ls",
    "mv",
    "readlink",
    "rm",
    "sleep",
    "stat",
    "sync",
    "true",
    "wc",
    "fio",
    "sqlite3",
    "losetup",
    "mkfs.ext4",
    "mkfs.xfs",
    "mkfs.btrfs",
    "mount",
    "umount",
    "timeout",
    "dmsetup",
    "mdadm",
    "filefrag",
    "blktrace",
    "blkparse",
    "busybox",
];
/// Modules of a guest of the tests; their dependencies are added.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "loop",
    "null_blk",
    "dm-mod",
    "crypto_null",
    "ecb",
    "dm-crypt",
    "dm-delay",
    "dm-flakey",
    "raid1",
    "raid0",
    "raid10",
    "dm-thin-pool",
    "sd_mod",
    "sg",
    "scsi_debug",
    "nbd",
    "ublk_drv",
    "zonefs",
    "xfs",
    "btrfs",
    "overlay",
    "mq-deadline",
    "bfq",
    "kyber-iosched",
];
const FOLDERS: &[&str] = &["bin", "dev", "etc", "proc", "run", "sys", "tmp", "var/tmp"];

/// Writes the archive of a guest.
pub(super) fn build(
    path: &Path,
    kernel: &UnpackedKernel,
    work: &[TestRun],
    programs: &[TestProgram],
) -> Result<()> {
    let mut archive = Archive::create(path)?;
    FOLDERS.iter().try_for_each(|folder| archive.folder(folder))?;
    archive.file("init", INIT.as_bytes())?;
    for (module, bytes) in kernel.modules(MODULES)? {
        archive.file(&format!("modules/{module}"), &bytes)?;
    }
    machine_programs::add(&mut archive, TOOLS)?;
    let mut libraries = BTreeSet::new();
    let executables = work.iter().map(|one| one.executable.clone()).chain(binary(programs));
    for executable in executables.collect::<BTreeSet<_>>() {
        libraries.extend(libraries_of(&executable)?);
        let name = executable.to_str().context("the path is not UTF-8")?;
        archive.file(name, &stripped(&executable, &path.with_extension("stripped"))?)?;
    }
    if work.iter().any(|one| NEED_CONTEXT.iter().any(|name| one.name.starts_with(name))) {
        let maker = programs.iter().find(|program| program.name == CONTEXT.0);
        let maker = maker.with_context(|| format!("no {}", CONTEXT.0))?;
        for (name, file) in context_programs(&maker.executable, path)? {
            libraries.extend(libraries_of(&file)?);
            archive.file(&name, &std::fs::read(&file)?)?;
        }
    }
    libraries.iter().try_for_each(|library| archive.copy(library))?;
    // mkfs.ext4 reads its defaults.
    archive.copy("/etc/mke2fs.conf")?;
    archive.file("programs", list(work)?.as_bytes())?;
    archive.finish()
}

/// Tests that need compiled context programs.
const NEED_CONTEXT: [&str; 3] =
    ["blkkin/tests/context ", "blkkin/tests/thread_contexts ", "blkkin/tests/page_faults "];
/// Test program that builds the context programs, the variable that requests it, and their folder
/// in the guest (`blkkin/tests/support/context`).
const CONTEXT: (&str, &str, &str) = ("blkkin/tests/context", "BLKKIN_BUILD_CONTEXT_PROGRAMS", "context");

/// Builds the context programs and returns them and their libraries with their paths in the guest.
fn context_programs(test: &Path, base: &Path) -> Result<Vec<(String, PathBuf)>> {
    let (_, variable, at) = CONTEXT;
    let folder = base.with_extension(at);
    shell::run_quietly(
        Command::new(test).env(variable, &folder).args(["--exact", "context::programs_for_a_guest"]),
    )?;
    let mut programs = Vec::new();
    for entry in std::fs::read_dir(&folder)? {
        let one = entry?.path();
        for file in std::fs::read_dir(&one)? {
            let file = file?.path();
            let below = file.strip_prefix(&folder)?.to_str().context("the path is not UTF-8")?.to_owned();
            programs.push((format!("{at}/{below}"), file));
        }
    }
    Ok(programs)
}

/// Formats one line per program, which `init.sh` reads.
fn list(work: &[TestRun]) -> Result<String> {
    let line = |one: &TestRun| {
        let executable = one.executable.to_str().context("the path is not UTF-8")?;
        let kind = one.attach.name();
        Ok(format!("{} {kind} {executable} {} # {}\n", one.disk.name(), one.tests.join(" "), one.name))
    };
    work.iter().map(line).collect()
}

/// Returns the path of `blkkin`, one folder above the tests. It is compiled into the tests.
fn binary(programs: &[TestProgram]) -> Option<PathBuf> {
    let test = programs.iter().find(|program| program.name.starts_with("blkkin/tests/"))?;
    Some(test.executable.parent()?.parent()?.join("blkkin"))
}
