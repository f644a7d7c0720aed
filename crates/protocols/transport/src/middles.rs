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
        let stride = Bth::LEN + self.mtu as usize + burst_wire::ICRC_LEN;
        let is_peer = flow.src == self.flow.dst && flow.src_port == self.peer_port.port;
        if self.id.qp_type != QpType::Rc || !is_peer {
            return 0;
        }
        if train.stride != stride {
            return self.on_selective_middles(flow, train, env);
        }
        match train.bytes.first() {
            Some(number) if *number == Opcode::RcReadResponseMiddle.number() => self.on_response_middles(train, env),
            _ => self.on_request_middles(train, env),
        }
    }

    /// Executes middle packets of a SEND or WRITE.
    fn on_request_middles(&mut self, train: &MiddleRun<'_>, env: &mut Env<'_>) -> usize {
        let Some(message) = self.resp.message else { return 0 };
        if !self.receives_middles() {
            return 0;
        }
        let (opcode, room) = match message.kind {
            OpKind::Send if self.recv.is_usable() => (Opcode::RcSendMiddle, self.recv.room),
            // The last packet of a WRITE is not empty.
            OpKind::Write if self.access_flags & access::REMOTE_WRITE != 0 => {
                (Opcode::RcWriteMiddle, u64::from(message.length).saturating_sub(1))
            }
            _ => return 0,
        };
        let most = room.saturating_sub(message.received) / u64::from(self.mtu);
        let count = count_middles(train, opcode, self.id.qpn, self.resp.expected, most as usize);
        if count == 0 {
            return 0;
        }
        let Some(span) = self.middles_span(count, env) else { return 0 };
        if !train.write_to(&span, Bth::LEN, self.mtu as usize) {
            return 0;
        }
        debug_assert!(span.len().is_multiple_of(self.mtu as usize));
        let count = span.len() / self.mtu as usize;
        self.resp.expected = self.resp.expected.add(count as u32);
        self.resp.nak_given = false;
        if let Some(message) = &mut self.resp.message {
            message.received += span.len() as u64;
        }
        count
    }

    /// Whether requests are executed in this state, and no event is due for the first.
    pub(crate) fn receives_middles(&self) -> bool {
        match self.state {
            QpState::Rts | QpState::Sqd => true,
            QpState::Rtr => self.resp.established,
            _ => false,
        }
    }

    /// Executes middle packets of the response to the oldest request, if that is a READ.
    fn on_response_middles(&mut self, train: &MiddleRun<'_>, env: &mut Env<'_>) -> usize {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) || self.req.sel.active {
            return 0;
        }
        let Some(request) = self.req.recovery.oldest().filter(|request| request.work == Work::Read) else { return 0 };
        if self.req.recovery.has_ahead() {
            return self.on_early_response_middles(train, env);
        }
        let (psn, una_packet) = (self.req.recovery.una_psn(), self.req.recovery.una_packet());
        // Only packets that were requested, and not the last: it ends the request and may be shorter.
        let asked = self.req.recovery.sent_psn().diff(psn).max(0) as u32;
        let most = (request.packets - una_packet - 1).min(asked);
        let count = count_middles(train, Opcode::RcReadResponseMiddle, self.id.qpn, psn, most as usize);
        if count == 0 {
            return self.on_early_response_middles(train, env);
        }
        let keys = Keys { mem: env.mem, pd: self.id.pd, access: access::LOCAL_WRITE };
        let sges = self.req.recovery.sges_of(request);
        let mut cursor = SgeCursor::at(sges, u64::from(una_packet * self.mtu));
        let Some(span) = cursor.run(keys, sges, self.mtu, count as u32) else { return 0 };
        if !train.write_to(&span, Bth::LEN, self.mtu as usize) {
            return 0;
        }
        let done = span.len() / self.mtu as usize;
        debug_assert!(0 < done && done <= count);
        self.req.recovery.on_acked(done as u32);
        self.progressed(env);
        done
    }

    /// Places middle packets of a response that are behind a gap.
    #[cold]
    fn on_early_response_middles(&mut self, train: &MiddleRun<'_>, env: &mut Env<'_>) -> usize {
        let Ok(Bth { psn, .. }) = Bth::parse(train.bytes) else { return 0 };
        let Some(run) = self.early_run(psn) else { return 0 };
        let qpn = self.id.qpn;
        let count = |most| count_middles(train, Opcode::RcReadResponseMiddle, qpn, psn, most);
        self.place_early_run(train, &run, Bth::LEN, count, env)
    }

    /// Memory for the next `count` packets of the message, or fewer if fewer are contiguous.
    pub(crate) fn middles_span(&self, count: usize, env: &Env<'_>) -> Option<Span> {
        let message = self.resp.message?;
        if message.kind == OpKind::Send {
            return self.recv.run(self.recv_keys(env), message.received, self.mtu, count as u32);
        }
        let (addr, len) = (message.addr.wrapping_add(message.received), count as u32 * self.mtu);
        let found: Result<Span, Reason> = env.mem.remote(self.peer(), message.rkey, addr, len, access::REMOTE_WRITE);
        found.ok()
    }
}
