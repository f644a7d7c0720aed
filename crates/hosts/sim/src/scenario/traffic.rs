//! What is sent and what fails: the tables `[[traffic]]` and `[[fault]]`.

use super::file::{self, FaultTable, TrafficTable};
use super::value::{Delay, Share};
use super::{DEPTH_MAX, Fault, FaultKind, MESSAGE_MAX, Pattern, ScenarioError, Sizes, Text, TrafficPart, only};
use crate::node::Verb;
use burst_fabric::PacketFate;
use std::ops::Range;
use toml::Spanned;

/// Most packets that one fault names.
const NUMBERS_MAX: usize = 4_096;
/// Most repetitions of a fault.
const REPEATS_MAX: u64 = 10_000;

/// A table of `[[traffic]]`.
pub(super) fn read_traffic(
    text: &Text<'_>,
    table: &Spanned<TrafficTable>,
    hosts: u32,
    time: u64,
) -> Result<TrafficPart, ScenarioError> {
    use file::TrafficKind as K;
    let (span, t) = (table.span(), table.get_ref());
    let common = ["kind", "verb", "class", "begin", "end"];
    let (name, own): (&str, &[&str]) = match t.kind {
        K::Stream => ("stream", &["from", "to", "size", "depth", "count"]),
        K::Poisson => ("poisson", &["sizes", "size", "load"]),
        K::Incast => ("incast", &["to", "senders", "size", "every"]),
        K::AllToAll => ("all-to-all", &["size", "every"]),
        K::Permutation => ("permutation", &["shift", "random", "size", "every"]),
        K::Ring => ("ring", &["size"]),
    };
    only(text, &span, name, &t.given(), &[&common[..], own].concat())?;
    let pattern = read_pattern(text, &span, t, hosts)?;
    let (begin, end) = (t.begin.unwrap_or_default().0, t.end.map_or(time, |end| end.0.min(time)));
    if begin >= end {
        return text.refuse(span, "begin: not before the end of the traffic");
    }
    let class = t.class.as_ref().map_or(Ok(0), |class| text.class(class))?;
    let verb = match (t.kind, t.verb) {
        (K::Ring, Some(file::VerbName::Write)) => {
            let expected = "expected write-imm, send or read, by which a host learns that a message has come";
            return text.refuse(span, format!("verb: \"write\" for kind \"ring\"; {expected}"));
        }
        (K::Ring, None) => Verb::WriteImm,
        (_, verb) => verb.unwrap_or_default().verb(),
    };
    Ok(TrafficPart { pattern, verb, class, begin, end })
}

fn read_pattern(text: &Text<'_>, span: &Range<usize>, t: &TrafficTable, hosts: u32) -> Result<Pattern, ScenarioError> {
    use file::TrafficKind as K;
    let size = || match &t.size {
        Some(size) => text.message("size", size),
        None => text.need(span, "size", None),
    };
    let host = |key: &str, host: &Option<Spanned<u32>>, default: Option<u32>| match (host, default) {
        (Some(host), _) => text.host(key, host, hosts),
        (None, Some(default)) => Ok(default),
        (None, None) => text.need(span, key, None),
    };
    let every = t.every.unwrap_or_default().0;
    Ok(match t.kind {
        K::Stream => {
            let (from, to) = (host("from", &t.from, Some(0))?, host("to", &t.to, Some(1))?);
            if from == to {
                let at = t.to.as_ref().or(t.from.as_ref()).map_or(span.clone(), Spanned::span);
                return text.refuse(at, format!("to: host {to} would send to itself"));
            }
            let depth = match t.depth.as_ref().map(|depth| (*depth.get_ref(), depth.span())) {
                None => 16,
                Some((depth @ 1..=DEPTH_MAX, _)) => depth,
                Some((depth, span)) => {
                    return text.refuse(span, format!("depth: {depth}; expected 1 to {DEPTH_MAX}"));
                }
            };
            Pattern::Stream { from, to, bytes: size()?, depth, count: t.count.unwrap_or(u64::MAX) }
        }
        K::Poisson => Pattern::Poisson { sizes: read_sizes(text, span, t)?, load: read_load(text, span, t)? },
        K::Incast => {
            let to = host("to", &t.to, Some(0))?;
            let senders = t.senders.as_ref().map_or(hosts - 1, |senders| *senders.get_ref());
            if senders == 0 || senders >= hosts {
                let span = t.senders.as_ref().map_or(span.clone(), Spanned::span);
                return text.refuse(span, format!("senders: {senders}; expected 1 to {}", hosts - 1));
            }
            Pattern::Incast { to, senders, bytes: size()?, every }
        }
        K::AllToAll => Pattern::AllToAll { bytes: size()?, every },
        K::Permutation if t.random == Some(true) => match &t.shift {
            Some(shift) => return text.refuse(shift.span(), "shift: beside random; expected one of them"),
            None => Pattern::Permutation { shift: None, bytes: size()?, every },
        },
        K::Permutation => {
            let shift = t.shift.as_ref().map_or(hosts / 2, |shift| *shift.get_ref());
            if shift == 0 || shift >= hosts {
                let span = t.shift.as_ref().map_or(span.clone(), Spanned::span);
                return text.refuse(span, format!("shift: {shift}; expected 1 to {}", hosts - 1));
            }
            Pattern::Permutation { shift: Some(shift), bytes: size()?, every }
        }
        K::Ring => Pattern::Ring { bytes: size()? },
    })
}

fn read_load(text: &Text<'_>, span: &Range<usize>, t: &TrafficTable) -> Result<f64, ScenarioError> {
    let load = text.need(span, "load", t.load.as_ref())?;
    let Share(share) = *load.get_ref();
    if share > 0.0 { Ok(share) } else { text.refuse(load.span(), "load: 0; expected more than 0, up to 1") }
}

fn read_sizes(text: &Text<'_>, span: &Range<usize>, t: &TrafficTable) -> Result<Sizes, ScenarioError> {
    match (&t.sizes, &t.size) {
        (None, Some(size)) => Ok(Sizes::Fixed(text.message("size", size)?)),
        (Some(sizes), None) => match sizes.get_ref() {
            file::SizesValue::Name(name) => match burst_fabric::traffic::TABLES.iter().any(|table| table.name == *name)
            {
                true => Ok(Sizes::Table(name.clone())),
                false => {
                    let all: Vec<_> = burst_fabric::traffic::TABLES.iter().map(|table| table.name).collect();
                    let all = all.join(", ");
                    text.refuse(sizes.span(), format!("sizes: there is no table \"{name}\"; expected one of {all}"))
                }
            },
            file::SizesValue::Steps(steps) => {
                let is_rising = steps.windows(2).all(|w| w[0].0 <= w[1].0 && w[0].1 <= w[1].1);
                let ends = steps.last().is_some_and(|last| last.1 == 1.0 || last.1 == 100.0);
                if !is_rising
                    || !ends
                    || steps.iter().any(|step| step.0 > MESSAGE_MAX || step.1.is_nan() || step.1 < 0.0)
                {
                    let expected = "rows [bytes, share] whose bytes and shares do not fall, the last with share 1";
                    return text.refuse(sizes.span(), format!("sizes: the table is not monotone; expected {expected}"));
                }
                let scale = steps.last().map_or(1.0, |last| last.1);
                Ok(Sizes::Own(steps.iter().map(|(bytes, share)| (*bytes, share / scale)).collect()))
            }
        },
        (Some(sizes), Some(_)) => text.refuse(sizes.span(), "sizes: beside size; expected one of them"),
        (None, None) => text.need(span, "sizes", None),
    }
}

/// A table of `[[fault]]`.
pub(super) fn read_fault(
    text: &Text<'_>,
    table: &Spanned<FaultTable>,
    hosts: u32,
    time: u64,
) -> Result<Fault, ScenarioError> {
    use file::FaultKindName as K;
    let (span, t) = (table.span(), table.get_ref());
    let (name, own): (&str, &[&str]) = match t.kind {
        K::Link => ("link-down", &["for", "every", "link"]),
        K::Drops => ("drops", &["for", "every", "switch", "share"]),
        K::Stall => ("stall", &["for", "every", "host"]),
        K::PauseStorm => ("pause-storm", &["for", "every", "host", "class"]),
        K::Packets => ("packets", &["host", "numbers", "fate", "by"]),
        K::Restart => ("restart", &["for", "every", "host"]),
        K::Clock => ("clock", &["for", "host", "offset", "drift"]),
    };
    only(text, &span, name, &t.given(), &[&["kind", "at"], own].concat())?;
    let host = || text.host("host", text.need(&span, "host", t.host.as_ref())?, hosts);
    let kind = match t.kind {
        K::Link => FaultKind::Link(text.need(&span, "link", t.link.as_ref())?.get_ref().clone()),
        K::Drops => FaultKind::Drops {
            switch: text.need(&span, "switch", t.switch.as_ref())?.get_ref().clone(),
            share: text.need(&span, "share", t.share)?.0,
        },
        K::Stall => FaultKind::Stall { host: host()? },
        K::Restart => FaultKind::Restart { host: host()? },
        K::PauseStorm => {
            FaultKind::PauseStorm { host: host()?, class: t.class.as_ref().map_or(Ok(0), |class| text.class(class))? }
        }
        K::Clock => {
            if t.offset.is_none() && t.drift.is_none() {
                return text.refuse(span, "offset is missing, and drift: a clock fault has one of them or both");
            }
            let (offset, drift) = (t.offset.unwrap_or_default().0, t.drift.unwrap_or_default().0);
            FaultKind::Clock { host: host()?, offset, drift }
        }
        K::Packets => {
            let numbers = text.need(&span, "numbers", t.numbers.as_ref())?;
            if !(1..=NUMBERS_MAX).contains(&numbers.get_ref().len()) {
                let count = numbers.get_ref().len();
                let expected = format!("numbers: {count} packets; expected 1 to {NUMBERS_MAX}");
                return text.refuse(numbers.span(), expected);
            }
            FaultKind::Packets { host: host()?, numbers: numbers.get_ref().clone(), fate: read_fate(text, &span, t)? }
        }
    };
    let (at, lasts) = (t.at.0, t.lasts.unwrap_or_default().0);
    let every = t.every.as_ref().map_or(Ok(0), |every| read_every(text, every, lasts, time.saturating_sub(at)))?;
    Ok(Fault { at, lasts, every, kind })
}

/// `every` of a fault that lasts for `lasts`, and has the time `left` for its repetitions.
fn read_every(text: &Text<'_>, every: &Spanned<Delay>, lasts: u64, left: u64) -> Result<u64, ScenarioError> {
    let Delay(period) = *every.get_ref();
    if lasts == 0 || period <= lasts {
        return text.refuse(every.span(), "every: expected more than for, which is more than 0");
    }
    match left / period {
        0..=REPEATS_MAX => Ok(period),
        repeats => {
            text.refuse(every.span(), format!("every: {repeats} times until the end; expected {REPEATS_MAX} at most"))
        }
    }
}

/// `fate` of packets, and `by` where it means something.
fn read_fate(text: &Text<'_>, span: &Range<usize>, t: &FaultTable) -> Result<PacketFate, ScenarioError> {
    use file::FateName as F;
    let fate = text.need(span, "fate", t.fate)?;
    let by = match (fate, &t.by) {
        (F::Twice | F::Late, Some(by)) => by.get_ref().0,
        (F::Twice | F::Late, None) => return text.need(span, "by", None),
        (F::Lost | F::Corrupted | F::Marked, Some(by)) => {
            return text.refuse(by.span(), "by: has a meaning for the fates \"twice\" and \"late\" alone");
        }
        (F::Lost | F::Corrupted | F::Marked, None) => 0,
    };
    let none = PacketFate::default();
    Ok(match fate {
        F::Lost => PacketFate { is_lost: true, ..none },
        F::Twice => PacketFate { again: Some(by), ..none },
        F::Late => PacketFate { late: by, ..none },
        F::Corrupted => PacketFate { is_corrupted: true, ..none },
        F::Marked => PacketFate { is_marked: true, ..none },
    })
}
