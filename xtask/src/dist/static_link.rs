//! One link that leaves nothing to the machine: `-C target-feature=+crt-static` for the binary alone.
//!
//! *How*: `cargo rustc` gives the flag to the last crate only, so all others are those of any other build. The feature
//! decides at that link whether the C library comes as an archive. OpenSSL is asked for by a build script, as a shared
//! library; the linker takes whatever it meets first, so a folder with nothing but archives stands before the system's.
//!
//! *Rejected*: `RUSTFLAGS` and `OPENSSL_STATIC` for the whole build. Every crate is then compiled again (librdkafka
//! takes a minute), and what is shipped is not what was tested. *musl*: see `blkkin/src/resolver.rs`.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::folder;
use crate::packages::Manager;
use crate::shell;
use crate::workspace::Workspace;

/// Without these archives there is no static binary: the C library's, and what librdkafka needs for TLS and SCRAM.
const REQUIRED: [&str; 3] = ["c", "ssl", "crypto"];
/// Of these a build may use the system's, if it has them: parts of the C library that are empty by now, and zlib.
const WELCOME: [&str; 5] = ["m", "dl", "pthread", "rt", "z"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Profile {
    Release,
    Dev,
}

/// Where the binary is put.
pub(super) fn place(workspace: &Workspace, profile: Profile) -> PathBuf {
    match profile {
        Profile::Release => folder(workspace).join("blkkin"),
        Profile::Dev => folder(workspace).join("test/blkkin"),
    }
}

/// Builds it, and makes sure that it is what it is called.
pub(super) fn build(workspace: &Workspace, profile: Profile) -> Result<PathBuf> {
    let archives = archives(workspace)?;
    let mut command = workspace.cargo();
    command.args(["rustc", "--locked", "--quiet", "--package", "blkkin", "--bin", "blkkin"]);
    command.args((profile == Profile::Release).then_some("--release"));
    command.args(["--message-format", "json-render-diagnostics", "--"]);
    command.args(["-Ctarget-feature=+crt-static", "-Cstrip=symbols"]);
    command.arg(format!("-Lnative={}", archives.display()));
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("no static blkkin: see above");
    }
    let built = executable(&String::from_utf8_lossy(&output.stdout)).context("cargo built no blkkin")?;
    let place = place(workspace, profile);
    take(&built, &place)?;
    let said = shell::capture(Command::new("ldd").arg(&place))?;
    ensure!(said.contains("statically linked"), "{} is not static: {}", place.display(), said.trim());
    Ok(place)
}

/// A folder of links to the archives of this machine's compiler.
fn archives(workspace: &Workspace) -> Result<PathBuf> {
    let links = folder(workspace).join("archives");
    std::fs::create_dir_all(&links).with_context(|| format!("cannot make {}", links.display()))?;
    for name in REQUIRED.iter().chain(&WELCOME) {
        let file = format!("lib{name}.a");
        let said = shell::capture(Command::new("cc").arg(format!("-print-file-name={file}")))?;
        let (found, link) = (Path::new(said.trim()), links.join(&file));
        match found.is_absolute() {
            true if link.exists() => {}
            true => symlink(found, &link).with_context(|| format!("cannot make {}", link.display()))?,
            // A compiler that does not find it says its name back.
            false if REQUIRED.contains(name) => {
                bail!("no {file}, without which nothing is static: {}", remedy(Manager::of_this_machine()))
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
        _ => "this distribution ships shared libraries only; build on Debian, or in a container of it",
    }
}

/// Cargo keeps one file for both kinds of link, so it is copied; put in its place at once, for who runs the old one.
fn take(built: &Path, place: &Path) -> Result<()> {
    let partial = place.with_extension("partial");
    std::fs::create_dir_all(place.parent().context("it has a folder")?)
        .and_then(|()| std::fs::copy(built, &partial).map(drop))
        .and_then(|()| std::fs::rename(&partial, place))
        .with_context(|| format!("cannot write {}", place.display()))
}

fn executable(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let named = messages.filter(|message| message["target"]["name"] == "blkkin");
    named.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_is_found_in_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"blkkin_wire"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"blkkin"},"executable":"/t/blkkin"}
not json"#;
        assert_eq!(executable(messages), Some(PathBuf::from("/t/blkkin")));
    }
}
