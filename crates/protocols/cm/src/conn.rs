//! One connection, or one datagram service request, and the timers of its messages.
//!
//! A message that requires an answer is sent again after [`FIRST_TIMEOUT`], then after twice as long each time up to
//! [`LONGEST_TIMEOUT`], a quarter more or less by chance so that a storm does not repeat itself; [`RETRIES_MAX`] times, the
//! `max_cm_retries` of other stacks. An MRA suspends the timer for the time that it carries.

use crate::api::{ConnAttr, PathRecord, Transport};
use crate::backlog::{BacklogPlace, RequestPlace};
use crate::message::Mad;
use crate::table::ConnKey;
use burst_base::Nanos;
use burst_wire::MAD_LEN;
use std::any::Any;

/// First wait for an answer: many round trips of a data centre, and a scheduling delay of the peer.
pub const FIRST_TIMEOUT: Nanos = Nanos::from_ms(80);
/// Longest wait for an answer.
pub const LONGEST_TIMEOUT: Nanos = Nanos::from_ms(2_000);
/// Number of retransmissions of a message.
pub const RETRIES_MAX: u8 = 15;
/// Time in TIMEWAIT after the end of a connection: packets of its queue pair may still be in the network. Twice the
/// lifetime of a packet in a data centre's network, with a large margin.
pub const TIME_WAIT: Nanos = Nanos::from_ms(250);
/// Longest time for which an MRA may suspend a timer.
pub const SERVICE_TIME_MAX: Nanos = Nanos::from_ms(70_000);
/// Response timeout code of both ends in the REQs that this end sends: 4.096 us * 2^20 is 4.3 s.
pub const RESPONSE_TIMEOUT: u8 = 20;
/// Service timeout code in the MRAs that this end sends: 4.096 us * 2^22 is 17 s.
pub const SERVICE_TIMEOUT: u8 = 22;

/// The time of a timeout code (IBA 9.7.6.1.3): 4.096 us * 2^code.
pub const fn time_of(code: u8) -> Nanos {
    Nanos(4_096 << (code & 31))
}

/// State of a connection (IBA 12.9.6, 12.9.7, without the states of RD and path migration).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmState {
    /// Active: REQ sent, REP awaited.
    ReqSent,
    /// Active: REP received, the program moves its queue pair to RTS.
    RepReceived,
    /// Passive: REQ or SIDR_REQ received, waits for a place in the listener's backlog.
    Queued,
    /// Passive: REQ received and shown to the program, whose answer is awaited.
    ReqReceived,
    /// Passive: REP sent, RTU awaited.
    RepSent,
    /// Established.
    Established,
    /// DREQ sent, DREP awaited.
    DreqSent,
    /// TIMEWAIT: the connection has ended; late messages are still answered.
    TimeWait,
    /// SIDR_REQ sent, SIDR_REP awaited.
    SidrSent,
    /// SIDR_REQ received and shown to the program, whose answer is awaited.
    SidrReceived,
    /// SIDR_REP sent; kept to answer repeated SIDR_REQs.
    SidrDone,
}

impl CmState {
    /// Whether a message was sent that the peer must answer, and that a timer repeats.
    pub(crate) const fn awaits_answer(self) -> bool {
        matches!(self, CmState::ReqSent | CmState::RepSent | CmState::DreqSent | CmState::SidrSent)
    }
}

/// A connection or datagram service request.
#[derive(Debug)]
pub(crate) struct Conn<O> {
    pub owner: Option<O>,
    /// What it costs an owner that has ended, given back when the connection is forgotten.
    pub cost: Option<Box<dyn Any + Send>>,
    pub state: CmState,
    pub path: PathRecord,
    pub id: u32,
    pub remote_id: u32,
    pub remote_guid: u64,
    pub local_guid: u64,
    pub local_qpn: u32,
    pub tid: u64,
    pub service_id: u64,
    pub transport: Transport,
    /// Parameters as negotiated so far; in a passive connection before its accept, as the peer requested.
    pub conn: ConnAttr,
    /// Place in the listener's backlog, until the accept.
    pub waiting: Option<BacklogPlace>,
    /// Place in the queue behind the backlog, in state `Queued`.
    pub queued: Option<RequestPlace>,
    /// Number of retransmissions of `mad` so far.
    pub retries: u8,
    /// Wait before the next retransmission.
    pub interval: Nanos,
    /// Time of the REQ or SIDR_REQ, sent or received.
    pub begun: Nanos,
    /// Time at which `mad` was sent first.
    pub sent: Nanos,
    /// Time at which the REP was received or sent.
    pub replied: Nanos,
    /// Time of the last step.
    pub stepped: Nanos,
    /// Keys under which the table finds this connection.
    pub keys: [Option<ConnKey>; 2],
    /// Whether a message of the peer had an id of ours: its address is no forgery.
    pub is_proven: bool,
    /// Whether it counts in [`Sources::unproven`](crate::source).
    pub counts_unproven: bool,
    /// Whether the REQ was sent again with a smaller MTU.
    pub smaller_mtu: bool,
    /// The message to send again: one that requires an answer, or the answer to a request that may be repeated. In state
    /// `Queued`, the request.
    pub mad: [u8; MAD_LEN],
}

impl<O> Conn<O> {
    pub fn new(state: CmState, path: PathRecord, now: Nanos) -> Conn<O> {
        Conn {
            owner: None,
            cost: None,
            state,
            path,
            id: 0,
            remote_id: 0,
            remote_guid: 0,
            local_guid: 0,
            local_qpn: 0,
            tid: 0,
            service_id: 0,
            transport: Transport::Rc,
            conn: ConnAttr::NONE,
            waiting: None,
            queued: None,
            retries: 0,
            interval: FIRST_TIMEOUT,
            begun: now,
            sent: now,
            replied: now,
            stepped: now,
            keys: [None; 2],
            is_proven: false,
            counts_unproven: false,
            smaller_mtu: false,
            mad: [0; MAD_LEN],
        }
    }

    /// The stored message.
    pub fn stored(&self) -> Option<Mad<'_>> {
        Mad::parse(&self.mad).ok()
    }
}
