//! Trains of middle packets go to the half that they are for.
//!
//! A port that receives trains hands over packets of one length side by side ([`MiddleRun`]). Most of them continue the message
//! or the response that a queue pair is receiving and ask for no acknowledgement. Those are executed together: state and keys of
//! the queue pair are checked once, and each packet costs a comparison of the words of its head and a copy. Anything else
//! (another message, a gap, a request for an acknowledgement, no room, no right) ends the run before that packet. It is then
//! handled as a single packet, where each refusal has its reason.

use crate::api::Env;
use crate::middle_packets::{HEAD, WRITE_HEAD};
use crate::qp::Qp;
use burst_base::verbs::QpType;
use burst_frame::{Flow, MiddleRun};
use burst_wire::{Bth, ICRC_LEN, OpKind, Opcode};

impl Qp {
    /// Executes the packets at the beginning of `train` that continue the message or the response that is being received and ask
    /// for no acknowledgement. Returns how many; the packet after them is for [`Qp::on_packet`].
    pub fn on_middles(&mut self, flow: &Flow, train: &MiddleRun<'_>, env: &mut Env<'_>) -> usize {
        if self.shared.trails && self.shared.trail.is_some() {
            return self.on_middles_trailing(flow, train, env);
        }
        let stride = Bth::LEN + self.shared.mtu as usize + burst_wire::ICRC_LEN;
        let is_peer = flow.src == self.shared.flow.dst && flow.src_port == self.shared.peer_port.port;
        if self.shared.id.qp_type != QpType::Rc || !is_peer {
            return 0;
        }
        let executed = if train.stride != stride {
            self.on_selective_middles(flow, train, env)
        } else if train.bytes.first() == Some(&Opcode::RcReadResponseMiddle.number()) {
            self.req.on_response_middles(&mut self.shared, train, env)
        } else {
            return self.resp.on_request_middles(&self.shared, train, env);
        };
        self.settle_error();
        self.take_read_ack_due();
        executed
    }
}

impl Qp {
    /// Executes the packets at the beginning of `train` that are middle packets of the family and whose turn it is.
    #[inline(never)]
    pub(crate) fn on_selective_middles(&mut self, flow: &Flow, train: &MiddleRun<'_>, env: &mut Env<'_>) -> usize {
        let payload = self.shared.mtu as usize + ICRC_LEN;
        match train.bytes.first() {
            Some(&number) if number == Opcode::RcSrWriteMiddle.number() && train.stride == WRITE_HEAD + payload => {
                match self.resp.on_selective_request_middles(&self.shared, flow, (train, OpKind::Write), env) {
                    0 => self.resp.on_early_middles(&self.shared, flow, (train, OpKind::Write), env),
                    count => count,
                }
            }
            Some(&number) if number == Opcode::RcSrSendMiddle.number() && train.stride == HEAD + payload => {
                match self.resp.on_selective_request_middles(&self.shared, flow, (train, OpKind::Send), env) {
                    0 => self.resp.on_early_middles(&self.shared, flow, (train, OpKind::Send), env),
                    count => count,
                }
            }
            Some(&number) if number == Opcode::RcSrReadResponseMiddle.number() && train.stride == HEAD + payload => {
                match self.req.on_selective_response_middles(&mut self.shared, flow, train, env) {
                    0 => self.req.on_early_selective_responses(&mut self.shared, flow, train, env),
                    count => count,
                }
            }
            _ => 0,
        }
    }
}
