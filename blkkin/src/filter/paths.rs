//! `--path`: the pattern of [`PathPattern`].

use blkkin_tracer::{PathPattern, PatternError};

use crate::error::CliError;

/// Parses a pattern.
pub(super) fn path(pattern: &str) -> Result<PathPattern, CliError> {
    PathPattern::parse(pattern).map_err(|error| match error {
        PatternError::CurrentDirectory(error) => {
            CliError::usage(format!("cannot resolve --path {pattern}"), error, "a path that begins with /")
        }
        error @ PatternError::MatchesEverything => {
            CliError::usage(format!("--path '{pattern}' matches every file"), error, "leave --path out")
        }
    })
}
