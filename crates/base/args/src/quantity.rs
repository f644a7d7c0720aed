//! Sizes and durations as people write them.
//!
//! `4096`, `64KiB`, `1MiB`, `2GiB` (K, M and G alone mean the binary unit); `10ns`, `50us`, `5ms`, `30s`, `2m`, `1h`.
//! The text round-trips: `show_*` prints the largest unit that divides exactly.

use std::time::Duration;

const SIZES: &[(&str, u64)] = &[("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];
const SIZE_ALIASES: &[(&str, u64)] = &[("", 1), ("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)];
const TIMES: &[(&str, u64)] = &[
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Reads a size in bytes.
///
/// # Errors
/// One clause that says what a size looks like.
pub fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size: write 65536, 64KiB, 1MiB or 2GiB");
    let (number, unit) = split(text).ok_or_else(wrong)?;
    let known = SIZES.iter().chain(SIZE_ALIASES).find(|(name, _)| name.eq_ignore_ascii_case(unit));
    known.and_then(|(_, factor)| number.checked_mul(*factor)).ok_or_else(wrong)
}

/// Reads a duration; a bare 0 needs no unit.
///
/// # Errors
/// One clause that says what a duration looks like.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration: write 50us, 5ms, 30s, 2m or 1h");
    let (number, unit) = split(text).ok_or_else(wrong)?;
    if number == 0 && unit.is_empty() {
        return Ok(Duration::ZERO);
    }
    let known = TIMES.iter().find(|(name, _)| *name == unit);
    let nanos = known.and_then(|(_, factor)| number.checked_mul(*factor)).ok_or_else(wrong)?;
    Ok(Duration::from_nanos(nanos))
}

/// A size in its largest exact unit.
pub fn show_bytes(value: u64) -> String {
    show(value, SIZES)
}

/// A duration in its largest exact unit.
pub fn show_duration(value: Duration) -> String {
    show(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX), TIMES)
}

fn split(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    Some((digits.parse().ok()?, unit.trim_start()))
}

fn show(value: u64, units: &[(&str, u64)]) -> String {
    let exact = units.iter().find(|(_, factor)| value != 0 && value.is_multiple_of(*factor));
    exact.map_or_else(|| "0".to_owned(), |(name, factor)| format!("{}{name}", value / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, want) in [("0", 0), ("4096", 4096), ("64KiB", 65536), ("1M", 1 << 20), ("2 gib", 2 << 30)] {
            assert_eq!(bytes(text), Ok(want), "{text}");
        }
        for text in ["", "KiB", "-1", "1.5M", "7XB", "99999999999999999999", "99999999999G"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, want) in [("0", 0), ("50us", 50_000), ("5ms", 5_000_000), ("2m", 120_000_000_000)] {
            assert_eq!(duration(text), Ok(Duration::from_nanos(want)), "{text}");
        }
        for text in ["", "5", "5 parsecs", "s", "-1s", "9999999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn text_round_trips() {
        for value in [0, 1, 1023, 1024, 65536, 3 << 30] {
            assert_eq!(bytes(&show_bytes(value)), Ok(value));
            assert_eq!(duration(&show_duration(Duration::from_nanos(value))), Ok(Duration::from_nanos(value)));
        }
    }
}
