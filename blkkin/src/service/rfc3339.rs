//! Timestamps in RFC 3339: `2026-11-22T10:00:00Z`.

use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat, Utc};

/// Formats a time in UTC, to the second; times before 1970 as its beginning.
pub(crate) fn format_utc(time: SystemTime) -> String {
    DateTime::<Utc>::from(time.max(UNIX_EPOCH)).to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Expected texts by date(1): `date -ud @951868799 +%FT%TZ`.
    #[test]
    fn formats_times_as_date_does() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(format_utc(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
        assert_eq!(format_utc(UNIX_EPOCH - Duration::from_secs(9)), "1970-01-01T00:00:00Z");
    }
}
