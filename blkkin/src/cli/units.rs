//! Parsers of durations and sizes.
//!
//! *Rejected*: humantime, which refuses `.1s`, accepts `1 s` and `1d`, and reads `5M` as five
//! months; jiff, which accepts `-1s` and `1s ago`; parse-size, which refuses `.5M` and accepts `1e3`.
//! Sizes would need the decimal numbers of this module anyway.

use std::time::Duration;

use blkkin_wire::clock::DurationNs;

use crate::error::CliError;

/// Units of time, in ns.
const TIMES: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses a positive duration: `1.5ms`, `500us`, `30s`.
pub(crate) fn duration(option: &str, value: &str) -> Result<DurationNs, CliError> {
    let (number, unit) = split(value);
    let refuse =
        |why: &str, remedy: String| CliError::usage(format!("bad time `{value}` for {option}"), why, remedy);
    let Some((_, scale)) = TIMES.iter().find(|(name, _)| *name == unit) else {
        let why = if unit.is_empty() { "a time needs a unit" } else { "unknown unit" };
        // A zero would be refused next.
        let number = if number.bytes().any(|digit| (b'1'..=b'9').contains(&digit)) { number } else { "1" };
        let likely = if option == "--for" { "s" } else { "ms" };
        return Err(refuse(why, format!("{option} {number}{likely}; units are ns, us, ms, s, m, h")));
    };
    match scaled(number, *scale) {
        Some(0) => Err(refuse("it must be positive", format!("{option} 1{unit}, or omit it"))),
        Some(ns) => Ok(DurationNs(ns)),
        None => Err(refuse("it is not a number of at most 584 years", format!("{option} 10{unit}"))),
    }
}

/// Parses a duration as [`Duration`].
pub(crate) fn std_duration(option: &str, value: &str) -> Result<Duration, CliError> {
    Ok(Duration::from_nanos(duration(option, value)?.0))
}

/// Units of bytes; powers of 1024, as for all memory.
const BYTES: [(&str, u64); 7] = [
    ("", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1 << 30),
    ("gib", 1 << 30),
];

/// Maximum ring size: each CPU has a ring in kernel memory, so a larger value is a mistake.
const RING_BYTES_MAX: u64 = 1 << 30;
/// Minimum ring size: the kernel takes a power of two of at least a page (kernel/bpf/ringbuf.c),
/// and no page is smaller. The tracer reports larger pages.
const RING_BYTES_MIN: u64 = 4 << 10;

/// Parses a ring size: `65536`, `256K`, `4MiB`.
pub(crate) fn ring_bytes(value: &str) -> Result<usize, CliError> {
    let refuse = |why: &str, remedy: String| {
        CliError::usage(format!("bad size `{value}` for --ring-size"), why, remedy)
    };
    let Some(bytes) = bytes(value) else {
        return Err(refuse("it is not a number of bytes", "--ring-size 256K; units are K, M, G".into()));
    };
    let fitting = bytes.clamp(RING_BYTES_MIN, RING_BYTES_MAX).next_power_of_two();
    if bytes != fitting {
        return Err(refuse(
            "the size of a ring is a power of two, from 4K to 1G",
            format!("--ring-size {}K", fitting >> 10),
        ));
    }
    Ok(bytes as usize)
}

/// Parses a number of bytes: `65536`, `256K`, `4MiB`.
pub(crate) fn bytes(value: &str) -> Option<u64> {
    let (number, unit) = split(value);
    let scale = BYTES.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name)).map(|(_, scale)| *scale);
    scaled(number, scale?)
}

fn split(value: &str) -> (&str, &str) {
    let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
    (&value[..end], &value[end..])
}

/// Multiplies a decimal number by `scale` without floating-point rounding; a fraction below one is
/// truncated.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()?.checked_mul(scale)? };
    // 10^18 fits; more digits are below every unit's resolution.
    let fraction = &fraction[..fraction.len().min(18)];
    let part = match fraction {
        "" => 0,
        digits => {
            u128::from(digits.parse::<u64>().ok()?) * u128::from(scale) / 10_u128.pow(digits.len() as u32)
        }
    };
    whole.checked_add(u64::try_from(part).ok()?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn ns(value: &str) -> Option<u64> {
        duration("--slower-than", value).ok().map(|d| d.0)
    }

    #[test]
    fn durations_are_exact() {
        assert_eq!(ns("1ms"), Some(1_000_000));
        assert_eq!(ns("500us"), Some(500_000));
        assert_eq!(ns("500µs"), Some(500_000));
        assert_eq!(ns("1.5ms"), Some(1_500_000));
        assert_eq!(ns(".1s"), Some(100_000_000));
        assert_eq!(ns("0.000000001s"), Some(1));
        assert_eq!(ns("2h"), Some(7_200_000_000_000));
    }

    #[test]
    fn invalid_durations_are_refused() {
        for bad in ["", "10", "ms", "1..5s", "-1s", "1 s", "0s", "1d", "99999999999h", ".s", "1.2.3s"] {
            assert_eq!(ns(bad), None, "{bad}");
        }
        let error = duration("--for", "30").unwrap_err();
        assert_eq!(error.why, "a time needs a unit");
        assert!(error.remedy.starts_with("--for 30s"), "{}", error.remedy);
        for nothing in ["0", "0s", ""] {
            let error = duration("--for", nothing).unwrap_err();
            assert!(error.remedy.starts_with("--for 1s"), "{}", error.remedy);
        }
    }

    #[test]
    fn ring_sizes_are_powers_of_two() {
        assert_eq!(ring_bytes("65536").unwrap(), 65536);
        assert_eq!(ring_bytes("256K").unwrap(), 256 << 10);
        assert_eq!(ring_bytes("4MiB").unwrap(), 4 << 20);
        assert_eq!(ring_bytes("100K").unwrap_err().remedy, "--ring-size 128K");
        assert_eq!(ring_bytes("1K").unwrap_err().remedy, "--ring-size 4K");
        assert_eq!(ring_bytes("8G").unwrap_err().remedy, "--ring-size 1048576K");
        assert!(ring_bytes("many").is_err());
        assert!(ring_bytes("").is_err());
    }
}
