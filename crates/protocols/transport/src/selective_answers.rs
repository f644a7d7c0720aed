//! Acknowledgements and heads of responses of the selective repeat family.
//!
//! An acknowledgement is made when it leaves, so it holds everything that has arrived until then: the cumulative PSN, and while
//! anything is missing a bitmap of what has arrived behind it.
//!
//! Host pressure is that of the port's receive buffers, for all queue pairs alike; losses there are told to each of them once.

use crate::api::Env;
use crate::head;
use crate::qp_shared::QpShared;
use crate::responder::Responder;
use crate::responder_resource::ResponderResource;
use burst_base::{Nanos, Psn};
use burst_wire::selective::{AckBitmap, BITMAP_WORDS_MAX, DELAY_UNIT_NS};
use burst_wire::{Aeth, Bth, HeadBuf, Opcode, Position, Saeth, Seth, Syndrome};

/// The first opcode of the family. The low five bits are those of the RC or XRC opcode, and the bit above them is set for XRC
/// (0xA0 to 0xBF), so that its opcodes are those from 0xE0 on.
const FAMILY: u8 = 0xc0;
const XRC_FAMILY: u8 = 0xe0;

/// The highest level of host pressure without losses, and host pressure with losses.
const PRESSURE_LEVEL_MAX: u8 = 2;
const PRESSURE_LOST: u8 = 3;

/// The form of an RC or XRC opcode in the family.
pub(crate) fn selective_form(opcode: Opcode) -> Opcode {
    let form = Opcode::from_number(FAMILY | opcode.number() & 0x3f);
    debug_assert!(form.is_some(), "an opcode without a form");
    form.unwrap_or(opcode)
}

/// The form for XRC of an opcode of the family.
pub(crate) fn xrc_form(opcode: Opcode) -> Opcode {
    Opcode::from_number(XRC_FAMILY | opcode.number()).unwrap_or(opcode)
}

/// Host pressure that an acknowledgement tells of, and the losses that it has told of then: those after `lost_seen` are new.
pub(crate) fn pressure_now(lost_seen: Option<u32>, env: &Env<'_>) -> (u8, u32) {
    let host = env.fx.host_pressure();
    let has_lost = lost_seen.is_some_and(|seen| seen != host.lost);
    (if has_lost { PRESSURE_LOST } else { host.level.min(PRESSURE_LEVEL_MAX) }, host.lost)
}

impl Responder {
    /// Sends an acknowledgement. Its PSN is the last one that was executed.
    #[inline(never)]
    pub(crate) fn push_selective_ack(&mut self, qp: &QpShared, env: &mut Env<'_>) -> bool {
        let psn = self.expected.prev();
        if self.sel.early.is_some() {
            return self.push_selective_answer(qp, psn, Syndrome::ACK, env);
        }
        let (pressure, lost) = pressure_now(self.sel.lost_seen(), env);
        let head = self.selective_ack_head(qp, psn, Syndrome::ACK, (pressure, 0), env.now);
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
        let pushed = self.push_with_bitmap(qp, psn, syndrome, pressure, env);
        if pushed {
            self.sel.acked(lost);
        }
        pushed
    }

    /// Sends an acknowledgement or a NAK with a bitmap of the packets that have arrived behind the first missing one.
    fn push_with_bitmap(&self, qp: &QpShared, psn: Psn, syndrome: Syndrome, pressure: u8, env: &mut Env<'_>) -> bool {
        let expected = self.expected;
        let tells = matches!(syndrome, Syndrome::Ack { .. }) || psn == expected;
        let (mut words, mut bytes) = ([0; BITMAP_WORDS_MAX], [0; BITMAP_WORDS_MAX * 8]);
        let early = self.sel.early.as_ref().filter(|_| tells);
        let count = early.map_or(0, |early| early.bitmap(expected, &mut words));
        let len = AckBitmap::emit(&words[..count], &mut bytes);
        let head = self.selective_ack_head(qp, psn, syndrome, (pressure, count as u8), env.now);
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
        psn: Psn,
        syndrome: Syndrome,
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
    let place = head::position(index == 0, index + 1 == resource.packets);
    let opcode = selective_form(head::read_response_opcode(qp.id.qp_type, place));
    let bth = Bth { pad: head::pad_of(len), ack_req: asks, ..Bth::new(opcode, qp.dest_qpn, resource.psn.add(index)) };
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
