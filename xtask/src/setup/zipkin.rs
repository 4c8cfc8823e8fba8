//! Zipkin server, for the test that it accepts blkkin's traces.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::shell;
use crate::workspace::Workspace;

const VERSION: &str = "3.6.1";

pub(super) const PLAN: &str =
    "Zipkin server from Maven Central, below target/toolchain (135 MB): must accept blkkin's traces";

/// Returns the path of the server. Tests receive it in the variable BLKKIN_ZIPKIN_JAR.
pub(crate) fn server_jar(workspace: &Workspace) -> PathBuf {
    workspace.toolchain_dir().join(format!("zipkin-server-{VERSION}-exec.jar"))
}

/// Downloads under another name and renames the file, so that it is always complete.
pub(super) fn fetch(jar: &Path) -> Result<()> {
    let folder = jar.with_extension("partial");
    let mut command = std::process::Command::new("mvn");
    command.args(["-B", "-ntp", "-q", "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"]);
    command.arg(format!("-Dartifact=io.zipkin:zipkin-server:{VERSION}:jar:exec"));
    command.arg(format!("-DoutputDirectory={}", folder.display()));
    shell::run(&mut command).context("cannot fetch the Zipkin server")?;
    let fetched = folder.join(jar.file_name().context("the jar's path has no file name")?);
    std::fs::rename(&fetched, jar).with_context(|| format!("cannot rename {}", fetched.display()))?;
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
}
