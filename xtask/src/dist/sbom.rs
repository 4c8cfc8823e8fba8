//! Bill of materials: what the binary contains, as CycloneDX 1.5.
//!
//! *In*: cargo's trees of the binary and of the eBPF programs inside it, the checksums of both lock files, and the archives of
//! the static link. *Out*: `blkkin-VERSION.cdx.json`. *Invariants*: it has each crate that cargo links, the compiler's libraries as
//! one, and no crate that only builds or tests need; equal sources on equal systems give equal bytes, so it has no time and no serial number.
//!
//! *Rejected*: cargo-cyclonedx, which takes a minute to compile and knows neither the eBPF programs nor the archives.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::static_link;
use crate::packages;
use crate::shell;
use crate::workspace::Workspace;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A crate of the tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Crate {
    name: String,
    version: String,
    license: String,
}

/// Writes the bill of materials into a folder.
pub(super) fn build(workspace: &Workspace, folder: &Path) -> Result<PathBuf> {
    let root = workspace.root();
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut binary = workspace.cargo();
    let mut crates = tree(binary.args(["tree", "--package", "blkkin", "--target", &target]))?;
    let mut programs = workspace.cargo();
    crates.append(&mut tree(programs.current_dir(root.join("kprobe-ebpf")).arg("tree"))?);
    ensure!(crates.len() > 50, "cargo tree lists {} crates", crates.len());
    let mut checksums = BTreeMap::new();
    for lock in ["Cargo.lock", "kprobe-ebpf/Cargo.lock"] {
        let text = fs::read_to_string(root.join(lock)).with_context(|| format!("cannot read {lock}"))?;
        checksums.append(&mut lock_checksums(&text));
    }
    let crates =
        crates.iter().map(|one| component(one, checksums.get(&(one.name.clone(), one.version.clone()))));
    let archives = static_link::linked_archives(workspace)?;
    let distribution = packages::distribution();
    let archives: Result<Vec<Value>> =
        archives.iter().map(|archive| archive_component(archive, &distribution)).collect();
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": { "type": "application", "name": "blkkin", "version": VERSION } },
        "components": crates.chain([compiler_component(workspace)?]).chain(archives?).collect::<Vec<_>>(),
    });
    let path = folder.join(format!("blkkin-{VERSION}.cdx.json"));
    let text = serde_json::to_string_pretty(&bill)? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Lists the crates that are linked: normal dependencies, without macros, which run in the compiler.
fn tree(command: &mut Command) -> Result<BTreeSet<Crate>> {
    command.args(["--locked", "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}|{l}"]);
    let output = shell::capture(command).context("cargo cannot list the dependencies")?;
    output.lines().filter(|line| !line.is_empty()).map(parse_crate).collect()
}

/// Parses `name vVERSION (path)|LICENSE (*)`.
fn parse_crate(line: &str) -> Result<Crate> {
    let parse = || {
        let (package, license) = line.trim_end_matches(" (*)").split_once('|')?;
        let mut words = package.split(' ');
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        // The form of old manifests.
        let license = license.trim().replace('/', " OR ");
        Some(Crate { name: name.to_owned(), version: version.to_owned(), license })
    };
    parse().with_context(|| format!("cargo tree printed `{line}`"))
}

/// Reads the checksums of a lock file by name and version; crates of the workspace have none.
fn lock_checksums(text: &str) -> BTreeMap<(String, String), String> {
    let value = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    let packages = text.split("[[package]]").skip(1);
    packages
        .filter_map(|package| {
            Some(((value(package, "name")?, value(package, "version")?), value(package, "checksum")?))
        })
        .collect()
}

fn component(one: &Crate, checksum: Option<&String>) -> Value {
    let mut component = json!({ "type": "library", "name": one.name, "version": one.version });
    if !one.license.is_empty() {
        component["licenses"] = json!([{ "expression": one.license }]);
    }
    if let Some(checksum) = checksum {
        component["purl"] = json!(format!("pkg:cargo/{}@{}", one.name, one.version.replace('+', "%2B")));
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

/// Describes a linked archive by its checksum, and by the package that installed it, if dpkg knows one.
fn archive_component(archive: &Path, distribution: &str) -> Result<Value> {
    let file = archive.canonicalize().with_context(|| format!("no {}", archive.display()))?;
    let sum = shell::capture(Command::new("sha256sum").arg(&file))?;
    let sum = sum.split_whitespace().next().context("sha256sum printed nothing")?;
    let mut component = json!({
        "type": "library",
        "name": file.file_name().unwrap_or_default().to_string_lossy(),
        "hashes": [{ "alg": "SHA-256", "content": sum }],
    });
    let owner = shell::capture(Command::new("dpkg-query").arg("--search").arg(&file)).unwrap_or_default();
    if let Some((package, _)) = owner.split_once(": ") {
        let mut query = Command::new("dpkg-query");
        query.args(["--show", "--showformat", "${source:Package} ${source:Version}", package]);
        let found = shell::capture(&mut query)?;
        let (source, version) = found.trim().split_once(' ').context("dpkg-query printed no version")?;
        component["version"] = json!(version);
        component["purl"] =
            json!(format!("pkg:deb/{distribution}/{source}@{}?arch=source", version.replace('+', "%2B")));
    }
    Ok(component)
}

/// Describes the compiler's own libraries, whose archives cargo does not list.
fn compiler_component(workspace: &Workspace) -> Result<Value> {
    let printed = workspace.compiler_version()?;
    let version = printed.split(' ').nth(1).context("rustc printed no version")?.to_owned();
    Ok(json!({
        "type": "library",
        "name": "rust-std",
        "version": version,
        "description": format!("core, alloc and std, with the crates inside them, of {printed}"),
        "licenses": [{ "expression": "MIT OR Apache-2.0" }],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_cargo_are_parsed() {
        let found = parse_crate("libc v0.2.1|MIT/Apache-2.0 (*)").unwrap();
        let expected = ("libc".to_owned(), "0.2.1".to_owned(), "MIT OR Apache-2.0".to_owned());
        assert_eq!((found.name, found.version, found.license), expected);
        assert_eq!(parse_crate("blkkin v0.1.0 (/src/blkkin)|MIT").unwrap().version, "0.1.0");
        assert!(parse_crate("warning").is_err());
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"ff\"\n\n[[package]]\nname = \"b\"\nversion = \"2.0.0\"\n";
        let expected = BTreeMap::from([(("a".to_owned(), "1.0.0".to_owned()), "ff".to_owned())]);
        assert_eq!(lock_checksums(lock), expected);
    }
}
