//! Jars from Maven Central: the dependencies of a project.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// Downloads the dependencies of this project into a folder. They are downloaded under another name
/// and renamed, so that the folder is always complete.
pub(super) fn fetch(pom: &str, jars: &Path) -> Result<()> {
    let folder = jars.with_extension("partial");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join("pom.xml");
    std::fs::write(&path, pom).with_context(|| format!("cannot write {}", path.display()))?;
    let mut command = Command::new("mvn");
    command.args(["-B", "-ntp", "-q", "-f"]).arg(&path);
    command.arg("org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies");
    command.args(["-DincludeScope=runtime", "-DoutputDirectory=lib"]);
    shell::run(&mut command)?;
    let lib = folder.join("lib");
    std::fs::rename(&lib, jars).with_context(|| format!("cannot rename {}", lib.display()))?;
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
}
