//! The control messages: requests, responses, and the records in event pipes.
//!
//! Handles (`pd`, `cq`, …) are small numbers that the daemon assigns to the objects of one context; they are invalid in other
//! contexts. The daemon checks them on every use.

use crate::activity::{QpPage, WorkHistogram, WorkerUse};
use crate::cm::{CmCommand, CmReply};
use crate::failures::{FailurePage, FailureQuery, KeptPackets, PacketOwner};
use crate::lend::LentWorker;
use crate::limits::Limits;
use crate::monitor::{CcPeer, CmConnection, CmCursor, CmStats, Counter, DaemonCrashes, Impairment, LogState, UserPage};
use crate::names;
use crate::refusal::Refusal;
use crate::urma::{UrmaCursor, UrmaPage};
use crate::urma_calls::{UrmaAnswer, UrmaCall};
use burst_base::verbs::{AhAttr, Mtu, MwType, QpAttr, QpCap, QpType};
use serde::{Deserialize, Serialize};

/// Maximum number of descriptors in one packet, and so of pieces of one registration.
pub const FDS_MAX: usize = 64;
/// Maximum number of queue pairs in one [`Request::CreateQp`] or [`Request::DropQps`].
pub const QPS_AT_ONCE: usize = 64;
/// Number of the first request of a connection.
pub const FIRST_SEQUENCE: u32 = 1;
/// Maximum length of a control packet in bytes.
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
    /// Place of the header; the entries follow it.
    pub place: ArenaRef,
    /// Number of entries, a power of two.
    pub entries: u32,
    /// Distance of entries in bytes.
    pub stride: u32,
    /// Maximum number of SGEs of an entry.
    pub max_sge: u32,
}

/// A completion queue in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CqPlace {
    /// Place of the header; the entries follow it.
    pub place: ArenaRef,
    /// Number of entries, a power of two.
    pub entries: u32,
}

/// One part of a memory registration, in order of addresses, without holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MrPiece {
    /// Address in the application; page aligned if the piece is in a file.
    pub addr: u64,
    /// Length in bytes; whole pages if the piece is in a file.
    pub len: u64,
    /// Where the bytes are.
    pub kind: MrPieceKind,
}

/// Where the bytes of a piece are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MrPieceKind {
    /// In a file whose descriptor is sent along.
    Fd {
        /// Index among the descriptors of the message.
        fd: u32,
        /// Offset of the piece in the file, in bytes.
        offset: u64,
    },
    /// In the application's private memory, which the daemon reaches by `/proc/PID/mem`.
    InProcess,
    /// In the memory of a device, at this address of the device; the whole region is. The application copies the bytes
    /// ([`Request::OpenCopier`]).
    Device,
}

/// An object to import, by its handle in the exporting context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImportObject {
    /// A protection domain.
    Pd(u32),
    /// A memory region; its keys are valid until the exporter deregisters it.
    Mr(u32),
    /// Device memory.
    Dm(u32),
}

/// Attributes of a completion queue to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CqInitAttr {
    /// Minimum number of entries; the daemon rounds up to a power of two.
    pub entries: u32,
    /// Handle of the completion channel that gets the completion events, if any.
    pub channel: Option<u32>,
    /// Number that names the queue in completion events and asynchronous events.
    pub cookie: u64,
    /// Completion vector.
    pub vector: u32,
}

/// Attributes of a shared receive queue to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SrqInitAttr {
    /// Handle of the protection domain.
    pub pd: u32,
    /// Minimum number of work requests.
    pub max_wr: u32,
    /// Maximum number of SGEs of a work request.
    pub max_sge: u32,
    /// IBV_EVENT_SRQ_LIMIT_REACHED comes when fewer receives than this are posted; 0: never.
    pub limit: u32,
    /// Number that names the queue in asynchronous events.
    pub cookie: u64,
    /// Attributes of an XRC shared receive queue; `None` for a basic one.
    pub xrc: Option<XrcSrqAttr>,
}

/// Attributes that only XRC shared receive queues have (IBA 10.2.9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct XrcSrqAttr {
    /// Handle of the XRC domain.
    pub xrcd: u32,
    /// Handle of the completion queue of the receives.
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
    /// Handle of the shared receive queue; `None` if each queue pair has a receive queue.
    pub srq: Option<u32>,
    /// Minimum capacities; the daemon rounds up.
    pub cap: QpCap,
}

/// A request of an application or tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Introduces the program. First message of a connection.
    Hello {
        /// Program name, for the log.
        program: String,
    },
    /// Gets version, process id and uptime of the daemon.
    DaemonInfo,
    /// Gets all devices with their ports and GIDs.
    ListDevices,
    /// Gets the counters.
    Stats,
    /// Asks whether a supervisor runs the daemon, and which daemons have fallen.
    Crashes,
    /// Impairs the frames of a device's port for a time, in place of an earlier request; root's and the daemon's user's.
    Impair {
        /// Device number.
        device: u32,
        /// Options of `impair` in a port's specification: `loss=1%,delay=100us`; empty: the impairment ends now.
        options: String,
        /// Time until it ends.
        time_ns: u64,
    },
    /// Captures the packets of a device's port until the descriptors of the answer are closed; root's and the daemon's user's.
    /// The answer is `Done`, with a socket for each worker ([`crate::capture`]).
    Capture {
        /// Device number.
        device: u32,
        /// Bytes of each packet's UDP payload.
        snap: u16,
    },
    /// Asks what users use of the limited resources, from the account number `from` on.
    Users {
        /// Number of the first account.
        from: u32,
    },
    /// Opens a context of the device. A connection has at most one context.
    OpenContext {
        /// Device number.
        device: u32,
    },
    /// Allocates a protection domain.
    AllocPd,
    /// Deallocates a protection domain.
    DeallocPd {
        /// Handle of the protection domain.
        pd: u32,
    },
    /// Registers memory.
    RegMr {
        /// Handle of the protection domain.
        pd: u32,
        /// Address of the first byte in the application.
        addr: u64,
        /// Length in bytes.
        len: u64,
        /// Address of the first byte in work requests.
        iova: u64,
        /// Bits of `burst_base::verbs::access`.
        access: u32,
        /// Page-aligned pieces that cover the range; empty if `len` is 0.
        pieces: Vec<MrPiece>,
        /// Re-registration: handle of the region that this one replaces. Handle and keys stay.
        replaces: Option<u32>,
    },
    /// Allocates a null memory region: data written through its local key vanishes, reads return zeros. Reply: `Response::Mr`.
    AllocNullMr {
        /// Handle of the protection domain.
        pd: u32,
    },
    /// Deregisters a memory region. At the reply the daemon has unmapped the memory.
    DeregMr {
        /// Handle of the memory region.
        mr: u32,
    },
    /// The program forks: until `hold: false` its regions' mappings are not used, and what its process does not give is late.
    HoldMemory {
        /// Whether the regions are held.
        hold: bool,
        /// Whether the bytes of each are in the process where they were registered.
        in_place: bool,
    },
    /// Opens the copier of this context, once: the program copies between rings of the daemon and the memory of its device. The
    /// reply is `Done` with a segment for each worker (`burst_shm::copy_ring`).
    OpenCopier,
    /// Allocates device memory that can be imported. The descriptor of a sealed memfd is sent along.
    AllocDm {
        /// Length in bytes.
        len: u64,
    },
    /// Frees device memory.
    FreeDm {
        /// Handle of the device memory.
        dm: u32,
    },
    /// Imports an object of another context. The token of that context proves the caller's right.
    Import {
        /// Token of the exporting context.
        token: u64,
        /// The object to import.
        object: ImportObject,
    },
    /// Allocates a memory window, which is not bound.
    AllocMw {
        /// Handle of the protection domain.
        pd: u32,
        /// Type 1 or 2.
        mw_type: MwType,
    },
    /// Deallocates a memory window. At the reply its key is invalid in all workers.
    DeallocMw {
        /// Handle of the memory window.
        mw: u32,
    },
    /// Creates a completion channel. The reply brings the read end of its pipe.
    CreateChannel,
    /// Destroys a completion channel.
    DestroyChannel {
        /// Handle of the completion channel.
        channel: u32,
    },
    /// Creates a completion queue.
    CreateCq(CqInitAttr),
    /// Resizes a completion queue. The old ring ends at `Response::CqResized::old_end`; later entries are in the new ring.
    ResizeCq {
        /// Handle of the completion queue.
        cq: u32,
        /// Minimum number of entries.
        entries: u32,
    },
    /// Frees the old ring after a resize: the program has polled all its entries.
    RetireCq {
        /// Handle of the completion queue.
        cq: u32,
    },
    /// Destroys a completion queue.
    DestroyCq {
        /// Handle of the completion queue.
        cq: u32,
    },
    /// Opens an XRC domain. If a file names the domain, its descriptor is sent along.
    OpenXrcd {
        /// Whether a file names the domain.
        with_file: bool,
        /// `O_CREAT` and `O_EXCL`, as in `struct ibv_xrcd_init_attr`.
        flags: i32,
    },
    /// Closes an XRC domain.
    CloseXrcd {
        /// Handle of the XRC domain.
        xrcd: u32,
    },
    /// Creates an XRC target queue pair. Reply: `Response::Target`.
    CreateTarget {
        /// Handle of the XRC domain.
        xrcd: u32,
        /// Number that names the queue pair in asynchronous events.
        event_cookie: u64,
    },
    /// Opens an existing XRC target queue pair. Reply: `Response::Target`.
    OpenQp {
        /// Handle of the XRC domain.
        xrcd: u32,
        /// Queue pair number.
        qpn: u32,
        /// Number that names the queue pair in asynchronous events.
        event_cookie: u64,
    },
    /// Creates a shared receive queue.
    CreateSrq(SrqInitAttr),
    /// Arms the limit of a shared receive queue.
    ModifySrq {
        /// Handle of the shared receive queue.
        srq: u32,
        /// The limit; `None` leaves it.
        limit: Option<u32>,
    },
    /// Resizes a shared receive queue, while the program posts nothing. Posted receives are kept. Reply: `Response::Srq`.
    ResizeSrq {
        /// Handle of the shared receive queue.
        srq: u32,
        /// Minimum number of work requests.
        max_wr: u32,
    },
    /// Gets the limit of a shared receive queue.
    QuerySrq {
        /// Handle of the shared receive queue.
        srq: u32,
    },
    /// Destroys a shared receive queue.
    DestroySrq {
        /// Handle of the shared receive queue.
        srq: u32,
    },
    /// Creates queue pairs with equal attributes. If room is short, the daemon creates fewer, but at least one.
    CreateQp {
        /// Attributes of each queue pair.
        init: QpInitAttr,
        /// Cookies of each queue pair; at most [`QPS_AT_ONCE`].
        names: Vec<QpCookies>,
    },
    /// Destroys queue pairs that were never used. Has no reply.
    DropQps {
        /// Handles of the queue pairs.
        qps: Vec<u32>,
    },
    /// Modifies a queue pair.
    ModifyQp {
        /// Handle of the queue pair.
        qp: u32,
        /// Values of the attributes.
        attr: QpAttr,
        /// Attributes to change (`attr_mask` bits).
        mask: u32,
    },
    /// Modifies a queue pair after all earlier requests. Has no reply. Only for changes that the daemon cannot refuse, because
    /// the program does not learn of a refusal. The address vector cannot be changed.
    ModifyQpWithoutReply {
        /// Handle of the queue pair.
        qp: u32,
        /// Values of the attributes.
        attr: QpAttr,
        /// Attributes to change; the bit of the address vector is ignored.
        mask: u32,
    },
    /// Gets the attributes of a queue pair.
    QueryQp {
        /// Handle of the queue pair.
        qp: u32,
    },
    /// Destroys a queue pair. After the reply the daemon writes no completion of it.
    DestroyQp {
        /// Handle of the queue pair.
        qp: u32,
    },
    /// Attaches a datagram queue pair to a multicast group.
    AttachMcast {
        /// Handle of the queue pair.
        qp: u32,
        /// GID of the group.
        gid: [u8; 16],
    },
    /// Detaches a queue pair from a multicast group.
    DetachMcast {
        /// Handle of the queue pair.
        qp: u32,
        /// GID of the group.
        gid: [u8; 16],
    },
    /// Creates an address handle.
    CreateAh {
        /// Handle of the protection domain.
        pd: u32,
        /// Address vector.
        attr: AhAttr,
    },
    /// Destroys an address handle.
    DestroyAh {
        /// Handle of the address handle.
        ah: u32,
    },
    /// Resolves the Ethernet address of a GID's next hop (`ibv_resolve_eth_l2_from_gid`).
    ResolveMac {
        /// Address vector with the GID.
        attr: AhAttr,
    },
    /// Gets the token of this context. It proves to the connection manager that a queue pair of this context is the caller's.
    Token,
    /// Creates an event channel of the connection manager. The reply brings the read end of its pipe.
    CmChannel {
        /// Number of the channel, chosen by the program.
        channel: u32,
    },
    /// Closes an event channel; its ids must have been destroyed or migrated.
    CmCloseChannel {
        /// Number of the channel.
        channel: u32,
    },
    /// Creates the ring for the one-way commands of this connection ([`crate::commands`]), once per connection. The reply brings
    /// its descriptor.
    CmCommandRing,
    /// Connection management, see [`crate::cm`].
    Cm {
        /// Commands, executed in this order; at most [`crate::cm::CM_COMMANDS_MAX`].
        commands: Vec<CmCommand>,
    },
    /// Gets the histograms of connection setup.
    CmStats,
    /// Gets the congestion control in force, and a page of the peer addresses.
    Cc {
        /// Beginning of the page: `next` of the page before, or the default.
        from: CmCursor,
    },
    /// Changes the congestion control; root's and the daemon's user's.
    SetCc {
        /// Kind of the peers: standard, burst or loopback; `None`: all.
        kind: Option<String>,
        /// As the key `cc` of the configuration: `dcqcn:rpg_ai_rate=100M`.
        cc: String,
    },
    /// Gets a page of the list of connections and listeners.
    CmConnections {
        /// Beginning of the page: `next` of the page before, or the default.
        from: CmCursor,
    },
    /// Asks a host for a node of URMA and a page of its channels.
    Urma {
        /// Beginning of the page: `next` of the page before, or the default.
        from: UrmaCursor,
    },
    /// Opens URMA's node of an address of the context's device, once per context.
    UrmaOpen {
        /// Entity id: the address, IPv4 mapped into IPv6.
        eid: [u8; 16],
    },
    /// A call for an object of URMA.
    UrmaCall(UrmaCall),
    /// Asks for a worker number, for an engine in the program. Reply: `Response::Lent`.
    Lend,
    /// Gets records of failures, the newest first.
    Failures(FailureQuery),
    /// Gets the packets of a queue pair that were kept up to its failure, or until now; or of a Jetty that has failed.
    KeptPackets {
        /// Whose.
        of: PacketOwner,
    },
    /// Gets the time and the traffic of each worker.
    Workers,
    /// Gets a page of the list of queue pairs.
    QueuePairs {
        /// Beginning of the page: `next` of the page before, or the default.
        from: CmCursor,
    },
    /// Gets the histograms of all workers together.
    Histograms,
    /// Gets the levels of the host's log, after a change if there is one; that is root's and the daemon's user's.
    Log {
        /// As the words of `burst log`: `host=debug port=warn`.
        levels: Option<String>,
    },
}

impl Request {
    /// Whether the request has no reply.
    pub fn is_without_reply(&self) -> bool {
        matches!(self, Request::ModifyQpWithoutReply { .. } | Request::DropQps { .. })
    }
}

/// Numbers by which the library names a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpCookies {
    /// Number in completions (`Cqe::qp_cookie`).
    pub cookie: u32,
    /// Number that names the queue pair in asynchronous events.
    pub event_cookie: u64,
}

/// A created queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QpGrant {
    /// Handle of the queue pair.
    pub qp: u32,
    /// Queue pair number.
    pub qpn: u32,
    /// Send queue.
    pub sq: QueuePlace,
    /// Receive queue; `None` with an SRQ.
    pub rq: Option<QueuePlace>,
    /// Capacities granted.
    pub cap: QpCap,
    /// Number of the doorbell.
    pub doorbell: u32,
    /// Worker that serves the queue pair.
    pub worker: u32,
}

/// A reply of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Response {
    /// Success without result.
    Done,
    /// To `Hello` and `DaemonInfo`.
    Daemon(DaemonInfo),
    /// To `ListDevices`.
    Devices(Vec<DeviceInfo>),
    /// To `Stats`.
    Stats(Vec<Counter>),
    /// To `Crashes`.
    Crashes(DaemonCrashes),
    /// To `Users`.
    Users(UserPage),
    /// To `OpenContext`. Descriptors: status page, async event pipe (read end), one eventfd per worker, then
    /// arena segment 0 as a new segment.
    Context {
        /// Number of workers, and so of eventfds.
        workers: u32,
        /// The context's device.
        device: DeviceInfo,
    },
    /// To `AllocPd` and `CreateAh`: the handle.
    Handle(u32),
    /// To `RegMr`.
    Mr {
        /// Handle of the memory region.
        mr: u32,
        /// Local key.
        lkey: u32,
        /// Remote key.
        rkey: u32,
    },
    /// To `Import`. The descriptor of device memory is sent along.
    Imported {
        /// Handle in this context (PD, DM).
        handle: u32,
        /// Local and remote key (MR).
        key: u32,
        /// Length in bytes (MR, DM).
        len: u64,
    },
    /// To `AllocMw`.
    Mw {
        /// Handle of the memory window.
        mw: u32,
        /// The window's first key.
        rkey: u32,
    },
    /// To `CreateChannel`, with the read end of the pipe.
    Channel {
        /// Handle of the completion channel.
        channel: u32,
    },
    /// To `CreateCq`.
    Cq {
        /// Handle of the completion queue.
        cq: u32,
        /// Place and size of the ring.
        ring: CqPlace,
    },
    /// To `ResizeCq`.
    CqResized {
        /// The new ring; its indices continue from `old_end`.
        ring: CqPlace,
        /// First index that is not in the old ring.
        old_end: u32,
    },
    /// To `CreateSrq` and `ResizeSrq`.
    Srq {
        /// Handle of the shared receive queue.
        srq: u32,
        /// Place and size of the ring.
        queue: QueuePlace,
        /// Work requests granted.
        max_wr: u32,
        /// Number of an XRC shared receive queue, else 0.
        srqn: u32,
    },
    /// To `QuerySrq`.
    SrqLimit(u32),
    /// To `CreateQp`: at least one queue pair, in the order of the cookies.
    Qps(Vec<QpGrant>),
    /// To `CreateTarget` and `OpenQp`.
    Target {
        /// Handle of the queue pair.
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
    /// To `Cm`: one reply per command.
    Cm(Vec<CmReply>),
    /// To `CmStats`.
    CmStats(CmStats),
    /// To `Cc`.
    Cc {
        /// Algorithm and parameters.
        cc: String,
        /// Peer addresses of the page.
        peers: Vec<CcPeer>,
        /// How many this page leaves out, because the user is neither root nor the daemon's.
        hidden: u32,
        /// Beginning of the next page; `None` after the last page.
        next: Option<CmCursor>,
    },
    /// To `CmConnections`.
    CmConnections {
        /// Connections and listeners of the page.
        connections: Vec<CmConnection>,
        /// How many connections of other users this page leaves out.
        hidden: u32,
        /// Beginning of the next page; `None` after the last page.
        next: Option<CmCursor>,
    },
    /// To `Urma`.
    Urma(UrmaPage),
    /// To `UrmaOpen`. The reply brings the descriptor of the ring for posts.
    UrmaOpened {
        /// The node's address on the bus.
        cna: u32,
        /// Maximum payload of a packet in bytes.
        mtu: u16,
        /// Index of the worker that runs it.
        worker: u32,
        /// Doorbell of the ring.
        doorbell: u32,
    },
    /// To `UrmaCall`.
    UrmaDone(UrmaAnswer),
    /// To `Lend`, with descriptors: see [`crate::lend`].
    Lent(LentWorker),
    /// To `Failures`.
    Failures(FailurePage),
    /// To `KeptPackets`.
    KeptPackets(KeptPackets),
    /// To `Workers`.
    Workers(Vec<WorkerUse>),
    /// To `QueuePairs`.
    QueuePairs(QpPage),
    /// To `Histograms`: in the order of [`crate::activity::WORK_HISTOGRAMS`].
    Histograms(Vec<WorkHistogram>),
    /// To `Log`.
    Log(LogState),
}

/// A response or a refusal, and the number of new arena segments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// How many of the last descriptors are new arena segments, in order of their numbers.
    pub new_segments: u32,
    /// The answer.
    pub result: Result<Response, Refusal>,
}

/// Description of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonInfo {
    /// Package version.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// User id.
    pub uid: u32,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Number of workers.
    pub workers: u32,
    /// Number of open contexts.
    pub contexts: u32,
}

/// A device and its one port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Number of the device.
    pub index: u32,
    /// Name: `burst0`.
    #[serde(deserialize_with = "names::file_name")]
    pub name: String,
    /// Node GUID, host order.
    pub guid: u64,
    /// Port as configured: `udp:dev=eth0`.
    pub port: String,
    /// Whether the link is up.
    pub up: bool,
    /// MTU of the interface.
    pub link_mtu: u32,
    /// Largest RDMA MTU that fits `link_mtu`.
    pub active_mtu: Mtu,
    /// Speed in Mbit/s; 0 if unknown.
    pub speed_mbps: u32,
    /// Name of the interface; empty if there is none.
    #[serde(deserialize_with = "names::file_name_or_empty")]
    pub ifname: String,
    /// MAC address.
    pub mac: [u8; 6],
    /// GID table; the default GID is the first.
    pub gids: Vec<GidInfo>,
    /// Limits of the device.
    pub limits: Limits,
    /// Impairments set by [`Request::Impair`] that are in force.
    pub impairment: Option<Impairment>,
}

/// A GID table entry; all are RoCE v2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidInfo {
    /// The GID.
    pub gid: [u8; 16],
    /// Name of the interface that has the address.
    #[serde(deserialize_with = "names::file_name_or_empty")]
    pub ifname: String,
    /// Index of the interface.
    pub ifindex: u32,
}
