//! The window of READ responses (selective repeat): the responder limits what it has in flight by the peer's acknowledgements.
//!
//! Of each READ it keeps how far its response was sent, how far that counts as in flight, and how far it is
//! acknowledged. New packets of responses leave as far as the path's window allows; repetitions of what is in flight need no
//! room, and with no response in flight one packet always leaves, so that responses of one side never wait for those of the
//! other. The last packet before it stops asks for an acknowledgement, because the window may be smaller than what the requester
//! waits for. What is not acknowledged within the retransmission time-out, at most a quarter of the local ACK timeout, stops
//! counting, with a signal to congestion control: the requester's timers repair the data. If a peer lets [`SILENT_TIMEOUTS`]
//! time-outs pass without a word, its READs are answered without counting anything until it acknowledges one.
//!
//! The requester alone sees which responses are missing. What it asks for again although later ones have arrived is a loss for
//! the responder's congestion control, whose window the lost packets have used: one for what was in flight when the last one was
//! reported, as for requests (RFC 6582). Without later ones the requester may be too early.
//!
//! An acknowledgement of what was never sent is dropped; one that says nothing new changes nothing. So neither can make the
//! bytes in flight wrong, and none is needed for a READ to end.

use crate::ack_report::EchoedCounts;
use crate::api::{Env, Signal};
use crate::qp_shared::QpShared;
use crate::responder::resource::ResponderResource;
use crate::responder::{FLAGS, Responder};
use crate::rtt::RttEstimate;
use burst_base::verbs::QpState;
use burst_base::{Nanos, Psn, Reason};
use burst_wire::selective::DELAY_UNIT_NS;
use burst_wire::{OpKind, Packet};

/// Time-outs without an acknowledgement after which none is expected.
const SILENT_TIMEOUTS: u8 = 2;

/// Time after which a reported loss says nothing of the next one: PSNs come again.
const REPORTED_FOR: Nanos = Nanos::from_ms(1_000);

/// What a responder keeps whose peer acknowledges READ responses.
pub(crate) struct ResponseWindow {
    /// The peer's counters in the newest acknowledgement.
    echoed: EchoedCounts,
    /// Most bytes of responses that may be added to those in flight now.
    pub(crate) room: u64,
    /// A response whose acknowledgement measures the round trip: the PSN behind it, and when it was sent.
    measured: Option<(Psn, Nanos)>,
    /// Time-outs since the last acknowledgement.
    silent: u8,
    /// The PSN behind what was sent when a loss was reported last, and when that was.
    reported: Option<(Psn, Nanos)>,
    /// The newest response that has arrived.
    newest: Option<Psn>,
}

impl ResponseWindow {
    pub(crate) fn new() -> ResponseWindow {
        ResponseWindow {
            echoed: EchoedCounts::default(),
            room: u64::MAX,
            measured: None,
            silent: 0,
            reported: None,
            newest: None,
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

/// The window of responses.
impl Responder {
    /// The family is not used any more, or the queue pair ends: no response is in flight.
    pub(crate) fn forget_responses(&mut self) {
        self.uncount_responses();
        if let Some(window) = &mut self.window {
            (window.measured, window.silent) = (None, 0);
            (window.reported, window.newest) = (None, None);
        }
        debug_assert!(self.response_bytes == 0 && self.parked == 0);
    }

    /// The packets of a response that may be sent now, from `resource.next` on.
    pub(crate) fn response_room(&self, qp: &QpShared, resource: &ResponderResource) -> ResponseRoom {
        let all = ResponseRoom { end: resource.end, is_closed: false, counts: false };
        let Some(window) = self.counting(qp, resource) else { return all };
        let counted = resource.counted_bytes.div_ceil(qp.mtu).max(resource.next);
        let mtu = u64::from(qp.mtu);
        // Without anything in flight no acknowledgement would come.
        let least = u64::from(self.response_bytes == 0);
        let new = (window.room / mtu).max(least).min(u64::from(resource.end)) as u32;
        let end = counted.saturating_add(new).min(resource.end);
        ResponseRoom { end, is_closed: end <= resource.next, counts: true }
    }

    /// The state by which bytes of this response are counted; `None` if they are not.
    fn counting(&self, qp: &QpShared, resource: &ResponderResource) -> Option<&ResponseWindow> {
        let counts = resource.selective && resource.kind == OpKind::ReadRequest && qp.state != QpState::Err;
        self.window.as_deref().filter(|window| counts && window.silent < SILENT_TIMEOUTS)
    }

    /// Packets of READ responses in flight.
    fn response_packets(&self, qp: &QpShared) -> u32 {
        (self.response_bytes / u64::from(qp.mtu)) as u32
    }

    /// Packets of the oldest pending response were sent, up to before packet `next`.
    pub(crate) fn note_response_sent(
        &mut self,
        qp: &QpShared,
        resource: &ResponderResource,
        (next, rtt): (u32, &RttEstimate),
        now: Nanos,
    ) {
        let end = next.saturating_mul(qp.mtu).min(resource.length);
        let counts = self.counting(qp, resource).is_some();
        let added = self.count_sent(end, counts);
        if added == 0 {
            return;
        }
        let packets = self.response_packets(qp);
        let Some(window) = &mut self.window else { return };
        let wait = rtt.timeout_after(window.silent, packets).min(qp.fast_wait_max(rtt));
        window.room = window.room.saturating_sub(added.into());
        if self.response_deadline == Nanos::NEVER {
            self.response_deadline = now + wait;
        }
        if window.measured.is_none() {
            window.measured = Some((resource.psn.add(next), now));
        }
    }

    /// Packets of a response are sent again: the time until they are acknowledged measures nothing (Karn).
    pub(crate) fn measure_no_response(&mut self) {
        if let Some(window) = &mut self.window {
            window.measured = None;
        }
    }

    /// The peer asks again for responses that were sent, from `psn` on.
    #[cold]
    pub(crate) fn note_response_loss(&mut self, qp: &QpShared, psn: Psn, env: &mut Env<'_>) {
        let sent = self.behind_sent(qp.mtu);
        let Some(window) = &mut self.window else { return };
        let is_reported = |(behind, at): (Psn, Nanos)| psn.is_before(behind) && env.now.since(at) < REPORTED_FOR;
        let is_lost = window.newest.is_some_and(|newest| psn.is_before(newest));
        if is_lost && !window.reported.is_some_and(is_reported) {
            window.reported = Some((sent, env.now));
            env.fx.congestion(Signal::Loss);
        }
    }

    /// The PSN behind the last response packet that was sent.
    fn behind_sent(&self, mtu: u32) -> Psn {
        let reads = (0..self.count).map(|age| &self.resources[self.place(age)]);
        let unsent = reads.filter(|of| of.kind == OpKind::ReadRequest).find(|of| of.sent_bytes < of.length);
        unsent.map_or(self.expected, |of| of.psn.add(of.sent_bytes.div_ceil(mtu)))
    }

    /// Takes an acknowledgement of READ responses. True if there is room for others now.
    pub(crate) fn take_response_ack(
        &mut self,
        qp: &QpShared,
        pkt: &Packet<'_>,
        estimate: &mut RttEstimate,
        env: &mut Env<'_>,
    ) -> bool {
        let psn = pkt.bth.psn;
        let is_executed =
            matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd) && psn.is_before(self.expected);
        let saeth = pkt.saeth().filter(|_| self.window.is_some() && is_executed);
        let taken = saeth.and_then(|saeth| Some((saeth, self.take_read_ack(psn, qp.mtu)?)));
        let (Some((saeth, freed)), Some(window)) = (taken, &mut self.window) else {
            env.fx.count(Reason::UnexpectedResponse);
            return false;
        };
        window.silent = 0;
        let is_newer = window.newest.is_none_or(|newest| newest.is_before(saeth.trigger));
        if is_newer {
            window.newest = Some(saeth.trigger);
        }
        let mut rtt = None;
        if let Some((behind, at)) = window.measured.filter(|(behind, _)| !psn.next().is_before(*behind)) {
            let (elapsed, delay) = (env.now.since(at), Nanos(u64::from(saeth.delay) * DELAY_UNIT_NS));
            // An acknowledgement may be that of a later packet, which was sent later. For the timers that does no harm.
            if !saeth.trigger.next().is_before(behind) && saeth.transmission == 0 {
                estimate.measured(elapsed, delay);
                rtt = (saeth.trigger.next() == behind).then(|| Nanos(elapsed.0.saturating_sub(delay.0)));
            }
            window.measured = None;
        }
        env.fx.acknowledged(&window.echoed.take(&saeth, rtt));
        // Responses arrive. Behind one that is missing no acknowledgement can say so before that is repaired.
        if freed > 0 || is_newer {
            let wait = estimate.timeout_after(0, self.response_packets(qp)).min(qp.fast_wait_max(estimate));
            self.response_deadline = if self.response_bytes == 0 { Nanos::NEVER } else { env.now + wait };
        }
        if freed == 0 {
            env.fx.count(Reason::StaleAck);
            return false;
        }
        self.unpark();
        true
    }

    /// Responses in flight were not acknowledged in time: they, or the acknowledgement, may be lost. The requester repairs
    /// what it lacks, and what it asks for again of this flight is no further loss. The second time in a row neither came, which
    /// is a time-out as that of requests. Before a round trip is known the first one may be too early, and says nothing of the
    /// path. True if responses were in flight.
    #[cold]
    pub(crate) fn on_response_timeout(&mut self, (mtu, is_known): (u32, bool), env: &mut Env<'_>) -> bool {
        let sent = self.behind_sent(mtu);
        let Some(window) = &mut self.window else { return false };
        // What was measured goes on: nothing is sent again by this, and a time-out that came too early would hide the round trip
        // for ever.
        window.silent = window.silent.saturating_add(1);
        env.fx.count(Reason::SrReadTimeout);
        let is_first = window.silent < SILENT_TIMEOUTS;
        if is_known || !is_first {
            window.reported = Some((sent, env.now));
            env.fx.congestion(if is_first { Signal::Loss } else { Signal::Timeout });
        }
        env.fx.unacknowledged(self.response_bytes as i64);
        self.uncount_responses();
        true
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
