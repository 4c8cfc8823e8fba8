//! Pattern of `--path`: files at or below a path.
//!
//! A pattern matches a file when it matches the path of the file, or of a parent folder, component
//! by component. In a component `*` matches any characters and `?` one; the component `**` matches
//! any number of folders. A pattern without a leading slash matches from any folder on (`*.db`,
//! `pg_wal/*`). One that begins with `./` or `../` is relative to the current directory.
//!
//! Symbolic links are not resolved: the recorded path is the file's path in the tree, whatever link
//! opened it.

use std::io;
use std::path::{Component, Path, PathBuf};

use thiserror::Error;

/// A pattern, split into components.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    names: Vec<String>,
}

/// Reason why a pattern is refused.
#[derive(Debug, Error)]
pub enum PatternError {
    /// The current directory is unknown, to which the pattern is relative.
    #[error(transparent)]
    CurrentDirectory(#[from] io::Error),
    /// Every file is at or below it.
    #[error("every file is at or below it")]
    MatchesEverything,
}

/// The component that matches any number of folders.
const ANY_FOLDERS: &str = "**";

impl PathPattern {
    /// Parses a pattern.
    pub fn parse(pattern: &str) -> Result<PathPattern, PatternError> {
        let mut path = PathBuf::from(pattern);
        if pattern.starts_with("./") || pattern.starts_with("../") || pattern == "." || pattern == ".." {
            path = std::env::current_dir()?.join(path);
        }
        let mut names = names(&path);
        if !path.is_absolute() {
            names.insert(0, ANY_FOLDERS.to_owned());
        }
        // Files below match too.
        names.push(ANY_FOLDERS.to_owned());
        if names.iter().all(|name| name == ANY_FOLDERS) {
            return Err(PatternError::MatchesEverything);
        }
        Ok(PathPattern { names })
    }

    /// Returns whether the path is at or below the pattern. The upper part of a path without a
    /// leading slash is unknown: only a relative pattern can match it.
    pub fn matches(&self, path: &str) -> bool {
        let path = Path::new(path);
        let begins_anywhere = self.names.first().is_some_and(|name| name == ANY_FOLDERS);
        (path.is_absolute() || begins_anywhere) && at_or_below(&self.names, &names(path))
    }
}

fn names(path: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name.to_string_lossy().into_owned()),
            Component::ParentDir => drop(names.pop()),
            _ => {}
        }
    }
    names
}

/// Matches components by the pattern, and each component by its characters.
fn at_or_below(pattern: &[String], path: &[String]) -> bool {
    wildcard_match(
        pattern,
        path,
        |name| name == ANY_FOLDERS,
        |pattern, name| {
            let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
            wildcard_match(&pattern, &name, |c| *c == '*', |pattern, c| *pattern == '?' || pattern == c)
        },
    )
}

/// Matches with a wildcard for any number of items. Only the last wildcard is retried, so the time
/// is at most the product of both lengths.
fn wildcard_match<T>(
    pattern: &[T],
    text: &[T],
    star: impl Fn(&T) -> bool,
    same: impl Fn(&T, &T) -> bool,
) -> bool {
    let (mut at, mut next) = (0, 0);
    let mut last_star = None;
    while next < text.len() {
        match pattern.get(at) {
            Some(item) if star(item) => {
                last_star = Some((at, next));
                at += 1;
            }
            Some(item) if same(item, &text[next]) => {
                at += 1;
                next += 1;
            }
            _ => {
                let Some((star_at, matched)) = last_star else { return false };
                last_star = Some((star_at, matched + 1));
                (at, next) = (star_at + 1, matched + 1);
            }
        }
    }
    pattern[at..].iter().all(star)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, path: &str) -> bool {
        PathPattern::parse(pattern).unwrap().matches(path)
    }

    #[test]
    fn path_matches_itself_and_files_below() {
        for path in ["/srv/db", "/srv/db/", "/srv/db/wal/1"] {
            assert!(matches("/srv/db", path), "{path}");
        }
        for path in ["/srv/dbx", "/srv", "/", "/x/srv/db", "srv/db"] {
            assert!(!matches("/srv/db", path), "{path}");
        }
        assert!(matches("/srv//x/../db/", "/srv/db/1"));
    }

    #[test]
    fn single_star_matches_within_a_component() {
        assert!(matches("/srv/*/wal", "/srv/a/wal/1"));
        assert!(!matches("/srv/*/wal", "/srv/a/b/wal"));
        assert!(matches("/srv/**/wal", "/srv/a/b/wal"));
        assert!(matches("/srv/**/wal", "/srv/wal"));
        assert!(matches("/srv/db?", "/srv/db1"));
        assert!(!matches("/srv/db?", "/srv/db"));
        assert!(matches("/a*b*c", "/axxbyyc"));
        assert!(!matches("/a*b*c", "/axxbyy"));
    }

    #[test]
    fn relative_pattern_matches_anywhere() {
        assert!(matches("*.db", "/srv/x/test.db"));
        assert!(matches("pg_wal/*", "/var/lib/pg_wal/0001"));
        assert!(!matches("*.db", "/srv/x/test.db-wal"));
        // The upper part of a path may be unknown.
        assert!(matches("*.db", "x/test.db"));
    }

    #[test]
    fn pattern_for_everything_is_refused() {
        for pattern in ["/", "**", "", "**/**"] {
            assert!(PathPattern::parse(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn dot_is_the_current_directory() {
        let here = std::env::current_dir().unwrap();
        assert!(matches("./x", &here.join("x/y").to_string_lossy()));
        assert!(!matches("./x", "/somewhere/else/x"));
    }

    proptest! {
        #[test]
        fn never_panics(pattern in ".*", path in ".*") {
            if let Ok(pattern) = PathPattern::parse(&pattern) {
                pattern.matches(&path);
            }
        }

        #[test]
        fn a_path_matches_itself(names in proptest::collection::vec("[a-z.]{1,5}x", 1..5)) {
            let path = format!("/{}", names.join("/"));
            prop_assert!(matches(&path, &path));
        }
    }
}
