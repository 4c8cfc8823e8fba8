//! Times of `--from`: `2026-11-22T10:00:00Z`, `2026-11-22T11:00:00.5+01:00`, or `-10m` from now.
//!
//! The first two are RFC 3339; a leap second is read as the second before. *Rejected*: a date
//! crate, which adds calendars and named time zones for about 40 lines.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::cli::units;
use crate::error::CliError;

const DAY_S: i64 = 86_400;

/// Parses a time into milliseconds since 1970, UTC.
pub(super) fn since_ms(option: &str, argument: &str, now: SystemTime) -> Result<i64, CliError> {
    if let Some(ago) = argument.strip_prefix('-') {
        let ago = units::std_duration(option, ago)?;
        let since = now.checked_sub(ago).and_then(|since| since.duration_since(UNIX_EPOCH).ok());
        return Ok(since.map_or(0, |since| since.as_millis() as i64));
    }
    rfc3339(argument).ok_or_else(|| {
        let why = "it is neither a date with time and zone nor a time relative to now";
        CliError::usage(
            format!("bad time `{argument}` for {option}"),
            why,
            format!("{option} -10m, or {option} 2026-11-22T10:00:00Z"),
        )
    })
}

fn rfc3339(argument: &str) -> Option<i64> {
    let (date, clock) = argument.split_once(['T', 't', ' '])?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let zone_at = clock.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = clock.split_at(zone_at);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    let known = (1..=12).contains(&month)
        && (1..=days_in(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60
        && !fraction.is_empty()
        && fraction.bytes().all(|digit| digit.is_ascii_digit());
    let millis: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let seconds = days(year, month, day) * DAY_S + hour * 3600 + minute * 60 + second.min(59) - offset(zone)?;
    known.then_some(seconds * 1000 + millis)
}

/// Parses a zone into seconds east of UTC.
fn offset(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let (sign, clock) = (if zone.starts_with('-') { -1 } else { 1 }, zone.get(1..)?);
    let [hour, minute] = numbers(clock, ':', [2, 2])?;
    (hour < 24 && minute < 60).then_some(sign * (hour * 3600 + minute * 60))
}

/// Parses numbers with a fixed number of digits.
fn numbers<const N: usize>(words: &str, between: char, digits: [usize; N]) -> Option<[i64; N]> {
    let mut found = [0; N];
    let mut parts = words.split(between);
    for (number, digits) in found.iter_mut().zip(digits) {
        let part = parts.next()?;
        let whole = part.len() == digits && part.bytes().all(|digit| digit.is_ascii_digit());
        *number = if whole { part.parse().ok()? } else { return None };
    }
    parts.next().is_none().then_some(found)
}

fn leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Returns the days since 1970.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let years = |year: i64| year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let months: i64 = (1..month).map(|month| days_in(year, month)).sum();
    years(year - 1) - years(1969) + months + day - 1
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
