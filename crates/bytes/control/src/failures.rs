//! Records of failures: what a host keeps of each queue pair that ends in error, of each refused call and of each connection
//! that fails, after the program is gone, too. `burst why` shows them with the sentence of `burst_client::explain`.
//!
//! A host keeps [`RECORDS`] for each worker and as many for its control thread, and no account pushes out another's
//! (`burst_ledger::AccountRing`). Times are ages, because the clocks of a host and of a viewer differ.

use burst_base::Reason;
use burst_base::verbs::{QpState, QpType, WrOpcode};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Records that a worker keeps, and that the control thread keeps.
pub const RECORDS: usize = 256;

/// Most records in one reply.
pub const FAILURES_PAGE: usize = 32;

/// What has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// A request of a queue pair's own program.
    Request,
    /// A request of a queue pair's peer, which this host refused.
    PeerRequest,
    /// A queue in shared memory, or a completion queue that was full.
    Queue,
    /// Nothing: a queue pair as it is now.
    Present,
    /// A call of a program.
    Call,
    /// A connection.
    Connection,
}

impl FailureKind {
    /// The kind in a few words.
    pub const fn words(self) -> &'static str {
        match self {
            FailureKind::Request => "a request of the program failed",
            FailureKind::PeerRequest => "a request of the peer was refused",
            FailureKind::Queue => "a queue failed",
            FailureKind::Present => "no failure: the queue pair as it is now",
            FailureKind::Call => "a call was refused",
            FailureKind::Connection => "a connection failed",
        }
    }
}

/// The program that a record belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedProgram {
    /// Its name; empty if it is not known.
    pub name: String,
    /// Its process id.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureRecord {
    /// How long ago, in nanoseconds. Inside a host: when, by its clock.
    pub ago_ns: u64,
    /// What has failed.
    pub kind: FailureKind,
    /// The program.
    pub program: FailedProgram,
    /// Number of the reason in the table, if there is one.
    pub reason: Option<u16>,
    /// Status of the completion, 0 for none.
    pub status: u8,
    /// The errno of a call; 0 for none.
    pub errno: i32,
    /// What the host says itself: of calls and connections. Empty otherwise.
    pub sentence: String,
    /// How often the same happened again since.
    pub repeats: u32,
    /// Communication id of this end of a connection that failed; 0: none, or not known.
    pub comm_id: u32,
    /// Of a queue pair's failure.
    pub qp: Option<Box<QpRecord>>,
    /// Of a failure of a Jetty's request or receive.
    pub jetty: Option<Box<JettyRecord>>,
}

impl FailureRecord {
    /// The reason.
    pub fn reason(&self) -> Option<Reason> {
        Reason::ALL.get(usize::from(self.reason?)).copied()
    }
}

/// A request of a Jetty, or a receive, that has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JettyRecord {
    /// Device number.
    pub device: u32,
    /// Number of the Jetty, or of the receive queue.
    pub jetty: u32,
    /// This end's address.
    pub local: IpAddr,
    /// The peer's address, if it is known, and the number of its Jetty (0: the request names none).
    pub peer: Option<IpAddr>,
    /// See `peer`.
    pub peer_jetty: u32,
    /// Name of the operation.
    pub operation: String,
    /// Whether a receive has failed.
    pub is_receive: bool,
    /// Bytes of the request.
    pub length: u32,
    /// Status of the completion, by URMA's number.
    pub status: u8,
    /// The channel to the peer; `None`: there is none.
    pub channel: Option<JettyChannelRecord>,
    /// The path to the peer.
    pub path: Option<PeerPathRecord>,
    /// What the host knows of the next hop to the peer when it is asked; `None`: nothing, or it is an own address.
    pub next_hop: Option<NextHop>,
}

/// The channel of a request that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JettyChannelRecord {
    /// Whether the peer has ever answered on it.
    pub is_open: bool,
    /// Packets that are not acknowledged.
    pub packets: u32,
    /// Requests that are not answered.
    pub unanswered: u32,
    /// Smoothed round trip; 0: unknown.
    pub rtt_ns: u64,
}

/// A queue pair at its failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpRecord {
    /// Device number.
    pub device: u32,
    /// Queue pair number.
    pub qpn: u32,
    /// Service type.
    pub qp_type: QpType,
    /// State before the failure was handled, or now.
    pub state: QpState,
    /// This end's address.
    pub local: IpAddr,
    /// The peer's address.
    pub peer: IpAddr,
    /// The peer's queue pair number.
    pub peer_qpn: u32,
    /// Payload bytes of its packets, and the most that the interface allows.
    pub mtu: u32,
    /// See `mtu`.
    pub port_mtu: u32,
    /// PSN of its first request, of the oldest without an answer, and of the first that was never sent.
    pub sent_psns: [u32; 3],
    /// PSN of the peer's first request, and of the next that is expected.
    pub received_psns: [u32; 2],
    /// The packet that failed.
    pub psn: u32,
    /// The request that failed, if it is this end's.
    pub request: Option<RequestRecord>,
    /// The memory that the request names.
    pub memory: Option<MemoryRecord>,
    /// Repetitions that were left, `retry_cnt`, `rnr_retry`.
    pub retries: [u8; 3],
    /// Code of the local ACK timeout, and its time (0: endless).
    pub timeout: u8,
    /// See `timeout`.
    pub timeout_ns: u64,
    /// Bytes of requests that were answered before.
    pub answered_bytes: u64,
    /// Smoothed round trip, 0 if unknown.
    pub rtt_ns: u64,
    /// Whether its requests are of the selective repeat family.
    pub is_selective: bool,
    /// What packets of this queue pair met, by number of the reason; the first few reasons, with their counts.
    pub counts: Vec<(u16, u32)>,
    /// The last packet that it has sent, and the last one that it has received; of a train the first one.
    pub last_packets: [Option<LastPacketRecord>; 2],
    /// The path to the peer, if it is connected.
    pub path: Option<PeerPathRecord>,
    /// What the host knows of the next hop to the peer when it is asked; `None`: nothing, or it is an own address.
    pub next_hop: Option<NextHop>,
}

/// A packet of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastPacketRecord {
    /// How long before the failure, or before now, in steps of 65.5 us.
    pub ago_ns: u64,
    /// Name of its opcode.
    pub opcode: String,
    /// Its PSN.
    pub psn: u32,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// Operation.
    pub opcode: WrOpcode,
    /// Bytes.
    pub length: u32,
    /// Packets, and how many of them were answered.
    pub packets: u32,
    /// See `packets`.
    pub answered_packets: u32,
}

/// Memory that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryRecord {
    /// The key.
    pub rkey: u32,
    /// First address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// The right that is needed (`base::verbs::access`).
    pub right: u32,
    /// What was wrong, if the memory is this host's.
    pub finding: Option<MemoryFinding>,
}

/// What is wrong with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryFinding {
    /// No region has it.
    Unknown,
    /// Its region is of another protection domain.
    OtherDomain,
    /// Its region lacks these rights.
    MissingRight(u32),
    /// The range is outside.
    OutOfRange {
        /// First address of the region.
        iova: u64,
        /// Bytes of the region.
        len: u64,
    },
    /// The queue pair itself does not allow this kind of access.
    QueuePairRight,
    /// A memory window.
    Window,
    /// Nothing, when it was looked at.
    Nothing,
}

/// The path to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerPathRecord {
    /// Whether the peer's address is this host's own.
    pub is_own_address: bool,
    /// How long ago the peer last acknowledged anything, of any queue pair; `None`: never.
    pub acked_ago_ns: Option<u64>,
    /// What the peer's daemon has said.
    pub hello: HelloRecord,
    /// Packets that the kernel refused to send by the device, and those without a next hop or route, since the path exists.
    pub unsent: u64,
    /// Packets that were longer than the path's MTU, likewise.
    pub too_long: u64,
    /// Packets that arrived for the device with a wrong CRC, likewise.
    pub corrupt: u64,
    /// Packets lost in the device's receive buffers, likewise.
    pub overflowed: u64,
    /// Packets to which a host answered that nothing listens on their UDP port, likewise.
    pub closed: u64,
}

/// What a peer's daemon has said of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloRecord {
    /// Whether it was asked.
    pub asked: bool,
    /// Whether a question is under way.
    pub is_waiting: bool,
    /// How long ago it last answered; `None`: never.
    pub answered_ago_ns: Option<u64>,
    /// How long ago its daemon was found to have started anew; `None`: not since the path exists.
    pub restarted_ago_ns: Option<u64>,
    /// Whether it has answered since the failure.
    pub answered_since: bool,
}

/// The next hop to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NextHop {
    /// Its link-layer address is known.
    Resolved,
    /// It has not answered yet.
    Asked,
    /// It does not answer ARP or neighbour discovery.
    Silent,
    /// There is no route.
    NoRoute,
}

/// Which records are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureQuery {
    /// Only those of the process, queue pair, Jetty or connection (communication id) of this number; of a queue pair also what it
    /// is now. `None`: all.
    pub about: Option<u32>,
    /// How many of them to leave out.
    pub skip: u32,
}

/// Whose packets are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PacketOwner {
    /// The queue pair with this number.
    QueuePair(u32),
    /// The Jetty with this id.
    Jetty(u32),
}

impl std::fmt::Display for PacketOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PacketOwner::QueuePair(qpn) => write!(f, "queue pair {qpn:#x}"),
            PacketOwner::Jetty(id) => write!(f, "Jetty {id}"),
        }
    }
}

/// To [`crate::Request::KeptPackets`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptPackets {
    /// Device number of the queue pair or Jetty.
    pub device: u32,
    /// Whether these are its packets up to its failure, copied then; else those that the ring has now.
    pub is_failed: bool,
    /// Message of [`crate::capture`] with the heads of the packets, the oldest first.
    pub message: Vec<u8>,
}

/// To [`crate::Request::Failures`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailurePage {
    /// The records, the newest first.
    pub records: Vec<FailureRecord>,
    /// How many records of other users were left out.
    pub hidden: u32,
    /// Whether there are older ones.
    pub has_more: bool,
}
