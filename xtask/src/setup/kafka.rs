//! Kafka broker for the tests of the transport.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::maven;
use crate::workspace::Workspace;

const VERSION: &str = "4.4.0";

pub(super) const PLAN: &str =
    "Kafka broker from Maven Central, below target/toolchain (44 MB): carries the events in tests";

/// Maven project: the broker without unpublished dependencies, and a logger.
const POM: &str = r#"<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>blkkin</groupId>
  <artifactId>broker</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>VERSION</version>
      <exclusions>
        <exclusion><groupId>org.apache.kafka</groupId><artifactId>kafka-tools-api</artifactId></exclusion>
        <exclusion><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId></exclusion>
      </exclusions>
    </dependency>
  </dependencies>
</project>
"#;

/// Returns the folder of the jars. Tests receive it in the variable BLKKIN_KAFKA_JARS.
pub(crate) fn broker_jars(workspace: &Workspace) -> PathBuf {
    workspace.toolchain_dir().join(format!("kafka-{VERSION}"))
}

pub(super) fn fetch(jars: &Path) -> Result<()> {
    maven::fetch(&POM.replace("VERSION", VERSION), jars).context("cannot fetch the Kafka broker")
}
