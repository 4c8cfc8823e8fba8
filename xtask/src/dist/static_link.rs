//! Static link of the binary: `-C target-feature=+crt-static` for the last crate alone.
//!
//! *How*: `cargo rustc` passes the flag to the last crate only, so all other crates are shared with
//! other builds. At link time the feature selects the C library's archive. A build script requests
//! OpenSSL as a shared library; the linker takes the first match, so a folder that contains only
//! archives precedes the system's.
//!
//! *Rejected*: `RUSTFLAGS` and `OPENSSL_STATIC` for the whole build. They compile every crate again
//! (librdkafka takes a minute), and the shipped crates are not the tested ones. *musl*: see
//! `blkkin/src/resolver.rs`.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::folder;
use crate::cargo_build;
use crate::packages::Manager;
use crate::shell;
use crate::workspace::Workspace;

/// Archives that the static link requires: the C library, and OpenSSL for librdkafka's TLS and
/// SCRAM.
const REQUIRED: [&str; 3] = ["c", "ssl", "crypto"];
/// Archives that are linked if the system has them: parts of the C library that are empty today,
/// and zlib.
const OPTIONAL: [&str; 5] = ["m", "dl", "pthread", "rt", "z"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Profile {
    Release,
    Dev,
}

/// Returns the path of the finished binary.
pub(super) fn output_path(workspace: &Workspace, profile: Profile) -> PathBuf {
    match profile {
        Profile::Release => folder(workspace).join("blkkin"),
        Profile::Dev => folder(workspace).join("test/blkkin"),
    }
}

/// Builds the binary and checks with ldd that it is static.
pub(super) fn build(workspace: &Workspace, profile: Profile) -> Result<PathBuf> {
    let archives = archives(workspace)?;
    let mut command = workspace.cargo();
    command.args(["rustc", "--locked", "--quiet", "--package", "blkkin", "--bin", "blkkin"]);
    command.args((profile == Profile::Release).then_some("--release"));
    command.args(cargo_build::MESSAGES);
    command.args(["--", "-Ctarget-feature=+crt-static", "-Cstrip=symbols"]);
    command.arg(format!("-Lnative={}", archives.display()));
    let built = cargo_build::executable(&cargo_build::run(&mut command, "a static blkkin")?, "blkkin")?;
    let output_path = output_path(workspace, profile);
    install(&built, &output_path)?;
    let output = shell::capture(Command::new("ldd").arg(&output_path))?;
    ensure!(
        output.contains("statically linked"),
        "{} is not static: {}",
        output_path.display(),
        output.trim()
    );
    Ok(output_path)
}

/// Returns the archives of the static link.
pub(super) fn linked_archives(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let folder = archives(workspace)?;
    let paths = REQUIRED.iter().chain(&OPTIONAL).map(|name| folder.join(format!("lib{name}.a")));
    Ok(paths.filter(|path| path.exists()).collect())
}

/// Makes a folder with links to the archives of this machine's compiler.
fn archives(workspace: &Workspace) -> Result<PathBuf> {
    let links = folder(workspace).join("archives");
    std::fs::create_dir_all(&links).with_context(|| format!("cannot make {}", links.display()))?;
    for name in REQUIRED.iter().chain(&OPTIONAL) {
        let file = format!("lib{name}.a");
        let output = shell::capture(Command::new("cc").arg(format!("-print-file-name={file}")))?;
        let (found, link) = (Path::new(output.trim()), links.join(&file));
        match found.is_absolute() {
            true if link.exists() => {}
            true => symlink(found, &link).with_context(|| format!("cannot make {}", link.display()))?,
            // A compiler that does not find the archive prints the name back.
            false if REQUIRED.contains(name) => {
                bail!("no {file}, which a static binary requires: {}", remedy(Manager::detect()))
            }
            false => {}
        }
    }
    Ok(links)
}

fn remedy(manager: Manager) -> &'static str {
    match manager {
        Manager::Apt => "sudo apt-get install libc6-dev libssl-dev",
        Manager::Dnf => "sudo dnf install glibc-static openssl-devel, and an OpenSSL built with no-shared",
        _ => "this distribution ships only shared libraries; build on Debian or in a Debian container",
    }
}

/// Copies the binary, because cargo keeps one file for both kinds of link. The rename is atomic, so
/// that a process that runs the old file is not disturbed.
fn install(built: &Path, output_path: &Path) -> Result<()> {
    let partial = output_path.with_extension("partial");
    std::fs::create_dir_all(output_path.parent().context("the path has a parent folder")?)
        .and_then(|()| std::fs::copy(built, &partial).map(drop))
        .and_then(|()| std::fs::rename(&partial, output_path))
        .with_context(|| format!("cannot write {}", output_path.display()))
}
