//! Middle packets of a READ response of the standard family, many at a time ([`crate::qp::trains`]).

use crate::api::Env;
use crate::copies::{copies_of, place_train};
use crate::middle_packets::count_middles;
use crate::opcodes::Work;
use crate::qp_shared::QpShared;
use crate::requester::Requester;
use crate::sge_cursor::{Keys, SgeCursor};
use burst_base::verbs::{QpState, access};
use burst_frame::MiddleRun;
use burst_wire::{Bth, Opcode};

impl Requester {
    /// Executes middle packets of the response to the oldest request, if that is a READ.
    pub(crate) fn on_response_middles(&mut self, qp: &mut QpShared, train: &MiddleRun<'_>, env: &mut Env<'_>) -> usize {
        if !matches!(qp.state, QpState::Rts | QpState::Sqd) || self.sel.active {
            return 0;
        }
        let Some(request) = self.recovery.oldest().filter(|request| request.work == Work::Read) else { return 0 };
        if self.recovery.has_ahead() {
            return self.on_early_response_middles(qp, train, env);
        }
        let (psn, una_packet) = (self.recovery.una_psn(), self.recovery.una_packet());
        // Only packets that were requested, and not the last: it ends the request and may be shorter.
        let asked = self.recovery.sent_psn().diff(psn).max(0) as u32;
        let most = (request.packets - una_packet - 1).min(asked);
        let count = count_middles(train, Opcode::RcReadResponseMiddle, qp.id.qpn, psn, most as usize);
        if count == 0 {
            return self.on_early_response_middles(qp, train, env);
        }
        let keys = Keys { mem: env.mem, pd: qp.id.pd, access: access::LOCAL_WRITE };
        let sges = self.recovery.sges_of(request);
        let mut cursor = SgeCursor::at(sges, u64::from(una_packet * qp.mtu));
        let Some(span) = cursor.run(keys, sges, qp.mtu, count as u32) else { return 0 };
        if !place_train(train, &span, (Bth::LEN, qp.mtu as usize), copies_of(qp, env)) {
            return 0;
        }
        let done = span.len() / qp.mtu as usize;
        debug_assert!(0 < done && done <= count);
        self.recovery.on_acked(done as u32);
        self.progressed(qp, env);
        done
    }

    /// Places middle packets of a response that are behind a gap.
    #[cold]
    fn on_early_response_middles(&mut self, qp: &QpShared, train: &MiddleRun<'_>, env: &mut Env<'_>) -> usize {
        let Ok(Bth { psn, .. }) = Bth::parse(train.bytes) else { return 0 };
        let Some(run) = self.early_run(qp, psn) else { return 0 };
        let qpn = qp.id.qpn;
        let count = |most| count_middles(train, Opcode::RcReadResponseMiddle, qpn, psn, most);
        self.place_early_run(qp, (train, Bth::LEN), (&run, count), env)
    }
}
