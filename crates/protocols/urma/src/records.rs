//! Records of what is under way: requests of this node, messages of peers, responses to peers; and the reorder buffer.

use crate::api::{CrStatus, WrData};
use crate::pool::PoolRef;
use burst_base::Psn;
use burst_ubwire::{Cna, Maetah, Mtetah, NotifyTarget, OrderTag, TaOpcode, UbStatus};

/// Where a request of this node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestPhase {
    /// Its order or a fence holds it.
    Posted,
    /// It is sent.
    Issued,
    /// It was refused by RNR, and is sent again later.
    Waiting,
    /// It has an outcome, but earlier ones must be reported first.
    Done(CrStatus),
}

/// A work request of this node.
#[derive(Debug)]
pub(crate) struct SendRecord {
    pub(crate) jetty: PoolRef,
    pub(crate) dest: Cna,
    pub(crate) tassn: u16,
    pub(crate) opcode: TaOpcode,
    pub(crate) order: OrderTag,
    pub(crate) completion_order: bool,
    pub(crate) fence: bool,
    pub(crate) complete: bool,
    pub(crate) phase: RequestPhase,
    pub(crate) user_ctx: u64,
    pub(crate) data: WrData,
    /// Registration of the data's segment.
    pub(crate) segment: PoolRef,
    pub(crate) target: Option<Mtetah>,
    pub(crate) token: Option<u32>,
    pub(crate) memory: Option<Maetah>,
    pub(crate) operands: [u64; 2],
    pub(crate) immediate: u64,
    pub(crate) notify: Option<NotifyTarget>,
    pub(crate) channel: PoolRef,
    pub(crate) tpmsn: u32,
    /// Payload bytes sent in this attempt.
    pub(crate) sent: u32,
    /// All packets of this attempt are sent.
    pub(crate) all_sent: bool,
    /// PSN of the last packet of this attempt, when that is sent.
    pub(crate) last_psn: Option<Psn>,
    /// In ROL: the target holds it, and answers it by a TAACK.
    pub(crate) is_deferred: bool,
    pub(crate) attempt: u8,
    /// [`crate::JettyConfig::err_timeout`] of its Jetty.
    pub(crate) err_timeout: u8,
    pub(crate) rnr_tries: u8,
    /// Refusals for want of room at the target.
    pub(crate) busy_tries: u8,
    /// Bytes of the answer that have arrived.
    pub(crate) received: u32,
    /// The answer is larger than it may be, or local memory is gone.
    pub(crate) fault: Option<CrStatus>,
    /// In the stream of the Jetty: with this order number.
    pub(crate) order_number: Option<u16>,
    /// Asks for a sequence context.
    pub(crate) alloc: bool,
    /// No attempt is made any more; the target is told that it need not wait for this number.
    pub(crate) abandoned: Option<CrStatus>,
    pub(crate) prev: PoolRef,
    pub(crate) next: PoolRef,
}

impl SendRecord {
    /// Whether the answer carries data.
    pub(crate) fn is_read(&self) -> bool {
        self.opcode == TaOpcode::Read || self.opcode.is_atomic()
    }
    /// All packets are sent again, as a new message.
    pub(crate) const fn begin_attempt(&mut self) {
        (self.phase, self.sent, self.all_sent) = (RequestPhase::Issued, 0, false);
        (self.last_psn, self.is_deferred) = (None, false);
    }
    /// What it adds to the load of a lane: the bytes of its data, sent or asked for, and about those of a header.
    pub(crate) const fn load(&self) -> u64 {
        self.data.len() as u64 + 64
    }
    /// Payload bytes to send.
    pub(crate) fn payload_len(&self) -> u32 {
        if self.is_read() || self.abandoned.is_some() { 0 } else { self.data.len() }
    }
    /// Whether a transport acknowledgement completes it, in service mode ROL.
    pub(crate) fn is_fusable(&self) -> bool {
        !self.is_read() && !self.alloc
    }
}

/// Echoes under way at most.
pub(crate) const ECHO_SLOTS: usize = 32;

/// What a response says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResponseKind {
    /// Outcome of this and the following `also` requests.
    Ack { status: UbStatus, also: u8, granted: Option<u16> },
    /// In ROL: the request whose last packet this was waits for its turn. The transport acknowledgement is not its answer.
    Deferred { psn: Psn },
    /// Data of memory.
    Read { addr: u64, len: u32, segment: PoolRef, granted: Option<u16> },
    /// Old value.
    Atomic { value: u64, granted: Option<u16> },
    /// A message to the echo goes back ([`crate::echo`]).
    Echo { slot: u8, len: u32, opcode: TaOpcode, immediate: u64 },
    /// A sequence context of the peer is not needed any more.
    Disconnect { context: u16 },
}

/// A response to a peer (or another message without answer).
#[derive(Debug)]
pub(crate) struct ResponseRecord {
    pub(crate) channel: PoolRef,
    pub(crate) rc_id: u32,
    pub(crate) tassn: u16,
    pub(crate) mode: burst_ubwire::ServiceMode,
    pub(crate) kind: ResponseKind,
    pub(crate) tpmsn: u32,
    pub(crate) sent: u32,
    pub(crate) all_sent: bool,
    /// Packets sent and not acknowledged.
    pub(crate) unacked: u32,
    /// A READ of a sequence context: executed when the data have arrived.
    pub(crate) context: Option<(PoolRef, u16)>,
}

impl ResponseRecord {
    pub(crate) const fn payload_len(&self) -> u32 {
        match self.kind {
            ResponseKind::Read { len, .. } | ResponseKind::Echo { len, .. } => len,
            ResponseKind::Atomic { .. } => 8,
            ResponseKind::Ack { .. } | ResponseKind::Deferred { .. } | ResponseKind::Disconnect { .. } => 0,
        }
    }
}
