//! Times of `--from`: `2026-11-22T10:00:00Z`, `2026-11-22T11:00:00.5+01:00` (RFC 3339), or `-10m`
//! from now.

use std::time::{SystemTime, UNIX_EPOCH};

use chrono::DateTime;

use crate::cli::units;
use crate::error::CliError;

/// Parses a time into milliseconds since 1970, UTC.
pub(super) fn since_ms(option: &str, argument: &str, now: SystemTime) -> Result<i64, CliError> {
    if let Some(ago) = argument.strip_prefix('-') {
        let ago = units::std_duration(option, ago)?;
        let since = now.checked_sub(ago).and_then(|since| since.duration_since(UNIX_EPOCH).ok());
        return Ok(since.map_or(0, |since| since.as_millis() as i64));
    }
    DateTime::parse_from_rfc3339(argument).map(|time| time.timestamp_millis()).map_err(|_| {
        let why = "it is neither a date with time and zone nor a time relative to now";
        CliError::usage(
            format!("bad time `{argument}` for {option}"),
            why,
            format!("{option} -10m, or {option} 2026-11-22T10:00:00Z"),
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use std::time::Duration;

    fn at(argument: &str) -> Result<i64, CliError> {
        since_ms("--from", argument, UNIX_EPOCH + Duration::from_secs(1_000))
    }

    /// Expected values by date(1): `date -ud 2024-02-29T23:59:59Z +%s`.
    #[test]
    fn parses_times_as_date_does() {
        for (argument, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2024-02-29T23:59:59Z", 1_709_251_199_000),
            ("2026-11-22T10:00:00.25+01:00", 1_795_338_000_250),
            ("2000-03-01t00:00:00-00:30", 951_870_600_000),
            ("1969-12-31T23:59:59Z", -1_000),
            ("-10m", 400_000),
            ("-1.5s", 998_500),
            ("-999h", 0),
        ] {
            assert_eq!(at(argument).unwrap(), ms, "{argument}");
        }
    }

    #[test]
    fn invalid_time_is_refused_with_an_example() {
        for argument in [
            "",
            "10:00",
            "2026-11-22",
            "2026-11-22T10:00:00",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "-10",
            "-x",
            "2026-11-22T24:00:00Z",
            "2026-11-22T10:00:00.Z",
            "+026-11-22T10:00:00Z",
            "2026-11-22T10:00:00+1:00",
        ] {
            let error = at(argument).unwrap_err();
            assert!(error.remedy.contains("--from"), "{argument}: {error}");
        }
    }
}
