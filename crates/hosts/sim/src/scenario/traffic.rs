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
    let class = read_class(text, t.class.as_ref())?;
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
    let every = t.every.unwrap_or_default().0;
    Ok(match t.kind {
        K::Stream => return read_stream(text, span, t, hosts),
        K::Poisson => Pattern::Poisson { sizes: read_sizes(text, span, t)?, load: read_load(text, span, t)? },
        K::Incast => {
            let to = t.to.as_ref().map_or(Ok(0), |to| text.host("to", to, hosts))?;
            let senders = read_others(text, "senders", t.senders.as_ref(), hosts - 1, hosts)?;
            Pattern::Incast { to, senders, bytes: read_size(text, span, t)?, every }
        }
        K::AllToAll => Pattern::AllToAll { bytes: read_size(text, span, t)?, every },
        K::Permutation => {
            Pattern::Permutation { shift: read_shift(text, t, hosts)?, bytes: read_size(text, span, t)?, every }
        }
        K::Ring => Pattern::Ring { bytes: read_size(text, span, t)? },
    })
}

/// `size` of each message.
fn read_size(text: &Text<'_>, span: &Range<usize>, t: &TrafficTable) -> Result<u64, ScenarioError> {
    text.message("size", text.need(span, "size", t.size.as_ref())?)
}

/// `shift` of a permutation: none for a random one.
fn read_shift(text: &Text<'_>, t: &TrafficTable, hosts: u32) -> Result<Option<u32>, ScenarioError> {
    match &t.shift {
        Some(shift) if t.random == Some(true) => {
            text.refuse(shift.span(), "shift: beside random; expected one of them")
        }
        None if t.random == Some(true) => Ok(None),
        shift => read_others(text, "shift", shift.as_ref(), hosts / 2, hosts).map(Some),
    }
}

fn read_stream(text: &Text<'_>, span: &Range<usize>, t: &TrafficTable, hosts: u32) -> Result<Pattern, ScenarioError> {
    let (from, to) = read_ends(text, span, t, hosts)?;
    let (depth, count) = (read_depth(text, t)?, t.count.unwrap_or(u64::MAX));
    Ok(Pattern::Stream { from, to, bytes: read_size(text, span, t)?, depth, count })
}

/// `from` and `to` of a stream: two hosts.
fn read_ends(text: &Text<'_>, span: &Range<usize>, t: &TrafficTable, hosts: u32) -> Result<(u32, u32), ScenarioError> {
    let from = t.from.as_ref().map_or(Ok(0), |from| text.host("from", from, hosts))?;
    let to = t.to.as_ref().map_or(Ok(1), |to| text.host("to", to, hosts))?;
    if from == to {
        let at = t.to.as_ref().or(t.from.as_ref()).map_or(span.clone(), Spanned::span);
        return text.refuse(at, format!("to: host {to} would send to itself"));
    }
    Ok((from, to))
}

/// `depth` of a stream: messages at a time.
fn read_depth(text: &Text<'_>, t: &TrafficTable) -> Result<u32, ScenarioError> {
    let Some(depth) = &t.depth else { return Ok(16) };
    match *depth.get_ref() {
        depth @ 1..=DEPTH_MAX => Ok(depth),
        number => text.refuse(depth.span(), format!("depth: {number}; expected 1 to {DEPTH_MAX}")),
    }
}

/// A number of other hosts than one: 1 to all but one.
fn read_others(
    text: &Text<'_>,
    key: &str,
    given: Option<&Spanned<u32>>,
    default: u32,
    hosts: u32,
) -> Result<u32, ScenarioError> {
    let number = given.map_or(default, |number| *number.get_ref());
    if (1..hosts).contains(&number) {
        return Ok(number);
    }
    let span = given.map_or(0..0, Spanned::span);
    text.refuse(span, format!("{key}: {number}; expected 1 to {}", hosts - 1))
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
    let kind = read_fault_kind(text, &span, t, hosts)?;
    let (at, lasts) = (t.at.0, t.lasts.unwrap_or_default().0);
    let every = t.every.as_ref().map_or(Ok(0), |every| read_every(text, every, lasts, time.saturating_sub(at)))?;
    Ok(Fault { at, lasts, every, kind })
}

/// What fails, and where.
fn read_fault_kind(
    text: &Text<'_>,
    span: &Range<usize>,
    t: &FaultTable,
    hosts: u32,
) -> Result<FaultKind, ScenarioError> {
    use file::FaultKindName as K;
    match t.kind {
        K::Link => Ok(FaultKind::Link(text.need(span, "link", t.link.as_ref())?.get_ref().clone())),
        K::Drops => read_drops(text, span, t),
        _ => read_host_fault(text, span, t, text.host("host", text.need(span, "host", t.host.as_ref())?, hosts)?),
    }
}

/// What fails at a host.
fn read_host_fault(
    text: &Text<'_>,
    span: &Range<usize>,
    t: &FaultTable,
    host: u32,
) -> Result<FaultKind, ScenarioError> {
    use file::FaultKindName as K;
    match t.kind {
        K::Restart => Ok(FaultKind::Restart { host }),
        K::PauseStorm => Ok(FaultKind::PauseStorm { host, class: read_class(text, t.class.as_ref())? }),
        K::Clock => read_clock(text, span, t, host),
        K::Packets => read_packets(text, span, t, host),
        K::Stall | K::Link | K::Drops => Ok(FaultKind::Stall { host }),
    }
}

/// A traffic class, 0 where none is given.
fn read_class(text: &Text<'_>, class: Option<&Spanned<u8>>) -> Result<u8, ScenarioError> {
    class.map_or(Ok(0), |class| text.class(class))
}

/// A fault in which a switch drops a share of its packets.
fn read_drops(text: &Text<'_>, span: &Range<usize>, t: &FaultTable) -> Result<FaultKind, ScenarioError> {
    let switch = text.need(span, "switch", t.switch.as_ref())?.get_ref().clone();
    Ok(FaultKind::Drops { switch, share: text.need(span, "share", t.share)?.0 })
}

/// A fault of a host's clock.
fn read_clock(text: &Text<'_>, span: &Range<usize>, t: &FaultTable, host: u32) -> Result<FaultKind, ScenarioError> {
    if t.offset.is_none() && t.drift.is_none() {
        return text.refuse(span.clone(), "offset is missing, and drift: a clock fault has one of them or both");
    }
    let (offset, drift) = (t.offset.unwrap_or_default().0, t.drift.unwrap_or_default().0);
    Ok(FaultKind::Clock { host, offset, drift })
}

/// A fault of some packets of a host.
fn read_packets(text: &Text<'_>, span: &Range<usize>, t: &FaultTable, host: u32) -> Result<FaultKind, ScenarioError> {
    let numbers = text.need(span, "numbers", t.numbers.as_ref())?;
    let count = numbers.get_ref().len();
    if !(1..=NUMBERS_MAX).contains(&count) {
        return text.refuse(numbers.span(), format!("numbers: {count} packets; expected 1 to {NUMBERS_MAX}"));
    }
    Ok(FaultKind::Packets { host, numbers: numbers.get_ref().clone(), fate: read_fate(text, span, t)? })
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
