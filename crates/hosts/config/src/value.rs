//! Types of configuration values: reading, range, and how the document shows them.

use burst_cc::{CcChoice, ChoiceRank};
use burst_control::metrics_place::MetricsPlace;
use burst_grammar::{bytes, duration, nearest, show_bytes, show_duration, switch};
use std::time::Duration;

/// Type and range of a key.
#[derive(Clone, Copy, Debug)]
pub enum ValueKind {
    /// A text that is not empty.
    Text,
    /// A file path.
    Path,
    /// A whole number.
    Count {
        /// Minimum.
        min: u64,
        /// Maximum.
        max: u64,
    },
    /// A size in bytes.
    Bytes {
        /// Minimum.
        min: u64,
        /// Maximum.
        max: u64,
    },
    /// A duration from 0.
    Duration {
        /// Maximum, in nanoseconds.
        max_ns: u64,
    },
    /// Permission bits in octal.
    Mode,
    /// One of some words.
    Choice(&'static [&'static str]),
    /// A congestion controller with parameters, as `burst_cc::CcChoice` reads it.
    Controller,
    /// Where metrics are shown.
    MetricsPlace,
    /// `on` or `off`, or another word of [`burst_grammar::switch`]; the flag alone means `on`.
    Switch,
}

/// A value that passed its check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigValue {
    /// Text, path or choice.
    Text(String),
    /// Count, bytes, nanoseconds, mode, or 0 and 1 of a switch.
    Number(u64),
}

impl ValueKind {
    /// Whether values are numbers: counts, bytes, nanoseconds, permission bits, or 0 and 1 of a switch.
    pub const fn is_number(self) -> bool {
        match self {
            ValueKind::Text
            | ValueKind::Path
            | ValueKind::Controller
            | ValueKind::MetricsPlace
            | ValueKind::Choice(_) => false,
            ValueKind::Count { .. }
            | ValueKind::Bytes { .. }
            | ValueKind::Duration { .. }
            | ValueKind::Mode
            | ValueKind::Switch => true,
        }
    }

    /// Reads and checks a value as a person wrote it.
    ///
    /// # Errors
    /// A clause that says what is wrong.
    pub fn read(self, text: &str) -> Result<ConfigValue, String> {
        let wrong = |clause: &str| format!("{text:?} {clause}");
        match self {
            ValueKind::Text | ValueKind::Path if text.is_empty() => Err("must not be empty".to_owned()),
            ValueKind::Text | ValueKind::Path => Ok(ConfigValue::Text(text.to_owned())),
            ValueKind::Count { min, max } => {
                let number = text.parse().map_err(|_| format!("{text:?} is not a whole number"))?;
                in_range(number, min, max, |n| n.to_string())
            }
            ValueKind::Bytes { min, max } => in_range(bytes(text).map_err(wrong)?, min, max, show_bytes),
            ValueKind::Duration { max_ns } => {
                let ns = duration(text).map_err(wrong)?.as_nanos() as u64;
                in_range(ns, 0, max_ns, |n| show_duration(Duration::from_nanos(n)))
            }
            ValueKind::Mode => read_mode(text),
            ValueKind::Controller | ValueKind::MetricsPlace => self.read_parsed(text),
            ValueKind::Switch => {
                let is_on = switch(text).ok_or_else(|| format!("{text:?} is neither on nor off"))?;
                Ok(ConfigValue::Number(is_on.into()))
            }
            ValueKind::Choice(words) => read_choice(text, words),
        }
    }

    /// Reads a text that a type of its own parses.
    fn read_parsed(self, text: &str) -> Result<ConfigValue, String> {
        match self {
            ValueKind::MetricsPlace => text.parse::<MetricsPlace>().map(|place| ConfigValue::Text(place.to_string())),
            _ => CcChoice::parse(text, 0, ChoiceRank::Configured).map(|choice| ConfigValue::Text(choice.to_string())),
        }
    }

    /// The placeholder for the value in help.
    pub fn placeholder(self) -> &'static str {
        match self {
            ValueKind::Text | ValueKind::Controller => "SPEC",
            ValueKind::Path => "PATH",
            ValueKind::MetricsPlace => "PLACE",
            ValueKind::Count { .. } => "N",
            ValueKind::Bytes { .. } => "SIZE",
            ValueKind::Duration { .. } => "TIME",
            ValueKind::Mode => "OCTAL",
            ValueKind::Choice(_) => "WORD",
            ValueKind::Switch => "on|off",
        }
    }

    /// Type and range in words, for the document.
    #[cfg(test)]
    pub fn describe(self) -> String {
        match self {
            ValueKind::Text => "text".to_owned(),
            ValueKind::Path => "path".to_owned(),
            ValueKind::MetricsPlace => "ADDRESS:PORT or unix:PATH".to_owned(),
            ValueKind::Count { min, max } => format!("{min} to {max}"),
            ValueKind::Bytes { min, max } => format!("size, {} to {}", show_bytes(min), show_bytes(max)),
            ValueKind::Duration { max_ns } => {
                format!("duration, 0 to {}", show_duration(Duration::from_nanos(max_ns)))
            }
            ValueKind::Mode => "octal permission bits, 0000 to 0777".to_owned(),
            ValueKind::Controller => {
                format!(
                    "{}, {}",
                    burst_cc::AUTOMATIC,
                    burst_cc::Algorithm::ALL.map(burst_cc::Algorithm::name).join(", ")
                )
            }
            ValueKind::Choice(words) => words.join(", "),
            ValueKind::Switch => "on, off".to_owned(),
        }
    }
}

fn in_range(number: u64, min: u64, max: u64, show: impl Fn(u64) -> String) -> Result<ConfigValue, String> {
    if (min..=max).contains(&number) {
        return Ok(ConfigValue::Number(number));
    }
    Err(format!("{} is not between {} and {}", show(number), show(min), show(max)))
}

/// One of some words; another word for `off` where that is one of them.
fn read_choice(text: &str, words: &[&str]) -> Result<ConfigValue, String> {
    let text = if words.contains(&"off") && switch(text) == Some(false) { "off" } else { text };
    if words.contains(&text) {
        return Ok(ConfigValue::Text(text.to_owned()));
    }
    let near = nearest(text, words.iter().copied()).unwrap_or_default();
    Err(format!("{text:?} is none of {}; the nearest valid one is {near:?}", words.join(", ")))
}

fn read_mode(text: &str) -> Result<ConfigValue, String> {
    match u64::from_str_radix(text.trim_start_matches("0o"), 8) {
        Ok(mode) if mode <= 0o777 => Ok(ConfigValue::Number(mode)),
        _ => Err(format!("{text:?} is not a mode: write octal permission bits such as 0660")),
    }
}
