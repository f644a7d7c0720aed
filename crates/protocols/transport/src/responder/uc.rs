//! The receiving half of a UC queue pair (IBA 9.8): it drops a message that lost a packet, and answers nothing but a Burst peer's
//! requests for receipts ([`crate::requester::receipts`]).
//!
//! After a gap, or a packet that breaks a rule, packets are ignored up to the next first or only packet. A receive that
//! the broken message had begun to fill stays loaded for the next message.

use crate::api::Env;
use crate::failure::{FailedPart, QpFailure};
use crate::qp_shared::QpShared;
use crate::responder::received_message::ReceivedMessage;
use crate::responder::receiver::Load;
use crate::responder::refusal::{RequestRefusal, receive_reason};
use crate::responder::requests::{check_length, write_payload};
use crate::responder::{InboundMessage, Responder};
use crate::sge_cursor::Placing;
use burst_base::verbs::{QpState, WcStatus, access, wc_flags};
use burst_base::{Reason, Rkey};
use burst_wire::{OpKind, Packet};

impl Responder {
    /// Handles a packet of UC.
    pub(crate) fn on_uc_packet(&mut self, qp: &mut QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) {
        if !matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            return env.fx.count(Reason::WrongState);
        }
        self.establish(qp, env);
        let in_order = pkt.bth.psn == self.expected;
        self.expected = pkt.bth.psn.next();
        let broken = match &self.message {
            _ if pkt.info.position.is_start() => self.message.is_some(),
            Some(message) => !in_order || message.kind != pkt.info.kind,
            None => true,
        };
        if broken {
            env.fx.count(Reason::UcMessageBroken);
            self.message = None;
            if !pkt.info.position.is_start() {
                return;
            }
        }
        if let Err(reason) = self.take_uc(qp, pkt, env) {
            env.fx.count(reason);
            self.message = None;
        }
    }

    fn take_uc(&mut self, qp: &mut QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) -> Result<(), Reason> {
        check_length(qp, pkt).map_err(RequestRefusal::into_reason)?;
        match pkt.info.kind {
            OpKind::Send => self.take_uc_send(qp, pkt, env),
            _ => self.take_uc_write(qp, pkt, env),
        }
    }

    /// Receives that the messages after the one that is being received will find; `None` if others share the queue.
    pub(crate) fn receives_left(&self) -> Option<u32> {
        let is_free = self.recv.is_loaded() && self.message.is_none();
        self.recv.posted().map(|posted| posted + u32::from(is_free))
    }

    fn load_receive(&mut self) -> Result<(), Reason> {
        match self.recv.load() {
            Load::Ready => Ok(()),
            Load::Empty => Err(Reason::ReceiverNotReady),
            Load::Corrupt => Err(Reason::QueueCorrupt),
        }
    }

    fn take_uc_send(&mut self, qp: &mut QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) -> Result<(), Reason> {
        self.load_receive()?;
        let received = self.message.map_or(0, |message| message.received);
        let total = received + pkt.payload.len() as u64;
        if total > self.recv.room {
            self.fail_receive(qp, WcStatus::LocLenErr, Reason::ReceiveTooShort, env);
            return Ok(());
        }
        match self.recv.check().and_then(|()| self.recv.scatter(received, pkt.payload, Placing::of(qp, env))) {
            Ok(()) => {}
            Err(Reason::PageLate) => return Err(Reason::PageLate),
            Err(reason) => {
                self.fail_receive(qp, WcStatus::LocProtErr, receive_reason(reason), env);
                return Ok(());
            }
        }
        if !pkt.info.position.is_end() {
            let (kind, rkey) = (OpKind::Send, Rkey(0));
            self.message = Some(InboundMessage { kind, addr: 0, rkey, length: 0, received: total });
            return Ok(());
        }
        self.message = None;
        self.complete_uc(qp, pkt, total as u32, env);
        Ok(())
    }

    fn take_uc_write(&mut self, qp: &QpShared, pkt: &Packet<'_>, env: &mut Env<'_>) -> Result<(), Reason> {
        if qp.access_flags & access::REMOTE_WRITE == 0 {
            return Err(Reason::InvalidRequest);
        }
        let message = self.write_message(pkt).map_err(RequestRefusal::into_reason)?;
        if pkt.info.has_imm {
            self.load_receive()?;
        }
        write_payload(qp, message.rkey, message.addr.wrapping_add(message.received), pkt.payload, env)
            .map_err(RequestRefusal::into_reason)?;
        self.message = Some(InboundMessage { received: message.received + pkt.payload.len() as u64, ..message });
        if pkt.info.position.is_end() {
            self.message = None;
            if pkt.info.has_imm {
                self.complete_uc(qp, pkt, message.length, env);
            }
        }
        Ok(())
    }

    fn complete_uc(&mut self, qp: &QpShared, pkt: &Packet<'_>, byte_len: u32, env: &mut Env<'_>) {
        let imm = pkt.imm();
        let got = ReceivedMessage {
            byte_len,
            imm: imm.map_or(0, |imm| imm.to_be32()),
            wc_flags: if imm.is_some() { wc_flags::WITH_IMM } else { 0 },
            with_write: pkt.info.kind == OpKind::Write,
            solicited: pkt.bth.solicited,
            ..ReceivedMessage::default()
        };
        self.complete_receive(qp, got, env);
    }

    /// Ends a receive that cannot take its message with an error. The queue pair goes to ERR (IBA 9.8.3.2).
    fn fail_receive(&mut self, qp: &mut QpShared, status: WcStatus, reason: Reason, env: &mut Env<'_>) {
        env.fx.failed(QpFailure::of(FailedPart::PeerRequest, status, reason, self.expected));
        self.complete_receive_error(qp, status, reason, env);
        self.fail(qp);
    }
}
