//! One connection, or one datagram service request, and the timers of its messages.
//!
//! A message that wants an answer is sent again after [`FIRST_TIMEOUT`], then after twice as long each time up to
//! [`LONGEST_TIMEOUT`], a quarter more or less by chance so that a storm does not repeat itself; [`RETRIES_MAX`] times, the
//! `max_cm_retries` of other stacks. An MRA stops the clock for the time it names.

use crate::api::{ConnAttr, PathRecord, Transport};
use crate::backlog::{BacklogPlace, RequestPlace};
use crate::message::Mad;
use crate::table::ConnKey;
use burst_base::Nanos;
use burst_wire::MAD_LEN;

/// First wait for an answer: many round trips of a data centre, and a scheduler's bad moment.
pub const FIRST_TIMEOUT: Nanos = Nanos::from_ms(80);
/// Longest wait for an answer.
pub const LONGEST_TIMEOUT: Nanos = Nanos::from_ms(2_000);
/// How often a message is sent again.
pub const RETRIES_MAX: u8 = 15;
/// How long a connection is remembered after its end: packets of its queue pair may still be on the way. Twice the
/// life of a packet in a data centre's network, with plenty to spare.
pub const TIME_WAIT: Nanos = Nanos::from_ms(250);
/// Longest time that an MRA may buy.
pub const SERVICE_TIME_MAX: Nanos = Nanos::from_ms(70_000);
/// Timeout code in our requests for both ends' answers: 4.096 us * 2^20 is 4.3 s.
pub const RESPONSE_TIMEOUT: u8 = 20;
/// Service timeout code in our MRAs: 4.096 us * 2^22 is 17 s.
pub const SERVICE_TIMEOUT: u8 = 22;

/// The time of a timeout code (IBA 9.7.6.1.3): 4.096 us * 2^code.
pub const fn time_of(code: u8) -> Nanos {
    Nanos(4_096 << (code & 31))
}

/// Where a connection is (IBA 12.9.6, 12.9.7, without the states of RD and path migration).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmState {
    /// Active: REQ sent, REP awaited.
    ReqSent,
    /// Active: REP came, the program readies its queue pair.
    RepReceived,
    /// Passive: REQ or SIDR_REQ received, waits for a place in the listener's backlog.
    Queued,
    /// Passive: REQ came, the program decides.
    ReqReceived,
    /// Passive: REP sent, RTU awaited.
    RepSent,
    /// Connected.
    Established,
    /// DREQ sent, DREP awaited.
    DreqSent,
    /// Over; late messages are still answered.
    TimeWait,
    /// Datagram service asked for.
    SidrSent,
    /// Datagram service asked of us, the program decides.
    SidrReceived,
    /// Answered; kept for repeated requests.
    SidrDone,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Conn<O> {
    pub owner: Option<O>,
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
    /// As negotiated so far; in a passive connection before its accept, as the peer wishes.
    pub conn: ConnAttr,
    /// Place in the listener's backlog, until the accept.
    pub waiting: Option<BacklogPlace>,
    /// Place in the queue behind the backlog, in state `Queued`.
    pub queued: Option<RequestPlace>,
    /// Times that `mad` was sent again.
    pub retries: u8,
    /// Wait before the next time.
    pub interval: Nanos,
    /// When it began.
    pub begun: Nanos,
    /// When `mad` was sent first.
    pub sent: Nanos,
    /// When the REP came or went.
    pub replied: Nanos,
    /// When the last step was taken.
    pub stepped: Nanos,
    /// Keys in the table.
    pub keys: [Option<ConnKey>; 2],
    /// Whether the REQ was sent again with a smaller MTU.
    pub smaller_mtu: bool,
    /// The last message that wants an answer, or answers what may be repeated.
    pub mad: [u8; MAD_LEN],
}

impl<O> Conn<O> {
    pub fn new(state: CmState, path: PathRecord, now: Nanos) -> Conn<O> {
        Conn {
            owner: None,
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
            smaller_mtu: false,
            mad: [0; MAD_LEN],
        }
    }

    /// The stored message.
    pub fn stored(&self) -> Option<Mad<'_>> {
        Mad::parse(&self.mad).ok()
    }
}
