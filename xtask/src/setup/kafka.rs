//! A real Kafka broker, for the tests that events reach it and come back.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::shell;
use crate::workspace::Workspace;

const VERSION: &str = "4.4.0";

pub(super) const PLAN: &str =
    "Kafka broker from Maven Central, below target/toolchain (44 MB): the one that events go through";

/// What is fetched: the broker without what is not published with it, and a logger.
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

/// Where its jars are; tests get it by the variable BLKKIN_KAFKA_JARS.
pub(crate) fn broker_jars(workspace: &Workspace) -> PathBuf {
    workspace.toolchain_dir().join(format!("kafka-{VERSION}"))
}

/// Fetched under another name and renamed, so that a folder of that name is always whole.
pub(super) fn fetch(jars: &Path) -> Result<()> {
    let folder = jars.with_extension("partial");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let pom = folder.join("pom.xml");
    std::fs::write(&pom, POM.replace("VERSION", VERSION))
        .with_context(|| format!("cannot write {}", pom.display()))?;
    let mut command = std::process::Command::new("mvn");
    command.args(["-B", "-ntp", "-q", "-f"]).arg(&pom);
    command.arg("org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies");
    command.args(["-DincludeScope=runtime", "-DoutputDirectory=lib"]);
    shell::run(&mut command).context("cannot fetch the Kafka broker")?;
    let lib = folder.join("lib");
    std::fs::rename(&lib, jars).with_context(|| format!("cannot rename {}", lib.display()))?;
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
}
