//! Middle packets of a READ response of the selective repeat family, many at a time ([`crate::qp::trains`]).

use crate::api::{Env, READ_CHUNK_BYTES};
use crate::copies::{copies_of, place_train};
use crate::middle_packets::{HEAD, READ_MASKS, middle_words};
use crate::opcodes::Work;
use crate::qp_shared::QpShared;
use crate::requester::Requester;
use crate::requester::selective::acks::AckedPositions;
use crate::sge_cursor::{Keys, SgeCursor};
use burst_base::verbs::{QpState, access};
use burst_frame::{Flow, MiddleRun};
use burst_wire::{Bth, Opcode};

impl Requester {
    pub(crate) fn on_selective_response_middles(
        &mut self,
        qp: &mut QpShared,
        flow: &Flow,
        train: &MiddleRun<'_>,
        env: &mut Env<'_>,
    ) -> usize {
        let recovery = &self.recovery;
        let can = matches!(qp.state, QpState::Rts | QpState::Sqd) && self.sel.active && !recovery.has_ahead();
        let Some(request) = recovery.oldest().filter(|request| can && request.work == Work::Read) else { return 0 };
        let (psn, una_packet) = (recovery.una_psn(), recovery.una_packet());
        let asked = recovery.sent_psn().diff(psn).max(0) as u32;
        let piece = READ_CHUNK_BYTES / qp.mtu;
        let most = (request.packets - una_packet - 1).min(asked).min(piece - una_packet % piece);
        let qpn = qp.id.qpn;
        let words = |k| middle_words(Opcode::RcSrReadResponseMiddle, qpn, psn, (0, una_packet % piece), k);
        let count = train.count(&READ_MASKS, words, most as usize);
        if count == 0 {
            return 0;
        }
        let keys = Keys { mem: env.mem, pd: qp.id.pd, access: access::LOCAL_WRITE };
        let sges = recovery.sges_of(request);
        let mut cursor = SgeCursor::at(sges, u64::from(una_packet * qp.mtu));
        let Some(span) = cursor.run(keys, sges, qp.mtu, count as u32) else { return 0 };
        if !place_train(train, &span, (HEAD, qp.mtu as usize), copies_of(qp, env)) {
            return 0;
        }
        let done = span.len() / qp.mtu as usize;
        let before = AckedPositions { una: psn, acked: self.sel.acked };
        self.sel.answered = true;
        self.answers_measure(qp, (psn, done as u32), env);
        self.note_responses(flow, (psn.add(done as u32 - 1), 0), (done as u16, span.len() as u32), env.now);
        self.recovery.on_acked(done as u32);
        self.progressed(qp, env);
        if matches!(qp.state, QpState::Rts | QpState::Sqd) {
            self.after_answer(qp, before, true, env);
        }
        done
    }

    /// Places middle packets of a response that are behind a gap.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_early_selective_responses(
        &mut self,
        qp: &mut QpShared,
        flow: &Flow,
        train: &MiddleRun<'_>,
        env: &mut Env<'_>,
    ) -> usize {
        let Ok(Bth { psn, .. }) = Bth::parse(train.bytes) else { return 0 };
        let Some(run) = self.early_run(qp, psn).filter(|_| self.sel.active) else { return 0 };
        let (number, index) = (Opcode::RcSrReadResponseMiddle, run.index_in_piece(qp.mtu));
        let qpn = qp.id.qpn;
        let count = |most| train.count(&READ_MASKS, |k| middle_words(number, qpn, psn, (0, index), k), most);
        let before = self.acked_positions();
        let done = self.place_early_run(qp, (train, HEAD), (&run, count), env) as u32;
        if done == 0 {
            return 0;
        }
        self.sel.answered = true;
        self.answers_measure(qp, (psn, done), env);
        self.note_responses(flow, (psn.add(done - 1), 0), (done as u16, done * qp.mtu), env.now);
        self.owe_read_ack();
        self.after_answer(qp, before, false, env);
        done as usize
    }
}
