//! The file's tables as they are written: kinds, optional keys, places for errors.

use super::value::{Delay, Drift, Rate, Share, Size};
use crate::node::Verb;
use crate::run::PayloadMode;
use serde::Deserialize;
use toml::Spanned;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Name for titles and results.
    pub name: Option<String>,
    /// Seed of everything random.
    pub seed: Option<u64>,
    /// Flows begin until then.
    pub time: Spanned<Delay>,
    /// Flows that begin earlier do not count.
    pub warm_up: Option<Delay>,
    /// The simulation ends at the latest this long after `time`.
    pub drain: Option<Delay>,
    /// What becomes of payload.
    pub payload: Option<Spanned<Payload>>,
    /// Hosts and network.
    pub topology: Spanned<TopologyTable>,
    /// Settings of hosts.
    #[serde(default = "no_hosts")]
    pub hosts: Spanned<HostsTable>,
    /// Hosts that stand for adapters.
    #[serde(default)]
    pub adapter: Vec<Spanned<AdapterTable>>,
    /// Impairments of links.
    #[serde(default)]
    pub links: LinksTable,
    /// Settings of switches.
    #[serde(default)]
    pub switches: SwitchesTable,
    /// Settings of single classes.
    #[serde(default)]
    pub class: Vec<Spanned<ClassTable>>,
    /// What is sent.
    #[serde(default)]
    pub traffic: Vec<Spanned<TrafficTable>>,
    /// What fails.
    #[serde(default)]
    pub fault: Vec<Spanned<FaultTable>>,
}

fn no_hosts() -> Spanned<HostsTable> {
    Spanned::new(0..0, HostsTable::default())
}

/// `payload`.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Payload {
    /// The bytes travel.
    Real,
    /// The bytes follow from their addresses, and are checked.
    Pattern,
    /// Only lengths travel.
    #[default]
    Void,
}

impl Payload {
    /// The mode of runs.
    pub fn mode(self) -> PayloadMode {
        match self {
            Payload::Real => PayloadMode::Real,
            Payload::Pattern => PayloadMode::Pattern,
            Payload::Void => PayloadMode::Void,
        }
    }
}

/// Makes a table of optional keys, and `given`, the names of the keys that are there.
macro_rules! table {
    ($(#[$about:meta])* $name:ident { $($(#[$key_about:meta])* $key:ident $text:literal: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// The kind.
            pub kind: <$name as Kinded>::Kind,
            $($(#[$key_about])* #[serde(rename = $text)] pub $key: Option<$type>,)*
        }
        impl $name {
            /// The keys that are there, `kind` excepted.
            pub fn given(&self) -> Vec<&'static str> {
                let mut given = Vec::new();
                $(if self.$key.is_some() { given.push($text); })*
                given
            }
        }
    };
}

/// A table with a kind.
pub trait Kinded {
    /// Its kinds.
    type Kind;
}

/// `kind` of `[topology]`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum TopologyKind {
    /// Two hosts and a link.
    Pair,
    /// Hosts around a switch.
    Star,
    /// Two switches with half of the hosts each.
    Dumbbell,
    /// Leaves with hosts, each connected to every spine.
    LeafSpine,
    /// Switches in a ring with hosts.
    Ring,
    /// Three tiers of switches.
    FatTree,
}

impl Kinded for TopologyTable {
    type Kind = TopologyKind;
}

table! {
    /// `[topology]`.
    TopologyTable {
        /// Number of hosts.
        hosts "hosts": Spanned<u32>,
        /// Number of leaf switches.
        leaves "leaves": u32,
        /// Number of spine switches.
        spines "spines": Spanned<u32>,
        /// Number of switches of a ring.
        switches "switches": Spanned<u32>,
        /// Rate of hosts' links.
        rate "rate": Rate,
        /// Rate of links between switches.
        fabric_rate "fabric_rate": Rate,
        /// Propagation of each link.
        delay "delay": Delay,
    }
}

/// `[hosts]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostsTable {
    /// Profile of the processor.
    pub cpu: Option<Spanned<String>>,
    /// Path MTU in bytes.
    pub mtu: Option<Spanned<u32>>,
    /// Congestion control, as in the daemon's configuration.
    pub cc: Option<Spanned<String>>,
    /// Largest window.
    pub window: Option<Size>,
    /// Whether selective repeat is used.
    pub selective_repeat: Option<bool>,
    /// Waits of loss recovery.
    pub rto: Option<Spanned<String>>,
    /// Most bytes of a train.
    pub train: Option<Size>,
    /// Bytes that the adapter's send queue holds.
    pub send_queue: Option<Size>,
    /// Bytes of packets that wait for the worker; 0: any number.
    pub receive_queue: Option<Size>,
    /// Local ACK timeout.
    pub timeout: Option<Spanned<u8>>,
    /// Bytes of memory of each program.
    pub memory: Option<Size>,
}

/// `[[adapter]]`: hosts that stand for RDMA adapters, with settings of their own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterTable {
    /// Their numbers.
    pub hosts: Spanned<Vec<u32>>,
    /// Their congestion control.
    pub cc: Option<Spanned<String>>,
    /// Largest window.
    pub window: Option<Size>,
    /// Whether they answer marked packets with congestion notifications.
    pub cnps: Option<bool>,
}

/// `[links]`: what happens to packets on every link.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinksTable {
    /// Share of packets that are lost.
    pub loss: Option<Share>,
    /// Share of packets that come later.
    pub reorder: Option<Share>,
    /// Share of packets that come twice.
    pub duplicate: Option<Share>,
    /// Share of packets whose ICRC is wrong.
    pub corrupt: Option<Share>,
}

/// `[switches]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchesTable {
    /// Shared buffer.
    pub buffer: Option<Size>,
    /// Dynamic threshold: a queue may hold this times what is free.
    pub alpha: Option<Spanned<f64>>,
    /// Whether priority flow control is on.
    pub pfc: Option<bool>,
    /// How long a pause may last before it is a storm.
    pub pfc_watchdog: Option<Delay>,
    /// Headroom of each port and class.
    pub headroom: Option<Size>,
    /// Queue from which packets are marked.
    pub ecn_min: Option<Size>,
    /// Queue from which all packets are marked.
    pub ecn_max: Option<Spanned<Size>>,
    /// Share of packets marked just below `ecn_max`.
    pub ecn_share: Option<Share>,
}

/// `[[class]]`: what is different in a class; keys that are missing are those of `[switches]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassTable {
    /// The class, 0 to 7.
    pub class: Spanned<u8>,
    /// Bytes in a round of deficit round robin; without it, strict priority.
    pub weight: Option<Spanned<Size>>,
    /// Whether priority flow control is on.
    pub pfc: Option<bool>,
    /// Queue from which packets are marked.
    pub ecn_min: Option<Size>,
    /// Queue from which all packets are marked.
    pub ecn_max: Option<Spanned<Size>>,
    /// Share of packets marked just below `ecn_max`.
    pub ecn_share: Option<Share>,
}

/// `kind` of `[[traffic]]`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum TrafficKind {
    /// One connection.
    Stream,
    /// Random times and destinations.
    Poisson,
    /// Many to one.
    Incast,
    /// All to all.
    AllToAll,
    /// Each to one other.
    Permutation,
    /// Ring all-reduce.
    Ring,
}

/// `verb` of `[[traffic]]`.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum VerbName {
    /// RDMA WRITE.
    #[default]
    Write,
    /// RDMA WRITE with immediate data.
    WriteImm,
    /// RDMA READ.
    Read,
    /// SEND.
    Send,
}

impl VerbName {
    /// The verb.
    pub fn verb(self) -> Verb {
        match self {
            VerbName::Write => Verb::Write,
            VerbName::WriteImm => Verb::WriteImm,
            VerbName::Read => Verb::Read,
            VerbName::Send => Verb::Send,
        }
    }
}

/// `sizes`: the name of a table, or its rows.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum SizesValue {
    /// The name of a published table.
    Name(String),
    /// Bytes and cumulative share.
    Steps(Vec<(u64, f64)>),
}

impl Kinded for TrafficTable {
    type Kind = TrafficKind;
}

table! {
    /// `[[traffic]]`.
    TrafficTable {
        /// How messages move.
        verb "verb": VerbName,
        /// Class of its packets.
        class "class": Spanned<u8>,
        /// When it begins.
        begin "begin": Delay,
        /// When its last message begins at the latest.
        end "end": Delay,
        /// The source.
        from "from": Spanned<u32>,
        /// The destination.
        to "to": Spanned<u32>,
        /// Bytes of a message.
        size "size": Spanned<Size>,
        /// Sizes of messages.
        sizes "sizes": Spanned<SizesValue>,
        /// Offered bytes over the rate of the host's link.
        load "load": Spanned<Share>,
        /// Messages at a time.
        depth "depth": Spanned<u32>,
        /// Messages in all.
        count "count": u64,
        /// Number of sources.
        senders "senders": Spanned<u32>,
        /// Distance of the destination.
        shift "shift": Spanned<u32>,
        /// Whether destinations are random.
        random "random": bool,
        /// Time from one round to the next.
        every "every": Delay,
    }
}

/// `kind` of `[[fault]]`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKindName {
    /// A link is down.
    #[serde(rename = "link-down")]
    Link,
    /// A switch drops packets.
    Drops,
    /// An adapter stands still.
    Stall,
    /// An adapter pauses a class without end.
    PauseStorm,
    /// Something happens to single packets of a host.
    Packets,
    /// The clock of a host is wrong.
    Clock,
    /// A host restarts.
    Restart,
}

/// `fate` of `[[fault]]`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum FateName {
    /// Packets are lost.
    Lost,
    /// Packets come twice, the second time later.
    Twice,
    /// Packets come later.
    Late,
    /// Packets come with a wrong ICRC.
    Corrupted,
    /// Packets come with a mark.
    Marked,
}

/// `[[fault]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultTable {
    /// The kind.
    pub kind: FaultKindName,
    /// When it happens.
    pub at: Delay,
    /// How long it lasts.
    #[serde(rename = "for")]
    pub lasts: Option<Delay>,
    /// Time from one beginning to the next, for what happens again and again.
    pub every: Option<Spanned<Delay>>,
    /// The link.
    pub link: Option<Spanned<String>>,
    /// The switch.
    pub switch: Option<Spanned<String>>,
    /// Share of packets.
    pub share: Option<Share>,
    /// The host.
    pub host: Option<Spanned<u32>>,
    /// The class.
    pub class: Option<Spanned<u8>>,
    /// Numbers of packets.
    pub numbers: Option<Spanned<Vec<u64>>>,
    /// What happens to packets.
    pub fate: Option<FateName>,
    /// How much later.
    pub by: Option<Spanned<Delay>>,
    /// How far a clock is set forward.
    pub offset: Option<Delay>,
    /// How much faster a clock is.
    pub drift: Option<Drift>,
}

impl FaultTable {
    /// The keys that are there, `kind` and `at` excepted.
    pub fn given(&self) -> Vec<&'static str> {
        let keys = [
            ("link", self.link.is_some()),
            ("switch", self.switch.is_some()),
            ("share", self.share.is_some()),
            ("host", self.host.is_some()),
            ("class", self.class.is_some()),
            ("numbers", self.numbers.is_some()),
            ("fate", self.fate.is_some()),
            ("by", self.by.is_some()),
            ("offset", self.offset.is_some()),
            ("drift", self.drift.is_some()),
            ("for", self.lasts.is_some()),
            ("every", self.every.is_some()),
        ];
        keys.into_iter().filter(|(_, given)| *given).map(|(key, _)| key).collect()
    }
}
