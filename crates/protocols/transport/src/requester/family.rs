//! The family of a requester's packets. It changes only while nothing is in flight: the requests of one family are acknowledged
//! in that family.

use crate::api::{Env, PSN_DISTANCE_MAX};
use crate::qp_shared::QpShared;
use crate::requester::Requester;

impl Requester {
    /// Changes the family if nothing is in flight. False if it must be changed and requests are still in flight: no new one may
    /// be begun then.
    #[cold]
    pub(crate) fn switch_family(&mut self, qp: &mut QpShared, env: &Env<'_>) -> bool {
        if !self.recovery.is_empty() {
            return false;
        }
        debug_assert!(self.sel.losses.is_none(), "a record without requests in flight");
        self.stop_selective();
        self.set_family(self.sel.window > 0);
        self.set_answer_wait(qp, env);
        self.sel.answered = false;
        self.sel.acked = self.recovery.next_request_psn();
        true
    }
}

impl Requester {
    /// Requests are of the selective repeat family from now on, or of the standard one.
    pub(crate) fn set_family(&mut self, selective: bool) {
        self.sel.active = selective;
        self.sel.switch_due = selective != (self.sel.window > 0);
        self.limit_distance();
        self.stop_watching();
    }

    /// How many PSNs may be in flight follows the family and the peer's window.
    pub(crate) fn limit_distance(&mut self) {
        let window = self.sel.window.clamp(1, PSN_DISTANCE_MAX as u32) as i32;
        self.sel.distance_max = if self.sel.active { window } else { PSN_DISTANCE_MAX };
    }
}
