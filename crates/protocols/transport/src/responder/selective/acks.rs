//! Acknowledgements and heads of responses of the selective repeat family.
//!
//! An acknowledgement is made when it leaves, so it holds everything that has arrived until then: the cumulative PSN, and while
//! anything is missing a bitmap of what has arrived behind it.
//!
//! Host pressure is that of the port's receive buffers, for all queue pairs alike; losses there are reported to each of them
//! once.

use crate::ack_report::pressure_now;
use crate::api::Env;
use crate::opcodes::{self, selective_form};
use crate::qp_shared::QpShared;
use crate::responder::Responder;
use crate::responder::resource::ResponderResource;
use burst_base::{Nanos, Psn};
use burst_wire::selective::{AckBitmap, BITMAP_WORDS_MAX, DELAY_UNIT_NS};
use burst_wire::{Aeth, Bth, HeadBuf, Opcode, Position, Saeth, Seth, Syndrome};

impl Responder {
    /// Sends an acknowledgement. Its PSN is the last one that was executed.
    #[inline(never)]
    pub(crate) fn push_selective_ack(&mut self, qp: &QpShared, env: &mut Env<'_>) -> bool {
        if qp.trails
            && let Some(limit) = qp.held_from.filter(|limit| *limit != self.expected)
        {
            return self.push_held_ack(qp, limit.prev(), env);
        }
        let psn = self.expected.prev();
        if self.sel.early.is_some() {
            return self.push_selective_answer(qp, psn, Syndrome::ACK, env);
        }
        let (pressure, lost) = pressure_now(self.sel.lost_seen(), env);
        let head = self.selective_ack_head(qp, (psn, Syndrome::ACK), (pressure, 0), env.now);
        let pushed = env.tx.push(&qp.flow, head.as_slice(), &[], 0);
        if pushed {
            self.sel.acked(lost);
        }
        pushed
    }

    /// Sends an acknowledgement of what was placed, while copies of later packets are open. It says nothing of those: not that
    /// they have arrived, and not that others are missing.
    #[cold]
    #[inline(never)]
    fn push_held_ack(&mut self, qp: &QpShared, psn: Psn, env: &mut Env<'_>) -> bool {
        let newest = (self.sel.trigger, self.sel.transmission);
        (self.sel.trigger, self.sel.transmission) = (psn, 0);
        let (pressure, lost) = pressure_now(self.sel.lost_seen(), env);
        let head = self.selective_ack_head(qp, (psn, Syndrome::ACK), (pressure, 0), env.now);
        (self.sel.trigger, self.sel.transmission) = newest;
        let pushed = env.tx.push(&qp.flow, head.as_slice(), &[], 0);
        if pushed {
            self.sel.acked(lost);
        }
        pushed
    }

    /// Sends a NAK of the PSN that is refused, or an acknowledgement while packets are missing.
    #[cold]
    #[inline(never)]
    pub(crate) fn push_selective_answer(
        &mut self,
        qp: &QpShared,
        psn: Psn,
        syndrome: Syndrome,
        env: &mut Env<'_>,
    ) -> bool {
        let (pressure, lost) = pressure_now(self.sel.lost_seen(), env);
        let pushed = self.push_with_bitmap(qp, (psn, syndrome), pressure, env);
        if pushed {
            self.sel.acked(lost);
        }
        pushed
    }

    /// Sends an acknowledgement or a NAK with a bitmap of the packets that have arrived behind the first missing one.
    fn push_with_bitmap(
        &self,
        qp: &QpShared,
        (psn, syndrome): (Psn, Syndrome),
        pressure: u8,
        env: &mut Env<'_>,
    ) -> bool {
        let expected = self.expected;
        let has_bitmap = matches!(syndrome, Syndrome::Ack { .. }) || psn == expected;
        let (mut words, mut bytes) = ([0; BITMAP_WORDS_MAX], [0; BITMAP_WORDS_MAX * 8]);
        let early = self.sel.early.as_ref().filter(|_| has_bitmap);
        let count = early.map_or(0, |early| early.bitmap(expected, &mut words));
        let len = AckBitmap::emit(&words[..count], &mut bytes);
        let head = self.selective_ack_head(qp, (psn, syndrome), (pressure, count as u8), env.now);
        match len {
            0 => env.tx.push(&qp.flow, head.as_slice(), &[], 0),
            len => env.tx.push_copied(&qp.flow, head.as_slice(), &bytes[..len]),
        }
    }

    /// The head of an acknowledgement with a bitmap of so many words.
    #[inline(always)]
    fn selective_ack_head(
        &self,
        qp: &QpShared,
        (psn, syndrome): (Psn, Syndrome),
        (pressure, words): (u8, u8),
        now: Nanos,
    ) -> HeadBuf {
        let sel = &self.sel;
        let delay = now.since(sel.arrived_at).0 / DELAY_UNIT_NS;
        let saeth = Saeth {
            pressure,
            is_congested: sel.is_congested,
            words,
            trigger: sel.trigger,
            delay: delay.min(u16::MAX.into()) as u16,
            congested_packets: sel.congested,
            received_packets: sel.received,
            transmission: sel.transmission,
        };
        let opcode = if qp.id.qp_type.is_xrc() { Opcode::XrcSrAck } else { Opcode::RcSrAck };
        let [a, b, c] = Bth::new(opcode, qp.dest_qpn, psn).words();
        let (d, [e, f, g]) = (Aeth { syndrome, msn: self.msn }.word(), saeth.words());
        HeadBuf::of_words([a, b, c, d, e, f, g])
    }
}

/// The head of packet `index` of a READ's response, which asks for an acknowledgement or not.
pub(crate) fn selective_response_head(
    qp: &QpShared,
    resource: &ResponderResource,
    index: u32,
    len: u32,
    asks: bool,
) -> HeadBuf {
    let place = opcodes::position(index == 0, index + 1 == resource.packets);
    let opcode = selective_form(opcodes::read_response_opcode(qp.id.qp_type, place));
    let bth =
        Bth { pad: opcodes::pad_of(len), ack_req: asks, ..Bth::new(opcode, qp.dest_qpn, resource.psn.add(index)) };
    debug_assert!(place != Position::Middle || len == qp.mtu);
    let seth = Seth {
        is_repair: resource.is_repair,
        transmission: u8::from(resource.is_repair),
        rsn: resource.msn,
        index,
        ..Seth::default()
    };
    HeadBuf::new(&bth).seth(seth)
}
