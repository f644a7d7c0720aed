//! What goes in and out of the machine: parameters, events, and the effects it asks for.

use crate::backlog::BacklogPlace;
use crate::message::CmMessage;
pub use burst_base::conn::{BURST_VENDOR, ConnAttr, PeerClass};
use burst_base::verbs::Mtu;
use burst_base::{DeviceId, Nanos, Reason};
use burst_frame::Flow;
use burst_wire::MAD_LEN;
use std::net::IpAddr;

/// Where messages go: device and addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRecord {
    /// Device.
    pub device: DeviceId,
    /// Our address is `src`.
    pub flow: Flow,
}

/// Connected services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable.
    Rc,
    /// Unreliable.
    Uc,
    /// Extended reliable: the active end is an initiator, the passive one a target (IBA annex A14).
    Xrc,
}

impl Transport {
    /// Transport service type and extended transport type, as a REQ has them (IBA 12.6.5).
    const CODES: [(Transport, (u8, u8)); 3] =
        [(Transport::Rc, (0, 0)), (Transport::Uc, (1, 0)), (Transport::Xrc, (3, 1))];

    /// What a REQ says.
    pub const fn codes(self) -> (u8, u8) {
        Transport::CODES[self as usize].1
    }
    /// What a REQ means; `None` for reliable datagrams and what is not known.
    pub fn of(codes: (u8, u8)) -> Option<Transport> {
        Transport::CODES.iter().find(|row| row.1 == codes).map(|row| row.0)
    }
}

const _: () = {
    let mut row = 0;
    while row < Transport::CODES.len() {
        assert!(Transport::CODES[row].0 as usize == row);
        row += 1;
    }
};

/// What one end brings into a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndParams<'a> {
    /// Its queue pair.
    pub qpn: u32,
    /// GUID of its device.
    pub ca_guid: u64,
    /// READs and atomics it takes.
    pub responder_resources: u8,
    /// READs and atomics it wants to have outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// RNR retries that the peer should make.
    pub rnr_retry_count: u8,
    /// Shared receive queue.
    pub srq: bool,
    /// Vendor id and options, if the program set them.
    pub ece: (u32, u32),
    /// Private data, whole: with the RDMA-CM header in a request.
    pub data: &'a [u8],
}

/// Parameters of a request.
#[derive(Clone, Copy, Debug)]
pub struct ConnectParams<'a> {
    /// Where to.
    pub path: PathRecord,
    /// What for.
    pub service_id: u64,
    /// Service.
    pub transport: Transport,
    /// Our end.
    pub end: EndParams<'a>,
    /// Retries of the transport, for both ends.
    pub retry_count: u8,
    /// MTU of our end.
    pub mtu: Mtu,
    /// Local ACK timeout code.
    pub ack_timeout: u8,
    /// GIDs.
    pub gids: ([u8; 16], [u8; 16]),
}

/// Parameters of a datagram service request or reply.
#[derive(Clone, Copy, Debug)]
pub struct SidrParams<'a> {
    /// Queue pair of the service (reply).
    pub qpn: u32,
    /// Its Q_Key (reply).
    pub qkey: u32,
    /// Vendor id and options (reply).
    pub ece: (u32, u32),
    /// Private data.
    pub data: &'a [u8],
}

/// What the owner of a connection is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnEventKind {
    /// A reply came; the owner must make its queue pair ready and call `establish`.
    Response,
    /// Connected; or the datagram service is known.
    Established,
    /// REJ: the status is its reason. SIDR_REP that refuses: its status.
    Rejected,
    /// No answer after all retries.
    Unreachable,
    /// The queue pair could not be made ready.
    ConnectError,
    /// The connection is over; the status is the reason for a REJ that nobody sends, 4, if the peer did not answer the DREQ.
    Disconnected,
    /// The queue pair may be used again.
    TimewaitExit,
}

/// An event of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnEvent<'a> {
    /// What.
    pub kind: ConnEventKind,
    /// 0, or the number that `kind` promises.
    pub status: u16,
    /// What is known of the connection.
    pub conn: ConnAttr,
    /// Private data with its padding.
    pub data: &'a [u8],
}

/// A request for a listener.
#[derive(Clone, Copy, Debug)]
pub struct ConnRequest<'a> {
    /// Id of the new connection.
    pub id: u32,
    /// The way back.
    pub path: PathRecord,
    /// Addresses and port of the RDMA-CM header; none if the private data has none.
    pub src: Option<(IpAddr, u16)>,
    /// What was asked for.
    pub service_id: u64,
    /// Transport, or `None` for a datagram service.
    pub transport: Option<Transport>,
    /// The peer's wishes, seen from this end.
    pub conn: ConnAttr,
    /// Private data after the header, with its padding.
    pub data: &'a [u8],
}

/// What became of a queue pair that should be made ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpSetup {
    /// It is ready to send.
    Done,
    /// The program does it.
    ByProgram,
    /// It cannot be.
    Failed,
}

/// How long a step took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTime {
    /// Since the step before; of `Established` since the REQ.
    pub elapsed: Nanos,
    /// Of `Established`: from the REQ to the REP. Else 0.
    pub reply: Nanos,
}

/// Steps whose time is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it
pub enum CmStep {
    ReqSent,
    ReqReceived,
    RepSent,
    RepReceived,
    RtuSent,
    RtuReceived,
    Established,
    RejSent,
    RejReceived,
    Failed,
    DreqSent,
    DreqReceived,
    DrepReceived,
    Disconnected,
    TimewaitExit,
    SidrReqSent,
    SidrReqReceived,
    SidrRepSent,
    SidrRepReceived,
}

/// What the machine wants done. `O` names the owner of a connection or listener.
pub trait CmEffects<O> {
    /// Sends a MAD.
    fn send(&mut self, path: &PathRecord, message: &CmMessage, mad: &[u8; MAD_LEN]);
    /// Tells the owner.
    fn event(&mut self, owner: &O, path: &PathRecord, event: &ConnEvent<'_>);
    /// Somebody asks a listener; the new connection's owner, or `None` when there is no room for one.
    fn incoming(&mut self, listener: &O, request: &ConnRequest<'_>) -> Option<O>;
    /// How many events a listener's program may not have read; the most there could be if nobody knows.
    fn unread(&self, _listener: &O) -> u32 {
        u32::MAX
    }
    /// The peer has taken a request back, and its owner does not know: the place in the backlog stays taken as long as `place`
    /// is kept. Otherwise a peer that asks and takes back could make owners without end.
    fn keep_place(&mut self, _owner: &O, _place: BacklogPlace) {}
    /// Makes the owner's queue pair ready to send (a reply has come).
    fn ready(&mut self, owner: &O, path: &PathRecord, conn: &ConnAttr) -> QpSetup;
    /// The MTU of a device.
    fn mtu(&self, device: DeviceId) -> Mtu;
    /// Counts a reason.
    fn count(&mut self, device: DeviceId, reason: Reason);
    /// A step was taken.
    fn step(&mut self, owner: Option<&O>, path: &PathRecord, id: u32, step: CmStep, took: StepTime);
}
