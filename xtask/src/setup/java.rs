//! Libraries of the Java consumer in addition to Kafka's: protobuf's jars, and a compiler of 3 MB
//! instead of a JDK of 250 MB.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::maven;
use crate::workspace::Workspace;

const PROTOBUF: &str = "4.33.0";
const COMPILER: &str = "3.42.0";

pub(super) const PLAN: &str = "protobuf-java and the Eclipse compiler from Maven Central, below target/toolchain (5 MB): a consumer in Java reads the topic";

/// Returns the folder of the jars. Tests receive it in the variable BLKKIN_JAVA_JARS.
pub(crate) fn java_jars(workspace: &Workspace) -> PathBuf {
    // Without a dot, because an incomplete download has another extension.
    workspace.toolchain_dir().join(format!("java-consumer-{}", PROTOBUF.replace('.', "-")))
}

pub(super) fn fetch(jars: &Path) -> Result<()> {
    let protobuf = format!("com.google.protobuf:protobuf-java:{PROTOBUF}");
    let compiler = format!("org.eclipse.jdt:ecj:{COMPILER}");
    maven::fetch(&[(&protobuf, &[]), (&compiler, &[])], jars)
        .context("cannot fetch the libraries of the Java consumer")
}
