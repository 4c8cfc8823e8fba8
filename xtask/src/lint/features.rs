//! Features of dependencies: the crates of the product are the same in the tests.
//!
//! *In*: `cargo tree` of the workspace with its tests, and of `blkkin` without them. *Out*: crates with different features.
//! *Invariant*: cargo compiles a crate of the product once for both, so the shipped crates are those that were tested. When
//! six crates differed, cargo compiled nearly all others twice, with librdkafka.
//!
//! Macros and build scripts have features of their own: they run on this machine, and cargo compiles their dependencies
//! apart from the product's.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};

use crate::shell;
use crate::workspace::Workspace;

/// Sets of features of each crate, by name and version.
type Features = BTreeMap<String, BTreeSet<String>>;

/// Fails if a crate of the product has other features in the tests.
pub(super) fn check(workspace: &Workspace) -> Result<()> {
    let tests = tree(workspace, &["--workspace", "--edges", "normal,dev,no-proc-macro"])?;
    let product = tree(workspace, &["--package", "blkkin", "--edges", "normal,no-proc-macro"])?;
    let different = different(&product, &tests);
    if different.is_empty() {
        return Ok(());
    }
    bail!(
        "these crates have other features in the tests than in the product, so cargo compiles them and what depends on them twice; \
         ask for the same features in Cargo.toml:\n{}",
        different.join("\n")
    )
}

fn tree(workspace: &Workspace, selection: &[&str]) -> Result<Features> {
    let mut command = workspace.cargo();
    command.args(["tree", "--quiet", "--locked", "--prefix", "none", "--format", "{p}\t{f}"]).args(selection);
    Ok(parse(&shell::capture(&mut command).context("cannot list the dependencies")?))
}

/// Parses lines of a crate, a tab and its features. What follows the version is a path, or a note.
fn parse(lines: &str) -> Features {
    let mut features = Features::new();
    for (name, enabled) in lines.lines().filter_map(|line| line.split_once('\t')) {
        let name: Vec<&str> = name.split(' ').take(2).collect();
        let enabled = enabled.trim_end_matches("(*)").trim_end();
        features.entry(name.join(" ")).or_default().insert(enabled.to_owned());
    }
    features
}

fn different(product: &Features, tests: &Features) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, features) in product {
        let tested = tests.get(name).cloned().unwrap_or_default();
        for of_product in features.difference(&tested) {
            let of_tests = tested.iter().map(String::as_str).collect::<Vec<_>>().join(" or ");
            lines.push(format!("  {name}: [{of_product}] in the product, [{of_tests}] in the tests"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_with_other_features_is_named() {
        let product = parse("a v1.0.0 (/src/a)\tdefault\nb v2.0.0\tstd (*)\nb v2.0.0\tstd\n");
        let tests = parse("a v1.0.0 (/src/a)\tdefault\nb v2.0.0\talloc,std\nc v3.0.0\t\n");
        assert_eq!(different(&product, &product), Vec::<String>::new());
        assert_eq!(
            different(&product, &tests),
            ["  b v2.0.0: [std] in the product, [alloc,std] in the tests"]
        );
        assert_eq!(different(&tests, &product).len(), 2);
    }
}
