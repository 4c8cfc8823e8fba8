//! OpenTelemetry Collector with an OTLP receiver, for the test that it accepts blkkin's spans.
//!
//! It is built from its modules, which Go verifies with its checksum database. The distribution's
//! Go is too old, so it is built only if another Go is installed; otherwise the test is skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;
use crate::workspace::Workspace;

const VERSION: &str = "0.150.0";
/// Version of the Collector's stable modules.
const STABLE_VERSION: &str = "1.56.0";

pub(super) const PLAN: &str =
    "OpenTelemetry Collector, built by Go below target/toolchain (28 MB): must accept blkkin's spans";

/// Returns the path of the Collector. Tests receive it in the variable BLKKIN_OTELCOL.
pub(crate) fn collector(workspace: &Workspace) -> PathBuf {
    workspace.toolchain_dir().join(format!("otelcol-{VERSION}"))
}

/// Returns the path if the Collector is missing and can be built.
pub(super) fn missing(workspace: &Workspace) -> Option<PathBuf> {
    let collector = collector(workspace);
    (!collector.is_file() && shell::which("go").is_some()).then_some(collector)
}

/// Builds under another name and renames the file, so that it is always complete.
pub(super) fn fetch(collector: &Path) -> Result<()> {
    let folder = collector.with_extension("partial");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let config = folder.join("builder.yaml");
    std::fs::write(&config, builder_config())
        .with_context(|| format!("cannot write {}", config.display()))?;
    let mut install = Command::new("go");
    install.arg("install").arg(format!("go.opentelemetry.io/collector/cmd/builder@v{VERSION}"));
    shell::run(install.env("GOBIN", &folder)).context("cannot fetch the Collector's builder")?;
    let mut build = Command::new(folder.join("builder"));
    shell::run(build.arg("--config").arg(&config).current_dir(&folder))
        .context("cannot build the Collector")?;
    let built = folder.join("build/otelcol");
    std::fs::rename(&built, collector).with_context(|| format!("cannot rename {}", built.display()))?;
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
}

fn builder_config() -> String {
    format!(
        "dist:\n  name: otelcol\n  output_path: ./build\n\
         receivers:\n  - gomod: go.opentelemetry.io/collector/receiver/otlpreceiver v{VERSION}\n\
         exporters:\n  - gomod: go.opentelemetry.io/collector/exporter/debugexporter v{VERSION}\n\
         providers:\n  - gomod: go.opentelemetry.io/collector/confmap/provider/fileprovider v{STABLE_VERSION}\n  \
         - gomod: go.opentelemetry.io/collector/confmap/provider/envprovider v{STABLE_VERSION}\n"
    )
}
