//! A scenario: the file that says what is simulated, read into checked values.
//!
//! Everything wrong in a file is one sentence with line and key, and what was expected: [`ScenarioError`].

pub mod adapter;
pub mod file;
mod traffic;
pub mod value;

use crate::cpu::CpuProfile;
use crate::node::Verb;
use crate::run::PayloadMode;
use crate::topology;
use adapter::AdapterSettings;
use burst_base::RtoMode;
use burst_base::verbs::Mtu;
use burst_cc::{CcChoice, CcTable, ChoiceRank};
use burst_fabric::{CLASSES, PacketFate};
use file::{File, HostsTable};
use std::ops::Range;
use toml::Spanned;
use value::Delay;

/// Most hosts of a simulation.
pub const HOSTS_MAX: u32 = 4_096;
/// Most messages of a stream at one time, and most requests of a queue pair.
pub const DEPTH_MAX: u32 = 1_024;
/// Most hosts whose messages have real bytes.
const REAL_HOSTS_MAX: u32 = 64;
/// Most spine switches.
const SPINES_MAX: u32 = 256;
/// Trains that the buffer of a switch holds at least. A train takes its place as a whole, and two hosts whose trains fill a
/// buffer would drop each other's without end, although single packets would all have passed.
const TRAINS_MIN: u64 = 16;
/// Weights of deficit round robin in bytes.
const WEIGHTS: std::ops::RangeInclusive<u64> = 64..=16 << 20;
/// 4.096 us in picoseconds (IBA 9.7.6.1.3).
const ACK_TIMEOUT_UNIT: u64 = 4_096_000;
/// Shortest local ACK timeout where the scenario has none, as the exponent, and the round trips of the longest way that it is at
/// least: queues make round trips longer.
const TIMEOUT_MIN: u8 = 8;
const TIMEOUT_ROUND_TRIPS: u64 = 4;
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
    /// Settings of classes that are not those of all.
    pub classes: Vec<file::ClassTable>,
    /// Number of hosts.
    pub hosts: u32,
    /// Settings of hosts.
    pub node: NodeSettings,
    /// Hosts that stand for adapters.
    pub adapters: Vec<AdapterSettings>,
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
    /// Its largest window.
    pub window: u64,
    /// Whether selective repeat is used.
    pub selective: bool,
    /// Waits of loss recovery.
    pub rto: RtoMode,
    /// Most bytes of a train.
    pub train_bytes: u32,
    /// Bytes that the adapter's send queue holds.
    pub send_bytes: u64,
    /// Bytes of packets that wait for the worker; 0: any number.
    pub receive_bytes: u64,
    /// Local ACK timeout, IBA 9.7.6.1.3: 4.096 µs · 2^n.
    pub timeout: u8,
    /// Bytes of memory of each program, or of its addresses if it has none.
    pub memory: u64,
}

impl NodeSettings {
    /// The local ACK timeout in picoseconds.
    pub fn ack_timeout(&self) -> u64 {
        ACK_TIMEOUT_UNIT << self.timeout
    }
}

/// What a part of the traffic sends.
#[derive(Clone, Debug)]
pub struct TrafficPart {
    /// The pattern.
    pub pattern: Pattern,
    /// The request by which each message moves.
    pub verb: Verb,
    /// Class of its packets and acknowledgements, 0 to 7.
    pub class: u8,
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
    /// Each host sends one message to another one, and each host is sent one, every `every` (0: once).
    Permutation {
        /// Distance of the destination; `None`: a new random permutation in each round.
        shift: Option<u32>,
        /// Bytes of a message.
        bytes: u64,
        /// Picoseconds from one round to the next; 0: one round.
        every: u64,
    },
    /// All hosts reduce and gather `bytes` around a ring, again and again. A host begins a step when it has received the one
    /// before.
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
    /// From one beginning to the next, until the end of the traffic; 0: once.
    pub every: u64,
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
    /// The adapter of a host pauses a class all the time.
    PauseStorm {
        /// The host.
        host: u32,
        /// The class.
        class: u8,
    },
    /// A host restarts, and is down while the fault lasts, or for no time.
    Restart {
        /// The host.
        host: u32,
    },
    /// The clock of a host is set forward, and is faster or slower while the fault lasts.
    Clock {
        /// The host.
        host: u32,
        /// Picoseconds forward.
        offset: u64,
        /// Parts per million.
        drift: i32,
    },
    /// Packets that a host sends from then on have a fate.
    Packets {
        /// The host.
        host: u32,
        /// Their numbers, from 0.
        numbers: Vec<u64>,
        /// The fate.
        fate: PacketFate,
    },
}

/// The text of a scenario, for the lines of errors.
struct Text<'a>(&'a str);

impl Text<'_> {
    fn line(&self, span: &Range<usize>) -> usize {
        self.0[..span.start.min(self.0.len())].matches('\n').count() + 1
    }
    /// What TOML has refused, with the key of its line.
    fn not_toml(&self, error: &toml::de::Error) -> ScenarioError {
        let line = self.line(&error.span().unwrap_or(0..0));
        let key = self.0.lines().nth(line - 1).and_then(|text| text.split_once('=')).map_or("", |(key, _)| key.trim());
        let what = error.message().lines().next().unwrap_or("not TOML");
        let is_named = key.is_empty() || what.contains(&format!("`{key}`"));
        ScenarioError { line, what: if is_named { what.to_owned() } else { format!("{key}: {what}") } }
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
    fn class(&self, class: &Spanned<u8>) -> Result<u8, ScenarioError> {
        match *class.get_ref() {
            number if usize::from(number) < CLASSES => Ok(number),
            number => self.refuse(class.span(), format!("class: {number}; expected 0 to {}", CLASSES - 1)),
        }
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
        let file: File = toml::from_str(source).map_err(|error| text.not_toml(&error))?;
        let hosts = topology_hosts(&text, &file.topology)?;
        let payload = file.payload.as_ref().map_or(file::Payload::default(), |payload| *payload.get_ref());
        let mut node = node_settings(&text, &file.hosts, payload)?;
        let timeout_least = timeout_for(topology::round_trip_max(file.topology.get_ref(), hosts));
        node.timeout = file.hosts.get_ref().timeout.as_ref().map_or(timeout_least, |timeout| *timeout.get_ref());
        let (time, warm_up) = read_time(&text, &file)?;
        check_switches(&text, &file.switches)?;
        if let Some(buffer) = file.switches.buffer {
            node.train_bytes = node.train_bytes.min((buffer.0 / TRAINS_MIN).try_into().unwrap_or(u32::MAX));
        }
        check_classes(&text, &file.class, &file.switches)?;
        let adapters = adapter::read_adapters(&text, &file.adapter, hosts, node.window)?;
        let traffic: Vec<TrafficPart> = file
            .traffic
            .iter()
            .map(|table| traffic::read_traffic(&text, table, hosts, time))
            .collect::<Result<_, _>>()?;
        if traffic.is_empty() {
            return text.refuse(0..0, "[[traffic]] is missing: a scenario without traffic shows nothing");
        }
        let faults =
            file.fault.iter().map(|table| traffic::read_fault(&text, table, hosts, time)).collect::<Result<_, _>>()?;
        let payload = payload.mode();
        if payload == PayloadMode::Real {
            check_real(&text, file.payload.as_ref(), hosts)?;
        }
        let scenario = Scenario {
            name: file.name.unwrap_or_else(|| "scenario".into()),
            seed: file.seed.unwrap_or(1),
            time,
            warm_up,
            drain: file.drain.unwrap_or(Delay(100_000_000_000)).0,
            payload,
            topology: file.topology.into_inner(),
            links: file.links,
            switches: file.switches,
            classes: file.class.into_iter().map(Spanned::into_inner).collect(),
            hosts,
            node,
            adapters,
            traffic,
            faults,
            hash: fnv1a(source.as_bytes()),
        };
        check_names(&text, &scenario, &file.fault)?;
        Ok(scenario)
    }
}

/// How long the scenario lasts, and how much of it is not counted.
fn read_time(text: &Text<'_>, file: &File) -> Result<(u64, u64), ScenarioError> {
    let (time, warm_up) = (file.time.get_ref().0, file.warm_up.unwrap_or_default().0);
    if time == 0 || warm_up >= time {
        return text.refuse(file.time.span(), "time: expected more than 0 and more than warm_up");
    }
    Ok((time, warm_up))
}

/// Whether messages between so many hosts may have real bytes.
fn check_real(text: &Text<'_>, payload: Option<&Spanned<file::Payload>>, hosts: u32) -> Result<(), ScenarioError> {
    if hosts <= REAL_HOSTS_MAX {
        return Ok(());
    }
    let most = format!("payload: \"real\" is for {REAL_HOSTS_MAX} hosts at most, not {hosts}");
    text.refuse(payload.map_or(0..0, Spanned::span), format!("{most}; use \"pattern\" or \"void\""))
}

/// Checks that the network can be built, and that links and switches of faults exist in it.
fn check_names(
    text: &Text<'_>,
    scenario: &Scenario,
    faults: &[Spanned<file::FaultTable>],
) -> Result<(), ScenarioError> {
    let topology = topology::build(scenario).or_else(|what| text.refuse(0..0, format!("topology: {what}")))?;
    for (fault, table) in scenario.faults.iter().zip(faults) {
        if let Err((key, what)) = topology::check_fault(&fault.kind, &topology) {
            let t = table.get_ref();
            let at = t.link.as_ref().or(t.switch.as_ref()).map_or(table.span(), Spanned::span);
            return text.refuse(at, format!("{key}: {what}"));
        }
    }
    Ok(())
}

/// The default of `timeout` where the longest round trip takes so many picoseconds.
fn timeout_for(round_trip: u64) -> u8 {
    let least = round_trip.saturating_mul(TIMEOUT_ROUND_TRIPS);
    (TIMEOUT_MIN..31).find(|timeout| ACK_TIMEOUT_UNIT << timeout >= least).unwrap_or(31)
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

/// What a topology that cannot have so many hosts expects; `None`: they fit.
fn misfit(t: &file::TopologyTable, hosts: u32) -> Option<&'static str> {
    use file::TopologyKind as K;
    // Hosts stand in equal numbers on so many leaves or switches.
    let divided = |parts: Option<u32>, least: u32| parts.is_some_and(|n| n >= least && hosts.is_multiple_of(n));
    let (fits, expected) = match t.kind {
        K::Pair | K::Star => return None,
        K::Dumbbell => (hosts.is_multiple_of(2), "an even number of hosts, half of them on each side"),
        K::LeafSpine => (divided(t.leaves, 1), "leaves, with the same number of hosts on each"),
        K::Ring => {
            let switches = t.switches.as_ref().map(|all| *all.get_ref());
            (divided(switches, 3), "at least 3 switches, with the same number of hosts on each")
        }
        K::FatTree => ([16, 64, 256, 1_024, 4_096].contains(&hosts), "16, 64, 256, 1024 or 4096 hosts"),
    };
    (!fits).then_some(expected)
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
        K::Ring => ("ring", &["hosts", "switches", "fabric_rate"]),
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
    if let Some(expected) = misfit(t, hosts) {
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
    check_marks(text, table.ecn_min, &table.ecn_max)
}

fn check_marks(
    text: &Text<'_>,
    min: Option<value::Size>,
    max: &Option<Spanned<value::Size>>,
) -> Result<(), ScenarioError> {
    match (min, max) {
        (None, Some(max)) => text.refuse(max.span(), "ecn_max: without ecn_min"),
        (Some(min), Some(max)) if *max.get_ref() < min => text.refuse(max.span(), "ecn_max: less than ecn_min"),
        _ => Ok(()),
    }
}

fn check_classes(
    text: &Text<'_>,
    tables: &[Spanned<file::ClassTable>],
    switches: &file::SwitchesTable,
) -> Result<(), ScenarioError> {
    let mut known = [false; CLASSES];
    for table in tables {
        let t = table.get_ref();
        let class = text.class(&t.class)?;
        if std::mem::replace(&mut known[usize::from(class)], true) {
            return text.refuse(t.class.span(), format!("class: there are two tables of class {class}"));
        }
        if let Some(weight) = t.weight.as_ref().filter(|weight| !WEIGHTS.contains(&weight.get_ref().0)) {
            let (bytes, [least, most]) = (weight.get_ref().0, [WEIGHTS.start(), WEIGHTS.end()]);
            return text.refuse(weight.span(), format!("weight: {bytes} bytes; expected {least} to {most}"));
        }
        check_marks(text, t.ecn_min.or(switches.ecn_min), &t.ecn_max)?;
    }
    Ok(())
}

/// `cc` of the table at `span`.
fn read_choice(
    text: &Text<'_>,
    span: &Range<usize>,
    cc: &Option<Spanned<String>>,
    default: &str,
    window: u64,
) -> Result<CcChoice, ScenarioError> {
    let written = cc.as_ref().map_or(default, |cc| cc.get_ref());
    let span = cc.as_ref().map_or(span.clone(), Spanned::span);
    CcChoice::parse(written, window, ChoiceRank::Configured).or_else(|why| text.refuse(span, format!("cc: {why}")))
}

fn node_settings(
    text: &Text<'_>,
    table: &Spanned<HostsTable>,
    payload: file::Payload,
) -> Result<NodeSettings, ScenarioError> {
    let (span, t) = (table.span(), table.get_ref());
    let window = t.window.map_or(1 << 20, |size| size.0);
    let mut cc = CcTable::default();
    cc.set(None, read_choice(text, &span, &t.cc, "cubic", window)?);
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
    let timeout = t.timeout.as_ref().map_or(TIMEOUT_MIN, |timeout| *timeout.get_ref());
    if timeout > 31 {
        let span = t.timeout.as_ref().map_or(span, Spanned::span);
        return text.refuse(span, format!("timeout: {timeout}; expected 0 to 31 (4.096 us doubled so many times)"));
    }
    let rto = match &t.rto {
        None => RtoMode::default(),
        Some(word) => word.get_ref().parse().or_else(|()| {
            let expected = RtoMode::NAMES.join(", ");
            text.refuse(word.span(), format!("rto: {:?}; expected one of {expected}", word.get_ref()))
        })?,
    };
    let memory = match payload {
        file::Payload::Real => t.memory.map_or(4 << 20, |size| size.0.next_multiple_of(4_096).max(4_096)),
        // Each message has addresses of its own.
        file::Payload::Pattern => 1 << 60,
        file::Payload::Void => 1 << 40,
    };
    Ok(NodeSettings {
        cpu,
        mtu,
        cc,
        window,
        selective: t.selective_repeat.unwrap_or(true),
        rto,
        train_bytes: train,
        send_bytes: t.send_queue.map_or(1 << 20, |size| size.0),
        receive_bytes: t.receive_queue.map_or(cpu.receive_bytes, |size| size.0),
        timeout,
        memory,
    })
}

#[cfg(test)]
mod tests;
