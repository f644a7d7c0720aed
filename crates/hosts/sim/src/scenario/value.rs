//! Values of a scenario as a person writes them. Each reads a string (or a plain number where that has one meaning) and refuses
//! in words that the reader of the file puts behind line and key.

use crate::clock::DRIFT_MAX;
use burst_grammar::quantity;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use std::fmt;

/// A value with its own notation.
trait Notation: Sized {
    /// What is expected, for a value of the wrong type.
    const EXPECTED: &'static str;
    fn of_text(text: &str) -> Result<Self, String>;
    fn of_number(number: f64) -> Option<Self>;
}

struct Notated<T>(std::marker::PhantomData<T>);

impl<T: Notation> Visitor<'_> for Notated<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::of_text(text).map_err(E::custom)
    }
    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        self.visit_f64(number as f64)
    }
    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        self.visit_f64(number as f64)
    }
    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        T::of_number(number).ok_or_else(|| E::custom(format!("{number} is not {}", T::EXPECTED)))
    }
}

macro_rules! notated {
    ($type:ident) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                deserializer.deserialize_any(Notated(std::marker::PhantomData))
            }
        }
    };
}

/// A bit rate in bit/s, above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub u64);
notated!(Rate);

impl Notation for Rate {
    const EXPECTED: &'static str = "a bit rate above 0 such as \"100Gbit\"";
    fn of_text(text: &str) -> Result<Rate, String> {
        match quantity::bits_per_second(text) {
            Ok(0) | Err(_) => Err(format!("{text:?} is not {}", Rate::EXPECTED)),
            Ok(rate) => Ok(Rate(rate)),
        }
    }
    fn of_number(_number: f64) -> Option<Rate> {
        None
    }
}

/// A time in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Delay(pub u64);
notated!(Delay);

impl Notation for Delay {
    const EXPECTED: &'static str = "a duration such as \"1us\" or \"5ms\", an hour at most";
    fn of_text(text: &str) -> Result<Delay, String> {
        let limit = std::time::Duration::from_secs(3_600);
        match quantity::duration(text) {
            Ok(time) if time <= limit => Ok(Delay(time.as_nanos() as u64 * 1_000)),
            _ => Err(format!("{text:?} is not {}", Delay::EXPECTED)),
        }
    }
    fn of_number(number: f64) -> Option<Delay> {
        (number == 0.0).then_some(Delay(0))
    }
}

/// How much faster a clock is, in parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Drift(pub i32);
notated!(Drift);

impl Notation for Drift {
    const EXPECTED: &'static str = "a drift such as \"50ppm\" or \"-5%\", from -50% to 50%";
    fn of_text(text: &str) -> Result<Drift, String> {
        let (sign, amount) = text.strip_prefix('-').map_or((1, text), |amount| (-1, amount));
        let ppm = quantity::parts_per_million(amount).ok().and_then(|ppm| i32::try_from(ppm).ok());
        let ppm = ppm.filter(|ppm| *ppm <= DRIFT_MAX).ok_or_else(|| format!("{text:?} is not {}", Drift::EXPECTED))?;
        Ok(Drift(sign * ppm))
    }
    fn of_number(number: f64) -> Option<Drift> {
        let ppm = number * 1e6;
        (ppm.abs() <= f64::from(DRIFT_MAX)).then_some(Drift(ppm.round() as i32))
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Size(pub u64);
notated!(Size);

impl Notation for Size {
    const EXPECTED: &'static str = "a size such as \"64KiB\"";
    fn of_text(text: &str) -> Result<Size, String> {
        quantity::bytes(text).map(Size).map_err(|_| format!("{text:?} is not {}", Size::EXPECTED))
    }
    fn of_number(number: f64) -> Option<Size> {
        (number >= 0.0 && number.fract() == 0.0 && number < 1e15).then_some(Size(number as u64))
    }
}

/// A share from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Share(pub f64);
notated!(Share);

impl Notation for Share {
    const EXPECTED: &'static str = "a share such as \"1%\", \"300ppm\" or 0.01, from 0 to 1";
    fn of_text(text: &str) -> Result<Share, String> {
        let refused = || format!("{text:?} is not {}", Share::EXPECTED);
        quantity::parts_per_million(text).map(|ppm| Share(f64::from(ppm) / 1e6)).map_err(|_| refused())
    }
    fn of_number(number: f64) -> Option<Share> {
        (0.0..=1.0).contains(&number).then_some(Share(number))
    }
}
