//! Jars from Maven Central: artifacts with their dependencies.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// Artifact, `GROUP:NAME:VERSION`, and dependencies of it that are omitted, `GROUP:NAME`.
pub(super) type Artifact<'a> = (&'a str, &'a [&'a str]);

/// Downloads the artifacts into a folder. They are downloaded under another name and renamed, so
/// that the folder is always complete.
pub(super) fn fetch(artifacts: &[Artifact<'_>], jars: &Path) -> Result<()> {
    let folder = jars.with_extension("partial");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join("pom.xml");
    std::fs::write(&path, project(artifacts)).with_context(|| format!("cannot write {}", path.display()))?;
    let mut command = Command::new("mvn");
    command.args(["-B", "-ntp", "-q", "-f"]).arg(&path);
    command.arg("org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies");
    command.args(["-DincludeScope=runtime", "-DoutputDirectory=lib"]);
    shell::run(&mut command)?;
    let lib = folder.join("lib");
    std::fs::rename(&lib, jars).with_context(|| format!("cannot rename {}", lib.display()))?;
    std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
}

/// Formats a project that depends on the artifacts.
fn project(artifacts: &[Artifact<'_>]) -> String {
    let coordinates = |artifact: &str| {
        let names = ["groupId", "artifactId", "version"];
        let parts = names.iter().zip(artifact.split(':'));
        parts.map(|(name, part)| format!("<{name}>{part}</{name}>")).collect::<String>()
    };
    let dependencies = artifacts.iter().map(|(artifact, excluded)| {
        let excluded = excluded.iter().map(|one| format!("<exclusion>{}</exclusion>", coordinates(one)));
        let excluded: String = excluded.collect();
        format!("<dependency>{}<exclusions>{excluded}</exclusions></dependency>\n", coordinates(artifact))
    });
    format!(
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\n\
         {}\n<dependencies>\n{}</dependencies></project>\n",
        coordinates("blkkin:jars:1"),
        dependencies.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn project_contains_artifacts_and_exclusions() {
        let text = project(&[("g:a:1.2", &["h:b"]), ("g:c:3", &[])]);
        assert!(text.contains(
            "<dependency><groupId>g</groupId><artifactId>a</artifactId><version>1.2</version><exclusions>\
             <exclusion><groupId>h</groupId><artifactId>b</artifactId></exclusion></exclusions></dependency>"
        ));
        assert!(text.contains("<artifactId>c</artifactId><version>3</version><exclusions></exclusions>"));
    }
}
