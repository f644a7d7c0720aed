//! A scenario: the file that says what is simulated, read into checked values.
//!
//! Everything wrong in a file is one sentence with line and key, and what was expected: [`ScenarioError`].

pub mod file;
pub mod value;

use crate::cpu::CpuProfile;
use crate::node::Verb;
use crate::run::PayloadMode;
use burst_base::verbs::Mtu;
use burst_cc::{CcChoice, CcTable, ChoiceRank, Params};
use file::{FaultTable, File, HostsTable, TrafficTable};
use std::ops::Range;
use toml::Spanned;
use value::{Delay, Share};

/// Most hosts of a simulation.
pub const HOSTS_MAX: u32 = 4_096;
/// Most messages of a stream at one time.
const DEPTH_MAX: u32 = 1_024;
/// Most spine switches.
const SPINES_MAX: u32 = 256;
/// Largest message, which is one request: 1 GiB.
const MESSAGE_MAX: u64 = 1 << 30;

/// Why a scenario is refused, in one sentence that begins with the line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ScenarioError {
    /// Line of the file, from 1.
    pub line: usize,
    /// Key, what is wrong with it, what was expected.
    pub what: String,
}

/// A checked scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name for titles and results.
    pub name: String,
    /// Seed of everything random.
    pub seed: u64,
    /// Flows begin until then, in picoseconds.
    pub time: u64,
    /// Flows that begin earlier do not count.
    pub warm_up: u64,
    /// The simulation ends at the latest this long after `time`.
    pub drain: u64,
    /// What becomes of payload.
    pub payload: PayloadMode,
    /// Hosts and network.
    pub topology: file::TopologyTable,
    /// Impairments of links.
    pub links: file::LinksTable,
    /// Settings of switches.
    pub switches: file::SwitchesTable,
    /// Number of hosts.
    pub hosts: u32,
    /// Settings of hosts.
    pub node: NodeSettings,
    /// What is sent.
    pub traffic: Vec<TrafficPart>,
    /// What fails.
    pub faults: Vec<Fault>,
    /// FNV-1a of the file's text.
    pub hash: u64,
}

/// Settings of hosts.
#[derive(Clone, Copy, Debug)]
pub struct NodeSettings {
    /// What the processor costs.
    pub cpu: CpuProfile,
    /// Path MTU.
    pub mtu: Mtu,
    /// Congestion control.
    pub cc: CcTable,
    /// Whether selective repeat is used.
    pub selective: bool,
    /// Most bytes of a train.
    pub train_bytes: u32,
    /// Bytes that the adapter's send queue holds.
    pub send_bytes: u64,
    /// Bytes of packets that wait for the worker; 0: any number.
    pub receive_bytes: u64,
    /// Local ACK timeout, IBA 9.7.6.1.3: 4.096 µs · 2^n.
    pub timeout: u8,
    /// Bytes of memory of each program, if payload travels.
    pub memory: u64,
}

/// What a part of the traffic sends.
#[derive(Clone, Debug)]
pub struct TrafficPart {
    /// The pattern.
    pub pattern: Pattern,
    /// The request by which each message moves.
    pub verb: Verb,
    /// When it begins, in picoseconds.
    pub begin: u64,
    /// When its last message begins at the latest.
    pub end: u64,
}

/// Sizes of messages.
#[derive(Clone, Debug)]
pub enum Sizes {
    /// All have this many bytes.
    Fixed(u64),
    /// One of the published tables, by name.
    Table(String),
    /// Steps of a distribution: bytes and the share of messages that are at most that long.
    Own(Vec<(u64, f64)>),
}

/// A pattern of traffic.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// `depth` messages at a time on one connection, as perftest's.
    Stream {
        /// TrafficSource.
        from: u32,
        /// Destination.
        to: u32,
        /// Bytes of a message.
        bytes: u64,
        /// Messages at a time.
        depth: u32,
        /// Messages in all.
        count: u64,
    },
    /// Each host sends at random times to random others.
    Poisson {
        /// Sizes of messages.
        sizes: Sizes,
        /// Offered bytes over the rate of the host's link.
        load: f64,
    },
    /// `senders` hosts send one message each to `to` at the same time, every `every` (0: once).
    Incast {
        /// Destination.
        to: u32,
        /// Number of sources.
        senders: u32,
        /// Bytes of a message.
        bytes: u64,
        /// Picoseconds from one round to the next; 0: one round.
        every: u64,
    },
    /// Each host sends one message to each other host, every `every` (0: once).
    AllToAll {
        /// Bytes of a message.
        bytes: u64,
        /// Picoseconds from one round to the next; 0: one round.
        every: u64,
    },
    /// Each host sends one message to the host `shift` further on, every `every` (0: once).
    Permutation {
        /// Distance of the destination.
        shift: u32,
        /// Bytes of a message.
        bytes: u64,
        /// Picoseconds from one round to the next; 0: one round.
        every: u64,
    },
    /// All hosts reduce and gather `bytes` around a ring, again and again.
    Ring {
        /// Bytes that are reduced.
        bytes: u64,
    },
}

/// Something that fails at a time.
#[derive(Clone, Debug)]
pub struct Fault {
    /// When, in picoseconds.
    pub at: u64,
    /// How long; 0: until the end.
    pub lasts: u64,
    /// What.
    pub kind: FaultKind,
}

/// What fails.
#[derive(Clone, Debug)]
pub enum FaultKind {
    /// The link of this name is down.
    Link(String),
    /// The switch of this name drops this share of packets.
    Drops {
        /// The switch.
        switch: String,
        /// Share of trains.
        share: f64,
    },
    /// The adapter of a host sends and receives nothing.
    Stall {
        /// The host.
        host: u32,
    },
}

/// The text of a scenario, for the lines of errors.
struct Text<'a>(&'a str);

impl Text<'_> {
    fn line(&self, span: &Range<usize>) -> usize {
        self.0[..span.start.min(self.0.len())].matches('\n').count() + 1
    }
    fn refuse<T>(&self, span: Range<usize>, what: impl Into<String>) -> Result<T, ScenarioError> {
        Err(ScenarioError { line: self.line(&span), what: what.into() })
    }
    /// The value, or that the key is missing in the table at `span`.
    fn need<T>(&self, span: &Range<usize>, key: &str, value: Option<T>) -> Result<T, ScenarioError> {
        match value {
            Some(value) => Ok(value),
            None => self.refuse(span.clone(), format!("{key} is missing")),
        }
    }
    fn host(&self, key: &str, host: &Spanned<u32>, hosts: u32) -> Result<u32, ScenarioError> {
        let number = *host.get_ref();
        if number < hosts {
            return Ok(number);
        }
        self.refuse(host.span(), format!("{key}: there is no host {number}; the hosts are 0 to {}", hosts - 1))
    }
    fn message(&self, key: &str, size: &Spanned<value::Size>) -> Result<u64, ScenarioError> {
        match size.get_ref().0 {
            bytes @ 1..=MESSAGE_MAX => Ok(bytes),
            bytes => self.refuse(size.span(), format!("{key}: a message of {bytes} bytes; expected 1 byte to 1 GiB")),
        }
    }
}

impl Scenario {
    /// Reads a scenario.
    ///
    /// # Errors
    /// [`ScenarioError`]: the first thing that is wrong.
    pub fn parse(source: &str) -> Result<Scenario, ScenarioError> {
        let text = Text(source);
        let file: File = toml::from_str(source).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let line = source.lines().nth(text.line(&span) - 1).unwrap_or_default();
            let key = line.split_once('=').map(|(key, _)| key.trim()).filter(|key| !key.is_empty());
            let what = error.message().lines().next().unwrap_or("not TOML").to_owned();
            let what = match key {
                Some(key) if !what.contains(&format!("`{key}`")) => format!("{key}: {what}"),
                _ => what,
            };
            ScenarioError { line: text.line(&span), what }
        })?;
        let hosts = topology_hosts(&text, &file.topology)?;
        let node = node_settings(&text, &file.hosts, file.payload.unwrap_or_default())?;
        let (time, warm_up) = (file.time.get_ref().0, file.warm_up.unwrap_or_default().0);
        if time == 0 || warm_up >= time {
            return text.refuse(file.time.span(), "time: expected more than 0 and more than warm_up");
        }
        check_switches(&text, &file.switches)?;
        let mut traffic = Vec::new();
        for table in &file.traffic {
            traffic.push(read_traffic(&text, table, hosts, time)?);
        }
        if traffic.is_empty() {
            return text.refuse(0..0, "[[traffic]] is missing: a scenario without traffic shows nothing");
        }
        let faults = file.fault.iter().map(|table| read_fault(&text, table, hosts)).collect::<Result<_, _>>()?;
        let payload = file.payload.unwrap_or_default().mode();
        if payload == PayloadMode::Real && hosts > 64 {
            return text.refuse(0..0, format!("payload: \"real\" is for 64 hosts at most, not {hosts}; use \"void\""));
        }
        Ok(Scenario {
            name: file.name.unwrap_or_else(|| "scenario".into()),
            seed: file.seed.unwrap_or(1),
            time,
            warm_up,
            drain: file.drain.unwrap_or(Delay(100_000_000_000)).0,
            payload,
            topology: file.topology.into_inner(),
            links: file.links,
            switches: file.switches,
            hosts,
            node,
            traffic,
            faults,
            hash: fnv1a(source.as_bytes()),
        })
    }
}

/// FNV-1a, 64 bits.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Checks that a table has no key that its kind does not use.
fn only(text: &Text<'_>, span: &Range<usize>, kind: &str, given: &[&str], used: &[&str]) -> Result<(), ScenarioError> {
    match given.iter().find(|key| !used.contains(key)) {
        Some(key) => text
            .refuse(span.clone(), format!("{key} has no meaning for kind \"{kind}\", which has: {}", used.join(", "))),
        None => Ok(()),
    }
}

fn topology_hosts(text: &Text<'_>, table: &Spanned<file::TopologyTable>) -> Result<u32, ScenarioError> {
    use file::TopologyKind as K;
    let (span, t) = (table.span(), table.get_ref());
    let given = t.given();
    let common = ["kind", "rate", "delay"];
    let (name, own): (&str, &[&str]) = match t.kind {
        K::Pair => ("pair", &[]),
        K::Star => ("star", &["hosts"]),
        K::Dumbbell => ("dumbbell", &["hosts", "fabric_rate"]),
        K::LeafSpine => ("leaf-spine", &["hosts", "leaves", "spines", "fabric_rate"]),
        K::FatTree => ("fat-tree", &["hosts", "fabric_rate"]),
    };
    only(text, &span, name, &given, &[&common[..], own].concat())?;
    let hosts = match (t.kind, &t.hosts) {
        (K::Pair, _) => 2,
        (_, Some(hosts)) => {
            let number = *hosts.get_ref();
            if !(2..=HOSTS_MAX).contains(&number) {
                return text.refuse(hosts.span(), format!("hosts: {number} hosts; expected 2 to {HOSTS_MAX}"));
            }
            number
        }
        (_, None) => return text.need(&span, "hosts", None),
    };
    let fits = match t.kind {
        K::Dumbbell => hosts.is_multiple_of(2),
        K::LeafSpine => t.leaves.is_some_and(|leaves| leaves > 0 && hosts.is_multiple_of(leaves)),
        K::FatTree => [16, 64, 256, 1_024, 4_096].contains(&hosts),
        K::Pair | K::Star => true,
    };
    if !fits {
        let expected = match t.kind {
            K::Dumbbell => "an even number of hosts, half of them on each side",
            K::LeafSpine => "leaves, with the same number of hosts on each",
            _ => "16, 64, 256, 1024 or 4096 hosts",
        };
        return text.refuse(span, format!("hosts: {hosts} hosts do not fit kind \"{name}\"; expected {expected}"));
    }
    if t.kind == K::LeafSpine {
        let spines = text.need(&span, "spines", t.spines.as_ref())?;
        if !(1..=SPINES_MAX).contains(spines.get_ref()) {
            return text.refuse(spines.span(), format!("spines: {}; expected 1 to {SPINES_MAX}", spines.get_ref()));
        }
    }
    Ok(hosts)
}

fn check_switches(text: &Text<'_>, table: &file::SwitchesTable) -> Result<(), ScenarioError> {
    if let Some(alpha) = table.alpha.as_ref().filter(|alpha| !(0.001..=1_000.0).contains(alpha.get_ref())) {
        return text.refuse(alpha.span(), format!("alpha: {}; expected 0.001 to 1000", alpha.get_ref()));
    }
    match (&table.ecn_min, &table.ecn_max) {
        (None, Some(max)) => text.refuse(max.span(), "ecn_max: without ecn_min"),
        (Some(min), Some(max)) if max.get_ref() < min => text.refuse(max.span(), "ecn_max: less than ecn_min"),
        _ => Ok(()),
    }
}

fn node_settings(
    text: &Text<'_>,
    table: &Spanned<HostsTable>,
    payload: file::Payload,
) -> Result<NodeSettings, ScenarioError> {
    let (span, t) = (table.span(), table.get_ref());
    let window = t.window.map_or(1 << 20, |size| size.0);
    let cc_text = t.cc.as_ref().map_or("aimd", |cc| cc.get_ref());
    let params = match Params::parse(cc_text, window) {
        Ok(params) => params,
        Err(why) => return text.refuse(t.cc.as_ref().map_or(span, Spanned::span), format!("cc: {why}")),
    };
    let mut cc = CcTable::default();
    cc.set(None, CcChoice { params, rank: ChoiceRank::Configured });
    let mtu = t.mtu.as_ref().map_or(4_096, |mtu| *mtu.get_ref());
    let Some(mtu) = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096].into_iter().find(|m| m.bytes() == mtu)
    else {
        let span = t.mtu.as_ref().map_or(span, Spanned::span);
        return text.refuse(span, format!("mtu: {mtu}; expected 256, 512, 1024, 2048 or 4096"));
    };
    let name = t.cpu.as_ref().map_or("ideal", |cpu| cpu.get_ref());
    let Some(cpu) = CpuProfile::ALL.into_iter().find(|cpu| cpu.name == name) else {
        let all = CpuProfile::ALL.map(|cpu| cpu.name).join(", ");
        return text.refuse(
            t.cpu.as_ref().map_or(span, Spanned::span),
            format!("cpu: there is no profile \"{name}\"; expected one of {all}"),
        );
    };
    let train = t.train.map_or(64 << 10, |size| size.0).min(1 << 20) as u32;
    let timeout = t.timeout.as_ref().map_or(8, |timeout| *timeout.get_ref());
    if timeout > 31 {
        let span = t.timeout.as_ref().map_or(span, Spanned::span);
        return text.refuse(span, format!("timeout: {timeout}; expected 0 to 31 (4.096 us doubled so many times)"));
    }
    let memory = match payload {
        file::Payload::Real => t.memory.map_or(4 << 20, |size| size.0.next_multiple_of(4_096).max(4_096)),
        file::Payload::Void => 1 << 40,
    };
    Ok(NodeSettings {
        cpu,
        mtu,
        cc,
        selective: t.selective_repeat.unwrap_or(true),
        train_bytes: train,
        send_bytes: t.send_queue.map_or(1 << 20, |size| size.0),
        receive_bytes: t.receive_queue.map_or(cpu.receive_bytes, |size| size.0),
        timeout,
        memory,
    })
}

fn read_traffic(
    text: &Text<'_>,
    table: &Spanned<TrafficTable>,
    hosts: u32,
    time: u64,
) -> Result<TrafficPart, ScenarioError> {
    use file::TrafficKind as K;
    let (span, t) = (table.span(), table.get_ref());
    let common = ["kind", "verb", "begin", "end"];
    let (name, own): (&str, &[&str]) = match t.kind {
        K::Stream => ("stream", &["from", "to", "size", "depth", "count"]),
        K::Poisson => ("poisson", &["sizes", "size", "load"]),
        K::Incast => ("incast", &["to", "senders", "size", "every"]),
        K::AllToAll => ("all-to-all", &["size", "every"]),
        K::Permutation => ("permutation", &["shift", "size", "every"]),
        K::Ring => ("ring", &["size"]),
    };
    only(text, &span, name, &t.given(), &[&common[..], own].concat())?;
    let size = || match &t.size {
        Some(size) => text.message("size", size),
        None => text.need(&span, "size", None),
    };
    let host = |key: &str, host: &Option<Spanned<u32>>, default: Option<u32>| match (host, default) {
        (Some(host), _) => text.host(key, host, hosts),
        (None, Some(default)) => Ok(default),
        (None, None) => text.need(&span, key, None),
    };
    let every = t.every.unwrap_or_default().0;
    let pattern = match t.kind {
        K::Stream => {
            let (from, to) = (host("from", &t.from, Some(0))?, host("to", &t.to, Some(1))?);
            if from == to {
                return text.refuse(span, format!("to: host {to} would send to itself"));
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
        K::Poisson => Pattern::Poisson { sizes: read_sizes(text, &span, t)?, load: read_load(text, &span, t)? },
        K::Incast => {
            let to = host("to", &t.to, Some(0))?;
            let senders = t.senders.as_ref().map_or(hosts - 1, |senders| *senders.get_ref());
            if senders == 0 || senders >= hosts {
                let span = t.senders.as_ref().map_or(span, Spanned::span);
                return text.refuse(span, format!("senders: {senders}; expected 1 to {}", hosts - 1));
            }
            Pattern::Incast { to, senders, bytes: size()?, every }
        }
        K::AllToAll => Pattern::AllToAll { bytes: size()?, every },
        K::Permutation => {
            let shift = t.shift.as_ref().map_or(hosts / 2, |shift| *shift.get_ref());
            if shift == 0 || shift >= hosts {
                let span = t.shift.as_ref().map_or(span, Spanned::span);
                return text.refuse(span, format!("shift: {shift}; expected 1 to {}", hosts - 1));
            }
            Pattern::Permutation { shift, bytes: size()?, every }
        }
        K::Ring => Pattern::Ring { bytes: size()? },
    };
    let (begin, end) = (t.begin.unwrap_or_default().0, t.end.map_or(time, |end| end.0.min(time)));
    if begin >= end {
        return text.refuse(table.span(), "begin: not before the end of the traffic");
    }
    Ok(TrafficPart { pattern, verb: t.verb.unwrap_or_default().verb(), begin, end })
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

fn read_fault(text: &Text<'_>, table: &Spanned<FaultTable>, hosts: u32) -> Result<Fault, ScenarioError> {
    use file::FaultKindName as K;
    let (span, t) = (table.span(), table.get_ref());
    let common = ["kind", "at", "for"];
    let (name, own): (&str, &[&str]) = match t.kind {
        K::Link => ("link-down", &["link"]),
        K::Drops => ("drops", &["switch", "share"]),
        K::Stall => ("stall", &["host"]),
    };
    only(text, &span, name, &t.given(), &[&common[..], own].concat())?;
    let kind = match t.kind {
        K::Link => FaultKind::Link(text.need(&span, "link", t.link.clone())?),
        K::Drops => FaultKind::Drops {
            switch: text.need(&span, "switch", t.switch.clone())?,
            share: text.need(&span, "share", t.share)?.0,
        },
        K::Stall => FaultKind::Stall { host: text.host("host", text.need(&span, "host", t.host.as_ref())?, hosts)? },
    };
    Ok(Fault { at: t.at.0, lasts: t.lasts.unwrap_or_default().0, kind })
}

#[cfg(test)]
mod tests;
