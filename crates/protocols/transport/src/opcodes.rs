//! Opcodes and extension headers of packets to send (IBA 9.2, table 38).

use burst_base::verbs::{QpType, WrOpcode};
use burst_shm::layout::SendWqe;
use burst_wire::{HeadBuf, Ieth, ImmDt, OpKind, Opcode, Position};

/// Operation of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Send,
    Write,
    Read,
    Atomic,
    /// Binds a memory window or invalidates a key; sends nothing.
    Local,
}

impl Work {
    pub(crate) fn of(opcode: WrOpcode) -> Work {
        match opcode {
            WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv => Work::Send,
            WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => Work::Write,
            WrOpcode::RdmaRead => Work::Read,
            WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => Work::Atomic,
            WrOpcode::LocalInv | WrOpcode::BindMw => Work::Local,
        }
    }
    /// Whether a queue pair of this type supports it (IBA table 9).
    pub(crate) fn is_carried_by(self, qp_type: QpType, opcode: WrOpcode) -> bool {
        match qp_type {
            QpType::Rc | QpType::XrcSend => true,
            QpType::XrcRecv => false,
            QpType::Uc => matches!(self, Work::Send | Work::Write | Work::Local) && opcode != WrOpcode::SendWithInv,
            QpType::Ud => matches!(opcode, WrOpcode::Send | WrOpcode::SendWithImm),
        }
    }
    /// Whether the responder answers it by a response of its own instead of an acknowledgement.
    pub(crate) fn has_response(self) -> bool {
        matches!(self, Work::Read | Work::Atomic)
    }
}

/// Position of a packet in its message.
pub(crate) fn position(is_first: bool, is_last: bool) -> Position {
    match (is_first, is_last) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, true) => Position::Last,
        (false, false) => Position::Middle,
    }
}

/// Opcodes of SEND and WRITE by position, without and with immediate data; then those with invalidate.
struct Family {
    first: Opcode,
    middle: Opcode,
    last: [Opcode; 3],
    only: [Opcode; 3],
}

use Opcode::*;

static RC_SEND: Family = Family {
    first: RcSendFirst,
    middle: RcSendMiddle,
    last: [RcSendLast, RcSendLastImm, RcSendLastInv],
    only: [RcSendOnly, RcSendOnlyImm, RcSendOnlyInv],
};

static RC_WRITE: Family = Family {
    first: RcWriteFirst,
    middle: RcWriteMiddle,
    last: [RcWriteLast, RcWriteLastImm, RcWriteLast],
    only: [RcWriteOnly, RcWriteOnlyImm, RcWriteOnly],
};

static UC_SEND: Family = Family {
    first: UcSendFirst,
    middle: UcSendMiddle,
    last: [UcSendLast, UcSendLastImm, UcSendLast],
    only: [UcSendOnly, UcSendOnlyImm, UcSendOnly],
};

static UC_WRITE: Family = Family {
    first: UcWriteFirst,
    middle: UcWriteMiddle,
    last: [UcWriteLast, UcWriteLastImm, UcWriteLast],
    only: [UcWriteOnly, UcWriteOnlyImm, UcWriteOnly],
};

static XRC_SEND: Family = Family {
    first: XrcSendFirst,
    middle: XrcSendMiddle,
    last: [XrcSendLast, XrcSendLastImm, XrcSendLastInv],
    only: [XrcSendOnly, XrcSendOnlyImm, XrcSendOnlyInv],
};

static XRC_WRITE: Family = Family {
    first: XrcWriteFirst,
    middle: XrcWriteMiddle,
    last: [XrcWriteLast, XrcWriteLastImm, XrcWriteLast],
    only: [XrcWriteOnly, XrcWriteOnlyImm, XrcWriteOnly],
};

/// The opcode of a SEND or WRITE packet of a connected queue pair.
pub(crate) fn message_opcode(qp_type: QpType, wr: WrOpcode, place: Position) -> Opcode {
    let family = match (qp_type, Work::of(wr) == Work::Write) {
        (QpType::Rc, false) => &RC_SEND,
        (QpType::Rc, true) => &RC_WRITE,
        (QpType::XrcSend, false) => &XRC_SEND,
        (QpType::XrcSend, true) => &XRC_WRITE,
        (_, false) => &UC_SEND,
        (_, true) => &UC_WRITE,
    };
    let variant = match wr {
        WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm => 1,
        WrOpcode::SendWithInv => 2,
        _ => 0,
    };
    match place {
        Position::First => family.first,
        Position::Middle => family.middle,
        Position::Last => family.last[variant],
        Position::Only => family.only[variant],
    }
}

/// Opcodes of SENDs and WRITEs of RC in the selective repeat family, by the number of the work request's opcode and by position:
/// looked up once per packet. Other work requests have no such packets.
static RC_SELECTIVE: [[Opcode; 4]; 16] = {
    const OTHER: [Opcode; 4] = [RcSrSendFirst, RcSrSendMiddle, RcSrSendLast, RcSrSendOnly];
    let mut rows = [OTHER; 16];
    rows[WrOpcode::RdmaWrite as usize] = [RcSrWriteFirst, RcSrWriteMiddle, RcSrWriteLast, RcSrWriteOnly];
    rows[WrOpcode::RdmaWriteWithImm as usize] = [RcSrWriteFirst, RcSrWriteMiddle, RcSrWriteLastImm, RcSrWriteOnlyImm];
    rows[WrOpcode::SendWithImm as usize] = [RcSrSendFirst, RcSrSendMiddle, RcSrSendLastImm, RcSrSendOnlyImm];
    rows[WrOpcode::SendWithInv as usize] = [RcSrSendFirst, RcSrSendMiddle, RcSrSendLastInv, RcSrSendOnlyInv];
    rows
};

/// The opcode of a SEND or WRITE packet of RC in the selective repeat family.
#[inline(always)]
pub(crate) fn selective_message_opcode(wr: WrOpcode, place: Position) -> Opcode {
    RC_SELECTIVE[wr as usize & 15][place as usize]
}

/// Adds the immediate data or the key to invalidate, if the opcode carries one.
pub(crate) fn add_tail(head: HeadBuf, opcode: Opcode, wqe: &SendWqe) -> HeadBuf {
    let info = opcode.info();
    if info.has_imm {
        head.imm(ImmDt::from_be32(wqe.imm))
    } else if info.has_inv {
        head.ieth(Ieth { rkey: burst_base::Rkey(wqe.imm) })
    } else {
        head
    }
}

/// The opcode of a READ response packet.
pub(crate) fn read_response_opcode(qp_type: QpType, place: Position) -> Opcode {
    match (qp_type.is_xrc(), place) {
        (false, Position::First) => RcReadResponseFirst,
        (false, Position::Middle) => RcReadResponseMiddle,
        (false, Position::Last) => RcReadResponseLast,
        (false, Position::Only) => RcReadResponseOnly,
        (true, Position::First) => XrcReadResponseFirst,
        (true, Position::Middle) => XrcReadResponseMiddle,
        (true, Position::Last) => XrcReadResponseLast,
        (true, Position::Only) => XrcReadResponseOnly,
    }
}

/// The opcode of a packet that is a message by itself and has no variants.
pub(crate) fn single_opcode(qp_type: QpType, kind: OpKind) -> Opcode {
    match (qp_type.is_xrc(), kind) {
        (false, OpKind::ReadRequest) => RcReadRequest,
        (false, OpKind::CmpSwap) => RcCmpSwap,
        (false, OpKind::FetchAdd) => RcFetchAdd,
        (false, OpKind::AtomicAck) => RcAtomicAck,
        (false, _) => RcAck,
        (true, OpKind::ReadRequest) => XrcReadRequest,
        (true, OpKind::CmpSwap) => XrcCmpSwap,
        (true, OpKind::FetchAdd) => XrcFetchAdd,
        (true, OpKind::AtomicAck) => XrcAtomicAck,
        (true, _) => XrcAck,
    }
}

/// Bytes of padding after `len` payload bytes.
pub(crate) const fn pad_of(len: u32) -> u8 {
    (len.wrapping_neg() & 3) as u8
}

/// The first opcode of the family. The low five bits are those of the RC or XRC opcode, and the bit above them is set for XRC
/// (0xA0 to 0xBF), so that its opcodes are those from 0xE0 on.
const FAMILY: u8 = 0xc0;
const XRC_FAMILY: u8 = 0xe0;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opcodes::selective_form;

    #[test]
    fn the_table_of_selective_repeat_has_the_forms_of_the_standard_opcodes() {
        for &wr in WrOpcode::ALL.iter().filter(|&&wr| matches!(Work::of(wr), Work::Send | Work::Write)) {
            for place in [Position::First, Position::Middle, Position::Last, Position::Only] {
                let expected = selective_form(message_opcode(QpType::Rc, wr, place));
                assert_eq!(selective_message_opcode(wr, place), expected, "{wr:?} {place:?}");
            }
        }
    }
}
