//! Receipts of UC ([`crate::requester::receipts`]): what arrives goes to the half that it is for, and receipts leave as answers.

use crate::api::Env;
use crate::qp::Qp;
use crate::responder::READ_ACK_DUE;
use burst_base::num::MASK_24;
use burst_frame::RxFrame;
use burst_wire::aeth::{CREDIT_INVALID, code_of_credits};
use burst_wire::{OpKind, Packet};

impl Qp {
    /// Asks the peer for receipts of UC, as its hello says that it sends them, or does not.
    pub fn use_receipts(&mut self, on: bool) {
        self.req.receipts.as_deref_mut().into_iter().for_each(|receipts| receipts.set_used(on));
    }

    /// A packet of UC.
    pub(crate) fn on_uc_packet(&mut self, frame: &RxFrame<'_>, pkt: &Packet<'_>, env: &mut Env<'_>) {
        let Some(receipts) = &mut self.req.receipts else { return };
        match pkt.info.kind {
            OpKind::Ack => return self.req.on_receipt(pkt, env),
            OpKind::Probe => receipts.sender.note_probe(pkt.bth.psn, env.now),
            _ => {
                receipts.sender.note(&frame.flow, pkt.bth.psn, env.arrived_at());
                self.resp.on_uc_packet(&mut self.shared, pkt, env);
            }
        }
        if pkt.bth.ack_req && self.shared.failed.is_none() {
            self.resp.pending |= READ_ACK_DUE;
        }
    }

    /// Sends the receipt that is due. False if the batch is full.
    #[cold]
    #[inline(never)]
    pub(crate) fn push_receipt(&mut self, env: &mut Env<'_>) -> bool {
        let (credits, msn) = (self.resp.receives_left(), self.resp.recv.consumed & MASK_24);
        let code = credits.map_or(CREDIT_INVALID, code_of_credits);
        let receipts = self.req.receipts.as_deref_mut();
        receipts.is_none_or(|receipts| receipts.sender.push(&self.shared, (code, msn), env))
    }
}
