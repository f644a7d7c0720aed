//! The fast timer of the selective repeat family, which follows the round trip, and what measures that.

use crate::api::Env;
use crate::qp_shared::QpShared;
use crate::requester::Requester;
use crate::requester::recovery::{CoveredPsns, LastPsn};
use crate::requester::selective::MeasuredPacket;
use crate::requester::selective::losses::LostPacket;
use crate::requester::selective::sending::PROBE_TRANSMISSION;
use crate::rtt::PROBES_MAX;
use burst_base::{Nanos, Psn, RtoMode};

/// A time-out that differs by up to an eighth between queue pairs, so that thousands that have lost the same path do not
/// repeat everything at once.
fn spread(qp: &QpShared, wait: Nanos) -> Nanos {
    // A multiplicative hash of the number: queue pairs are numbered side by side.
    let share = u64::from(qp.id.qpn.get().wrapping_mul(0x9e37_79b1) >> 27);
    Nanos(wait.0 / 128 * (112 + share))
}

impl Requester {
    pub(crate) fn restart_ack_timer(&mut self, qp: &QpShared, now: Nanos) {
        if self.recovery.is_outstanding() && self.rnr_deadline == Nanos::NEVER {
            self.ack_deadline = now + self.ack_wait(qp);
        }
    }

    /// Counts the bytes in flight that need no room in the window.
    pub(crate) fn recount_covered(&mut self, qp: &QpShared, env: &mut Env<'_>) {
        let (covered_bytes, gone_bytes) = self.covered(qp);
        self.sel.covered_bytes = covered_bytes;
        if let Some(losses) = self.sel.losses.as_mut().filter(|losses| losses.gone_bytes != gone_bytes) {
            env.fx.unacknowledged(i64::from(gone_bytes) - i64::from(losses.gone_bytes));
            losses.gone_bytes = gone_bytes;
        }
    }

    /// The bytes in flight that need no room in the window, and those of them of which it is not known that the peer has them.
    fn covered(&self, qp: &QpShared) -> (u64, u32) {
        let sel = &self.sel;
        let acked = sel.acked;
        if sel.losses.is_none() && !self.recovery.una_psn().is_before(acked) {
            return (0, 0);
        }
        let (losses, may_be_late) = (sel.losses.as_deref(), sel.rtt.tolerance() > Nanos(0));
        self.recovery.covered_bytes(qp.mtu, |first, count| {
            let below = acked.diff(first).clamp(0, count as i32) as u32;
            let (rest, left) = (first.add(below), count - below);
            let Some(losses) = losses.filter(|_| left > 0) else {
                let last = if count > 0 && left == 0 { LastPsn::Known } else { LastPsn::InFlight };
                return CoveredPsns { known: below, gone: 0, last };
            };
            let end = first.add(count).prev();
            let is_gone = losses.is_lost(end) || losses.left_within(end, 1, may_be_late) > 0;
            CoveredPsns {
                known: below + losses.arrived_within(rest, left),
                gone: losses.lost_within(rest, left) + losses.left_within(rest, left, may_be_late),
                last: match losses.has_arrived(end) {
                    true => LastPsn::Known,
                    false if is_gone => LastPsn::Gone,
                    false => LastPsn::InFlight,
                },
            }
        })
    }

    /// Sets the fast timer.
    pub(crate) fn arm_fast(&mut self, qp: &QpShared, now: Nanos) {
        let sel = &self.sel;
        if !self.recovery.is_outstanding() || self.rnr_deadline != Nanos::NEVER {
            self.sel.deadline = Nanos::NEVER;
            return;
        }
        let has_probe = sel.probes < PROBES_MAX && sel.rtt.mode() != RtoMode::Irn;
        let wait = match has_probe {
            true => sel.rtt.probe_after(sel.probes).min(qp.fast_wait_max(&sel.rtt)),
            false => spread(qp, self.timeout_after(qp, sel.backoff)),
        };
        let due = sel.losses.as_ref().map_or(Nanos::NEVER, |losses| losses.deadline(sel.rtt.tolerance()));
        self.sel.deadline = (now + wait).min(due.max(now + Nanos(1)));
    }

    /// The time-out of selective repeat after `backoff` of them without progress. Before the first measurement it goes on
    /// from the waits of the probes, which double.
    pub(crate) fn timeout_after(&self, qp: &QpShared, backoff: u8) -> Nanos {
        let packets = self.recovery.psn_distance().max(0) as u32;
        let is_unknown = !self.sel.rtt.is_known() && self.sel.rtt.mode() != RtoMode::Irn;
        let backoff = backoff.saturating_add(if is_unknown { PROBES_MAX } else { 0 });
        self.sel.rtt.timeout_after(backoff, packets).min(qp.fast_wait_max(&self.sel.rtt))
    }

    /// A READ or ATOMIC was sent: its first answer, with this PSN, measures the round trip, unless an acknowledgement does
    /// before.
    #[inline]
    pub(crate) fn measure_answer(&mut self, first: Psn, now: Nanos) {
        let sel = &mut self.sel;
        if sel.measured.is_none() {
            sel.measured = Some(MeasuredPacket::new(first.next(), now, first.next()));
        }
    }

    /// Answers with PSNs from `first` on have come to requests that were sent once. Acknowledgements of READs are few, so answers
    /// measure, too; without measurements a lost repair would be missed only after [`crate::rtt::RTO_FIRST`].
    #[inline]
    pub(crate) fn answers_measure(&mut self, qp: &mut QpShared, (first, count): (Psn, u32), env: &mut Env<'_>) {
        let sel = &mut self.sel;
        let Some(measured) = sel.measured else { return };
        if measured.behind.prev().is_within(first, count) {
            sel.measure(env.arrived_at().since(measured.sent_at), Nanos(0), env);
            sel.measured = None;
            // Else the local ACK timeout would pass before a probe of a path that has become slower.
            self.set_answer_wait(qp, env);
        } else if !self.recovery.una_psn().is_before(measured.behind) {
            // Its first answer was lost, and has been repaired.
            sel.measured = None;
        }
    }

    /// A turn has sent the packets from `first` on. The last one asks for an acknowledgement, unless the turn ended early; while
    /// packets are missing, all that arrive are acknowledged. So the round trip of these packets can be measured.
    #[inline(always)]
    pub(crate) fn note_selective_sent(&mut self, qp: &QpShared, first: Psn, now: Nanos) {
        let (sel, recovery) = (&mut self.sel, &self.recovery);
        let next = recovery.next_packet_psn();
        if next == first || !recovery.is_outstanding() {
            return;
        }
        match &mut sel.measured {
            Some(measured) if measured.sent_at == now && measured.transmission == 0 => measured.extend(next),
            Some(_) => {}
            none if sel.losses.is_some() || (self.since_ack_request == 0 && sel.rtt.is_due(self.reports_each)) => {
                *none = Some(MeasuredPacket::new(first.next(), now, next));
            }
            None => {}
        }
        if self.sel.deadline == Nanos::NEVER {
            let rtt = &self.sel.rtt;
            let is_irn = rtt.mode() == RtoMode::Irn;
            let wait = if is_irn { self.timeout_after(qp, 0) } else { rtt.probe_after(0).min(qp.fast_wait_max(rtt)) };
            self.sel.deadline = now + wait;
        }
    }

    /// A packet with payload was sent again. Its acknowledgement names the transmission, so it measures the round trip: while a
    /// whole flight is repeated nothing else does, and the queue that the last measurement saw is gone.
    pub(crate) fn measure_repetition(&mut self, lost: LostPacket, now: Nanos) {
        if lost.transmission >= PROBE_TRANSMISSION {
            return;
        }
        let (behind, measured) = (lost.psn.next(), &mut self.sel.measured);
        match measured {
            Some(same) if same.transmission == lost.transmission && same.sent_at == now => {
                if !behind.is_before(same.behind) {
                    same.extend(behind);
                }
            }
            Some(other) if other.behind != behind => {}
            _ => {
                *measured =
                    Some(MeasuredPacket { transmission: lost.transmission, ..MeasuredPacket::new(behind, now, behind) })
            }
        }
    }

    /// Something was sent again: timers run from now on, if they have waited for it.
    pub(crate) fn note_repeated(&mut self, qp: &QpShared, now: Nanos) {
        if self.ack_deadline == Nanos::NEVER {
            self.ack_deadline = now + self.ack_wait(qp);
        }
        if !self.sel.sent_since {
            self.sel.sent_since = true;
            self.arm_fast(qp, now);
        }
    }
}
