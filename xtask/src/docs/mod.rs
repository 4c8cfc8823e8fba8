//! `docs`: the documentation as HTML pages, by mdBook.
//!
//! *In*: `docs/`, in the order of `docs/SUMMARY.md`. *Out*: `target/docs/html`.
//!
//! *Invariant*: each page of `docs/` is in the book, and the target of each link of each Markdown file of the project exists,
//! its heading too. A path of the project between backticks exists, unless `target/` or a change log has it. A link that leaves `docs/` leads to the repository in the HTML pages, and to the file in a checkout.
//!
//! *Rejected*: a preprocessor of mdBook for these links; it would be a program of its own, started by another.
//! mdbook-linkcheck, which knows no file outside the book.

#[cfg(test)]
pub(crate) mod commands;
mod markdown;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;
use crate::workspace::Workspace;

const MDBOOK_VERSION: &str = "0.5.4";
const SUMMARY: &str = "docs/SUMMARY.md";
/// Has the paths of earlier versions.
const CHANGELOG: &str = "CHANGELOG.md";
const SETTINGS: &str = r#"[book]
title = "blkkin"
description = "Follows one storage request through every layer"
language = "en"
src = "src"

[build]
build-dir = "html"
create-missing = false

[output.html]
git-repository-url = "REPOSITORY"
no-section-label = true
"#;

/// Checks the pages and makes the book.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    check(workspace.root(), &workspace.sources(&["md"])?)?;
    let folder = workspace.root().join("target/docs");
    let source = folder.join("src");
    if source.exists() {
        fs::remove_dir_all(&source).with_context(|| format!("cannot remove {}", source.display()))?;
    }
    copy(workspace.root(), Path::new("docs"), &source)?;
    let settings = SETTINGS.replace("REPOSITORY", env!("CARGO_PKG_REPOSITORY"));
    write(&folder.join("book.toml"), settings)?;
    let mut build = Command::new(mdbook(workspace)?);
    // Its progress would be three lines at each lint.
    shell::run(build.env("RUST_LOG", "warn").arg("build").arg(&folder))?;
    println!("the book is at target/docs/html/index.html");
    Ok(())
}

/// Checks the links of all Markdown files, paths below the project's root, and the list of pages.
fn check(root: &Path, files: &[String]) -> Result<()> {
    let mut texts = HashMap::new();
    for file in files {
        let text = fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"))?;
        texts.insert(PathBuf::from(file), text);
    }
    let mut faults = BTreeSet::new();
    for (file, text) in &texts {
        let paths = markdown::code(text).into_iter().filter(|path| is_lost(root, path));
        if !file.ends_with(CHANGELOG) {
            faults.extend(paths.map(|path| format!("{}: there is no {path}", file.display())));
        }
        for link in markdown::links(text) {
            if let Err(why) = resolve(root, file, &link.target, &texts) {
                faults.insert(format!("{}: the link to {}: {why}", file.display(), link.target));
            }
        }
    }
    let summary = texts.get(Path::new(SUMMARY)).context("the book has no docs/SUMMARY.md")?;
    let listed: HashSet<PathBuf> =
        markdown::links(summary).iter().map(|link| Path::new("docs").join(&link.target)).collect();
    let is_page = |file: &&PathBuf| file.starts_with("docs") && **file != *SUMMARY;
    for page in texts.keys().filter(is_page).filter(|page| !listed.contains(*page)) {
        faults.insert(format!("{SUMMARY}: lists no {}", page.display()));
    }
    if faults.is_empty() {
        return Ok(());
    }
    bail!("{}", faults.into_iter().collect::<Vec<_>>().join("\n"));
}

/// Returns true if code of a page is a path below a folder of the project, and no file or folder is there.
fn is_lost(root: &Path, code: &str) -> bool {
    let is_path = code.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    let top = code.split_once('/').map_or("", |(top, _)| top);
    is_path
        && !top.is_empty()
        && !top.contains('.')
        && top != "target"
        && root.join(top).is_dir()
        && !root.join(code).exists()
}

/// Checks a link's target; the error is the reason why it leads nowhere.
fn resolve(
    root: &Path,
    file: &Path,
    target: &str,
    texts: &HashMap<PathBuf, String>,
) -> Result<(), &'static str> {
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let folder = file.parent().unwrap_or(Path::new(""));
    let path = if path.is_empty() {
        file.to_owned()
    } else {
        normal(&folder.join(path)).ok_or("leaves the project")?
    };
    if !root.join(&path).exists() {
        return Err("no such file");
    }
    let has_anchor = |anchor| texts.get(&path).is_none_or(|text| markdown::anchors(text).contains(anchor));
    if anchor.is_some_and(|anchor| !has_anchor(anchor)) {
        return Err("no such heading");
    }
    Ok(())
}

/// Removes `.` and `..` from a path below the root; `None` above it.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut found = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                if !found.pop() {
                    return None;
                }
            }
            other => found.push(other),
        }
    }
    Some(found)
}

/// Copies a folder below the root. In its pages, links that leave `docs/` lead to the repository.
fn copy(root: &Path, folder: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let entries =
        fs::read_dir(root.join(folder)).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", folder.display()))?;
        let (path, to) = (folder.join(entry.file_name()), to.join(entry.file_name()));
        if entry.path().is_dir() {
            copy(root, &path, &to)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(entry.path())
                .with_context(|| format!("cannot read {}", path.display()))?;
            write(&to, with_repository_links(&path, text))?;
        } else {
            fs::copy(entry.path(), &to).with_context(|| format!("cannot write {}", to.display()))?;
        }
    }
    Ok(())
}

fn with_repository_links(page: &Path, mut text: String) -> String {
    let mut links = markdown::links(&text);
    links.sort_by_key(|link| std::cmp::Reverse(link.place.start));
    for link in links {
        let folder = page.parent().unwrap_or(Path::new(""));
        // A folder has no page, and a target without a place is defined elsewhere in the page.
        let is_page = |path: &PathBuf| path.starts_with("docs") && !link.target.ends_with('/');
        let outside =
            normal(&folder.join(&link.target)).filter(|path| !link.place.is_empty() && !is_page(path));
        if let Some(path) = outside {
            let url = format!("{}/blob/main/{}", env!("CARGO_PKG_REPOSITORY"), path.display());
            text.replace_range(link.place, &url);
        }
    }
    text
}

fn write(path: &Path, text: String) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the path of mdBook of the pinned version, in the tool chain's folder.
pub(crate) fn mdbook(workspace: &Workspace) -> Result<PathBuf> {
    let what = "makes the book of docs/ (about a minute, once)";
    workspace.installed_tool(
        "mdbook",
        MDBOOK_VERSION,
        &["--no-default-features", "--features", "search"],
        what,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(pages: &[(&str, &str)]) -> String {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in pages {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let files: Vec<String> = pages.iter().map(|(name, _)| (*name).to_owned()).collect();
        check(root.path(), &files).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn a_link_without_a_target_is_found() {
        let summary = ("docs/SUMMARY.md", "- [A](a.md)\n- [D](d/README.md)\n");
        let other = ("docs/d/README.md", "# One thing\n[up](../a.md#a)\n");
        assert_eq!(
            faults(&[
                summary,
                other,
                ("docs/a.md", "# A\n[d](d/README.md#one-thing) [a](#a)\n"),
                ("R.md", "[d](docs)")
            ]),
            ""
        );
        let found =
            faults(&[summary, other, ("docs/a.md", "# A\n[x](x.md) [y](d/README.md#two) [z](../../z)\n")]);
        let expected = [
            "docs/a.md: the link to ../../z: leaves the project",
            "docs/a.md: the link to d/README.md#two: no such heading",
            "docs/a.md: the link to x.md: no such file",
        ];
        assert_eq!(found, expected.join("\n"));
        let unlisted =
            faults(&[("docs/SUMMARY.md", "- [A](a.md)\n"), ("docs/a.md", "# A\n"), ("docs/b.md", "# B\n")]);
        assert_eq!(unlisted, "docs/SUMMARY.md: lists no docs/b.md");
    }

    #[test]
    fn a_path_without_a_file_is_found() {
        let text = "# A\n`docs/a.md` `docs/x.rs` `target/x` `x/docs` `docs/x.rs -v`\n```\ndocs/y.rs\n```\n";
        let found =
            faults(&[("docs/SUMMARY.md", "- [A](a.md)\n"), ("docs/a.md", text), ("CHANGELOG.md", text)]);
        assert_eq!(found, "docs/a.md: there is no docs/x.rs");
    }

    #[test]
    fn a_link_that_leaves_the_pages_leads_to_the_repository() {
        let text = "[a](a.md) [b](../wire/blkkin.proto) [c](https://x/)".to_owned();
        let url = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/wire/blkkin.proto");
        let expected = format!("[a](a.md) [b]({url}) [c](https://x/)");
        assert_eq!(with_repository_links(Path::new("docs/page.md"), text), expected);
    }
}
