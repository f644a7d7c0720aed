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
//! Events are records of [`CmEvent::BYTES`] bytes in the pipe of the id's channel. A record contains all that the program may
//! query later, so neither `rdma_get_cm_event` nor `rdma_init_qp_attr` needs the daemon.
//!
//! Queue pairs: if a command names a queue pair ([`CmQp`]), the daemon moves it (to INIT, RTR and RTS, or to ERR on disconnect)
//! on the worker that owns it, and sends the RTU by itself. If a command names none, the program gets
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
/// Maximum length of private data in bytes: that of RTU and DREP.
pub const CM_DATA_MAX: usize = 224;
/// Maximum number of commands in one request.
pub const CM_COMMANDS_MAX: usize = 512;

/// Private data of a message. Received data includes the zeros that pad it to the message's room.
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
    /// Copies the bytes; `None` if there are more than [`CM_DATA_MAX`].
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
    /// Index of the interface of a link-local address (`sin6_scope_id`), else 0.
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
    /// Token of the context ([`crate::Request::Token`] on the context's connection): proves that the queue pair is the caller's.
    pub token: u64,
    /// Its number.
    pub qpn: u32,
}

/// A command for an id: a one-way request by the command ring, or part of [`crate::Request::Cm`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CmCommand {
    /// Creates an id.
    Create {
        /// Number of the id, unused and below [`DAEMON_IDS`].
        id: CmId,
        /// Number of the channel for the id's events.
        channel: u32,
        /// Port space.
        ps: PortSpace,
        /// Service of the id's queue pair.
        qp_type: QpType,
    },
    /// Destroys an id: its connection is disconnected, a pending request is rejected. No event of it is written afterwards.
    Destroy {
        /// The id.
        id: CmId,
        /// Number of events of the id, and of requests to a listener, that the program has read. If these are all, the daemon
        /// need not search the channel for unread ones.
        read: u32,
    },
    /// Moves the id's unread events to another channel, which also gets later events.
    Migrate {
        /// The id.
        id: CmId,
        /// Number of the new channel.
        channel: u32,
    },
    /// `rdma_bind_addr`. Reply: [`CmReply::Route`].
    Bind {
        /// The id.
        id: CmId,
        /// Address, or the any-address; port 0 requests a free port.
        addr: CmAddr,
    },
    /// `rdma_resolve_addr`. Reply: [`CmReply::Route`], as far as it is known, and later the event ADDR_RESOLVED or ADDR_ERROR.
    ResolveAddr {
        /// The id.
        id: CmId,
        /// Source address, if the program has chosen one.
        src: Option<CmAddr>,
        /// Destination address.
        dst: CmAddr,
        /// Maximum time in ms until ADDR_RESOLVED or ADDR_ERROR.
        timeout_ms: u32,
    },
    /// `rdma_resolve_route`. Reply: [`CmReply::Route`], and the event ROUTE_RESOLVED or ROUTE_ERROR.
    ResolveRoute {
        /// The id.
        id: CmId,
        /// Maximum time in ms until ROUTE_RESOLVED or ROUTE_ERROR.
        timeout_ms: u32,
    },
    /// `rdma_connect`: REQ, or SIDR_REQ for a datagram id.
    Connect {
        /// The id.
        id: CmId,
        /// Queue pair that the daemon moves; `None` if the program moves it.
        qp: Option<CmQp>,
        /// Parameters of this end.
        param: ConnParam,
        /// Private data.
        data: CmData,
    },
    /// `rdma_listen`.
    Listen {
        /// The id, bound or not.
        id: CmId,
        /// Maximum number of unread requests; 0 means the default.
        backlog: u32,
    },
    /// `rdma_accept`: REP, or SIDR_REP for a datagram id.
    Accept {
        /// An id that came with a request.
        id: CmId,
        /// Queue pair that the daemon moves; `None` if the program moves it.
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
        /// The id.
        id: CmId,
    },
    /// `rdma_notify` of IBV_EVENT_COMM_EST: the first data came before the RTU.
    Notify {
        /// The id.
        id: CmId,
    },
    /// `rdma_disconnect`: DREQ, or DREP if the peer has sent a DREQ. If the daemon moves the queue pair, it goes to ERR.
    Disconnect {
        /// The id.
        id: CmId,
    },
    /// `rdma_set_option`.
    SetOption {
        /// The id.
        id: CmId,
        /// Option and value.
        option: CmIdOption,
    },
    /// `rdma_join_multicast`. The event MULTICAST_JOIN or MULTICAST_ERROR follows; `CmEvent::route.dgid` is the group.
    Join {
        /// The id. It must have a device, by being bound or resolved.
        id: CmId,
        /// Address of the group.
        addr: CmAddr,
        /// Number that the event returns.
        cookie: u64,
    },
    /// `rdma_leave_multicast`.
    Leave {
        /// The id.
        id: CmId,
        /// Address of the group.
        addr: CmAddr,
    },
    /// Gets the addresses of the id. Reply: [`CmReply::Route`].
    Query {
        /// The id.
        id: CmId,
    },
    /// Gets the connection of the id, for `rdma_init_qp_attr`. Reply: [`CmReply::Conn`].
    QueryConn {
        /// The id.
        id: CmId,
    },
}

/// `rdma_set_option` at level RDMA_OPTION_ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CmIdOption {
    /// Type of service of the packets.
    Tos(u8),
    /// Several ids that all set this option may bind one address.
    ReuseAddr(bool),
    /// The IPv6 any-address does not include IPv4.
    AfOnly(bool),
    /// Local ACK timeout code of the queue pairs.
    AckTimeout(u8),
}

impl CmCommand {
    /// The id of the command.
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

    /// The event that reports the failure of a one-way command; `None` if the failure is not reported.
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

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CmReply {
    /// Done, or begun: an event has the result.
    Done,
    /// Addresses and path of the id.
    Route(CmRoute),
    /// The id's connection.
    Conn(ConnAttr),
    /// The command failed.
    Failed {
        /// The errno of the call.
        errno: i32,
        /// Cause, and what to do.
        sentence: String,
    },
}

/// Addresses and path of an id. Fields that are not known yet are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CmRoute {
    /// Local address as programs see it, port included.
    pub src: Option<CmAddr>,
    /// Address of the peer.
    pub dst: Option<CmAddr>,
    /// Device number, once it is known.
    pub device: Option<u32>,
    /// GID of this end on the wire.
    pub sgid: [u8; 16],
    /// GID of the peer, or of the multicast group.
    pub dgid: [u8; 16],
    /// Index of `sgid` in the device's GID table.
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
    /// The path as an address vector.
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
            /// All kinds, in the order of their numbers, from 0 without gaps.
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
    /// Kind of the event.
    pub kind: CmEventKind,
    /// The id of the event; for `ConnectRequest` the new id.
    pub id: CmId,
    /// The listening id of a `ConnectRequest`.
    pub listener: CmId,
    /// 0, a negative errno, the reason of a REJ (28: the peer's program), or the status of a SIDR_REP.
    pub status: i32,
    /// Multicast events: the cookie of the join. `Disconnected`: its time (CLOCK_MONOTONIC, nanoseconds).
    pub cookie: u64,
    /// Addresses and path.
    pub route: CmRoute,
    /// The connection.
    pub conn: ConnAttr,
    /// Private data, with the padding of the message.
    pub data: CmData,
}

/// The fields that tell to which id a record belongs. The search for one id's records among ten thousand reads only these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmEventKey {
    /// Field of [`CmEvent`].
    pub kind: CmEventKind,
    /// Field of [`CmEvent`].
    pub id: CmId,
    /// Field of [`CmEvent`].
    pub listener: CmId,
}

impl CmEvent {
    /// Length of a record in the pipe; eight records are PIPE_BUF.
    pub const BYTES: usize = 512;

    /// An event of `id` whose other fields are zero.
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

    /// Puts a sentence for users in place of private data, in ADDR_ERROR, which has none. A long sentence is cut.
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
