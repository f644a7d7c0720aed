//! Inputs and outputs of the state machine: parameters of calls, events for programs, and the effects that it requests.

use crate::backlog::{BacklogPlace, RequestCharge};
use crate::message::CmMessage;
pub use burst_base::conn::{BURST_VENDOR, ConnAttr, ConnParam, Ece, PeerClass};
use burst_base::verbs::Mtu;
use burst_base::{DeviceId, Nanos, Reason};
use burst_frame::Flow;
use burst_wire::MAD_LEN;
use std::net::IpAddr;

/// The path of a connection's messages: device and addresses (from IBA's path record, which RoCE reduces to these).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRecord {
    /// Device that sends and receives them.
    pub device: DeviceId,
    /// Addresses; `src` is this end's.
    pub flow: Flow,
}

/// Transport services of connected queue pairs.
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

    /// Transport service type and extended transport type for a REQ.
    pub const fn codes(self) -> (u8, u8) {
        Transport::CODES[self as usize].1
    }
    /// The service that a REQ requests; `None` for reliable datagrams and for unknown codes.
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

/// What one end contributes to a connection or to a datagram service by its REQ, REP or SIDR_REP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndParams<'a> {
    /// Parameters of the program, limited to what the device can do.
    pub param: ConnParam,
    /// GUID of the device (REQ and REP).
    pub ca_guid: u64,
    /// Private data; in a REQ it begins with the RDMA-CM header.
    pub data: &'a [u8],
}

/// Parameters of a request.
#[derive(Clone, Copy, Debug)]
pub struct ConnectParams<'a> {
    /// Path to the peer.
    pub path: PathRecord,
    /// Service id that is requested.
    pub service_id: u64,
    /// Transport service.
    pub transport: Transport,
    /// Parameters of this end.
    pub end: EndParams<'a>,
    /// MTU of this end's link.
    pub mtu: Mtu,
    /// Local ACK timeout code.
    pub ack_timeout: u8,
}

/// Events that are reported to the owner of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnEventKind {
    /// A REP was received; the owner must move its queue pair to RTS and call `establish`.
    Response,
    /// The connection is established; or the answer of a datagram service was received.
    Established,
    /// A REJ was received: the status is its reason. A SIDR_REP that refuses was received: the status is its status.
    Rejected,
    /// No answer after all retries.
    Unreachable,
    /// The queue pair could not be moved to RTS.
    ConnectError,
    /// The connection has ended. The status is 0, or 4 (the reason code of a time-out) if the peer did not answer the DREQ.
    Disconnected,
    /// TIMEWAIT has ended: the queue pair may be used again.
    TimewaitExit,
}

/// The communication ids of a connection (IBA 12.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmIds {
    /// The id of this end.
    pub local: u32,
    /// The id of the peer.
    pub remote: u32,
}

/// An event of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnEvent<'a> {
    /// Kind.
    pub kind: ConnEventKind,
    /// 0, or the number that the kind defines.
    pub status: u16,
    /// The connection as negotiated so far.
    pub conn: ConnAttr,
    /// Private data with its padding.
    pub data: &'a [u8],
}

/// A request for a listener.
#[derive(Clone, Copy, Debug)]
pub struct ConnRequest<'a> {
    /// Id of the new connection.
    pub id: u32,
    /// Path to the peer.
    pub path: PathRecord,
    /// Addresses and port of the RDMA-CM header; none if the private data has none.
    pub src: Option<(IpAddr, u16)>,
    /// Service id that was requested.
    pub service_id: u64,
    /// Transport, or `None` for a datagram service.
    pub transport: Option<Transport>,
    /// Parameters that the peer requested, seen from this end.
    pub conn: ConnAttr,
    /// Private data after the header, with its padding.
    pub data: &'a [u8],
}

/// Outcome of [`CmEffects::ready`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpSetup {
    /// The queue pair is in RTS.
    Done,
    /// The program moves its queue pair itself.
    ByProgram,
    /// The queue pair cannot be moved.
    Failed,
}

/// Duration of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTime {
    /// Time since the step before; for `Established`, since the REQ.
    pub elapsed: Nanos,
    /// For `Established`, the time from REQ to REP; else 0.
    pub reply: Nanos,
}

/// Steps of the protocol that are measured.
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

/// Why a host takes no request for a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionRefusal {
    /// There is no room, or the listener is about to end. The request is dropped: the peer repeats it, and there may be room
    /// then.
    NoRoom,
    /// The listener's user has its share. The request is rejected, so that the peer learns that a repetition would not help.
    OverShare,
}

/// Actions that the machine requests from its host. `O` identifies the owner of a connection or listener.
pub trait CmEffects<O> {
    /// Sends a MAD.
    fn send(&mut self, path: &PathRecord, message: &CmMessage, mad: &[u8; MAD_LEN]);
    /// Reports an event to the owner.
    fn event(&mut self, owner: &O, path: &PathRecord, event: &ConnEvent<'_>);
    /// Shows a request to a listener; returns the owner of the new connection.
    ///
    /// # Errors
    /// The host makes no owner: see [`AdmissionRefusal`].
    fn incoming(&mut self, listener: &O, request: &ConnRequest<'_>) -> Result<O, AdmissionRefusal>;
    /// Charges the listener's user for a request that is about to be queued. `None`: requests cost nothing.
    ///
    /// # Errors
    /// The user must not have another queued request.
    fn charge_queued(&mut self, _listener: &O) -> Result<Option<RequestCharge>, AdmissionRefusal> {
        Ok(None)
    }
    /// Number of events that a listener's program may not have read; `u32::MAX` if it is unknown.
    fn unread(&self, _listener: &O) -> u32 {
        u32::MAX
    }
    /// The peer has withdrawn a request whose owner has not answered it: the place in the backlog stays taken as long as `place`
    /// is kept. Otherwise a peer that sends and withdraws requests could create owners without limit.
    fn keep_place(&mut self, _owner: &O, _place: BacklogPlace) {}
    /// Moves the owner's queue pair to RTS, because a REP was received.
    fn ready(&mut self, owner: &O, path: &PathRecord, conn: &ConnAttr) -> QpSetup;
    /// The MTU of a device.
    fn mtu(&self, device: DeviceId) -> Mtu;
    /// Counts a reason.
    fn count(&mut self, device: DeviceId, reason: Reason);
    /// Notes a step of the protocol and its duration.
    fn step(&mut self, owner: Option<&O>, path: &PathRecord, id: u32, step: CmStep, took: StepTime);
}
