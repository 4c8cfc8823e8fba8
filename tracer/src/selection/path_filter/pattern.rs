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

use thiserror::Error;

/// A pattern, split into components.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    components: Vec<Component>,
}

/// Component of a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Component {
    /// Any number of folders.
    AnyFolders,
    /// Exactly this name.
    Name(String),
    /// Names with these characters and wildcards.
    Wildcards(Vec<char>),
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
        let mut path = pattern.to_owned();
        if pattern.starts_with("./") || pattern.starts_with("../") || pattern == "." || pattern == ".." {
            path = std::env::current_dir()?.join(path).to_string_lossy().into_owned();
        }
        let anywhere = (!path.starts_with('/')).then_some(Component::AnyFolders);
        let mut components: Vec<Component> =
            anywhere.into_iter().chain(names(&path).into_iter().map(Component::parse)).collect();
        // Files below match too.
        components.push(Component::AnyFolders);
        if components.iter().all(|component| *component == Component::AnyFolders) {
            return Err(PatternError::MatchesEverything);
        }
        Ok(PathPattern { components })
    }

    /// Returns whether the path is at or below the pattern. The upper part of a path without a
    /// leading slash is unknown: only a relative pattern can match it.
    pub fn matches(&self, path: &str) -> bool {
        let begins_anywhere = self.components.first() == Some(&Component::AnyFolders);
        (path.starts_with('/') || begins_anywhere)
            && wildcard_match(
                &self.components,
                &names(path),
                |component| *component == Component::AnyFolders,
                |component, name| component.matches(name),
            )
    }
}

impl Component {
    fn parse(name: &str) -> Component {
        match name {
            ANY_FOLDERS => Component::AnyFolders,
            _ if name.contains(['*', '?']) => Component::Wildcards(name.chars().collect()),
            _ => Component::Name(name.to_owned()),
        }
    }

    /// Returns whether this component matches one name.
    fn matches(&self, name: &str) -> bool {
        match self {
            Component::AnyFolders => true,
            Component::Name(own) => own == name,
            Component::Wildcards(pattern) => {
                let name: Vec<char> = name.chars().collect();
                wildcard_match(pattern, &name, |c| *c == '*', |pattern, c| *pattern == '?' || pattern == c)
            }
        }
    }
}

/// Returns whether a name matches a pattern with the wildcards `*` and `?`.
pub fn name_matches(pattern: &str, name: &str) -> bool {
    Component::parse(pattern).matches(name)
}

/// Splits a path into names.
fn names(path: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            _ => names.push(name),
        }
    }
    names
}

/// Matches with a wildcard for any number of items. Only the last wildcard is retried, so the time
/// is at most the product of both lengths.
fn wildcard_match<P, T>(
    pattern: &[P],
    text: &[T],
    star: impl Fn(&P) -> bool,
    same: impl Fn(&P, &T) -> bool,
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
