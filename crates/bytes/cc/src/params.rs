//! Algorithms, their parameters, and how a person writes both.
//!
//! A specification is the name of an algorithm, and parameters that differ from its defaults:
//! `dcqcn:rpg_time_reset=55us,rpg_ai_rate=40M`. Each algorithm has one table of [`Parameter`]s with name, unit, range and
//! default; the names are those of the publication, or of NVIDIA's documentation for DCQCN. An unknown name or a value out of
//! range is refused with the nearest valid name or the range, and nothing changes.
//!
//! | unit | written | without a unit |
//! |---|---|---|
//! | time | `55us`, `1ms` | microseconds |
//! | bit rate | `40M`, `2.5Gbit`, `100Gbit/s` | Mbit/s |
//! | size | `64KiB` | bytes |
//! | fraction | `0.8`, `80%`, `300ppm` | parts of one |
//! | count | `5` | the number |

use crate::{cubic, dcqcn, dctcp, swift, timely};
use burst_grammar::nearest;
use core::fmt;
use std::time::Duration;

/// The controllers that [`crate::Controller::new`] can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// CUBIC ([`crate::Cubic`]).
    #[default]
    Cubic,
    /// Additive increase, multiplicative decrease ([`crate::Aimd`]).
    Aimd,
    /// A window that never changes.
    None,
    /// DCQCN as published ([`crate::Dcqcn`]).
    Dcqcn,
    /// DCQCN as in NVIDIA's adapters ([`crate::Dcqcn`]).
    DcqcnNvidia,
    /// DCTCP ([`crate::Dctcp`]).
    Dctcp,
    /// Swift ([`crate::Swift`]).
    Swift,
    /// TIMELY ([`crate::Timely`]).
    Timely,
}

impl Algorithm {
    /// All algorithms, in the order in which they are listed.
    pub const ALL: [Algorithm; 8] = [
        Algorithm::Cubic,
        Algorithm::Aimd,
        Algorithm::None,
        Algorithm::Dcqcn,
        Algorithm::DcqcnNvidia,
        Algorithm::Dctcp,
        Algorithm::Swift,
        Algorithm::Timely,
    ];

    /// The name by which it is chosen.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Cubic => "cubic",
            Algorithm::Aimd => "aimd",
            Algorithm::None => "none",
            Algorithm::Dcqcn => "dcqcn",
            Algorithm::DcqcnNvidia => "dcqcn-nvidia",
            Algorithm::Dctcp => "dctcp",
            Algorithm::Swift => "swift",
            Algorithm::Timely => "timely",
        }
    }

    /// What it does, in one line.
    pub const fn help(self) -> &'static str {
        match self {
            Algorithm::Cubic => {
                "window, as most of TCP: grows in time, paced, reduced by losses and marks; for any network"
            }
            Algorithm::Aimd => {
                "window: grows by 16 KiB a round trip, halved on loss; for links that Burst has to itself"
            }
            Algorithm::None => "window that never changes",
            Algorithm::Dcqcn => "rate, reduced by congestion notifications as published; needs switches that mark ECN",
            Algorithm::DcqcnNvidia => "the same as NVIDIA's adapters do it, with their defaults",
            Algorithm::Dctcp => "window, reduced by the share of marked packets; needs switches that mark ECN",
            Algorithm::Swift => "window, follows round-trip times to a target delay",
            Algorithm::Timely => "rate, follows the gradient of round-trip times",
        }
    }

    /// Whether it reacts to congestion marks, so that packets should be sent ECN-capable: all but `none`. A switch that marks
    /// these drops the others.
    pub const fn uses_ecn(self) -> bool {
        !matches!(self, Algorithm::None)
    }

    /// Whether it follows round-trip times, so that the time of arrival of acknowledgements should be known well.
    pub const fn uses_delay(self) -> bool {
        matches!(self, Algorithm::Swift | Algorithm::Timely)
    }

    /// Its parameters.
    pub const fn parameters(self) -> &'static [Parameter] {
        match self {
            Algorithm::Cubic => &cubic::PARAMETERS,
            Algorithm::Aimd | Algorithm::None => &[],
            Algorithm::Dcqcn => &dcqcn::PAPER_PARAMETERS,
            Algorithm::DcqcnNvidia => &dcqcn::NVIDIA_PARAMETERS,
            Algorithm::Dctcp => &dctcp::PARAMETERS,
            Algorithm::Swift => &swift::PARAMETERS,
            Algorithm::Timely => &timely::PARAMETERS,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The unit of a parameter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterUnit {
    /// Nanoseconds.
    Time,
    /// Bits per second.
    BitRate,
    /// Bytes.
    Size,
    /// Parts per million.
    Fraction,
    /// A plain number.
    Count,
}

/// A row of an algorithm's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Published name.
    pub name: &'static str,
    /// Unit of the three values below.
    pub unit: ParameterUnit,
    /// Smallest value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
    /// Value if nothing else is said.
    pub default: u64,
    /// What it means, in one line.
    pub help: &'static str,
}

impl Parameter {
    /// A parameter with its smallest and largest value.
    pub(crate) const fn new(
        name: &'static str,
        unit: ParameterUnit,
        (min, max): (u64, u64),
        default: u64,
        help: &'static str,
    ) -> Parameter {
        Parameter { name, unit, min, max, default, help }
    }

    /// Reads a value.
    ///
    /// # Errors
    /// A sentence with the valid range.
    pub fn read(&self, text: &str) -> Result<u64, String> {
        let range =
            || format!("{}={text}: write a value from {} to {}", self.name, self.show(self.min), self.show(self.max));
        let value = self.unit.read(text.trim()).ok_or_else(range)?;
        if (self.min..=self.max).contains(&value) { Ok(value) } else { Err(range()) }
    }

    /// Prints a value as [`Parameter::read`] takes it.
    pub fn show(&self, value: u64) -> String {
        self.unit.show(value)
    }
}

impl ParameterUnit {
    fn read(self, text: &str) -> Option<u64> {
        let bare = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        match self {
            ParameterUnit::Time => {
                let duration = match bare {
                    true => burst_grammar::duration(&format!("{text}us")),
                    false => burst_grammar::duration(text),
                };
                u64::try_from(duration.ok()?.as_nanos()).ok()
            }
            ParameterUnit::BitRate => {
                let number = ["bit/s", "bit", "bps"].iter().find_map(|end| text.strip_suffix(end)).unwrap_or(text);
                let factored =
                    BIT_UNITS.iter().find_map(|(unit, as_time)| Some((number.strip_suffix(unit)?, *as_time)));
                let (number, as_time) = factored.unwrap_or((number, if bare { "ms" } else { "ns" }));
                let is_number = number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
                let product = burst_grammar::duration(&format!("{number}{as_time}")).ok().filter(|_| is_number)?;
                u64::try_from(product.as_nanos()).ok()
            }
            ParameterUnit::Size => burst_grammar::bytes(text).ok(),
            ParameterUnit::Fraction => burst_grammar::parts_per_million(text).ok().map(u64::from),
            ParameterUnit::Count => text.parse().ok(),
        }
    }

    fn show(self, value: u64) -> String {
        match self {
            ParameterUnit::Time => burst_grammar::show_duration(Duration::from_nanos(value)),
            ParameterUnit::BitRate => {
                let (unit, factor) = match value {
                    _ if value.is_multiple_of(1_000_000_000) => ("G", 1_000_000_000),
                    _ if value.is_multiple_of(1_000_000) => ("M", 1_000_000),
                    _ if value.is_multiple_of(1_000) => ("K", 1_000),
                    _ => ("bit", 1),
                };
                format!("{}{unit}", value / factor)
            }
            ParameterUnit::Size => burst_grammar::show_bytes(value),
            ParameterUnit::Fraction => format!("{}", value as f64 / 1e6),
            ParameterUnit::Count => value.to_string(),
        }
    }
}

/// Decimal units of bit rates, and the units of time with the same factor: the grammar of durations reads the number.
const BIT_UNITS: &[(&str, &str)] = &[("G", "s"), ("M", "ms"), ("K", "us"), ("k", "us")];

/// Most parameters of an algorithm.
pub const PARAMETERS_MAX: usize = 14;
const _: () = {
    let mut i = 0;
    while i < Algorithm::ALL.len() {
        assert!(Algorithm::ALL[i].parameters().len() <= PARAMETERS_MAX);
        i += 1;
    }
};

/// An algorithm with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    algorithm: Algorithm,
    /// Largest window in bytes. A controller of a window begins with it, unless its publication says otherwise.
    pub window_max_bytes: u64,
    values: [u64; PARAMETERS_MAX],
}

/// `aimd` with a window of 1 MiB.
impl Default for Params {
    fn default() -> Params {
        Params::new(Algorithm::default(), 1 << 20)
    }
}

impl Params {
    /// An algorithm with its defaults.
    pub fn new(algorithm: Algorithm, window_max_bytes: u64) -> Params {
        let mut values = [0; PARAMETERS_MAX];
        values.iter_mut().zip(algorithm.parameters()).for_each(|(value, row)| *value = row.default);
        Params { algorithm, window_max_bytes, values }
    }

    /// Reads a specification: `NAME` or `NAME:PARAMETER=VALUE,…`.
    ///
    /// # Errors
    /// A sentence that names the wrong word, and the nearest valid one or the valid range.
    pub fn parse(text: &str, window_max_bytes: u64) -> Result<Params, String> {
        let (name, settings) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
        let known = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name.trim());
        let algorithm = known.ok_or_else(|| {
            let near = nearest(name, Algorithm::ALL.map(Algorithm::name)).unwrap_or_default();
            let all = Algorithm::ALL.map(Algorithm::name).join(", ");
            format!("unknown congestion controller '{name}'; did you mean '{near}'? There are: {all}")
        })?;
        let mut params = Params::new(algorithm, window_max_bytes);
        for setting in settings.split(',').map(str::trim).filter(|setting| !setting.is_empty()) {
            let (name, value) =
                setting.split_once('=').ok_or_else(|| format!("'{setting}' is not written as PARAMETER=VALUE"))?;
            params.set(name.trim(), value)?;
        }
        Ok(params)
    }

    /// Sets one parameter.
    ///
    /// # Errors
    /// As [`Params::parse`]; nothing changes then.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let rows = self.algorithm.parameters();
        let Some(at) = rows.iter().position(|row| row.name == name) else {
            return Err(match nearest(name, rows.iter().map(|row| row.name)) {
                Some(near) => format!("{} has no parameter '{name}'; did you mean '{near}'?", self.algorithm),
                None => format!("{} has no parameters, but '{name}' was given", self.algorithm),
            });
        };
        self.values[at] = rows[at].read(value)?;
        Ok(())
    }

    /// The same with another largest window.
    #[must_use]
    pub fn with_window(self, window_max_bytes: u64) -> Params {
        Params { window_max_bytes, ..self }
    }

    /// The algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The value of a parameter, by its name.
    pub fn get(&self, name: &str) -> Option<u64> {
        let at = self.algorithm.parameters().iter().position(|row| row.name == name)?;
        Some(self.values[at])
    }

    /// The value of a parameter that this algorithm has. In the unit of its row, within its range.
    pub(crate) fn value(&self, name: &str) -> u64 {
        let value = self.get(name);
        debug_assert!(value.is_some(), "a parameter without a row");
        value.unwrap_or(0)
    }

    /// A bit rate, a number of nanoseconds, or a count, as [`Params::value`].
    pub(crate) fn number(&self, name: &str) -> f64 {
        self.value(name) as f64
    }

    /// A fraction of one.
    pub(crate) fn fraction(&self, name: &str) -> f64 {
        self.number(name) / 1e6
    }
}

/// Prints the specification: the name, and each parameter that differs from its default.
impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.algorithm.name())?;
        let changed =
            self.algorithm.parameters().iter().zip(&self.values).filter(|(row, value)| row.default != **value);
        for (k, (row, value)) in changed.enumerate() {
            write!(f, "{}{}={}", if k == 0 { ':' } else { ',' }, row.name, row.show(*value))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Params, String> {
        Params::parse(text, 1 << 20)
    }

    #[test]
    fn a_specification_is_a_name_and_the_parameters_that_differ() {
        let params = parse("dcqcn: rpg_time_reset=60, rpg_ai_rate=0.1G,dce_tcp_g=1019").expect("valid");
        assert_eq!(params.algorithm(), Algorithm::Dcqcn);
        assert_eq!(params.get("rpg_time_reset"), Some(60_000));
        assert_eq!(params.get("rpg_ai_rate"), Some(100_000_000));
        assert_eq!(params.get("rpg_hai"), None);
        assert_eq!(params.to_string(), "dcqcn:dce_tcp_g=1019,rpg_time_reset=60us,rpg_ai_rate=100M");
        assert_eq!(parse(&params.to_string()), Ok(params));
        assert_eq!(parse(" swift ").map(|p| p.to_string()), Ok("swift".to_owned()));
        assert_eq!(parse("aimd:").map(|p| p.window_max_bytes), Ok(1 << 20));
        assert_eq!(parse("aimd").map(|p| p.with_window(7)), Params::parse("aimd", 7));
        assert_eq!(parse("cubic"), Ok(Params::default()));
    }

    #[test]
    fn each_default_lies_in_its_range_and_round_trips_through_its_text() {
        for algorithm in Algorithm::ALL {
            assert_eq!(parse(algorithm.name()), Ok(Params::new(algorithm, 1 << 20)));
            assert!(!algorithm.help().is_empty());
            for row in algorithm.parameters() {
                assert!(row.min <= row.default && row.default <= row.max, "{algorithm} {}", row.name);
                for value in [row.min, row.default, row.max] {
                    assert_eq!(row.read(&row.show(value)), Ok(value), "{algorithm} {}", row.name);
                }
                assert!(row.max == u64::MAX || row.read(&row.show(row.max + 1)).is_err(), "{algorithm} {}", row.name);
                assert!(!row.help.is_empty());
            }
        }
    }

    #[test]
    fn the_largest_time_is_a_second_or_1000_and_the_largest_rate_a_terabit() {
        for row in Algorithm::ALL.into_iter().flat_map(Algorithm::parameters) {
            match row.unit {
                ParameterUnit::Time => {
                    assert!([1_000_000_000, 1_000_000_000_000].contains(&row.max), "{} {}", row.name, row.max);
                }
                ParameterUnit::BitRate => assert_eq!(row.max, 1_000_000_000_000, "{}", row.name),
                ParameterUnit::Fraction => assert!(row.max <= 1_000_000, "{}", row.name),
                ParameterUnit::Size | ParameterUnit::Count => {}
            }
        }
    }

    #[test]
    fn units_may_be_left_out() {
        let read = |unit: ParameterUnit, text| unit.read(text);
        for (text, want) in [("55", 55_000), ("1.5", 1_500), ("2ms", 2_000_000), ("300ns", 300)] {
            assert_eq!(read(ParameterUnit::Time, text), Some(want), "{text}");
        }
        for (text, want) in [
            ("40", 40_000_000),
            ("2.5G", 2_500_000_000),
            ("100Gbit/s", 100_000_000_000),
            ("64Kbit", 64_000),
            ("5Mbps", 5_000_000),
            ("40bit", 40),
        ] {
            assert_eq!(read(ParameterUnit::BitRate, text), Some(want), "{text}");
        }
        for text in ["", "M", "bit", "4 apples", "-1", "4é", "4é5", "5ms"] {
            assert_eq!(read(ParameterUnit::BitRate, text), None, "{text}");
        }
        assert_eq!(read(ParameterUnit::Fraction, "80%"), Some(800_000));
        assert_eq!(read(ParameterUnit::Size, "64KiB"), Some(65_536));
        assert_eq!(read(ParameterUnit::Count, "7"), Some(7));
        assert_eq!(
            (ParameterUnit::BitRate.show(0), ParameterUnit::BitRate.show(1_500)),
            ("0G".into(), "1500bit".into())
        );
        assert_eq!(ParameterUnit::BitRate.show(64_000), "64K");
    }

    #[test]
    fn errors_name_the_nearest_valid_word_or_the_range() {
        let say = |text| parse(text).expect_err("refused");
        assert!(say("dcqnc").contains("did you mean 'dcqcn'?"), "{}", say("dcqnc"));
        assert!(say("dcqnc").contains("aimd, none, dcqcn, dcqcn-nvidia, dctcp, swift, timely"));
        assert!(say("dcqcn:rpg_time=5us").contains("did you mean 'rpg_time_reset'?"));
        assert!(say("none:window=5").contains("none has no parameters"));
        assert!(say("swift:beta").contains("PARAMETER=VALUE"));
        assert_eq!(say("dctcp:g=2"), "g=2: write a value from 0.001 to 1");
        assert_eq!(say("dcqcn:rpg_threshold=0"), "rpg_threshold=0: write a value from 1 to 31");
    }

    #[test]
    fn a_refused_value_changes_nothing() {
        let mut params = Params::new(Algorithm::Swift, 1 << 20);
        let before = params;
        assert!(params.set("beta", "7").is_err() && params.set("bta", "0.5").is_err());
        assert_eq!(params, before);
        assert_eq!(params.set("beta", "0.5"), Ok(()));
        assert_eq!((params.get("beta"), params.fraction("beta")), (Some(500_000), 0.5));
    }

    #[test]
    fn algorithms_that_react_to_marks_ask_for_ecn() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.uses_ecn(), algorithm != Algorithm::None, "{algorithm}");
        }
    }
}
