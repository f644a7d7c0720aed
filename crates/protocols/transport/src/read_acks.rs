//! Acknowledgements of READ responses (selective repeat): the requester of READs sends them, and the responder limits what it has
//! in flight by them.
//!
//! **Requester.** While responses come it sends an acknowledgement every [`READ_ACK_BYTES`], at the end of each READ, and in each
//! pass in which a response was marked, came behind a gap or filled one, or asked for it. It is cumulative: its PSN is that of
//! the last packet in front of *una*.
//!
//! **Responder.** Of each READ it keeps how far its response was sent, how far that counts as in flight, and how far it is
//! acknowledged. New packets of responses leave as far as the path's window allows; repetitions of what is in flight need no
//! room, and with no response in flight one packet always leaves, so that responses of one side never wait for those of the
//! other. The last packet before it stops asks for an acknowledgement, because the window may be smaller than what the requester
//! waits for. What is not acknowledged within the retransmission time-out, at most a quarter of the local ACK timeout, stops
//! counting, with a signal to congestion control: the requester's timers repair the data. If a peer lets [`SILENT_TIMEOUTS`]
//! time-outs pass without a word, its READs are answered without counting anything until it acknowledges one.
//!
//! An acknowledgement of what was never sent is dropped; one that says nothing new changes nothing. So neither can make the
//! bytes in flight wrong, and none is needed for a READ to end.

use crate::ack_report::EchoedCounts;
use crate::api::{Env, Signal};
use crate::qp::Qp;
use crate::responder::{FLAGS, READ_ACK_DUE, Responder};
use crate::responder_resource::ResponderResource;
use crate::selective_answers::pressure_now;
use burst_base::verbs::QpState;
use burst_base::{Nanos, Psn, Reason};
use burst_frame::{Ecn, Flow};
use burst_wire::selective::DELAY_UNIT_NS;
use burst_wire::{Bth, HeadBuf, OpKind, Opcode, Packet, Saeth};

/// Bytes of responses between two acknowledgements.
pub(crate) const READ_ACK_BYTES: u32 = 64 << 10;
/// Time-outs without an acknowledgement after which none is expected.
const SILENT_TIMEOUTS: u8 = 2;

/// What a queue pair whose peer knows acknowledgements of READs keeps of them.
pub(crate) struct ReadAcks {
    /// Requester: bytes placed since the last acknowledgement.
    since: u32,
    /// PSN and transmission number of the newest response, and when it arrived.
    trigger: Psn,
    transmission: u8,
    arrived_at: Nanos,
    /// Responses received, and those marked "congestion experienced".
    received: u16,
    congested: u16,
    is_congested: bool,
    /// Losses in the host's receive buffers that the peer has been told of.
    lost_seen: Option<u32>,
    /// Responder: the peer's counters in the newest acknowledgement.
    echoed: EchoedCounts,
    /// Responder: most bytes of responses that may be added to those in flight now.
    room: u64,
    /// A response whose acknowledgement measures the round trip: the PSN behind it, and when it was sent.
    measured: Option<(Psn, Nanos)>,
    /// Time-outs since the last acknowledgement.
    silent: u8,
}

impl ReadAcks {
    fn new() -> ReadAcks {
        ReadAcks {
            since: 0,
            trigger: Psn::new(0),
            transmission: 0,
            arrived_at: Nanos(0),
            received: 0,
            congested: 0,
            is_congested: false,
            lost_seen: None,
            echoed: EchoedCounts::default(),
            room: u64::MAX,
            measured: None,
            silent: 0,
        }
    }
}

/// Packets of a response that may be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseRoom {
    /// The packet behind the last.
    pub(crate) end: u32,
    /// The window allows no packet.
    pub(crate) is_closed: bool,
    /// Packets count: the last before sending stops asks for an acknowledgement.
    pub(crate) counts: bool,
}

impl Qp {
    /// Acknowledges READ responses and expects the peer to acknowledge them, as its hello says, or does neither. RC and XRC only.
    pub fn use_read_acks(&mut self, on: bool) {
        let on = on && (self.id.qp_type.is_xrc() || self.id.qp_type == burst_base::verbs::QpType::Rc);
        if on == self.read_acks.is_some() {
            return;
        }
        self.forget_responses();
        self.resp.pending &= !FLAGS;
        self.read_acks = on.then(|| Box::new(ReadAcks::new()));
    }

    /// Whether READ responses are to be sent that the peer acknowledges, so that [`Qp::allow_responses`] has a meaning.
    #[inline]
    pub fn wants_response_room(&self) -> bool {
        (self.resp.pending & !FLAGS) + self.resp.parked > 0 && self.read_acks.is_some()
    }

    /// Sets the bytes of READ responses that may be added to those in flight in the next turn.
    pub fn allow_responses(&mut self, room: u64) {
        if let Some(acks) = &mut self.read_acks {
            acks.room = room;
        }
    }

    /// Bytes of READ responses that were sent and that the peer has not acknowledged.
    #[inline]
    pub fn response_bytes(&self) -> u64 {
        self.resp.response_bytes
    }

    /// The family is not used any more, or the queue pair ends: no response is in flight.
    pub(crate) fn forget_responses(&mut self) {
        self.resp.uncount_responses();
        if let Some(acks) = &mut self.read_acks {
            (acks.measured, acks.silent, acks.since) = (None, 0, 0);
        }
    }
}

/// The requester.
impl Qp {
    /// Responses have arrived, the newest with this PSN and transmission number.
    #[inline]
    pub(crate) fn note_responses(&mut self, flow: &Flow, newest: (Psn, u8), (count, bytes): (u16, u32), now: Nanos) {
        let Some(acks) = &mut self.read_acks else { return };
        (acks.trigger, acks.transmission) = newest;
        acks.arrived_at = now;
        acks.received = acks.received.wrapping_add(count);
        acks.since = acks.since.saturating_add(bytes);
        if flow.tos & 3 == Ecn::Ce as u8 {
            acks.congested = acks.congested.wrapping_add(count);
            acks.is_congested = true;
        }
        if acks.since >= READ_ACK_BYTES || acks.is_congested {
            self.resp.pending |= READ_ACK_DUE;
        }
    }

    /// An acknowledgement is sent in this pass.
    pub(crate) fn owe_read_ack(&mut self) {
        if self.read_acks.is_some() {
            self.resp.pending |= READ_ACK_DUE;
        }
    }

    /// Sends the acknowledgement that is due. False if the batch is full.
    #[cold]
    #[inline(never)]
    pub(crate) fn push_read_ack(&mut self, env: &mut Env<'_>) -> bool {
        let Some(acks) = &mut self.read_acks else { return true };
        let delay = env.now.since(acks.arrived_at).0 / DELAY_UNIT_NS;
        let (pressure, lost) = pressure_now(acks.lost_seen, env);
        let saeth = Saeth {
            pressure,
            is_congested: acks.is_congested,
            trigger: acks.trigger,
            delay: delay.min(u16::MAX.into()) as u16,
            congested_packets: acks.congested,
            received_packets: acks.received,
            transmission: acks.transmission,
            ..Saeth::default()
        };
        let opcode = if self.id.qp_type.is_xrc() { Opcode::XrcSrReadAck } else { Opcode::RcSrReadAck };
        let psn = self.req.recovery.una_psn().prev();
        let head = HeadBuf::new(&Bth::new(opcode, self.dest_qpn, psn)).saeth(saeth);
        let pushed = env.tx.push(&self.flow, head.as_slice(), &[], 0);
        if pushed {
            (acks.since, acks.is_congested, acks.lost_seen) = (0, false, Some(lost));
            self.resp.pending &= !READ_ACK_DUE;
        }
        pushed
    }
}

/// The responder.
impl Qp {
    /// The packets of a response that may be sent now, from `resource.next` on.
    pub(crate) fn response_room(&self, resource: &ResponderResource) -> ResponseRoom {
        let all = ResponseRoom { end: resource.end, is_closed: false, counts: false };
        let Some(acks) = self.counting(resource) else { return all };
        let counted = resource.counted_bytes.div_ceil(self.mtu).max(resource.next);
        let mtu = u64::from(self.mtu);
        // Without anything in flight no acknowledgement would come.
        let least = u64::from(self.resp.response_bytes == 0);
        let new = (acks.room / mtu).max(least).min(u64::from(resource.end)) as u32;
        let end = counted.saturating_add(new).min(resource.end);
        ResponseRoom { end, is_closed: end <= resource.next, counts: true }
    }

    /// The state by which bytes of this response are counted; `None` if they are not.
    fn counting(&self, resource: &ResponderResource) -> Option<&ReadAcks> {
        let counts = resource.selective && resource.kind == OpKind::ReadRequest && self.state != QpState::Err;
        self.read_acks.as_deref().filter(|acks| counts && acks.silent < SILENT_TIMEOUTS)
    }

    /// Packets of READ responses in flight.
    fn response_packets(&self) -> u32 {
        (self.resp.response_bytes / u64::from(self.mtu)) as u32
    }

    /// Packets of the oldest pending response were sent, up to before packet `next`.
    pub(crate) fn note_response_sent(&mut self, resource: &ResponderResource, next: u32, now: Nanos) {
        let end = next.saturating_mul(self.mtu).min(resource.length);
        let counts = self.counting(resource).is_some();
        let added = self.resp.count_sent(end, counts);
        if added == 0 {
            return;
        }
        let (wait_max, packets) = (self.fast_wait_max(), self.response_packets());
        let Some(acks) = &mut self.read_acks else { return };
        let wait = self.req.sel.rtt.timeout_after(acks.silent, packets).min(wait_max);
        acks.room = acks.room.saturating_sub(added.into());
        if self.resp.response_deadline == Nanos::NEVER {
            self.resp.response_deadline = now + wait;
        }
        if acks.measured.is_none() {
            acks.measured = Some((resource.psn.add(next), now));
        }
    }

    /// Packets of a response are sent again: the time until they are acknowledged measures nothing (Karn).
    pub(crate) fn measure_no_response(&mut self) {
        if let Some(acks) = &mut self.read_acks {
            acks.measured = None;
        }
    }

    /// An acknowledgement of READ responses.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_read_ack(&mut self, pkt: &Packet<'_>, env: &mut Env<'_>) {
        let (psn, mtu, wait_max) = (pkt.bth.psn, self.mtu, self.fast_wait_max());
        let (Some(acks), Some(saeth)) = (&mut self.read_acks, pkt.saeth()) else {
            return env.fx.count(Reason::UnexpectedResponse);
        };
        if !matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd) || !psn.is_before(self.resp.expected) {
            return env.fx.count(Reason::UnexpectedResponse);
        }
        let Some(freed) = self.resp.take_read_ack(psn, mtu) else {
            return env.fx.count(Reason::UnexpectedResponse);
        };
        acks.silent = 0;
        let mut rtt = None;
        if let Some((behind, at)) = acks.measured.filter(|(behind, _)| !psn.next().is_before(*behind)) {
            let (elapsed, delay) = (env.now.since(at), Nanos(u64::from(saeth.delay) * DELAY_UNIT_NS));
            // An acknowledgement may be that of a later packet, which was sent later. For the timers that does no harm.
            if !saeth.trigger.next().is_before(behind) && saeth.transmission == 0 {
                self.req.sel.rtt.measured(elapsed, delay);
                rtt = (saeth.trigger.next() == behind).then(|| Nanos(elapsed.0.saturating_sub(delay.0)));
            }
            acks.measured = None;
        }
        env.fx.acknowledged(&acks.echoed.take(&saeth, rtt));
        if freed == 0 {
            return env.fx.count(Reason::StaleAck);
        }
        let wait = self.req.sel.rtt.timeout_after(0, self.response_packets()).min(wait_max);
        self.resp.response_deadline = if self.resp.response_bytes == 0 { Nanos::NEVER } else { env.now + wait };
        self.resp.unpark();
        // Requests may have waited for the room as well.
        self.req.stalled = false;
    }

    /// Responses in flight were not acknowledged in time: they, or the acknowledgement, may be lost. The requester repairs
    /// what it lacks. The second time in a row neither came, which is a time-out as that of requests.
    #[cold]
    pub(crate) fn on_response_timeout(&mut self, env: &mut Env<'_>) {
        let Some(acks) = &mut self.read_acks else { return };
        acks.measured = None;
        acks.silent = acks.silent.saturating_add(1);
        env.fx.count(Reason::SrReadTimeout);
        env.fx.congestion(if acks.silent < SILENT_TIMEOUTS { Signal::Loss } else { Signal::Timeout });
        self.resp.uncount_responses();
        self.req.stalled = false;
    }
}

/// What is in flight of each READ's response.
impl Responder {
    /// The oldest pending response was sent up to byte `end`, which counts as in flight or does not. Returns the bytes that were
    /// added to those in flight.
    fn count_sent(&mut self, end: u32, counts: bool) -> u32 {
        let Some(resource) = self.oldest_pending() else { return 0 };
        resource.sent_bytes = resource.sent_bytes.max(end);
        if !counts {
            debug_assert_eq!(resource.counted_bytes, resource.acked_bytes, "bytes in flight that do not count");
            resource.counted_bytes = resource.sent_bytes;
            resource.acked_bytes = resource.sent_bytes;
        }
        if end <= resource.counted_bytes {
            return 0;
        }
        let added = end - resource.counted_bytes;
        resource.counted_bytes = end;
        self.response_bytes += u64::from(added);
        debug_assert!(self.counts_are_consistent(), "the sum of the responses in flight is wrong");
        added
    }

    /// Takes a cumulative acknowledgement, and returns the bytes that are not in flight any more; `None` if it is one of bytes
    /// that were never sent.
    fn take_read_ack(&mut self, psn: Psn, mtu: u32) -> Option<u32> {
        let packets = |resource: &ResponderResource| psn.diff(resource.psn).saturating_add(1).max(0) as u32;
        let covered = |resource: &ResponderResource| packets(resource).saturating_mul(mtu).min(resource.length);
        let reads = |resource: &&mut ResponderResource| resource.selective && resource.kind == OpKind::ReadRequest;
        let is_possible = |resource: &mut ResponderResource| covered(resource) <= resource.sent_bytes;
        if !self.held_resources().filter(reads).filter(|resource| !resource.answered).all(is_possible) {
            return None;
        }
        let mut freed = 0;
        for resource in self.held_resources().filter(reads) {
            let acked = covered(resource);
            resource.held = resource.held.max(packets(resource).min(resource.packets));
            if acked > resource.acked_bytes {
                freed += acked.min(resource.counted_bytes).saturating_sub(resource.acked_bytes);
                resource.acked_bytes = acked;
                resource.counted_bytes = resource.counted_bytes.max(acked);
            }
        }
        debug_assert!(u64::from(freed) <= self.response_bytes, "more bytes acknowledged than in flight");
        self.response_bytes = self.response_bytes.saturating_sub(freed.into());
        debug_assert!(self.counts_are_consistent(), "the sum of the responses in flight is wrong");
        Some(freed)
    }

    /// The invariant: acknowledged <= counted <= sent in each response, and their differences are the bytes in flight.
    fn counts_are_consistent(&mut self) -> bool {
        let sum = |sum: Option<u64>, resource: &mut ResponderResource| {
            let is_ordered = resource.counted_bytes <= resource.sent_bytes;
            sum.filter(|_| is_ordered)?.checked_add(resource.counted_bytes.checked_sub(resource.acked_bytes)?.into())
        };
        self.held_resources().fold(Some(0), sum) == Some(self.response_bytes)
    }

    /// Nothing that was sent counts as in flight any more, nor does it when it is sent again.
    pub(crate) fn uncount_responses(&mut self) {
        self.held_resources().for_each(|resource| resource.acked_bytes = resource.counted_bytes);
        (self.response_bytes, self.response_deadline) = (0, Nanos::NEVER);
        self.unpark();
    }

    /// The window is closed to responses: nothing is pending until an acknowledgement, a time-out or another request.
    #[cold]
    pub(crate) fn park(&mut self) {
        let count = self.pending & !FLAGS;
        (self.pending, self.parked) = (self.pending & FLAGS, self.parked + count);
    }

    /// Responses that waited for the window are pending again.
    pub(crate) fn unpark(&mut self) {
        self.pending += std::mem::take(&mut self.parked);
    }
}
