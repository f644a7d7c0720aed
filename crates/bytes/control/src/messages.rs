//! The control messages: requests, responses, and the records in event pipes.
//!
//! Handles (`pd`, `cq`, …) are small numbers of one context, given by the daemon; a handle of another context means
//! nothing. All of them are checked by the daemon on every use.

use crate::cm::{CmCommand, CmReply};
use crate::monitor::{CmConnection, CmCursor, CmStats};
use burst_base::verbs::{AhAttr, Mtu, MwType, QpAttr, QpCap, QpType};
use serde::{Deserialize, Serialize};

/// Most descriptors in one packet, and so most pieces of one registration.
pub const FDS_MAX: usize = 64;
/// Most queue pairs of one [`Request::CreateQp`] or [`Request::DropQps`].
pub const QPS_AT_ONCE: usize = 64;
/// Longest control packet in bytes.
pub const MESSAGE_MAX: usize = 64 << 10;

/// A place in the context's arena (`burst_shm::ShmRef`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaRef {
    /// Segment number.
    pub segment: u32,
    /// Byte offset.
    pub offset: u32,
}

impl From<burst_shm::ShmRef> for ArenaRef {
    fn from(r: burst_shm::ShmRef) -> ArenaRef {
        ArenaRef { segment: r.segment, offset: r.offset }
    }
}

impl From<ArenaRef> for burst_shm::ShmRef {
    fn from(p: ArenaRef) -> burst_shm::ShmRef {
        burst_shm::ShmRef { segment: p.segment, offset: p.offset }
    }
}

/// A work queue in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePlace {
    /// Header; entries follow.
    pub place: ArenaRef,
    /// Entries, a power of two.
    pub entries: u32,
    /// Bytes between entries.
    pub stride: u32,
    /// Most SGEs of an entry.
    pub max_sge: u32,
}

/// A completion queue in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CqPlace {
    /// Header; entries follow.
    pub place: ArenaRef,
    /// Entries, a power of two.
    pub entries: u32,
}

/// One part of a memory registration, in order of addresses, without holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MrPiece {
    /// Address in the application, page aligned for descriptors.
    pub addr: u64,
    /// Bytes, whole pages for descriptors.
    pub len: u64,
    /// Where the bytes are.
    pub kind: MrPieceKind,
}

/// Where the bytes of a piece are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MrPieceKind {
    /// In the file of the `fd`-th descriptor sent along, from `offset`.
    Fd {
        /// Index among the descriptors of the message.
        fd: u32,
        /// Byte offset in the file.
        offset: u64,
    },
    /// In the application, reached through the file of its memory.
    InProcess,
}

/// What can be imported, by its handle in the exporting context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImportObject {
    /// A protection domain.
    Pd(u32),
    /// A memory region; its keys are good as long as the exporter keeps it.
    Mr(u32),
    /// Device memory.
    Dm(u32),
}

/// Attributes of a completion queue to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CqInitAttr {
    /// Least number of entries; the daemon rounds up to a power of two.
    pub entries: u32,
    /// Handle of the completion channel that gets the events, if any.
    pub channel: Option<u32>,
    /// Number that the daemon writes to the channel's pipe for each event, and to the async event pipe.
    pub cookie: u64,
    /// Completion vector.
    pub vector: u32,
}

/// Attributes of a shared receive queue to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SrqInitAttr {
    /// Handle of the protection domain.
    pub pd: u32,
    /// Least number of work requests.
    pub max_wr: u32,
    /// Most SGEs of a work request.
    pub max_sge: u32,
    /// Number of posted receives below which the limit event comes; 0: no event.
    pub limit: u32,
    /// Number of the queue in async events.
    pub cookie: u64,
    /// Where the queue belongs if it is an XRC shared receive queue.
    pub xrc: Option<XrcSrqAttr>,
}

/// What an XRC shared receive queue has and others have not (IBA 10.2.9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct XrcSrqAttr {
    /// Handle of the XRC domain.
    pub xrcd: u32,
    /// Handle of the completion queue of its receives.
    pub cq: u32,
}

/// Attributes of queue pairs to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpInitAttr {
    /// Handle of the protection domain.
    pub pd: u32,
    /// Service type.
    pub qp_type: QpType,
    /// Handle of the completion queue of sends.
    pub send_cq: u32,
    /// Handle of the completion queue of receives.
    pub recv_cq: u32,
    /// Handle of the shared receive queue, if the queue pairs have none of their own.
    pub srq: Option<u32>,
    /// Least capacities; the daemon rounds up.
    pub cap: QpCap,
}

/// What an application or tool asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Who is there. First message of a connection.
    Hello {
        /// Program name, for the log.
        program: String,
    },
    /// Version, process id, uptime.
    DaemonInfo,
    /// All devices with ports and GIDs, as they are now.
    ListDevices,
    /// Counters.
    Stats,
    /// Makes this connection a context of the device. At most one per connection.
    OpenContext {
        /// Device number.
        device: u32,
    },
    /// New protection domain.
    AllocPd,
    /// Ends a protection domain.
    DeallocPd {
        /// Handle.
        pd: u32,
    },
    /// Registers memory.
    RegMr {
        /// Protection domain.
        pd: u32,
        /// First byte, as the application named it.
        addr: u64,
        /// Bytes.
        len: u64,
        /// Address that work requests use for the first byte.
        iova: u64,
        /// `access` bits.
        access: u32,
        /// Page-aligned cover of the range; empty when `len` is 0.
        pieces: Vec<MrPiece>,
        /// Handle of the region that this one takes the place of: the keys stay (re-registration).
        replaces: Option<u32>,
    },
    /// Allocates a null memory region: writes through its local key vanish, reads give zeroes. Answer: `Response::Mr`.
    AllocNullMr {
        /// Handle of the protection domain.
        pd: u32,
    },
    /// Ends a registration; on return the daemon has unmapped the memory.
    DeregMr {
        /// Handle.
        mr: u32,
    },
    /// Device memory that can be imported: a sealed memfd comes along.
    AllocDm {
        /// Bytes.
        len: u64,
    },
    /// Ends device memory.
    FreeDm {
        /// Handle.
        dm: u32,
    },
    /// Imports an object of another context. The caller proves its right by the token of that context.
    Import {
        /// The other context's.
        token: u64,
        /// Which object.
        object: ImportObject,
    },
    /// New memory window, not bound.
    AllocMw {
        /// Protection domain.
        pd: u32,
        /// Kind.
        mw_type: MwType,
    },
    /// Ends a memory window; on return its key opens nothing.
    DeallocMw {
        /// Handle.
        mw: u32,
    },
    /// New completion channel; its read end comes along.
    CreateChannel,
    /// Ends a channel.
    DestroyChannel {
        /// Handle.
        channel: u32,
    },
    /// New completion queue.
    CreateCq(CqInitAttr),
    /// Other capacity. The old ring ends at `Response::CqResized::old_end`; later entries are in the new one.
    ResizeCq {
        /// Handle.
        cq: u32,
        /// Entries wanted.
        entries: u32,
    },
    /// The program has drained the ring from before the last resize: it may go.
    RetireCq {
        /// Handle.
        cq: u32,
    },
    /// Ends a completion queue.
    DestroyCq {
        /// Handle.
        cq: u32,
    },
    /// Opens an XRC domain; the descriptor of the file that names it comes along if there is one.
    OpenXrcd {
        /// Whether there is a file.
        with_file: bool,
        /// `O_CREAT`, `O_EXCL`.
        flags: i32,
    },
    /// Closes an XRC domain.
    CloseXrcd {
        /// Handle.
        xrcd: u32,
    },
    /// New XRC target queue pair. Answer: `Response::Target`.
    CreateTarget {
        /// Its domain.
        xrcd: u32,
        /// In async events.
        event_cookie: u64,
    },
    /// Opens an XRC target queue pair that exists. Answer: `Response::Target`.
    OpenQp {
        /// Its domain.
        xrcd: u32,
        /// Its number.
        qpn: u32,
        /// In async events.
        event_cookie: u64,
    },
    /// New shared receive queue.
    CreateSrq(SrqInitAttr),
    /// Arms the limit.
    ModifySrq {
        /// Handle.
        srq: u32,
        /// New limit.
        limit: Option<u32>,
    },
    /// Other capacity, while the program posts nothing. What was posted is kept. Answer: `Response::Srq`.
    ResizeSrq {
        /// Handle.
        srq: u32,
        /// Work requests wanted.
        max_wr: u32,
    },
    /// Limit as it is.
    QuerySrq {
        /// Handle.
        srq: u32,
    },
    /// Ends a shared receive queue.
    DestroySrq {
        /// Handle.
        srq: u32,
    },
    /// New queue pairs, all alike; as many as there is room for, at least one.
    CreateQp {
        /// Attributes of all of them.
        init: QpInitAttr,
        /// One for each, at most [`QPS_AT_ONCE`].
        names: Vec<QpCookies>,
    },
    /// Ends queue pairs that were never used, and has no reply at all.
    DropQps {
        /// Handles.
        qps: Vec<u32>,
    },
    /// Changes attributes.
    ModifyQp {
        /// Handle.
        qp: u32,
        /// Values.
        attr: QpAttr,
        /// Which (`attr_mask` bits).
        mask: u32,
    },
    /// Changes attributes without a path, after what was asked before, and has no reply at all. Only for changes that
    /// cannot be refused: a refusal stays unknown.
    ModifyQpWithoutReply {
        /// Handle.
        qp: u32,
        /// Values.
        attr: QpAttr,
        /// Which; the bit of the path is ignored.
        mask: u32,
    },
    /// Attributes as they are.
    QueryQp {
        /// Handle.
        qp: u32,
    },
    /// Ends a queue pair; on return no completion of it will be written any more.
    DestroyQp {
        /// Handle.
        qp: u32,
    },
    /// Attaches a datagram queue pair to a multicast group.
    AttachMcast {
        /// Handle.
        qp: u32,
        /// Group.
        gid: [u8; 16],
    },
    /// Detaches it.
    DetachMcast {
        /// Handle.
        qp: u32,
        /// Group.
        gid: [u8; 16],
    },
    /// New address handle.
    CreateAh {
        /// Protection domain.
        pd: u32,
        /// Address.
        attr: AhAttr,
    },
    /// Ends an address handle.
    DestroyAh {
        /// Handle.
        ah: u32,
    },
    /// Ethernet address behind a GID (for `ibv_resolve_eth_l2_from_gid`).
    ResolveMac {
        /// The address.
        attr: AhAttr,
    },
    /// A number that proves to the connection manager that a queue pair of this context is the caller's.
    Token,
    /// New event channel of the connection manager; the read end of its pipe comes along.
    CmChannel {
        /// Its number, chosen by the program.
        channel: u32,
    },
    /// Ends an event channel; its ids must have been destroyed or migrated.
    CmCloseChannel {
        /// Which.
        channel: u32,
    },
    /// Makes the ring for the one-way commands of this connection ([`crate::commands`]), once per connection. The reply brings
    /// its descriptor.
    CmCommandRing,
    /// Connection management, see [`crate::cm`].
    Cm {
        /// In this order; at most [`crate::cm::CM_COMMANDS_MAX`].
        commands: Vec<CmCommand>,
    },
    /// Histograms of connection setup.
    CmStats,
    /// Connections and listeners, a page at a time.
    CmConnections {
        /// Where the page begins: `next` of the page before, or zeros.
        from: CmCursor,
    },
}

impl Request {
    /// Whether it has no reply at all.
    pub fn is_without_reply(&self) -> bool {
        matches!(self, Request::ModifyQpWithoutReply { .. } | Request::DropQps { .. })
    }
}

/// What the library calls a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpCookies {
    /// Number that the library finds in completions (`Cqe::qp_cookie`).
    pub cookie: u32,
    /// In async events.
    pub event_cookie: u64,
}

/// A queue pair as made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QpGrant {
    /// Handle.
    pub qp: u32,
    /// Queue pair number.
    pub qpn: u32,
    /// Send queue.
    pub sq: QueuePlace,
    /// Receive queue, none with an SRQ.
    pub rq: Option<QueuePlace>,
    /// Capacities granted.
    pub cap: QpCap,
    /// Doorbell number.
    pub doorbell: u32,
    /// Worker that owns it.
    pub worker: u32,
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Response {
    /// Done; there is no result.
    Done,
    /// To `Hello` and `DaemonInfo`.
    Daemon(DaemonInfo),
    /// To `ListDevices`.
    Devices(Vec<DeviceInfo>),
    /// To `Stats`.
    Stats(Vec<Counter>),
    /// To `OpenContext`. Descriptors: status page, async event pipe (read end), one eventfd per worker, then
    /// arena segment 0 as a new segment.
    Context {
        /// Workers, and so eventfds.
        workers: u32,
        /// The device as it is.
        device: DeviceInfo,
    },
    /// A handle (PD, AH).
    Handle(u32),
    /// To `RegMr`.
    Mr {
        /// Handle.
        mr: u32,
        /// Local key.
        lkey: u32,
        /// Remote key.
        rkey: u32,
    },
    /// To `Import`; device memory's descriptor comes along.
    Imported {
        /// Handle in this context (PD, DM).
        handle: u32,
        /// Local and remote key (MR).
        key: u32,
        /// Bytes (MR, DM).
        len: u64,
    },
    /// To `AllocMw`.
    Mw {
        /// Handle.
        mw: u32,
        /// Its first key.
        rkey: u32,
    },
    /// To `CreateChannel`, with the read end of the pipe.
    Channel {
        /// Handle.
        channel: u32,
    },
    /// To `CreateCq`.
    Cq {
        /// Handle.
        cq: u32,
        /// Where.
        ring: CqPlace,
    },
    /// To `ResizeCq`.
    CqResized {
        /// The new ring; its indices go on from `old_end`.
        ring: CqPlace,
        /// First index that is not in the old ring.
        old_end: u32,
    },
    /// To `CreateSrq` and `ResizeSrq`.
    Srq {
        /// Handle.
        srq: u32,
        /// Where.
        queue: QueuePlace,
        /// Work requests granted.
        max_wr: u32,
        /// Number in its XRC domain, or 0.
        srqn: u32,
    },
    /// To `QuerySrq`.
    SrqLimit(u32),
    /// To `CreateQp`: at least one, in the order of their names.
    Qps(Vec<QpGrant>),
    /// To `CreateTarget` and `OpenQp`.
    Target {
        /// Handle.
        qp: u32,
        /// Queue pair number.
        qpn: u32,
    },
    /// To `ModifyQp` and `QueryQp`: attributes after the call.
    QpAttr(QpAttr),
    /// To `ResolveMac`.
    Mac([u8; 6]),
    /// To `Token`.
    Token(u64),
    /// To `Cm`: one reply per operation.
    Cm(Vec<CmReply>),
    /// To `CmStats`.
    CmStats(CmStats),
    /// To `CmConnections`.
    CmConnections {
        /// Some of them.
        connections: Vec<CmConnection>,
        /// How many connections of other users this page leaves out.
        hidden: u32,
        /// Where the next page begins, unless this is the last.
        next: Option<CmCursor>,
    },
}

/// A response or a refusal, and the arena segments that come first among the descriptors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// How many of the last descriptors are new arena segments, in order of their numbers.
    pub new_segments: u32,
    /// The answer.
    pub result: Result<Response, Refusal>,
}

/// A refused request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// errno for the verbs call.
    pub errno: i32,
    /// Why, and what to do.
    pub sentence: String,
}

/// The daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonInfo {
    /// Package version.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Owner.
    pub uid: u32,
    /// Seconds since start.
    pub uptime_s: u64,
    /// Workers.
    pub workers: u32,
    /// Contexts open now.
    pub contexts: u32,
}

/// A device and its one port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Number.
    pub index: u32,
    /// Name: `burst0`.
    pub name: String,
    /// Node GUID, host order.
    pub guid: u64,
    /// Port as configured: `udp:dev=eth0`.
    pub port: String,
    /// Whether the link is up.
    pub up: bool,
    /// Interface MTU.
    pub link_mtu: u32,
    /// RDMA MTU that fits it.
    pub active_mtu: Mtu,
    /// Mbit/s, 0 unknown.
    pub speed_mbps: u32,
    /// Interface, or empty.
    pub ifname: String,
    /// MAC address.
    pub mac: [u8; 6],
    /// GID table, default first.
    pub gids: Vec<GidInfo>,
    /// Limits.
    pub limits: Limits,
}

/// A GID table entry; all are RoCE v2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidInfo {
    /// The GID.
    pub gid: [u8; 16],
    /// Its interface.
    pub ifname: String,
    /// Interface index.
    pub ifindex: u32,
}

/// What a device allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests per queue.
    pub max_qp_wr: u32,
    /// SGEs per work request.
    pub max_sge: u32,
    /// Inline bytes.
    pub max_inline: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries per completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Work requests per shared receive queue.
    pub max_srq_wr: u32,
    /// Reads and atomics outstanding per QP, either side.
    pub max_rd_atomic: u32,
    /// Largest message.
    pub max_msg_sz: u32,
    /// Largest registration.
    pub max_mr_size: u64,
    /// Largest device memory.
    pub max_dm_size: u64,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue pairs attached to one multicast group.
    pub max_mcast_qp_attach: u32,
}

/// A counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// `reason` name or traffic counter name.
    pub name: String,
    /// Device name, or empty.
    pub device: String,
    /// Value.
    pub value: u64,
}

/// A record in the async event pipe, 16 bytes native-endian: type, kind, cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncRecord {
    /// `EventType` number.
    pub event: u32,
    /// What `cookie` names.
    pub object: AsyncObject,
    /// Cookie of the object, or port number.
    pub cookie: u64,
}

/// What an async event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AsyncObject {
    /// A queue pair.
    Qp = 0,
    /// A completion queue.
    Cq = 1,
    /// A shared receive queue.
    Srq = 2,
    /// The port.
    Port = 3,
    /// The device.
    Device = 4,
}

impl AsyncRecord {
    /// Bytes of a record.
    pub const BYTES: usize = 16;
    /// As written to the pipe.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut b = [0; 16];
        b[..4].copy_from_slice(&self.event.to_ne_bytes());
        b[4..8].copy_from_slice(&(self.object as u32).to_ne_bytes());
        b[8..].copy_from_slice(&self.cookie.to_ne_bytes());
        b
    }
    /// As read from the pipe; `None` for an unknown object kind.
    pub fn from_bytes(b: &[u8; 16]) -> Option<AsyncRecord> {
        let word = |i: usize| u32::from_ne_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let object = match word(4) {
            0 => AsyncObject::Qp,
            1 => AsyncObject::Cq,
            2 => AsyncObject::Srq,
            3 => AsyncObject::Port,
            4 => AsyncObject::Device,
            _ => return None,
        };
        Some(AsyncRecord { event: word(0), object, cookie: u64::from_ne_bytes(b[8..].try_into().ok()?) })
    }
}
