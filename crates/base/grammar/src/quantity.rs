//! Sizes, durations and rates as a person writes them.
//!
//! | quantity | accepted | unit of the result |
//! |---|---|---|
//! | size | `4096`, `64KiB`, `1MiB`, `2GiB`; `K`, `M` and `G` mean the binary unit too; case does not matter | byte |
//! | duration | `10ns`, `50us`, `5ms`, `30s`, `2m`, `1h`; `0` needs no unit | nanosecond |
//! | rate | `1%`, `300ppm`, `0.01` | part per million |
//! | bit rate | `10Gbit`, `500Mbit`, `2.5Gbps`, `40Gbit/s`; decimal units, case does not matter | bit per second |
//!
//! A number may have a decimal fraction (`1.5ms`); what is smaller than the unit of the result is cut off. Signs and exponents
//! are refused. The text round-trips: `show_bytes` and `show_duration` print the largest unit that divides the value exactly.
//! Each error is a clause that follows the text it is about: `"big" is not a size: …`.

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
const RATES: &[(&str, u64)] = &[("%", 10_000), ("\u{2030}", 1_000), ("ppm", 1), ("", 1_000_000)];
const BIT_RATES: &[(&str, u64)] =
    &[("kbit", 1_000), ("Mbit", 1_000_000), ("Gbit", 1_000_000_000), ("Tbit", 1_000_000_000_000)];
/// All parts of a whole, in parts per million.
const WHOLE_PPM: u64 = 1_000_000;

/// Digits after the decimal point that count.
const FRACTION_DIGITS_MAX: usize = 18;

/// Reads a size in bytes.
///
/// # Errors
/// A clause that says what a size looks like.
pub fn bytes(text: &str) -> Result<u64, &'static str> {
    let wrong = "is not a size: write 65536, 64KiB, 1MiB or 2GiB";
    let (number, unit) = Number::parse(text).ok_or(wrong)?;
    let known = SIZES.iter().chain(SIZE_ALIASES).find(|(name, _)| name.eq_ignore_ascii_case(unit));
    known.and_then(|(_, factor)| number.times(*factor)).ok_or(wrong)
}

/// Reads a duration; a bare 0 needs no unit.
///
/// # Errors
/// A clause that says what a duration looks like.
pub fn duration(text: &str) -> Result<Duration, &'static str> {
    let wrong = "is not a duration: write 50us, 5ms, 30s, 2m or 1h";
    let (number, unit) = Number::parse(text).ok_or(wrong)?;
    if unit.is_empty() && number.is_zero() {
        return Ok(Duration::ZERO);
    }
    let known = TIMES.iter().find(|(name, _)| *name == unit);
    known.and_then(|(_, factor)| number.times(*factor)).map(Duration::from_nanos).ok_or(wrong)
}

/// Reads a rate from 0 to 1, in parts per million.
///
/// # Errors
/// A clause that says what a rate looks like.
pub fn parts_per_million(text: &str) -> Result<u32, &'static str> {
    let wrong = "is not a rate such as 1%, 300ppm or 0.01";
    let (number, unit) = Number::parse(text).ok_or(wrong)?;
    let known = RATES.iter().find(|(name, _)| *name == unit);
    let ppm = known.and_then(|(_, factor)| number.times(*factor)).filter(|ppm| *ppm <= WHOLE_PPM).ok_or(wrong)?;
    u32::try_from(ppm).map_err(|_| wrong)
}

/// Reads the rate of a link in bits per second, above zero.
///
/// # Errors
/// A clause that says what a bit rate looks like.
pub fn bits_per_second(text: &str) -> Result<u64, &'static str> {
    let wrong = "is not a bit rate: write 500Mbit, 10Gbit or 2.5Gbps";
    let (number, unit) = Number::parse(text).ok_or(wrong)?;
    let unit = unit.strip_suffix("/s").unwrap_or(unit);
    let short = |name: &str| [name.trim_end_matches("it").to_owned() + "ps", name.to_owned()];
    let known = BIT_RATES.iter().find(|(name, _)| short(name).iter().any(|name| name.eq_ignore_ascii_case(unit)));
    known.and_then(|(_, factor)| number.times(*factor)).filter(|rate| *rate > 0).ok_or(wrong)
}

/// Prints a size in the largest unit that divides it exactly.
pub fn show_bytes(value: u64) -> String {
    show(value, SIZES)
}

/// Prints a duration in the largest unit that divides it exactly.
pub fn show_duration(value: Duration) -> String {
    show(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX), TIMES)
}

/// A decimal number without a sign: digits before and after the point.
#[derive(Clone, Copy, Debug)]
struct Number {
    whole: u64,
    /// The digits after the point as a number.
    fraction: u64,
    /// 10 to the power of the count of those digits.
    scale: u64,
}

impl Number {
    /// Splits `text` into a number and the unit behind it.
    fn parse(text: &str) -> Option<(Number, &str)> {
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let (whole, fraction) = match number.split_once('.') {
            Some((whole, fraction)) if fraction.len() <= FRACTION_DIGITS_MAX => (whole, fraction),
            Some(_) => return None,
            None => (number, ""),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u64>().ok() };
        let scale = 10u64.pow(u32::try_from(fraction.len()).ok()?);
        Some((Number { whole: digits(whole)?, fraction: digits(fraction)?, scale }, unit.trim_start()))
    }

    fn is_zero(self) -> bool {
        self.whole == 0 && self.fraction == 0
    }

    /// The product, cut off to a whole number; `None` if it does not fit.
    fn times(self, factor: u64) -> Option<u64> {
        debug_assert!(self.fraction < self.scale || self.scale == 1);
        let part = u128::from(self.fraction) * u128::from(factor) / u128::from(self.scale);
        u64::try_from(u128::from(self.whole) * u128::from(factor) + part).ok()
    }
}

fn show(value: u64, units: &[(&str, u64)]) -> String {
    let exact = units.iter().find(|(_, factor)| value != 0 && value.is_multiple_of(*factor));
    exact.map_or_else(|| "0".to_owned(), |(name, factor)| format!("{}{name}", value / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_rates() {
        for (text, want) in [
            ("10Gbit", 10_000_000_000),
            ("10gbit/s", 10_000_000_000),
            ("2.5Gbps", 2_500_000_000),
            ("500 Mbit", 500_000_000),
            ("56kbit", 56_000),
            ("1Tbit", 1_000_000_000_000),
        ] {
            assert_eq!(bits_per_second(text), Ok(want), "{text}");
        }
        for text in ["", "0Gbit", "10", "10G", "10GB", "10Gbits", "-1Gbit", "99999999999Tbit"] {
            assert!(bits_per_second(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, want) in
            [("0", 0), ("4096", 4096), ("64KiB", 65536), ("1M", 1 << 20), ("2 gib", 2 << 30), ("1.5M", 3 << 19)]
        {
            assert_eq!(bytes(text), Ok(want), "{text}");
        }
        for text in ["", ".", "KiB", "-1", "1.5.1M", "7XB", "1e3", "99999999999999999999", "99999999999G"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations() {
        for (text, want) in
            [("0", 0), ("50us", 50_000), ("5ms", 5_000_000), ("2m", 120_000_000_000), ("0.5ms", 500_000), (".5us", 500)]
        {
            assert_eq!(duration(text), Ok(Duration::from_nanos(want)), "{text}");
        }
        for text in ["", "5", "5 parsecs", "s", "-1s", "9999999999999h", "1.0000000000000000001s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates() {
        for (text, want) in [("1%", 10_000), ("0.5%", 5_000), ("300ppm", 300), ("0.01", 10_000), ("1", 1_000_000)] {
            assert_eq!(parts_per_million(text), Ok(want), "{text}");
        }
        for text in ["", "101%", "2", "-1%", "1 per cent"] {
            assert!(parts_per_million(text).is_err(), "{text}");
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
