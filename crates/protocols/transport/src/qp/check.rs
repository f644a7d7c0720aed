//! The check of a queue pair between two calls.

use crate::check::{QpPositions, must};
use crate::qp::Qp;
use burst_base::Nanos;
use burst_base::verbs::QpState;

impl Qp {
    /// Its positions.
    pub fn positions(&self) -> QpPositions {
        let recovery = &self.req.recovery;
        let (expected, is_selective) = (self.resp.expected, self.resp.sel.active);
        QpPositions { una: recovery.una_psn(), sent: recovery.sent_psn(), expected, is_selective }
    }

    /// Records of loss recovery that it has borrowed.
    pub fn records_held(&self) -> usize {
        usize::from(self.resp.sel.early.is_some())
            + usize::from(self.resp.recv.early.is_some())
            + usize::from(self.req.sel.losses.is_some())
    }

    /// Checks what must hold between two calls.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<(), &'static str> {
        must(self.shared.failed.is_none(), "a half has failed, and the other has not stopped")?;
        if !self.shared.id.qp_type.is_reliable()
            || !matches!(self.shared.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
        {
            return Ok(());
        }
        self.req.check_positions(&self.shared)?;
        self.req.check_losses()?;
        self.resp.check_arrivals()?;
        self.check_timers()
    }

    /// A queue pair with something outstanding has a timer, or something to send.
    fn check_timers(&self) -> Result<(), &'static str> {
        if !matches!(self.shared.state, QpState::Rts | QpState::Sqd) || !self.req.recovery.is_outstanding() {
            return Ok(());
        }
        let has_timer = self.next_deadline() != Nanos::NEVER;
        must(has_timer || self.wants_tx(), "requests are outstanding, and no timer runs")
    }
}
