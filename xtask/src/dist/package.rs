//! Packages: a Debian package, an rpm package and an archive for other distributions, of one tree of files.
//!
//! ```text
//! static binary ──┬─ completions, manual pages ─┐
//! configs/ ───────┴─────────────────────────────┴▶ target/dist/package ──┬─ dpkg-deb ▶ blkkin_VERSION_ARCH.deb
//!                                                                          ├─ rpm.rs ───▶ blkkin-VERSION-1.ARCH.rpm
//!                                                                          └─ tar ──────▶ blkkin-VERSION-ARCH.tar.gz
//! ```
//!
//! *In*: the static binary, and the files of `configs/`. *Out*: the packages. *Invariant*: the same commit and
//! binary give the same bytes (times are that of the commit, owners are root, names are sorted). No service is
//! started by the package: an agent needs a cluster's address first.
//!
//! *Rejected*: cargo-deb. It would be compiled for a minute on each new machine, to write the four small files that
//! dpkg-deb needs.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;
use crate::workspace::Workspace;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const SERVICES: [&str; 3] = ["agent", "aggregator", "exporter"];
/// Completion scripts: shell, and the path at which Debian's shells look.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/blkkin"),
    ("zsh", "usr/share/zsh/vendor-completions/_blkkin"),
    ("fish", "usr/share/fish/vendor_completions.d/blkkin.fish"),
];
const MANUAL: &str = "usr/share/man/man1";
const DOCS: &str = "usr/share/doc/blkkin";

/// Scripts of the package's maintainer. dpkg runs them as root, also where systemd does not run.
const SCRIPTS: [(&str, &str); 3] = [
    (
        "postinst",
        r#"#!/bin/sh
set -e
[ "$1" = configure ] && [ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
# After an upgrade, the services that run are those of the new version. A service is ready once its cluster answers, so
# dpkg does not wait for that.
[ -z "$2" ] || systemctl --no-block try-restart blkkin-agent blkkin-aggregator blkkin-exporter || true
"#,
    ),
    (
        "prerm",
        r#"#!/bin/sh
set -e
[ "$1" = remove ] && [ -d /run/systemd/system ] || exit 0
systemctl disable --now blkkin-agent blkkin-aggregator blkkin-exporter || true
"#,
    ),
    (
        "postrm",
        r#"#!/bin/sh
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload
# The agent's spool and the exporter's files; a unit with a user of its own has them below private.
[ "$1" != purge ] || rm -rf /etc/blkkin /var/lib/blkkin /var/lib/blkkin-agent /var/lib/private/blkkin /var/lib/private/blkkin-agent
"#,
    ),
];

/// Packages of one build.
pub(super) struct Packages {
    pub(super) archive: PathBuf,
    /// Debian package, except on a machine without dpkg-deb.
    pub(super) debian: Option<PathBuf>,
    /// rpm package, except on a machine without rpmbuild.
    pub(super) rpm: Option<PathBuf>,
}

/// Makes the packages of this binary in `folder`, with a compression level of gzip.
pub(super) fn build(workspace: &Workspace, binary: &Path, folder: &Path, level: u32) -> Result<Packages> {
    let tree = folder.join("package");
    let _ = fs::remove_dir_all(&tree);
    let time = commit_time(workspace);
    write_tree(workspace, binary, &tree)?;
    let archive = folder.join(format!("blkkin-{VERSION}-{}.tar.gz", std::env::consts::ARCH));
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]).arg(format!("--mtime=@{time}"));
    tar.arg(format!("--use-compress-program=gzip -n -{level}"));
    tar.arg("--create").arg("--file").arg(&archive).arg("--directory").arg(&tree).args(["etc", "usr"]);
    shell::run_quietly(&mut tar).context("cannot write the archive")?;

    let rpm = super::rpm::build(&tree, folder, &time, level)?;
    if shell::which("dpkg-deb").is_none() {
        println!("dist: no Debian package: dpkg-deb is not installed");
        return Ok(Packages { archive, debian: None, rpm });
    }
    let architecture = debian_architecture();
    write_control(&tree, architecture)?;
    let debian = folder.join(format!("blkkin_{VERSION}_{architecture}.deb"));
    let mut command = Command::new("dpkg-deb");
    command.env("SOURCE_DATE_EPOCH", &time).args(["--root-owner-group", "-Zgzip"]);
    command.arg(format!("-z{level}")).arg("--build").arg(&tree).arg(&debian);
    shell::run_quietly(&mut command).context("cannot write the Debian package")?;
    Ok(Packages { archive, debian: Some(debian), rpm })
}

/// Returns Debian's name of this machine's architecture.
fn debian_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Returns the time of the last commit, in seconds since 1970; 0 outside of a repository.
fn commit_time(workspace: &Workspace) -> String {
    let mut git = Command::new("git");
    git.arg("-C").arg(workspace.root()).args(["log", "-1", "--format=%ct"]);
    shell::capture(&mut git).map_or_else(|_| "0".to_owned(), |time| time.trim().to_owned())
}

/// Writes the installed files.
fn write_tree(workspace: &Workspace, binary: &Path, tree: &Path) -> Result<()> {
    let configs = workspace.root().join("configs");
    put(tree, "usr/bin/blkkin", &read(binary)?, 0o755)?;
    for service in SERVICES {
        let unit = String::from_utf8(read(&configs.join(format!("blkkin-{service}.service")))?)?;
        // Its first lines are about an installation by hand.
        let unit = unit.find("[Unit]").map_or(&*unit, |start| &unit[start..]);
        let unit = unit.replace("/usr/local/bin/blkkin", "/usr/bin/blkkin");
        put(tree, &format!("usr/lib/systemd/system/blkkin-{service}.service"), unit.as_bytes(), 0o644)?;
        let options = format!("{service}.toml");
        put(tree, &format!("etc/blkkin/{options}"), &read(&configs.join(&options))?, 0o644)?;
    }
    for mapping in fs::read_dir(configs.join("mappings")).context("cannot list the mappings")? {
        let mapping = mapping?;
        let name = format!("usr/share/blkkin/mappings/{}", mapping.file_name().to_string_lossy());
        put(tree, &name, &read(&mapping.path())?, 0o644)?;
    }
    for name in ["grafana-dashboard.json", "prometheus-alerts.yml"] {
        put(tree, &format!("{DOCS}/{name}"), &read(&configs.join(name))?, 0o644)?;
    }
    let licences = ["LICENSE-APACHE", "LICENSE-MIT"].map(|name| read(&workspace.root().join(name)));
    let mut copyright = b"blkkin is licensed under the Apache License 2.0 or the MIT License.\n\n".to_vec();
    for licence in licences {
        copyright.extend(licence?);
    }
    put(tree, &format!("{DOCS}/copyright"), &copyright, 0o644)?;
    put(tree, &format!("{DOCS}/changelog"), &read(&workspace.root().join("CHANGELOG.md"))?, 0o644)?;
    for (shell, path) in COMPLETIONS {
        let script = shell::capture(Command::new(binary).args(["completions", shell]))?;
        put(tree, path, script.as_bytes(), 0o644)?;
    }
    let manual = tree.join(MANUAL);
    fs::create_dir_all(&manual).with_context(|| format!("cannot make {}", manual.display()))?;
    shell::run_quietly(Command::new(binary).arg("manual-pages").arg(&manual))?;
    for page in fs::read_dir(&manual).context("cannot list the manual pages")? {
        shell::run_quietly(Command::new("gzip").args(["-n", "-9"]).arg(page?.path()))?;
    }
    shell::run_quietly(Command::new("gzip").args(["-n", "-9"]).arg(tree.join(DOCS).join("changelog")))
}

/// Writes what dpkg reads: the description, the files that an administrator may change, and the scripts.
fn write_control(tree: &Path, architecture: &str) -> Result<()> {
    let size = shell::capture(Command::new("du").args(["-sk", "--apparent-size"]).arg(tree))?;
    let size = size.split_whitespace().next().unwrap_or("0").to_owned();
    let control = format!(
        "Package: blkkin\nVersion: {VERSION}\nArchitecture: {architecture}\nSection: admin\nPriority: optional\n\
         Maintainer: blkkin <blkkin@users.noreply.github.com>\nInstalled-Size: {size}\n\
         Homepage: {repository}\nDescription: {description}\n \
         Follows storage requests from the application's system call to the disk, by eBPF,\n \
         on one machine (blkkin run, blkkin trace) or on many (agent, aggregator, exporter).\n",
        repository = env!("CARGO_PKG_REPOSITORY"),
        description = "tracer of storage requests through every layer",
    );
    put(tree, "DEBIAN/control", control.as_bytes(), 0o644)?;
    let conffiles = SERVICES.map(|service| format!("/etc/blkkin/{service}.toml\n")).concat();
    put(tree, "DEBIAN/conffiles", conffiles.as_bytes(), 0o644)?;
    for (name, script) in SCRIPTS {
        put(tree, &format!("DEBIAN/{name}"), script.as_bytes(), 0o755)?;
    }
    Ok(())
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Writes a file of the tree.
fn put(tree: &Path, path: &str, bytes: &[u8], mode: u32) -> Result<()> {
    let file = tree.join(path);
    let write = || {
        let folder = file.parent().unwrap_or(tree);
        fs::create_dir_all(folder)?;
        fs::write(&file, bytes)?;
        fs::set_permissions(&file, Permissions::from_mode(mode))
    };
    write().with_context(|| format!("cannot write {}", file.display()))
}
