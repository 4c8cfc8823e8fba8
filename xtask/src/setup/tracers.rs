//! Tracing libraries of other projects that publish thread contexts, for the tests that read them:
//! dd-trace-py from PyPI, dd-trace-java and OpenTelemetry's API from Maven Central.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{maven, schemas};
use crate::shell;
use crate::workspace::Workspace;

const PYTHON: &str = "4.16.0";
const JAVA: &str = "1.68.1";
const API: &str = "1.45.0";

pub(super) const PLAN: &str = "dd-trace-py and dd-trace-java, below target/toolchain (90 MB): system calls must become children of their spans";

/// Returns the folder of the libraries. Tests receive it in the variable BLKKIN_TRACERS.
pub(crate) fn tracers(workspace: &Workspace) -> PathBuf {
    // Without a dot, because an incomplete download has another extension.
    workspace.toolchain_dir().join(format!("tracers-{}-{}", PYTHON.replace('.', "-"), JAVA.replace('.', "-")))
}

/// Downloads under another name and renames the folder, so that it is always complete.
pub(super) fn fetch(tracers: &Path) -> Result<()> {
    let folder = tracers.with_extension("partial");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut install = schemas::pip("install");
    install.arg("--no-compile").arg("--target").arg(folder.join("python")).arg(format!("ddtrace=={PYTHON}"));
    shell::run_quietly(&mut install).context("cannot fetch dd-trace-py")?;
    let agent = format!("com.datadoghq:dd-java-agent:{JAVA}");
    let api = format!("io.opentelemetry:opentelemetry-api:{API}");
    maven::fetch(&[(&agent, &[]), (&api, &[])], &folder.join("java"))
        .context("cannot fetch dd-trace-java")?;
    fs::rename(&folder, tracers).with_context(|| format!("cannot rename {}", folder.display()))
}
