//! Which family of packets a queue pair uses, and the records that it has borrowed.
//!
//! The family changes only while nothing is in flight: the requests of one family are acknowledged in that family.

use crate::api::Env;
use crate::qp::Qp;
use crate::requester::Requester;
use burst_base::verbs::QpType;

impl Qp {
    /// Uses the selective repeat family for requests from the next message boundary on at which nothing is in flight. `window` is
    /// the number of PSNs that the peer keeps track of, as its hello says; 0 goes back to the standard family. RC queue pairs and
    /// XRC initiators only.
    pub fn use_selective(&mut self, window: u32) {
        if matches!(self.id.qp_type, QpType::Rc | QpType::XrcSend) {
            self.req.sel.window = window;
            self.req.sel.switch_due = self.req.sel.active != (window > 0);
        }
    }
    /// Accepts requests of the selective repeat family, or drops them. RC queue pairs and XRC targets only.
    pub fn accept_selective(&mut self, accept: bool) {
        self.accepts_selective = accept && matches!(self.id.qp_type, QpType::Rc | QpType::XrcRecv);
    }
    /// Whether requests are sent in the selective repeat family now.
    pub fn sends_selective(&self) -> bool {
        self.req.sel.active
    }
    /// Gives the records of loss recovery back to the pool. To be called before the queue pair is dropped.
    pub fn release_records(&mut self, env: &mut Env<'_>) {
        self.release_recovery(env);
        if let Some(receives) = &mut self.recv.early {
            receives.clear();
        }
        self.release_receives(env);
    }

    /// Gives the records of early and of lost packets back.
    pub(crate) fn release_recovery(&mut self, env: &mut Env<'_>) {
        let (early, losses) = (self.resp.sel.early.take(), self.req.sel.losses.take());
        let Some(pool) = env.fx.records() else { return };
        early.into_iter().for_each(|record| pool.give_arrivals(record));
        losses.into_iter().for_each(|record| pool.give_losses(record));
    }

    /// Gives the record of early receives back, if it is empty.
    pub(crate) fn release_receives(&mut self, env: &mut Env<'_>) {
        if self.recv.early.as_ref().is_some_and(|receives| receives.is_empty())
            && let Some(receives) = self.recv.early.take()
            && let Some(pool) = env.fx.records()
        {
            pool.give_receives(receives);
        }
    }

    /// Changes the family if nothing is in flight. False if it must be changed and requests are still in flight: no new one may
    /// be begun then.
    #[cold]
    pub(crate) fn switch_family(&mut self) -> bool {
        if !self.req.recovery.is_empty() {
            return false;
        }
        debug_assert!(self.req.sel.losses.is_none(), "a record without requests in flight");
        self.req.stop_selective();
        self.req.set_family(self.req.sel.window > 0);
        self.req.sel.answered = false;
        self.req.sel.acked = self.req.recovery.next_request_psn();
        true
    }
}

impl Requester {
    /// Requests are of the selective repeat family from now on, or of the standard one.
    pub(crate) fn set_family(&mut self, selective: bool) {
        self.sel.active = selective;
        self.sel.switch_due = selective != (self.sel.window > 0);
        self.is_limited = self.is_back || selective;
    }

    /// After going back less than the window is sent, or as much as may be again.
    #[cold]
    #[inline(never)]
    pub(crate) fn set_back(&mut self, is_back: bool) {
        (self.is_back, self.back_limit) = (is_back, 0);
        self.is_limited = self.is_back || self.sel.active;
    }
}
