//! After a sequence NAK in the standard family: how much is sent again, and when the repetition counts as lost.
//!
//! At most half of the room that the window has is sent until the packet that was missing is acknowledged. Responders
//! report a gap once (IBA 9.7.4.1.2), so nothing tells that the packet was lost again, and the local ACK timeout is many
//! round trips. Therefore a timer of two round trips, or of a round trip and four times its variation (as
//! [`crate::requester::standard::probes`]), goes back once more, at most [`REPEATS_MAX`] times, and sends four packets. That uses
//! up no retry. The time from going back to progress measures the round trip: the NAK has said that the packet was missing, so
//! the answer is that of the repetition (no ambiguity as in Karn's rule). Before the first measurement a quarter of the local
//! ACK timeout is waited, at most [`crate::rtt::RTO_FIRST`].
//!
//! The timer is that of selective repeat (`SelectiveRequester::deadline`), which the standard family does not use otherwise.

use crate::api::Env;
use crate::qp_shared::QpShared;
use crate::requester::Requester;
use crate::requester::probe_state::{BACK, WAITS_PER_TIMEOUT};
use crate::requester::selective::MeasuredPacket;
use burst_base::{Nanos, Reason};

/// How often the repetition is repeated without a word of the peer.
const REPEATS_MAX: u8 = 2;
/// Packets of such a repetition. One is too few where the network reorders much (hunt seed 1015553).
const AFTER_SILENCE: u64 = 4;

impl Requester {
    /// The first turn after going back: `room` bytes may be sent.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin_back(&mut self, qp: &QpShared, room: u64, now: Nanos) {
        let una = self.recovery.una_psn();
        let wait_max = Nanos(qp.ack_timeout().0 / WAITS_PER_TIMEOUT);
        let sel = &mut self.sel;
        // Silence may be a queue that stands still: then half of a window would make it longer.
        let limit = if sel.probes == 0 { room / 2 } else { AFTER_SILENCE * u64::from(qp.mtu) };
        self.back_limit = u32::try_from(limit).unwrap_or(u32::MAX).max(qp.mtu);
        if sel.active {
            return;
        }
        // A second repetition measures nothing.
        sel.measured = (sel.probes == 0).then(|| MeasuredPacket::new(una.next(), now, una.next()));
        sel.deadline = match sel.probes < REPEATS_MAX {
            true => now + sel.rtt.probe_after(0).min(wait_max),
            false => Nanos::NEVER,
        };
    }

    /// The peer has said nothing of the repetition of a flight either: its queue pair may be gone. A few packets are sent again
    /// until it does, because more in flight would take the room of others on the path.
    #[cold]
    pub(crate) fn limit_by_silence(&mut self, qp: &QpShared) {
        self.watched |= BACK;
        self.back_limit = AFTER_SILENCE as u32 * qp.mtu;
    }

    /// There is progress after going back.
    #[cold]
    #[inline(never)]
    pub(crate) fn end_back(&mut self, env: &mut Env<'_>) {
        self.set_back(false);
        let sel = &mut self.sel;
        if sel.active {
            return;
        }
        if let Some(measured) = sel.measured.take() {
            sel.measure(env.now.since(measured.sent_at), Nanos(0), env);
        }
        (sel.deadline, sel.probes) = (Nanos::NEVER, 0);
    }

    /// No acknowledgement has come since going back: the repetition was lost.
    #[cold]
    pub(crate) fn on_back_timer(&mut self, qp: &QpShared, env: &mut Env<'_>) {
        let r = &mut *self;
        (r.sel.deadline, r.sel.measured) = (Nanos::NEVER, None);
        if !r.is_back() || !r.recovery.is_outstanding() || r.rnr_deadline != Nanos::NEVER {
            return;
        }
        env.fx.count(Reason::BackRepeated);
        r.sel.probes += 1;
        r.lose_flight(qp, env);
        r.set_back(true);
    }
}
