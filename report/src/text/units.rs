//! Formatted numbers: three significant digits and a unit.

use blkkin_wire::clock::DurationNs;

/// Placeholder for a missing number.
pub const NONE: &str = "–";

/// Formats a duration: `999 ns`, `1.23 µs`, `12.3 ms`, `123 s`, `1,234 s`.
pub fn duration(duration: DurationNs) -> String {
    const UNITS: [&str; 4] = ["ns", "µs", "ms", "s"];
    scaled(duration.0, 1000, &UNITS)
}

/// Formats a size: `512 B`, `4 KiB`, `1.21 MiB`; whole multiples have no decimals.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let step = (0..UNITS.len()).rev().find(|power| bytes >= 1 << (10 * power)).unwrap_or(0);
    match bytes % (1 << (10 * step)) {
        0 => format!("{} {}", count(bytes >> (10 * step)), UNITS[step]),
        _ => scaled(bytes, 1024, &UNITS),
    }
}

/// Formats a number with thousands separators: `12,345`.
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Formats a number with a noun: `1 bio`, `12,345 bios`.
pub fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", count(number))
}

/// Formats a share: `100 %`, `91.2 %`, `0.4 %`, `<0.1 %`. Only the whole is `100 %`, and only zero
/// is `0 %`.
pub fn share(part: u64, total: u64) -> String {
    if total == 0 {
        return NONE.to_owned();
    }
    let percent = part as f64 * 100.0 / total as f64;
    match part {
        0 => "0 %".to_owned(),
        _ if part >= total => format!("{percent:.0} %"),
        _ if percent < 0.05 => "<0.1 %".to_owned(),
        _ => format!("{:.1} %", percent.min(99.9)),
    }
}

/// Formats three significant digits in the largest unit with a value of at least one, rounded to
/// the nearest.
fn scaled(value: u64, factor: u64, units: &[&str]) -> String {
    let (mut scaled, mut unit) = (value as f64, 0);
    // 999.5 would be rounded to four digits.
    while unit + 1 < units.len()
        && (scaled >= factor as f64 || scaled >= 999.5)
        && scaled >= factor as f64 - 0.5
    {
        scaled /= factor as f64;
        unit += 1;
    }
    let number = match scaled {
        _ if unit == 0 => count(value),
        s if s < 9.995 => format!("{s:.2}"),
        s if s < 99.95 => format!("{s:.1}"),
        s => count(s.round() as u64),
    };
    format!("{number} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits() {
        let text = |ns| duration(DurationNs(ns));
        assert_eq!(text(0), "0 ns");
        assert_eq!(text(999), "999 ns");
        assert_eq!(text(1_000), "1.00 µs");
        assert_eq!(text(9_996), "10.0 µs");
        assert_eq!(text(12_345), "12.3 µs");
        assert_eq!(text(999_499), "999 µs");
        assert_eq!(text(999_500), "1.00 ms");
        assert_eq!(text(12_345_678), "12.3 ms");
        assert_eq!(text(1_234_567_890), "1.23 s");
        assert_eq!(text(1_234_567_890_123), "1,235 s");
        assert_eq!(text(u64::MAX), "18,446,744,074 s");
    }

    #[test]
    fn whole_sizes_have_no_decimals() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(4096), "4 KiB");
        assert_eq!(bytes(4608), "4.50 KiB");
        assert_eq!(bytes(1 << 20), "1 MiB");
        assert_eq!(bytes(1_048_575), "1.00 MiB");
        assert_eq!(bytes(1_023 * 1024 + 1), "1,023 KiB");
        assert_eq!(bytes(3 << 40), "3 TiB");
        assert_eq!(bytes(u64::MAX), "16,384 PiB");
    }

    #[test]
    fn counts_are_grouped() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(12_345), "12,345");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(counted(1, "bio"), "1 bio");
        assert_eq!(counted(0, "bio"), "0 bios");
    }

    #[test]
    fn shares_never_round_to_0_or_100_percent() {
        assert_eq!(share(0, 10), "0 %");
        assert_eq!(share(10, 10), "100 %");
        assert_eq!(share(999_999, 1_000_000), "99.9 %");
        assert_eq!(share(1, 1_000_000), "<0.1 %");
        assert_eq!(share(912, 1000), "91.2 %");
        assert_eq!(share(0, 0), "–");
    }
}
