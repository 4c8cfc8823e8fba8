//! `--path`: files at or below a path.
//!
//! One rule: a pattern matches a file when it matches the file's path, or that of a folder above it, name by
//! name. In a name `*` stands for any characters and `?` for one; the name `**` stands for any number of
//! folders. A pattern without a leading slash may begin at any folder (`*.db`, `pg_wal/*`), one that begins with
//! `./` or `../` begins where blkkin was started.
//!
//! Paths are compared as they are written: a link is not followed, since the recorded path is the one that the
//! file has in the tree, whatever link it was opened by.

use std::path::{Component, Path, PathBuf};

use crate::failure::Failure;

/// A pattern, split into names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathPattern {
    names: Vec<String>,
}

/// The name that stands for any number of folders.
const ANY_FOLDERS: &str = "**";

impl PathPattern {
    /// Reads a pattern.
    pub(crate) fn parse(word: &str) -> Result<PathPattern, Failure> {
        let mut path = PathBuf::from(word);
        if word.starts_with("./") || word.starts_with("../") || word == "." || word == ".." {
            let here = std::env::current_dir().map_err(|error| {
                Failure::usage(format!("cannot resolve --path {word}"), error, "a path that begins with /")
            })?;
            path = here.join(path);
        }
        let mut names = names(&path);
        if !path.is_absolute() {
            names.insert(0, ANY_FOLDERS.to_owned());
        }
        // What lies below matches too.
        names.push(ANY_FOLDERS.to_owned());
        if names.iter().all(|name| name == ANY_FOLDERS) {
            let why = "every file is at or below it";
            return Err(Failure::usage(
                format!("--path '{word}' leaves nothing out"),
                why,
                "leave --path out",
            ));
        }
        Ok(PathPattern { names })
    }

    /// Whether the file of that path is at or below what the pattern names. A path without leading slash is one
    /// whose upper part is not known: only a pattern that may begin anywhere can match it.
    pub(crate) fn matches(&self, path: &str) -> bool {
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

/// Names by a pattern of names, then characters by a name of the pattern.
fn at_or_below(pattern: &[String], path: &[String]) -> bool {
    wild(
        pattern,
        path,
        |name| name == ANY_FOLDERS,
        |pattern, name| {
            let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
            wild(&pattern, &name, |c| *c == '*', |pattern, c| *pattern == '?' || pattern == c)
        },
    )
}

/// Whether `text` is what `pattern` says, where a star stands for any number of items. It goes back to the last
/// star only, so that the time is at most that of every item with every other.
fn wild<T>(pattern: &[T], text: &[T], star: impl Fn(&T) -> bool, same: impl Fn(&T, &T) -> bool) -> bool {
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
                let Some((star_at, taken)) = last_star else { return false };
                last_star = Some((star_at, taken + 1));
                (at, next) = (star_at + 1, taken + 1);
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
    fn a_path_covers_itself_and_what_is_below() {
        for path in ["/srv/db", "/srv/db/", "/srv/db/wal/1"] {
            assert!(matches("/srv/db", path), "{path}");
        }
        for path in ["/srv/dbx", "/srv", "/", "/x/srv/db", "srv/db"] {
            assert!(!matches("/srv/db", path), "{path}");
        }
        assert!(matches("/srv//x/../db/", "/srv/db/1"));
    }

    #[test]
    fn stars_stay_within_a_name_and_double_stars_do_not() {
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
    fn a_relative_pattern_begins_anywhere() {
        assert!(matches("*.db", "/srv/x/test.db"));
        assert!(matches("pg_wal/*", "/var/lib/pg_wal/0001"));
        assert!(!matches("*.db", "/srv/x/test.db-wal"));
        // The upper part of a path may be missing.
        assert!(matches("*.db", "x/test.db"));
    }

    #[test]
    fn a_pattern_for_everything_is_refused() {
        for word in ["/", "**", "", "**/**"] {
            assert!(PathPattern::parse(word).is_err(), "{word}");
        }
    }

    #[test]
    fn a_dot_is_where_blkkin_was_started() {
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
