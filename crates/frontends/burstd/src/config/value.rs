//! Types of configuration values: reading, range, and how the document shows them.

use burst_args::{bytes, duration, nearest, show_bytes, show_duration};
use std::time::Duration;

/// Type and range of a key.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Any text but the empty one.
    Text,
    /// A file path.
    Path,
    /// A whole number.
    Count {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A size in bytes.
    Bytes {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// A duration from 0.
    Duration {
        /// Most, in nanoseconds.
        max_ns: u64,
    },
    /// Permission bits in octal.
    Mode,
    /// One of some words.
    Choice(&'static [&'static str]),
}

/// A value that passed its check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Text, path or choice.
    Text(String),
    /// Count, bytes, nanoseconds or mode.
    Number(u64),
}

impl Value {
    /// The number, 0 for a text.
    pub fn number(&self) -> u64 {
        match self {
            Value::Number(n) => *n,
            Value::Text(_) => 0,
        }
    }
    /// The text, empty for a number.
    pub fn text(&self) -> &str {
        match self {
            Value::Text(t) => t,
            Value::Number(_) => "",
        }
    }
}

impl Kind {
    /// Reads and checks what somebody wrote.
    pub fn read(self, text: &str) -> Result<Value, String> {
        match self {
            Kind::Text | Kind::Path if text.is_empty() => Err("must not be empty".to_owned()),
            Kind::Text | Kind::Path => Ok(Value::Text(text.to_owned())),
            Kind::Count { min, max } => {
                let number = text.parse().map_err(|_| format!("{text:?} is not a whole number"))?;
                in_range(number, min, max, |n| n.to_string())
            }
            Kind::Bytes { min, max } => in_range(bytes(text)?, min, max, show_bytes),
            Kind::Duration { max_ns } => {
                let ns = duration(text)?.as_nanos() as u64;
                in_range(ns, 0, max_ns, |n| show_duration(Duration::from_nanos(n)))
            }
            Kind::Mode => read_mode(text),
            Kind::Choice(words) if words.contains(&text) => Ok(Value::Text(text.to_owned())),
            Kind::Choice(words) => {
                let near = nearest(text, words.iter().copied()).unwrap_or_default();
                Err(format!("{text:?} is none of {}; the nearest valid one is {near:?}", words.join(", ")))
            }
        }
    }

    /// What stands for the value in help.
    pub fn placeholder(self) -> &'static str {
        match self {
            Kind::Text => "SPEC",
            Kind::Path => "PATH",
            Kind::Count { .. } => "N",
            Kind::Bytes { .. } => "SIZE",
            Kind::Duration { .. } => "TIME",
            Kind::Mode => "OCTAL",
            Kind::Choice(_) => "WORD",
        }
    }

    /// Type and range in words, for the document.
    #[cfg(test)]
    pub fn describe(self) -> String {
        match self {
            Kind::Text => "text".to_owned(),
            Kind::Path => "path".to_owned(),
            Kind::Count { min, max } => format!("{min} to {max}"),
            Kind::Bytes { min, max } => format!("size, {} to {}", show_bytes(min), show_bytes(max)),
            Kind::Duration { max_ns } => {
                format!("duration, 0 to {}", show_duration(Duration::from_nanos(max_ns)))
            }
            Kind::Mode => "octal permission bits, 0000 to 0777".to_owned(),
            Kind::Choice(words) => words.join(", "),
        }
    }
}

fn in_range(number: u64, min: u64, max: u64, show: impl Fn(u64) -> String) -> Result<Value, String> {
    if (min..=max).contains(&number) {
        return Ok(Value::Number(number));
    }
    Err(format!("{} is not between {} and {}", show(number), show(min), show(max)))
}

fn read_mode(text: &str) -> Result<Value, String> {
    match u64::from_str_radix(text.trim_start_matches("0o"), 8) {
        Ok(mode) if mode <= 0o777 => Ok(Value::Number(mode)),
        _ => Err(format!("{text:?} is not a mode: write octal permission bits such as 0660")),
    }
}
