//! Middle packets of a SEND or WRITE of the standard family, many at a time ([`crate::qp::trains`]).

use crate::api::Env;
use crate::copies::{copies_of, place_train};
use crate::middle_packets::count_middles;
use crate::qp_shared::QpShared;
use crate::responder::Responder;
use crate::responder::completions::recv_keys;
use burst_base::Reason;
use burst_base::verbs::{QpState, access};
use burst_frame::MiddleRun;
use burst_span::Span;
use burst_wire::{Bth, OpKind, Opcode};

impl Responder {
    /// Executes middle packets of a SEND or WRITE.
    pub(crate) fn on_request_middles(&mut self, qp: &QpShared, train: &MiddleRun<'_>, env: &mut Env<'_>) -> usize {
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
        if !place_train(train, &span, (Bth::LEN, qp.mtu as usize), copies_of(qp, env)) {
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
