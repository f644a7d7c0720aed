//! The grammar of port specifications, and the options of each kind of port.
//!
//! ```text
//! SPEC    = { "impair:" OPTIONS "/" } KIND [ ":" OPTIONS ]
//! KIND    = "udp" | "packet" | "dpdk"
//! OPTIONS = key=value { "," key=value }
//! ```
//! Examples: `udp`, `udp:dev=eth0`, `udp:dev=lo,addr=127.0.0.2`, `packet:dev=eth0`, `impair:loss=1%,seed=7/udp:dev=eth0`.
//!
//! The options of each kind are the rows of one table ([`UDP_OPTIONS`], [`PACKET_OPTIONS`], [`DPDK_OPTIONS`],
//! [`IMPAIR_OPTIONS`]): key, value, help, and a function that sets the option. Parsing, error texts and documentation use these
//! tables only. A rate is written as `1%`, `5‰`, `300ppm` or a fraction `0.01`; a time as `100us`, `1ms`, `50ns`; a size as `4M`,
//! `512K` or bytes.

use crate::error::PortError;
use crate::{Encapsulation, PacketChecksum};
use core::fmt;
use core::str::FromStr;
use std::net::IpAddr;
use std::time::Duration;

mod devargs;
mod dpdk;
mod placement;

pub use devargs::{DevArgs, DriverTraits, Pages};
pub use dpdk::{DPDK_OPTIONS, DpdkSpec};
pub use placement::{CPU_MAX, PortPlacement};
use placement::{Placed, cpus_row, workers_row};

/// Most wrappers around one port.
pub const WRAPPERS_MAX: usize = 4;

/// A parsed port specification.
#[derive(Clone, Debug, PartialEq)]
pub struct PortSpec {
    /// Wrappers, outermost first.
    pub impair: Vec<ImpairSpec>,
    /// The port itself.
    pub kind: PortKind,
    /// The text that the user wrote.
    text: String,
}

/// The kinds of ports that a specification can name.
#[derive(Clone, Debug, PartialEq)]
pub enum PortKind {
    /// UDP sockets on an interface's addresses.
    Udp(UdpSpec),
    /// Whole frames on an interface.
    Packet(PacketSpec),
    /// A device of DPDK.
    Dpdk(DpdkSpec),
}

impl UdpSpec {
    /// The encapsulation with this specification's UDP port and checksum.
    pub fn encapsulation(&self, encapsulation: &Encapsulation) -> Encapsulation {
        let checksum = if self.no_icrc { PacketChecksum::None } else { encapsulation.checksum };
        let udp_port = self.udp_port.unwrap_or(encapsulation.udp_port);
        Encapsulation { udp_port, checksum, ..*encapsulation }
    }
}

impl PortSpec {
    /// The same on an interface of this name. The text stays as the user wrote it.
    #[must_use]
    pub fn on_interface(mut self, ifname: &str) -> PortSpec {
        match &mut self.kind {
            PortKind::Udp(udp) => udp.dev = Some(ifname.to_owned()),
            PortKind::Packet(packet) => packet.dev = Some(ifname.to_owned()),
            PortKind::Dpdk(_) => {}
        }
        self
    }

    /// The same with one address only. On a DPDK device it must be one of those that the device is given; if it is not, the port
    /// has none.
    #[must_use]
    pub fn at(&self, address: IpAddr) -> PortSpec {
        let mut spec = self.clone();
        match &mut spec.kind {
            PortKind::Udp(udp) => udp.addr = Some(address),
            PortKind::Packet(packet) => packet.addr = Some(address),
            PortKind::Dpdk(dpdk) => dpdk.addrs.retain(|prefix| prefix.ip == address),
        }
        spec
    }
}

impl PortKind {
    /// Whether packets to the port's own addresses are looped back in the daemon ([`crate::loopback`]).
    pub fn loops_back(&self) -> bool {
        match self {
            PortKind::Udp(udp) => udp.loopback,
            PortKind::Packet(packet) => packet.loopback,
            PortKind::Dpdk(dpdk) => dpdk.loopback,
        }
    }

    /// The workers that have the port's queue pairs, and their processors.
    pub fn placement(&self) -> &PortPlacement {
        match self {
            PortKind::Udp(udp) => &udp.placement,
            PortKind::Packet(packet) => &packet.placement,
            PortKind::Dpdk(dpdk) => &dpdk.placement,
        }
    }
}

impl Placed for UdpSpec {
    fn placement(&mut self) -> &mut PortPlacement {
        &mut self.placement
    }
}

impl Placed for PacketSpec {
    fn placement(&mut self) -> &mut PortPlacement {
        &mut self.placement
    }
}

/// Help of the option `loopback` of all kinds.
const LOOPBACK: &str =
    "packets to its own addresses are looped back in the daemon; off: they are sent below, where captures see them";

/// Options of `packet`.
#[derive(Clone, Debug, PartialEq)]
pub struct PacketSpec {
    /// Interface; `None`: chosen as for [`UdpSpec::dev`].
    pub dev: Option<String>,
    /// The only address to serve; `None`: all of the interface's.
    pub addr: Option<IpAddr>,
    /// Whether to send trains.
    pub gso: bool,
    /// Whether to accept trains that were joined on the way, in which only the ICRC tells the IPv4 identifications.
    pub gro: bool,
    /// Receive buffer in bytes.
    pub rcvbuf: u32,
    /// Send buffer in bytes.
    pub sndbuf: u32,
    /// Whether packets to own addresses are looped back in the daemon.
    pub loopback: bool,
    /// Workers and processors.
    pub placement: PortPlacement,
}

impl Default for PacketSpec {
    fn default() -> Self {
        PacketSpec {
            dev: None,
            addr: None,
            gso: true,
            gro: true,
            rcvbuf: 8 << 20,
            sndbuf: 4 << 20,
            loopback: true,
            placement: PortPlacement::default(),
        }
    }
}

/// Options of `udp`.
#[derive(Clone, Debug, PartialEq)]
pub struct UdpSpec {
    /// Interface; `None`: the default route's, else the first that is up and has an address, else `lo`.
    pub dev: Option<String>,
    /// The only address to serve; `None`: all of the interface's.
    pub addr: Option<IpAddr>,
    /// Whether to send trains by UDP_SEGMENT.
    pub gso: bool,
    /// Whether to receive trains by UDP_GRO.
    pub gro: bool,
    /// Whether to refuse IPv4 identifications that cannot be predicted, instead of recovering them from the ICRC.
    pub strict_id: bool,
    /// Whether to leave out the ICRC; for measurements only, because no other stack accepts such packets.
    pub no_icrc: bool,
    /// Receive buffer of the socket in bytes.
    pub rcvbuf: u32,
    /// Send buffer of the socket in bytes.
    pub sndbuf: u32,
    /// UDP port; `None`: the encapsulation's. Tests use others.
    pub udp_port: Option<u16>,
    /// Whether packets to own addresses are looped back in the daemon.
    pub loopback: bool,
    /// Workers and processors.
    pub placement: PortPlacement,
}

impl Default for UdpSpec {
    fn default() -> Self {
        UdpSpec {
            dev: None,
            addr: None,
            gso: true,
            gro: true,
            strict_id: false,
            no_icrc: false,
            rcvbuf: 8 << 20,
            sndbuf: 4 << 20,
            udp_port: None,
            loopback: true,
            placement: PortPlacement::default(),
        }
    }
}

/// The direction in which an impairment acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Direction {
    /// Sent and received frames.
    #[default]
    Both,
    /// Sent frames.
    Tx,
    /// Received frames.
    Rx,
}

/// A probability in parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Ppm(pub u32);

impl Ppm {
    /// Probability 1.
    pub const ONE: Ppm = Ppm(1_000_000);
}

/// Options of `impair`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImpairSpec {
    /// Rate of lost frames.
    pub loss: Ppm,
    /// Rate of frames that are delivered twice.
    pub dup: Ppm,
    /// Rate of frames that are delayed so that later ones overtake them.
    pub reorder: Ppm,
    /// Rate of corrupted frames, which the receiver drops as `BadIcrc`.
    pub corrupt: Ppm,
    /// Rate of ECN-capable frames that are marked CE.
    pub ecn: Ppm,
    /// Delay of every frame in nanoseconds.
    pub delay_ns: u64,
    /// Largest additional random delay in nanoseconds, uniformly distributed. Frames are reordered when it exceeds the gaps
    /// between them.
    pub jitter_ns: u64,
    /// Rate of a simulated link in bit/s, Ethernet's overhead included; 0: no link is simulated.
    pub rate: u64,
    /// Bytes that the queue before the link takes; frames that do not fit are dropped.
    pub queue: u32,
    /// Bytes in the queue above which ECN-capable frames begin to be marked CE. Alone it is a step.
    pub kmin: Option<u32>,
    /// Bytes in the queue above which every ECN-capable frame is marked CE.
    pub kmax: Option<u32>,
    /// Probability of a mark at `kmax`; it rises from 0 at `kmin`.
    pub pmax: Ppm,
    /// Seed of the random sequence.
    pub seed: u64,
    /// Direction.
    pub dir: Direction,
}

impl Default for ImpairSpec {
    fn default() -> ImpairSpec {
        ImpairSpec {
            loss: Ppm(0),
            dup: Ppm(0),
            reorder: Ppm(0),
            corrupt: Ppm(0),
            ecn: Ppm(0),
            delay_ns: 0,
            jitter_ns: 0,
            rate: 0,
            queue: 1 << 20,
            kmin: None,
            kmax: None,
            pmax: Ppm::ONE,
            seed: 1,
            dir: Direction::Both,
        }
    }
}

impl ImpairSpec {
    /// The options in `text`, separated by commas, as between `impair:` and `/` of a port's specification.
    ///
    /// # Errors
    /// A sentence that names the option and what it may be.
    pub fn parse(text: &str) -> Result<ImpairSpec, PortError> {
        apply(ImpairSpec::default(), IMPAIR_OPTIONS, "impair", text).map_err(PortError::Spec)
    }
}

/// One option of a kind of port.
pub struct OptionRow<S: 'static> {
    /// The key.
    pub key: &'static str,
    /// Form of the value.
    pub value: &'static str,
    /// One line of help.
    pub help: &'static str,
    set: fn(&mut S, &str) -> Result<(), String>,
}

/// A row whose value one function reads into one field.
macro_rules! option {
    ($key:literal, $value:literal, $help:expr, $field:ident = $read:ident) => {
        OptionRow { key: $key, value: $value, help: $help, set: |s, v| set(&mut s.$field, $read(v)) }
    };
}

/// Options of `udp`.
pub const UDP_OPTIONS: &[OptionRow<UdpSpec>] = &[
    option!(
        "dev",
        "IFACE",
        "network interface; default: that of the default route, else the first with an address, else lo",
        dev = name
    ),
    option!("addr", "IP", "only this address of the interface", addr = address),
    option!("gso", "on|off", "send trains of packets by one call (UDP_SEGMENT)", gso = switch),
    option!("gro", "on|off", "receive trains of packets by one call (UDP_GRO)", gro = switch),
    option!("strict_id", "on|off", "refuse packets whose IPv4 identification cannot be predicted", strict_id = switch),
    option!(
        "no_icrc",
        "on|off",
        "neither compute nor verify the ICRC: for measurements between two such ports only",
        no_icrc = switch
    ),
    option!("rcvbuf", "SIZE", "socket receive buffer", rcvbuf = size),
    option!("sndbuf", "SIZE", "socket send buffer", sndbuf = size),
    option!("udp_port", "PORT", "UDP port; RoCEv2 peers use 4791 only", udp_port = udp_port),
    option!("loopback", "on|off", LOOPBACK, loopback = switch),
    workers_row(),
    cpus_row(),
];

/// Options of `packet`.
pub const PACKET_OPTIONS: &[OptionRow<PacketSpec>] = &[
    option!("dev", "IFACE", "Ethernet interface, VLAN interfaces included; default: as for udp", dev = name),
    option!("addr", "IP", "only this address of the interface", addr = address),
    option!("gso", "on|off", "send trains of packets as one frame that the kernel or the NIC segments", gso = switch),
    option!(
        "gro",
        "on|off",
        "accept trains joined on the way whose IPv4 identifications do not count up",
        gro = switch
    ),
    option!("rcvbuf", "SIZE", "socket receive buffer", rcvbuf = size),
    option!("sndbuf", "SIZE", "socket send buffer", sndbuf = size),
    option!("loopback", "on|off", LOOPBACK, loopback = switch),
    workers_row(),
    cpus_row(),
];

/// Options of `impair`.
pub const IMPAIR_OPTIONS: &[OptionRow<ImpairSpec>] = &[
    option!("loss", "RATE", "frames lost", loss = rate),
    option!("dup", "RATE", "frames delivered twice", dup = rate),
    option!("reorder", "RATE", "frames overtaken by later ones", reorder = rate),
    option!("corrupt", "RATE", "frames corrupted, so that the receiver drops them", corrupt = rate),
    option!("ecn", "RATE", "ECN-capable frames marked CE", ecn = rate),
    option!("delay", "TIME", "delay of every frame", delay_ns = time_ns),
    option!("jitter", "TIME", "largest additional random delay", jitter_ns = time_ns),
    option!("rate", "BITRATE", "simulated link of this rate (10Gbit), behind a queue", rate = bit_rate),
    option!("queue", "SIZE", "queue before the link; frames that do not fit are dropped; default 1MiB", queue = size),
    option!(
        "kmin",
        "SIZE",
        "queue from which on ECN-capable frames are marked CE; alone it is a step",
        kmin = some_size
    ),
    option!("kmax", "SIZE", "queue above which every ECN-capable frame is marked CE", kmax = some_size),
    option!("pmax", "RATE", "part of the frames marked at kmax, rising from none at kmin; default 100%", pmax = rate),
    option!("seed", "NUMBER", "seed of the random sequence", seed = number),
    option!("dir", "both|tx|rx", "direction of the frames that it affects", dir = direction),
];

/// Names of kinds of ports and wrappers, for error texts.
const KINDS: &[&str] = &["udp", "packet", "dpdk", "impair"];
/// A word with a larger edit distance from every kind is taken for an interface's name.
const KIND_EDITS_MAX: usize = 2;

impl PortSpec {
    /// Parses a specification.
    ///
    /// # Errors
    /// [`PortError::Spec`]: one sentence that names the wrong word and the nearest valid one.
    pub fn parse(text: &str) -> Result<PortSpec, PortError> {
        parse(text).map_err(|why| PortError::Spec(format!("port '{text}': {why}")))
    }
    /// A `udp` port without wrappers.
    pub fn udp(udp: UdpSpec) -> PortSpec {
        let text = match &udp.dev {
            Some(dev) => format!("udp:dev={dev}"),
            None => "udp".to_owned(),
        };
        PortSpec { impair: Vec::new(), kind: PortKind::Udp(udp), text }
    }
}

impl FromStr for PortSpec {
    type Err = PortError;
    fn from_str(text: &str) -> Result<Self, PortError> {
        PortSpec::parse(text)
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn parse(text: &str) -> Result<PortSpec, String> {
    let mut impair = Vec::new();
    let mut rest = text.trim();
    loop {
        // The arguments of a DPDK device may contain slashes.
        if let Some(options) = rest.strip_prefix("dpdk:").or_else(|| (rest == "dpdk").then_some("")) {
            let kind = PortKind::Dpdk(dpdk::parse(options)?);
            return Ok(PortSpec { impair, kind, text: text.trim().to_owned() });
        }
        let (part, after) = rest.split_once('/').unwrap_or((rest, ""));
        let last = part.len() == rest.len();
        rest = after;
        let (kind, options) = part.split_once(':').unwrap_or((part, ""));
        match kind.trim() {
            "impair" if !last => {
                if impair.len() == WRAPPERS_MAX {
                    return Err(format!("more than {WRAPPERS_MAX} wrappers"));
                }
                impair.push(apply(ImpairSpec::default(), IMPAIR_OPTIONS, kind, options)?);
            }
            "impair" => return Err("'impair' wraps a port: write impair:OPTIONS/udp:OPTIONS".into()),
            "udp" if last => {
                let udp = apply(UdpSpec::default(), UDP_OPTIONS, kind, options)?;
                return Ok(PortSpec { impair, kind: PortKind::Udp(udp), text: text.trim().to_owned() });
            }
            "packet" if last => {
                let packet = apply(PacketSpec::default(), PACKET_OPTIONS, kind, options)?;
                return Ok(PortSpec { impair, kind: PortKind::Packet(packet), text: text.trim().to_owned() });
            }
            "udp" | "packet" => return Err(format!("'{}' must come last", kind.trim())),
            other => {
                return Err(unknown_kind(other));
            }
        }
    }
}

/// The error for a word that is not a kind. A word unlike all kinds is probably the interface's name.
fn unknown_kind(word: &str) -> String {
    let lower = word.to_ascii_lowercase();
    let near = nearest(&lower, KINDS.iter().copied());
    let sentence = format!("unknown kind '{word}'; did you mean '{near}'");
    let is_name = !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "._-@".contains(c));
    if is_name && burst_grammar::nearest_within(&lower, KINDS.iter().copied(), KIND_EDITS_MAX).is_none() {
        return format!("unknown kind '{word}'; did you mean 'udp:dev={word}'?");
    }
    sentence + "?"
}

/// Sets every `key=value` of `options` by the table.
fn apply<S>(mut spec: S, table: &'static [OptionRow<S>], kind: &str, options: &str) -> Result<S, String> {
    for option in options.split(',').map(str::trim).filter(|o| !o.is_empty()) {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let key = key.trim();
        let Some(row) = table.iter().find(|row| row.key == key) else {
            let near = nearest(key, table.iter().map(|row| row.key));
            // A word without a value may be meant as the interface's name.
            let bare = option == key && table.iter().any(|row| row.key == "dev");
            let or = if bare { format!(" or '{kind}:dev={key}'") } else { String::new() };
            return Err(format!("{kind} has no option '{key}'; did you mean '{near}'{or}?"));
        };
        (row.set)(&mut spec, value.trim())
            .map_err(|why| format!("{key}={value}: '{value}' {why}; write {key}={}", row.value))?;
    }
    Ok(spec)
}

/// The candidate most similar to `word`.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> &'a str {
    burst_grammar::nearest(word, candidates).unwrap_or("")
}

fn set<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

fn nonempty(v: &str) -> Result<&str, String> {
    if v.is_empty() { Err("is empty".into()) } else { Ok(v) }
}

fn name(v: &str) -> Result<Option<String>, String> {
    nonempty(v).map(|v| Some(v.to_owned()))
}

fn address(v: &str) -> Result<Option<IpAddr>, String> {
    v.parse().map(Some).map_err(|_| "is not an IP address".into())
}

fn udp_port(v: &str) -> Result<Option<u16>, String> {
    v.parse().ok().filter(|&p| p != 0).map(Some).ok_or("is not a port from 1 to 65535".into())
}

fn number(v: &str) -> Result<u64, String> {
    v.parse().map_err(|_| "is not a number".into())
}

fn direction(v: &str) -> Result<Direction, String> {
    match v {
        "both" => Ok(Direction::Both),
        "tx" => Ok(Direction::Tx),
        "rx" => Ok(Direction::Rx),
        _ => Err("is not both, tx or rx".into()),
    }
}

fn switch(v: &str) -> Result<bool, String> {
    if v.is_empty() { Ok(true) } else { burst_grammar::switch(v).ok_or_else(|| "is neither on nor off".into()) }
}

fn rate(v: &str) -> Result<Ppm, String> {
    Ok(Ppm(burst_grammar::parts_per_million(v)?))
}

fn bit_rate(v: &str) -> Result<u64, String> {
    Ok(burst_grammar::bits_per_second(v)?)
}

fn some_size(v: &str) -> Result<Option<u32>, String> {
    size(v).map(Some)
}

fn time_ns(v: &str) -> Result<u64, String> {
    const TIME_MAX: Duration = Duration::from_secs(3600);
    match burst_grammar::duration(v)? {
        time if time <= TIME_MAX => Ok(time.as_nanos() as u64),
        _ => Err("is longer than 1h".into()),
    }
}

fn size(v: &str) -> Result<u32, String> {
    const SIZE_MAX: u64 = 1 << 30;
    match burst_grammar::bytes(v)? {
        bytes if bytes <= SIZE_MAX => Ok(bytes as u32),
        _ => Err("is larger than 1GiB".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> String {
        PortSpec::parse(text).unwrap_err().to_string()
    }

    fn udp(text: &str) -> UdpSpec {
        match PortSpec::parse(text).unwrap().kind {
            PortKind::Udp(udp) => udp,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn plain_names_and_options_are_parsed() {
        assert_eq!(udp("udp"), UdpSpec::default());
        assert_eq!(udp("udp:"), UdpSpec::default());
        let spec = udp("udp:dev=eth0, addr=10.0.0.1,gso=off,rcvbuf=2M,strict_id");
        assert_eq!(spec.dev.as_deref(), Some("eth0"));
        assert_eq!(spec.addr, Some("10.0.0.1".parse().unwrap()));
        assert!(!spec.gso && spec.gro && spec.strict_id);
        assert_eq!(spec.rcvbuf, 2 << 20);
    }

    #[test]
    fn wrappers_are_kept_in_order() {
        let spec =
            PortSpec::parse("impair:loss=1%,dup=0.02,reorder=300ppm,delay=100us,seed=7/impair:dir=rx/udp").unwrap();
        assert_eq!(spec.impair.len(), 2);
        let first = spec.impair[0];
        assert_eq!((first.loss, first.dup, first.reorder), (Ppm(10_000), Ppm(20_000), Ppm(300)));
        assert_eq!((first.delay_ns, first.seed), (100_000, 7));
        assert_eq!(spec.impair[1].dir, Direction::Rx);
        assert_eq!(spec.to_string(), "impair:loss=1%,dup=0.02,reorder=300ppm,delay=100us,seed=7/impair:dir=rx/udp");
    }

    #[test]
    fn mistakes_name_the_wrong_word_and_the_nearest_valid_one() {
        assert!(why("upd:dev=eth0").contains("unknown kind 'upd'; did you mean 'udp'?"));
        assert!(why("udp:dve=eth0").contains("no option 'dve'; did you mean 'dev'?"));
        assert!(why("impair:los=1%/udp").contains("did you mean 'loss'?"));
        assert!(why("impair:loss=1%").contains("wraps a port"));
        assert!(why("impair:loss=101%/udp").contains("is not a rate"));
        assert!(why("impair:loss=-1%/udp").contains("is not a rate"));
        assert!(why("impair:loss=nan/udp").contains("is not a rate"));
        assert!(why("impair:delay=5/udp").contains("write delay=TIME"));
        assert!(why("udp:addr=eth0").contains("is not an IP address"));
        assert!(why("udp:dev=").contains("is empty"));
        assert!(why("udp:gso=maybe").contains("on|off"));
        assert!(why("udp:udp_port=0").contains("port from 1"));
        assert!(why("udp/udp").contains("must come last"));
        assert!(why("eth0").contains("did you mean 'udp:dev=eth0'?"));
        assert!(why("UDP:dev=lo").contains("did you mean 'udp'?"));
        assert!(why("udp:eth0").contains("or 'udp:dev=eth0'?"));
        assert!(why("packet:eth0.5").contains("or 'packet:dev=eth0.5'?"));
        assert!(why("udp:gos").contains("did you mean 'gso' or"));
        assert!(why("").contains("unknown kind"));
    }

    #[test]
    fn keys_are_unique_and_have_help() {
        fn check<S>(table: &[OptionRow<S>]) {
            for (i, row) in table.iter().enumerate() {
                assert!(!row.help.is_empty() && !row.value.is_empty());
                assert!(table[..i].iter().all(|other| other.key != row.key), "{}", row.key);
            }
        }
        check(UDP_OPTIONS);
        check(IMPAIR_OPTIONS);
    }
}
