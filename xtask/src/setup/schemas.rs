//! Schemas of Kubernetes objects and compose files, for the tests of configs/deploy.
//!
//! Both are published inside programs on PyPI: `kubernetes-validate` contains the JSON schemas of
//! each Kubernetes release and a validator; docker-compose 1.29 contains the compose
//! specification's. docker-compose is not installed; that one file is extracted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;
use crate::workspace::Workspace;

const KUBERNETES: &str = "1.37.0";
const COMPOSE: &str = "1.29.2";
/// Newest of the 28 published releases, and one that clusters still run.
const RELEASES: [&str; 2] = ["v1.37.0-local-strict", "v1.29.0-local-strict"];

pub(super) const PLAN: &str = "schemas of Kubernetes and of compose files from PyPI, below target/toolchain: configs/deploy must conform to them";

/// Returns the folder of the schemas. Tests receive it in the variable BLKKIN_SCHEMAS.
pub(crate) fn schemas(workspace: &Workspace) -> PathBuf {
    workspace.toolchain_dir().join(format!("schemas-{KUBERNETES}"))
}

/// Downloads under another name and renames the folder, so that it is always complete.
pub(super) fn fetch(schemas: &Path) -> Result<()> {
    let folder = schemas.with_extension("partial");
    let (site, wheels) = (folder.join("python"), folder.join("wheels"));
    fs::create_dir_all(&wheels).with_context(|| format!("cannot make {}", wheels.display()))?;
    let mut install = pip("install");
    install.arg("--no-compile").arg("--target").arg(&site).arg(format!("kubernetes-validate=={KUBERNETES}"));
    shell::run_quietly(&mut install).context("cannot fetch Kubernetes' schemas")?;
    let mut download = pip("download");
    download.args(["--no-deps", "--dest"]).arg(&wheels).arg(format!("docker-compose=={COMPOSE}"));
    shell::run_quietly(&mut download).context("cannot fetch the schema of compose files")?;
    let unzip = "import glob, sys, zipfile\n\
        wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + '/*.whl')[0])\n\
        open(sys.argv[2], 'wb').write(wheel.read('compose/config/compose_spec.json'))";
    let mut take = Command::new("python3");
    take.args(["-c", unzip]).arg(&wheels).arg(folder.join("compose.json"));
    shell::run_quietly(&mut take).context("docker-compose contains no schema of compose files")?;
    fs::remove_dir_all(&wheels).with_context(|| format!("cannot remove {}", wheels.display()))?;
    keep_only(&site.join("kubernetes_validate/kubernetes-json-schema"))?;
    fs::rename(&folder, schemas).with_context(|| format!("cannot rename {}", folder.display()))
}

pub(super) fn pip(what: &str) -> Command {
    let mut command = Command::new("python3");
    command.args(["-m", "pip", what, "--quiet", "--disable-pip-version-check", "--no-cache-dir"]);
    command
}

/// Deletes the other releases, which saves 100 MB.
fn keep_only(releases: &Path) -> Result<()> {
    for entry in fs::read_dir(releases).with_context(|| format!("no {}", releases.display()))? {
        let entry = entry.with_context(|| format!("cannot read {}", releases.display()))?;
        if entry.path().is_dir() && !RELEASES.iter().any(|kept| entry.file_name() == *kept) {
            fs::remove_dir_all(entry.path())
                .with_context(|| format!("cannot remove {}", entry.path().display()))?;
        }
    }
    Ok(())
}
