//! Middle packets of a SEND, a WRITE or a READ response, many at a time.
//!
//! A port that receives trains hands over packets of one length side by side ([`MiddleRun`]). Most of them continue the message
//! or the response that a queue pair is receiving and ask for no acknowledgement. Those are executed together: state and keys of
//! the queue pair are checked once, and each packet costs a comparison of the three words of its BTH and a copy. Anything else
//! (another message, a gap, a request for an acknowledgement, no room, no right) ends the run before that packet. It is then
//! handled as a single packet, where each refusal has its reason.

use crate::api::Env;
use crate::gather::{Keys, SgeCursor};
use crate::head::Work;
use crate::qp::Qp;
use crate::qp_shared::QpShared;
use crate::receive::recv_keys;
use crate::requester::Requester;
use crate::responder::Responder;
use burst_base::verbs::{QpState, QpType, access};
use burst_base::{Psn, Qpn, Reason};
use burst_frame::{Flow, MiddleRun};
use burst_span::Span;
use burst_wire::{Bth, OpKind, Opcode};

/// The bits by which the three words of a BTH tell a middle packet, in host order: opcode, padding, version and partition (not
/// the solicited and migration bits, not the membership bit); destination; acknowledgement request and PSN.
pub(crate) const BTH_MASKS: [u32; Bth::LEN / 4] = [0xff3f_7fff, 0x00ff_ffff, 0x80ff_ffff];
/// Opcode, padding, version and partition of packets without padding, in the default partition.
pub(crate) const DEFAULT_PARTITION: u32 = 0x7fff;

/// Counts the packets from the first on that have this opcode, this destination and rising PSNs from `psn`, have no padding and
/// ask for no acknowledgement; at most `count_max`.
fn count_middles(run: &MiddleRun<'_>, opcode: Opcode, qpn: Qpn, psn: Psn, count_max: usize) -> usize {
    let first = u32::from(opcode.number()) << 24 | DEFAULT_PARTITION;
    run.count(&BTH_MASKS, |k| [first, qpn.get(), psn.add(k).get()], count_max)
}

impl Qp {
    /// Executes the packets at the beginning of `train` that continue the message or the response that is being received and ask
    /// for no acknowledgement. Returns how many; the packet after them is for [`Qp::on_packet`].
    pub fn on_middles(&mut self, flow: &Flow, train: &MiddleRun<'_>, env: &mut Env<'_>) -> usize {
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

impl Requester {
    /// Executes middle packets of the response to the oldest request, if that is a READ.
    fn on_response_middles(&mut self, qp: &mut QpShared, train: &MiddleRun<'_>, env: &mut Env<'_>) -> usize {
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
        if !train.write_to(&span, Bth::LEN, qp.mtu as usize) {
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
        self.place_early_run(qp, train, &run, Bth::LEN, count, env)
    }
}

impl Responder {
    /// Executes middle packets of a SEND or WRITE.
    fn on_request_middles(&mut self, qp: &QpShared, train: &MiddleRun<'_>, env: &mut Env<'_>) -> usize {
        let Some(message) = self.message else { return 0 };
        if !self.receives_middles(qp) {
            return 0;
        }
        let (opcode, room) = match message.kind {
            OpKind::Send if self.recv.is_usable() => (Opcode::RcSendMiddle, self.recv.room),
            // The last packet of a WRITE is not empty.
            OpKind::Write if qp.access_flags & access::REMOTE_WRITE != 0 => {
                (Opcode::RcWriteMiddle, u64::from(message.length).saturating_sub(1))
            }
            _ => return 0,
        };
        let most = room.saturating_sub(message.received) / u64::from(qp.mtu);
        let count = count_middles(train, opcode, qp.id.qpn, self.expected, most as usize);
        if count == 0 {
            return 0;
        }
        let Some(span) = self.middles_span(qp, count, env) else { return 0 };
        if !train.write_to(&span, Bth::LEN, qp.mtu as usize) {
            return 0;
        }
        debug_assert!(span.len().is_multiple_of(qp.mtu as usize));
        let count = span.len() / qp.mtu as usize;
        self.expected = self.expected.add(count as u32);
        self.nak_given = false;
        if let Some(message) = &mut self.message {
            message.received += span.len() as u64;
        }
        count
    }

    /// Whether requests are executed in this state, and no event is due for the first.
    pub(crate) fn receives_middles(&self, qp: &QpShared) -> bool {
        match qp.state {
            QpState::Rts | QpState::Sqd => true,
            QpState::Rtr => self.established,
            _ => false,
        }
    }

    /// Memory for the next `count` packets of the message, or fewer if fewer are contiguous.
    pub(crate) fn middles_span(&self, qp: &QpShared, count: usize, env: &Env<'_>) -> Option<Span> {
        let message = self.message?;
        if message.kind == OpKind::Send {
            return self.recv.run(recv_keys(qp, env), message.received, qp.mtu, count as u32);
        }
        let (addr, len) = (message.addr.wrapping_add(message.received), count as u32 * qp.mtu);
        let found: Result<Span, Reason> = env.mem.remote(qp.peer(), message.rkey, addr, len, access::REMOTE_WRITE);
        found.ok()
    }
}
