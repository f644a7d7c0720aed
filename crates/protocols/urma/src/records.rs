//! Records of what is under way: requests of this node, messages of peers, responses to peers; and the reorder buffer.

use crate::api::{CrStatus, TargetKind, WrData};
use crate::objects::records::PostedReceive;
use crate::pool::PoolRef;
use burst_base::{Psn, Reason};
use burst_ubwire::{Cna, Maetah, Mtetah, NotifyTarget, OrderTag, TaOpcode, TaRequest, UbStatus};

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

/// The message to which a packet or refusal belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageOrigin {
    pub(crate) channel: PoolRef,
    pub(crate) peer: Cna,
    /// PSN of the last packet.
    pub(crate) last_psn: Psn,
    /// In ROL: the peer knows that it waits and that its answer is a TAACK.
    pub(crate) is_deferred: bool,
    pub(crate) request: TaRequest,
}

/// Where the payload goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    /// Registration of the segment, checked again for each packet.
    pub(crate) segment: PoolRef,
    pub(crate) addr: u64,
    pub(crate) limit: u32,
    /// Receive queue whose completion queue is told, and the receive that is used.
    pub(crate) jfr: Option<PoolRef>,
    pub(crate) receive: Option<PostedReceive>,
    /// The Jetty or JFR that the request named.
    pub(crate) local: (TargetKind, u32),
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UrmaRefusal {
    pub(crate) status: UbStatus,
    pub(crate) reason: Reason,
}

impl UrmaRefusal {
    pub(crate) const UNSUPPORTED: u8 = 1;
    pub(crate) const OPERATION: u8 = 2;
    pub(crate) const ACCESS: u8 = 3;
    pub(crate) const LENGTH: u8 = 4;
    pub(crate) const POISON: u8 = 5;
    /// In the timer code of an RNR answer: there is no room for the request, whether or not a receive is posted. Such refusals
    /// are not counted against `rnr_retry`.
    pub(crate) const BUSY: u8 = 16;

    pub(crate) const fn error(info: u8, reason: Reason) -> UrmaRefusal {
        UrmaRefusal { status: UbStatus { status: UbStatus::ERROR, info }, reason }
    }
    pub(crate) const fn rnr(timer: u8, reason: Reason) -> UrmaRefusal {
        UrmaRefusal { status: UbStatus { status: UbStatus::RNR, info: timer }, reason }
    }
    pub(crate) const fn is_final(&self) -> bool {
        self.status.status != UbStatus::RNR
    }
}

/// Where a message of a peer is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InboundPhase {
    /// Earlier requests of its context must be executed first.
    Waiting,
    /// It goes to the echo when it is complete; payload waits in the reorder buffer.
    Echo,
    /// Payload goes to its place.
    Placing(Placement),
    /// It is refused when it is complete.
    Refused(UrmaRefusal),
}

/// A message of a peer that is incomplete or waits.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) origin: MessageOrigin,
    pub(crate) tpmsn: u32,
    pub(crate) phase: InboundPhase,
    pub(crate) received: u32,
    pub(crate) total: Option<u32>,
    /// First of its packets in the reorder buffer.
    pub(crate) held: Option<u32>,
}

impl Inbound {
    pub(crate) fn is_complete(&self) -> bool {
        self.total.is_some_and(|total| self.received >= total)
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

#[derive(Clone, Copy, Debug)]
struct HeldPacket {
    next: Option<u32>,
    offset: u32,
    len: u16,
}

/// The reorder buffer: payloads of packets that must wait, of all channels.
#[derive(Debug)]
pub(crate) struct ReorderBuffer {
    mtu: usize,
    limit: usize,
    bytes: Vec<u8>,
    packets: Vec<HeldPacket>,
    free: Vec<u32>,
}

impl ReorderBuffer {
    pub(crate) const fn new(mtu: u16, limit: usize) -> Self {
        ReorderBuffer { mtu: mtu as usize, limit, bytes: Vec::new(), packets: Vec::new(), free: Vec::new() }
    }
    /// Packets held.
    pub(crate) fn len(&self) -> usize {
        self.packets.len() - self.free.len()
    }
    /// Keeps a payload in front of the list `head`; false without room.
    pub(crate) fn hold(&mut self, head: &mut Option<u32>, offset: u32, payload: &[u8]) -> bool {
        if payload.len() > self.mtu {
            return false;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.packets.len() < self.limit => {
                self.bytes.resize(self.bytes.len() + self.mtu, 0);
                self.packets.push(HeldPacket { next: None, offset: 0, len: 0 });
                (self.packets.len() - 1) as u32
            }
            None => return false,
        };
        let at = index as usize * self.mtu;
        self.bytes[at..at + payload.len()].copy_from_slice(payload);
        self.packets[index as usize] = HeldPacket { next: *head, offset, len: payload.len() as u16 };
        *head = Some(index);
        true
    }
    /// Takes the first packet of a list: offset and payload. The payload is valid until the next `hold`.
    pub(crate) fn take(&mut self, head: &mut Option<u32>) -> Option<(u32, &[u8])> {
        let index = (*head)?;
        let packet = self.packets[index as usize];
        *head = packet.next;
        self.free.push(index);
        let at = index as usize * self.mtu;
        Some((packet.offset, &self.bytes[at..at + usize::from(packet.len)]))
    }
    /// Frees a list; how long it was.
    pub(crate) fn drop_list(&mut self, head: &mut Option<u32>) -> u32 {
        let mut count = 0;
        while self.take(head).is_some() {
            count += 1;
        }
        count
    }
    /// Packets for which there is room.
    pub(crate) fn free(&self) -> usize {
        self.limit - self.len()
    }
    pub(crate) fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.packets.capacity() * size_of::<HeldPacket>() + self.free.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reorder_buffer_is_bounded_and_freed() {
        let mut buffer = ReorderBuffer::new(4, 3);
        let (mut a, mut b) = (None, None);
        assert!(buffer.hold(&mut a, 0, &[1, 2]) && buffer.hold(&mut b, 9, &[3]) && buffer.hold(&mut a, 2, &[4]));
        assert!(!buffer.hold(&mut b, 1, &[5]));
        assert_eq!(buffer.take(&mut a), Some((2, &[4][..])));
        assert!(!buffer.hold(&mut b, 1, &[5; 5]), "longer than a packet");
        assert_eq!(buffer.take(&mut a), Some((0, &[1, 2][..])));
        assert_eq!(buffer.take(&mut a), None);
        assert_eq!(buffer.len(), 1);
        buffer.drop_list(&mut b);
        assert_eq!((buffer.len(), b), (0, None));
    }
}
