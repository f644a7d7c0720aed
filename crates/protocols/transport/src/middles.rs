//! Packets in the middle of a SEND, a WRITE or the answer to a READ, many at a time.
//!
//! A port that receives trains hands over packets of one length, side by side. Most of them go on with the message or the answer that
//! a queue pair is receiving and ask for nothing; those are carried out together: one look at the queue pair's state, one
//! at its keys, and for each packet three words of its BTH and a copy. Whatever is unusual in the least (another message,
//! a gap, an acknowledgement asked for, no room, no right) ends the run before that packet, which then goes the way of single
//! packets, where each refusal has its reason.

use crate::api::Env;
use crate::gather::{Keys, Walk};
use crate::head::Work;
use crate::qp::Qp;
use burst_base::verbs::{QpState, QpType, access};
use burst_base::{Psn, Reason};
use burst_frame::Flow;
use burst_span::Span;
use burst_wire::{Bth, Kind, Opcode};

/// The words of a BTH by which a middle packet is known, in host order, and the bits of them that count.
const FIRST_WORD: u32 = 0xff3f_7fff;
const SECOND_WORD: u32 = 0x00ff_ffff;
const THIRD_WORD: u32 = 0x80ff_ffff;
/// Opcode, padding, version and partition of packets without padding, in the default partition.
const DEFAULT_PARTITION: u32 = 0x7fff;

/// Packets of one length, side by side, each followed by its ICRC, which was found right.
#[derive(Clone, Copy, Debug)]
pub struct Train<'a> {
    /// The packets.
    pub bytes: &'a [u8],
    /// Bytes from one to the next.
    pub stride: usize,
}

impl<'a> Train<'a> {
    fn packets(&self) -> impl Iterator<Item = &'a [u8]> {
        self.bytes.chunks_exact(self.stride)
    }
    /// How many packets from the first on have these words, with numbers that rise from `psn`; at most `count_max`.
    fn count(&self, opcode: Opcode, qpn: u32, psn: Psn, count_max: usize) -> usize {
        let first = u32::from(opcode.number()) << 24 | DEFAULT_PARTITION;
        let fits = |(k, packet): (usize, &[u8])| {
            let Some((words, _)) = packet.first_chunk::<{ Bth::LEN }>().map(|head| head.as_chunks::<4>()) else {
                return false;
            };
            u32::from_be_bytes(words[0]) & FIRST_WORD == first
                && u32::from_be_bytes(words[1]) & SECOND_WORD == qpn
                && u32::from_be_bytes(words[2]) & THIRD_WORD == psn.add(k as u32).get()
        };
        self.packets().take(count_max).enumerate().take_while(|packet| fits(*packet)).count()
    }
    /// Copies the payload of the first packets, `mtu` bytes each, to `span`, whose length says how many. False if the memory
    /// is gone; nothing has been counted then: the packets come again one by one, and the one that fails says why.
    fn write_to(&self, span: &Span, mtu: usize) -> bool {
        let payloads = self.packets().take(span.len() / mtu).map(|packet| &packet[Bth::LEN..Bth::LEN + mtu]);
        span.write_pieces(payloads).is_ok()
    }
}

impl Qp {
    /// Carries out the packets at the beginning of `train` that go on with the message or the answer that is being received
    /// and ask for nothing; returns how many. The next one is for [`Qp::on_packet`].
    pub fn on_middles(&mut self, flow: &Flow, train: &Train<'_>, env: &mut Env<'_>) -> usize {
        let stride = Bth::LEN + self.mtu as usize + burst_wire::ICRC_LEN;
        if self.id.qp_type != QpType::Rc || flow.src != self.flow.dst || train.stride != stride {
            return 0;
        }
        match train.bytes.first() {
            Some(number) if *number == Opcode::RcReadResponseMiddle.number() => self.on_response_middles(train, env),
            _ => self.on_request_middles(train, env),
        }
    }

    /// Of a SEND or WRITE.
    fn on_request_middles(&mut self, train: &Train<'_>, env: &mut Env<'_>) -> usize {
        let Some(message) = self.resp.message else { return 0 };
        let receives = match self.state {
            QpState::Rts | QpState::Sqd => true,
            QpState::Rtr => self.resp.established,
            _ => false,
        };
        if !receives {
            return 0;
        }
        let (opcode, room) = match message.kind {
            Kind::Send if self.recv.is_usable() => (Opcode::RcSendMiddle, self.recv.room),
            // The last packet of a WRITE is not empty.
            Kind::Write if self.attr.qp_access_flags & access::REMOTE_WRITE != 0 => {
                (Opcode::RcWriteMiddle, u64::from(message.length).saturating_sub(1))
            }
            _ => return 0,
        };
        let most = room.saturating_sub(message.received) / u64::from(self.mtu);
        let count = train.count(opcode, self.id.qpn.get(), self.resp.expected, most as usize);
        if count == 0 {
            return 0;
        }
        let Some(span) = self.middles_span(count, env) else { return 0 };
        if !train.write_to(&span, self.mtu as usize) {
            return 0;
        }
        let count = span.len() / self.mtu as usize;
        self.resp.expected = self.resp.expected.add(count as u32);
        self.resp.nak_given = false;
        if let Some(message) = &mut self.resp.message {
            message.received += span.len() as u64;
        }
        count
    }

    /// Of the answer to the oldest request, if that is a READ.
    fn on_response_middles(&mut self, train: &Train<'_>, env: &mut Env<'_>) -> usize {
        if !matches!(self.state, QpState::Rts | QpState::Sqd) || self.req.head == self.req.tail {
            return 0;
        }
        let slot = *self.req.slots.get(self.req.head);
        if slot.work != Work::Read {
            return 0;
        }
        let psn = self.req.una_psn();
        // Only what has been asked for, and not the last packet, which ends the request and may be shorter.
        let asked = self.req.sent_psn.diff(psn).max(0) as u32;
        let most = (slot.packets - self.req.una_pkt - 1).min(asked);
        let count = train.count(Opcode::RcReadResponseMiddle, self.id.qpn.get(), psn, most as usize);
        if count == 0 {
            return 0;
        }
        let keys = Keys { mem: env.mem, pd: self.id.pd, access: access::LOCAL_WRITE };
        let sges = self.req.sges.get(slot.sge_first, slot.wqe.num_sge);
        let mut walk = Walk::at(sges, u64::from(self.req.una_pkt * self.mtu));
        let Some(span) = walk.run(keys, sges, self.mtu, count as u32) else { return 0 };
        if !train.write_to(&span, self.mtu as usize) {
            return 0;
        }
        let count = span.len() / self.mtu as usize;
        self.req.una_pkt += count as u32;
        self.progressed(env);
        count
    }

    /// Where the next `count` packets of the message go, as many as lie side by side there.
    fn middles_span(&self, count: usize, env: &Env<'_>) -> Option<Span> {
        let message = self.resp.message?;
        if message.kind == Kind::Send {
            return self.recv.run(self.recv_keys(env), message.received, self.mtu, count as u32);
        }
        let (addr, len) = (message.addr.wrapping_add(message.received), count as u32 * self.mtu);
        let found: Result<Span, Reason> = env.mem.remote(self.peer(), message.rkey, addr, len, access::REMOTE_WRITE);
        found.ok()
    }
}
