//! Connection management: commands of programs, replies of the daemon, and the records in event channels.
//!
//! A program keeps one connection to the daemon for all its ids; the connection needs no context. The program chooses the
//! numbers of ids ([`CmId`], below [`DAEMON_IDS`]) and channels; the daemon chooses the ids of connect requests, from
//! [`DAEMON_IDS`] up. A number should not be used again soon after its end, because late events may name it.
//!
//! [`crate::Request::Cm`] carries any number of [`CmCommand`]s, which are carried out in order and never wait for the
//! network. Its reply has one [`CmReply`] per command. Commands may also be sent one-way ([`crate::commands`]): there is no
//! reply, and a failure becomes an event of the id ([`CmCommand::failure_event`]) with a negative errno as status.
//!
//! Events are records of [`CmEvent::BYTES`] bytes in the pipe of the id's channel. Each contains everything that the program
//! may ask about it, so neither `rdma_get_cm_event` nor `rdma_init_qp_attr` asks the daemon.
//!
//! Queue pairs: if a command names one ([`CmQp`]), the daemon moves it (to INIT, RTR and RTS, or to ERR on disconnect) on the
//! worker that owns it, and sends the RTU by itself. If a command names none, the program gets
//! [`CmEventKind::ConnectResponse`], moves its queue pair by the attributes in the event, and sends [`CmCommand::Establish`].

pub use burst_base::conn::{ConnAttr, ConnParam, Ece};
use burst_base::verbs::{AhAttr, Mtu, QpType};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::net::IpAddr;

/// Number of an id within one connection to the daemon.
pub type CmId = u32;
/// First id that the daemon chooses.
pub const DAEMON_IDS: CmId = 1 << 31;
/// Most private data of any message (RTU, DREP).
pub const CM_DATA_MAX: usize = 224;
/// Most operations in one request.
pub const CM_COMMANDS_MAX: usize = 512;

/// Private data: what is sent, and what was received with the zeros that pad it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CmData {
    len: u8,
    bytes: [u8; CM_DATA_MAX],
}

impl Default for CmData {
    fn default() -> Self {
        CmData::EMPTY
    }
}

impl CmData {
    /// No data.
    pub const EMPTY: CmData = CmData { len: 0, bytes: [0; CM_DATA_MAX] };
    /// A copy; `None` above [`CM_DATA_MAX`].
    pub fn new(data: &[u8]) -> Option<CmData> {
        let mut bytes = [0; CM_DATA_MAX];
        bytes.get_mut(..data.len())?.copy_from_slice(data);
        Some(CmData { len: data.len() as u8, bytes })
    }
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for CmData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

impl Serialize for CmData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.as_slice())
    }
}

impl<'de> Deserialize<'de> for CmData {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CmData, D::Error> {
        struct Bytes;
        impl de::Visitor<'_> for Bytes {
            type Value = CmData;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {CM_DATA_MAX} bytes")
            }
            fn visit_bytes<E: de::Error>(self, data: &[u8]) -> Result<CmData, E> {
                CmData::new(data).ok_or_else(|| E::invalid_length(data.len(), &self))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// A socket address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmAddr {
    /// Address.
    pub ip: IpAddr,
    /// Port, host order.
    pub port: u16,
    /// Interface of a link-local address (`sin6_scope_id`), else 0.
    pub scope: u32,
}

/// `enum rdma_port_space`, without IPOIB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u16)]
pub enum PortSpace {
    /// `RDMA_PS_TCP`: connected.
    Tcp = 0x0106,
    /// `RDMA_PS_UDP`: datagrams, by SIDR.
    Udp = 0x0111,
    /// `RDMA_PS_IB`: either.
    Ib = 0x013f,
}

/// A queue pair that the daemon moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmQp {
    /// The context's token ([`crate::Request::Token`] on the context's connection): proof that it is the caller's.
    pub token: u64,
    /// Its number.
    pub qpn: u32,
}

/// An operation on an id: a one-way request by the command ring, or part of [`crate::Request::Cm`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CmCommand {
    /// A new id.
    Create {
        /// Its number, free and below [`DAEMON_IDS`].
        id: CmId,
        /// Where its events go.
        channel: u32,
        /// Port space.
        ps: PortSpace,
        /// RC, UC or UD.
        qp_type: QpType,
    },
    /// Ends an id: a connection is torn down, a pending request is rejected. No event of it is written afterwards.
    Destroy {
        /// Which.
        id: CmId,
        /// Events of the id (for a listener: and requests to it) that the program has read. If that is all of them, its channel
        /// need not be searched for more.
        read: u32,
    },
    /// Sends the id's events, those not yet read included, to another channel.
    Migrate {
        /// Which.
        id: CmId,
        /// Where to.
        channel: u32,
    },
    /// `rdma_bind_addr`. Answer: [`CmReply::Route`].
    Bind {
        /// Which.
        id: CmId,
        /// Address, any-address included; port 0 asks for a free one.
        addr: CmAddr,
    },
    /// `rdma_resolve_addr`. Answer: [`CmReply::Route`], as far as it is known, and later the event ADDR_RESOLVED or ADDR_ERROR.
    ResolveAddr {
        /// Which.
        id: CmId,
        /// Source, if the program chose one.
        src: Option<CmAddr>,
        /// Destination.
        dst: CmAddr,
        /// For the program's patience; the kernel's tables answer at once.
        timeout_ms: u32,
    },
    /// `rdma_resolve_route`. Answer: [`CmReply::Route`], and the event ROUTE_RESOLVED or ROUTE_ERROR.
    ResolveRoute {
        /// Which.
        id: CmId,
        /// As above.
        timeout_ms: u32,
    },
    /// `rdma_connect`: REQ, or SIDR_REQ for a datagram id.
    Connect {
        /// Which.
        id: CmId,
        /// Moved by the daemon if given.
        qp: Option<CmQp>,
        /// Parameters of this end.
        param: ConnParam,
        /// Private data.
        data: CmData,
    },
    /// `rdma_listen`.
    Listen {
        /// Which; bound or not.
        id: CmId,
        /// Requests that may wait to be read and accepted; 0 means the default.
        backlog: u32,
    },
    /// `rdma_accept`: REP, or SIDR_REP for a datagram id.
    Accept {
        /// An id that came with a request.
        id: CmId,
        /// Moved by the daemon if given.
        qp: Option<CmQp>,
        /// Parameters of this end.
        param: ConnParam,
        /// Private data.
        data: CmData,
    },
    /// `rdma_reject`. The id stays until it is destroyed.
    Reject {
        /// An id that came with a request, or that got a response.
        id: CmId,
        /// Reason of the REJ: 28 consumer, 35 vendor option not supported.
        reason: u16,
        /// At most 148 bytes (136 in a SIDR_REP).
        data: CmData,
    },
    /// `rdma_establish`: RTU, after [`CmEventKind::ConnectResponse`]. The event ESTABLISHED follows.
    Establish {
        /// Which.
        id: CmId,
    },
    /// `rdma_notify` of IBV_EVENT_COMM_EST: the first data came before the RTU.
    Notify {
        /// Which.
        id: CmId,
    },
    /// `rdma_disconnect`: DREQ, or DREP if the peer asked first. The queue pair goes to ERR if the daemon moves it.
    Disconnect {
        /// Which.
        id: CmId,
    },
    /// `rdma_set_option`.
    SetOption {
        /// Which.
        id: CmId,
        /// What.
        option: CmIdOption,
    },
    /// `rdma_join_multicast`. The event MULTICAST_JOIN or MULTICAST_ERROR follows; `CmEvent::route.dgid` is the group.
    Join {
        /// Which; bound or resolved, so that it has a device.
        id: CmId,
        /// Group address.
        addr: CmAddr,
        /// In the event.
        cookie: u64,
    },
    /// `rdma_leave_multicast`.
    Leave {
        /// Which.
        id: CmId,
        /// Group address.
        addr: CmAddr,
    },
    /// Where the id is. Answer: [`CmReply::Route`].
    Query {
        /// Which.
        id: CmId,
    },
    /// What `rdma_init_qp_attr` needs now. Answer: [`CmReply::Conn`].
    QueryConn {
        /// Which.
        id: CmId,
    },
}

/// `rdma_set_option` at level RDMA_OPTION_ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CmIdOption {
    /// Type of service of the packets.
    Tos(u8),
    /// The address may be bound by several ids that all set this option.
    ReuseAddr(bool),
    /// An IPv6 any-address does not include IPv4.
    AfOnly(bool),
    /// Local ACK timeout code of the queue pairs.
    AckTimeout(u8),
}

impl CmCommand {
    /// The id that the operation is about.
    pub fn id(&self) -> CmId {
        match self {
            CmCommand::Create { id, .. }
            | CmCommand::Destroy { id, .. }
            | CmCommand::Migrate { id, .. }
            | CmCommand::Bind { id, .. }
            | CmCommand::ResolveAddr { id, .. }
            | CmCommand::ResolveRoute { id, .. }
            | CmCommand::Connect { id, .. }
            | CmCommand::Listen { id, .. }
            | CmCommand::Accept { id, .. }
            | CmCommand::Reject { id, .. }
            | CmCommand::Establish { id }
            | CmCommand::Notify { id }
            | CmCommand::Disconnect { id }
            | CmCommand::SetOption { id, .. }
            | CmCommand::Join { id, .. }
            | CmCommand::Leave { id, .. }
            | CmCommand::Query { id }
            | CmCommand::QueryConn { id } => *id,
        }
    }

    /// The event that reports the failure of this operation when it was sent one-way; `None` if it is not reported.
    pub fn failure_event(&self) -> Option<CmEventKind> {
        match self {
            CmCommand::ResolveAddr { .. } | CmCommand::Bind { .. } => Some(CmEventKind::AddrError),
            CmCommand::ResolveRoute { .. } => Some(CmEventKind::RouteError),
            CmCommand::Connect { .. } | CmCommand::Accept { .. } | CmCommand::Establish { .. } => {
                Some(CmEventKind::ConnectError)
            }
            CmCommand::Join { .. } => Some(CmEventKind::MulticastError),
            _ => None,
        }
    }
}

/// What an operation came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CmReply {
    /// Done, or on its way.
    Done,
    /// Where the id is now.
    Route(CmRoute),
    /// What the id knows of its connection.
    Conn(ConnAttr),
    /// Refused.
    Failed {
        /// errno for the call.
        errno: i32,
        /// Why, and what to do.
        sentence: String,
    },
}

/// Addresses and path of an id. Zeros where nothing is known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmRoute {
    /// Local address as programs see it, port included.
    pub src: Option<CmAddr>,
    /// The peer's.
    pub dst: Option<CmAddr>,
    /// Device number, once it is known.
    pub device: Option<u32>,
    /// GIDs on the wire.
    pub sgid: [u8; 16],
    /// The peer's, or the multicast group.
    pub dgid: [u8; 16],
    /// Index of `sgid` in the device's table.
    pub sgid_index: u8,
    /// Path MTU.
    pub mtu: Mtu,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Local ACK timeout code.
    pub ack_timeout: u8,
}

impl Default for CmRoute {
    fn default() -> Self {
        CmRoute {
            src: None,
            dst: None,
            device: None,
            sgid: [0; 16],
            dgid: [0; 16],
            sgid_index: 0,
            mtu: Mtu::B1024,
            traffic_class: 0,
            hop_limit: 64,
            ack_timeout: 0,
        }
    }
}

impl CmRoute {
    /// The address vector of this path.
    pub fn ah(&self) -> AhAttr {
        AhAttr {
            dgid: self.dgid,
            sgid_index: self.sgid_index,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            is_global: true,
            port_num: 1,
            ..AhAttr::default()
        }
    }
}

macro_rules! event_kinds {
    ($($kind:ident = $number:literal,)+) => {
        /// `enum rdma_cm_event_type`, by number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs)] // the names are those of rdma_cma.h
        pub enum CmEventKind { $($kind = $number),+ }

        impl CmEventKind {
            /// All, in the order of their numbers, from 0 up without a gap.
            pub const ALL: &[CmEventKind] = &[$(CmEventKind::$kind),+];
        }
    };
}

event_kinds! {
    AddrResolved = 0,
    AddrError = 1,
    RouteResolved = 2,
    RouteError = 3,
    ConnectRequest = 4,
    ConnectResponse = 5,
    ConnectError = 6,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    DeviceRemoval = 11,
    MulticastJoin = 12,
    MulticastError = 13,
    AddrChange = 14,
    TimewaitExit = 15,
}

/// A record in an event channel; `record.rs` has its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmEvent {
    /// What happened.
    pub kind: CmEventKind,
    /// To which id; for `ConnectRequest` this is the new id.
    pub id: CmId,
    /// For `ConnectRequest`: the listening id.
    pub listener: CmId,
    /// 0, a negative errno, or the reason of a REJ (28: the program at the other end) or status of a SIDR_REP.
    pub status: i32,
    /// Cookie of the multicast join; of `Disconnected`, when it was (CLOCK_MONOTONIC, nanoseconds).
    pub cookie: u64,
    /// Addresses and path.
    pub route: CmRoute,
    /// The connection.
    pub conn: ConnAttr,
    /// Private data; padded to the message's whole room as received.
    pub data: CmData,
}

/// Whose a record is, without reading the rest of it: of ten thousand, one may be looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmEventKey {
    /// As in [`CmEvent`].
    pub kind: CmEventKind,
    /// As in [`CmEvent`].
    pub id: CmId,
    /// As in [`CmEvent`].
    pub listener: CmId,
}

impl CmEvent {
    /// Bytes of a record in the pipe; eight of them are PIPE_BUF.
    pub const BYTES: usize = 512;

    /// An event of `id` without further content.
    pub fn new(kind: CmEventKind, id: CmId) -> CmEvent {
        CmEvent {
            kind,
            id,
            listener: 0,
            status: 0,
            cookie: 0,
            route: CmRoute::default(),
            conn: ConnAttr::default(),
            data: CmData::default(),
        }
    }

    /// With a sentence for people, in place of private data, where programs get none: in ADDR_ERROR. What does not fit is cut.
    pub fn with_sentence(self, sentence: &str) -> CmEvent {
        if self.kind != CmEventKind::AddrError {
            return self;
        }
        let data = CmData::new(&sentence.as_bytes()[..sentence.len().min(CM_DATA_MAX)]);
        CmEvent { data: data.unwrap_or_default(), ..self }
    }

    /// The sentence of [`CmEvent::with_sentence`].
    pub fn sentence(&self) -> Option<String> {
        let bytes = self.data.as_slice();
        let has = self.kind == CmEventKind::AddrError && !bytes.is_empty();
        has.then(|| String::from_utf8_lossy(bytes).into_owned())
    }
}
