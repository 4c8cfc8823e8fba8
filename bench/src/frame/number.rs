//! Number formats with a useful number of digits.

/// Formats 0.123, 12.3, 1,234,567.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size.is_nan() => "–".to_owned(),
        size if size < 1e-9 => "0".to_owned(),
        size if size < 1.0 => format!("{value:.3}"),
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 1000.0 => format!("{value:.1}"),
        _ => whole(value.round() as i64),
    }
}

/// Formats `12.3 ± 0.4`, or without the spread if it is 0.
pub(crate) fn with_spread(value: f64, spread: f64) -> String {
    if spread == 0.0 { number(value) } else { format!("{} ± {}", number(value), number(spread)) }
}

/// Formats 12,345.
pub(crate) fn count(value: u64) -> String {
    whole(i64::try_from(value).unwrap_or(i64::MAX))
}

/// Formats `3.4 MB`, with decimal units as for disks.
pub(crate) fn bytes(value: u64) -> String {
    match value {
        0 => "0".to_owned(),
        size if size < 1_000 => format!("{size} B"),
        size if size < 1_000_000 => format!("{:.1} kB", size as f64 / 1e3),
        size => format!("{} MB", number(size as f64 / 1e6)),
    }
}

/// Formats -1,234.
pub(crate) fn whole(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::from(if value < 0 { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_useful_digits() {
        let numbers = [0.0, 0.1234, 2.345, 12.34, 999.96, 1234.5, -1_234_567.0, f64::NAN].map(number);
        assert_eq!(numbers, ["0", "0.123", "2.35", "12.3", "1000.0", "1,235", "-1,234,567", "–"]);
        assert_eq!(with_spread(12.34, 0.5), "12.3 ± 0.500");
        assert_eq!(with_spread(7.0, 0.0), "7.00");
    }

    #[test]
    fn bytes_use_decimal_units() {
        assert_eq!([0, 999, 20_500, 3_400_000].map(bytes), ["0", "999 B", "20.5 kB", "3.40 MB"]);
    }
}
