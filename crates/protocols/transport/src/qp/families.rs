//! Which family of packets a queue pair uses, and the records that it has borrowed.
//!
//! The family changes only while nothing is in flight: the requests of one family are acknowledged in that family.

use crate::api::Env;
use crate::qp::Qp;
use crate::responder::response_window::ResponseWindow;
use crate::responder::{FLAGS, READ_ACK_DUE};
use crate::rtt::RttEstimate;
use burst_base::RtoMode;
use burst_base::verbs::QpType;
use burst_wire::Packet;

impl Qp {
    /// Uses the selective repeat family for requests from the next message boundary on at which nothing is in flight. `window` is
    /// the number of PSNs that the peer keeps track of, as its hello says; 0 goes back to the standard family. RC queue pairs and
    /// XRC initiators only.
    pub fn use_selective(&mut self, window: u32) {
        if matches!(self.shared.id.qp_type, QpType::Rc | QpType::XrcSend) {
            self.req.sel.window = window;
            self.req.limit_distance();
            self.req.sel.switch_due = self.req.sel.active != (window > 0);
        }
    }

    /// Reports each acknowledgement of the selective repeat family to congestion control ([`crate::Effects::acknowledged`]).
    /// Else, of those that only say that packets have arrived unmarked, a sixteenth is reported: those that measure the round
    /// trip.
    pub fn report_each(&mut self, each: bool) {
        self.req.reports_each = each;
    }

    /// Which waits loss recovery has, from now on.
    pub fn set_rto(&mut self, rto: RtoMode) {
        self.req.sel.rtt = RttEstimate::new(rto);
    }

    /// Accepts requests of the selective repeat family, or drops them. RC queue pairs and XRC targets only.
    pub fn accept_selective(&mut self, accept: bool) {
        self.resp.accepts_selective = accept && matches!(self.shared.id.qp_type, QpType::Rc | QpType::XrcRecv);
    }

    /// Whether requests are sent in the selective repeat family now.
    pub fn sends_selective(&self) -> bool {
        self.req.sel.active
    }

    /// Gives the records of loss recovery back to the pool. To be called before the queue pair is dropped.
    pub fn release_records(&mut self, env: &mut Env<'_>) {
        self.release_recovery(env);
        if let Some(receives) = &mut self.resp.recv.early {
            receives.clear();
        }
        self.resp.release_receives(env);
    }

    /// Gives the records of early and of lost packets back.
    pub(crate) fn release_recovery(&mut self, env: &mut Env<'_>) {
        let (early, losses) = (self.resp.sel.early.take(), self.req.sel.losses.take());
        let Some(pool) = env.fx.records() else { return };
        early.into_iter().for_each(|record| pool.give_arrivals(record));
        losses.into_iter().for_each(|record| pool.give_losses(record));
    }
}

/// Acknowledgements of READ responses.
impl Qp {
    /// Acknowledges READ responses and expects the peer to acknowledge them, as its hello says, or does neither. RC and XRC only.
    pub fn use_read_acks(&mut self, on: bool) {
        let on = on && (self.shared.id.qp_type.is_xrc() || self.shared.id.qp_type == QpType::Rc);
        if on == self.resp.window.is_some() {
            return;
        }
        self.req.read_acks = on.then(Box::default);
        self.resp.forget_responses();
        self.resp.pending &= !FLAGS;
        self.resp.window = on.then(|| Box::new(ResponseWindow::new()));
    }

    /// Whether READ responses are to be sent that the peer acknowledges, so that [`Qp::allow_responses`] has a meaning.
    #[inline]
    pub fn wants_response_room(&self) -> bool {
        (self.resp.pending & !FLAGS) + self.resp.parked > 0 && self.resp.window.is_some()
    }

    /// Sets the bytes of READ responses that may be added to those in flight in the next turn.
    pub fn allow_responses(&mut self, room: u64) {
        if let Some(window) = &mut self.resp.window {
            window.room = room;
        }
    }

    /// Bytes of READ responses that were sent and that the peer has not acknowledged.
    #[inline]
    pub fn response_bytes(&self) -> u64 {
        self.resp.response_bytes
    }

    /// The requester has received READ responses: an acknowledgement of them, if it is due, is an answer to send.
    #[inline]
    pub(crate) fn take_read_ack_due(&mut self) {
        if self.req.read_acks.as_mut().is_some_and(|acks| std::mem::take(&mut acks.is_due)) {
            debug_assert!(self.resp.window.is_some(), "both halves know acknowledgements of READ responses, or none");
            self.resp.pending |= READ_ACK_DUE;
        }
    }

    /// An acknowledgement of READ responses.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_read_ack(&mut self, pkt: &Packet<'_>, env: &mut Env<'_>) {
        let has_room = self.resp.take_response_ack(&self.shared, pkt, &mut self.req.sel.rtt, env);
        self.req.set_answer_wait(&mut self.shared, env);
        if has_room {
            // Requests may have waited for the room as well.
            self.req.stalled = false;
        }
    }
}
