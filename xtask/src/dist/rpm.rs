//! Package for distributions with rpm, of the same tree of files as the others.
//!
//! *In*: the tree. *Out*: `blkkin-VERSION-1.ARCH.rpm`, by rpmbuild. *Invariant*: that of [`super::package`]: the same
//! commit and binary give the same bytes. rpm has no purge: what an administrator changed stays as `.rpmsave`, and the
//! services' files in `/var/lib` stay.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Folder of zsh's completions: Debian's, and that of the other distributions.
const ZSH: (&str, &str) = ("usr/share/zsh/vendor-completions", "usr/share/zsh/site-functions");
/// Folders that belong to this package alone.
const FOLDERS: [&str; 4] =
    ["etc/blkkin", "usr/share/blkkin", "usr/share/blkkin/mappings", "usr/share/doc/blkkin"];

/// Scripts that rpm runs as root. The first argument is the number of installed versions afterwards.
const SCRIPTS: &str = r"
%post
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
# A service is ready once its cluster answers, so rpm does not wait for that.
[ $1 = 1 ] || systemctl --no-block try-restart blkkin-agent blkkin-aggregator blkkin-exporter || :

%preun
[ $1 = 0 ] && [ -d /run/systemd/system ] || exit 0
systemctl disable --now blkkin-agent blkkin-aggregator blkkin-exporter || :

%postun
[ ! -d /run/systemd/system ] || systemctl daemon-reload
";

/// Makes the package in `folder`; `None` on a machine without rpmbuild.
pub(super) fn build(tree: &Path, folder: &Path, time: &str, level: u32) -> Result<Option<PathBuf>> {
    if shell::which("rpmbuild").is_none() {
        println!("dist: no rpm package: rpmbuild is not installed");
        return Ok(None);
    }
    let work = folder.join("rpm");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
    let specification = work.join("blkkin.spec");
    fs::write(&specification, specify(tree)?)
        .with_context(|| format!("cannot write {}", specification.display()))?;
    let name = format!("blkkin-{VERSION}-1.{}.rpm", std::env::consts::ARCH);
    let mut command = Command::new("rpmbuild");
    command.env("SOURCE_DATE_EPOCH", time).args(["-bb", "--quiet", "--nodeps", "--buildroot"]);
    command.arg(work.join("root")).args(["--target", std::env::consts::ARCH]);
    let settings = [
        ("_topdir", work.display().to_string()),
        ("_rpmdir", folder.display().to_string()),
        ("_rpmfilename", name.clone()),
        ("_binary_payload", format!("w{level}.gzdio")),
        ("_buildhost", "localhost".to_owned()),
        ("use_source_date_epoch_as_buildtime", "1".to_owned()),
        ("clamp_mtime_to_source_date_epoch", "1".to_owned()),
        // The binary is packaged as it is.
        ("debug_package", "%{nil}".to_owned()),
        ("__os_install_post", "%{nil}".to_owned()),
        ("_build_id_links", "none".to_owned()),
    ];
    for (name, value) in settings {
        command.arg("--define").arg(format!("{name} {value}"));
    }
    shell::run_quietly(command.arg(&specification)).context("cannot write the rpm package")?;
    Ok(Some(folder.join(name)))
}

/// Returns the text that rpmbuild reads: the description, the files, and the scripts.
fn specify(tree: &Path) -> Result<String> {
    let mut files = Vec::new();
    list(tree, "", &mut files)?;
    files.sort_unstable();
    let mut listed: Vec<String> = FOLDERS.iter().map(|folder| format!("%dir /{folder}")).collect();
    listed.extend(files.iter().map(|file| {
        let mark = if file.starts_with("etc/") { "%config(noreplace) " } else { "" };
        format!("{mark}/{}", file.replace(ZSH.0, ZSH.1))
    }));
    Ok(format!(
        "Name: blkkin\nVersion: {VERSION}\nRelease: 1\nSummary: Tracer of storage requests through every layer\n\
         License: Apache-2.0 OR MIT\nURL: {repository}\nAutoReqProv: no\n\n%description\n\
         Follows storage requests from the application's system call to the disk, by eBPF,\n\
         on one machine (blkkin run, blkkin trace) or on many (agent, aggregator, exporter).\n\n\
         %install\ncp -a '{tree}/.' '%{{buildroot}}'\ncd '%{{buildroot}}'\nmkdir -p {zsh}\nmv {debian_zsh}/_blkkin {zsh}\n\
         rmdir {debian_zsh}\n\n%files\n%defattr(-,root,root)\n{listed}\n{SCRIPTS}",
        repository = env!("CARGO_PKG_REPOSITORY"),
        tree = tree.display(),
        zsh = ZSH.1,
        debian_zsh = ZSH.0,
        listed = listed.join("\n"),
    ))
}

/// Lists the files below a folder of the tree.
fn list(tree: &Path, folder: &str, files: &mut Vec<String>) -> Result<()> {
    let path = tree.join(folder);
    for entry in fs::read_dir(&path).with_context(|| format!("cannot list {}", path.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let inside = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        if entry.file_type()?.is_dir() {
            list(tree, &inside, files)?;
        } else {
            files.push(inside);
        }
    }
    Ok(())
}
