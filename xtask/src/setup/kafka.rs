//! Kafka broker for the tests of the transport.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::maven;
use crate::workspace::Workspace;

const VERSION: &str = "4.4.0";

pub(super) const PLAN: &str =
    "Kafka broker from Maven Central, below target/toolchain (44 MB): carries the events in tests";

/// Dependencies of the broker that are not published, or bring another logger.
const EXCLUDED: &[&str] = &["org.apache.kafka:kafka-tools-api", "org.apache.logging.log4j:log4j-slf4j-impl"];

/// Returns the folder of the jars. Tests receive it in the variable BLKKIN_KAFKA_JARS.
pub(crate) fn broker_jars(workspace: &Workspace) -> PathBuf {
    workspace.toolchain_dir().join(format!("kafka-{VERSION}"))
}

pub(super) fn fetch(jars: &Path) -> Result<()> {
    let broker = format!("org.apache.kafka:kafka_2.13:{VERSION}");
    maven::fetch(&[(&broker, EXCLUDED)], jars).context("cannot fetch the Kafka broker")
}
