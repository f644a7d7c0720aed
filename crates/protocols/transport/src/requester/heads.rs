//! Heads of request packets: those of the standard family, and datagrams.

use crate::opcodes;
use crate::qp_shared::QpShared;
use crate::requester::recovery::InflightWqe;
use crate::requester::standard::split_writes::{is_split, split_reth};
use burst_base::num::MASK_24;
use burst_base::verbs::{WrOpcode, send_flags};
use burst_base::{Qkey, Qpn, Rkey};
use burst_wire::{Bth, Deth, HeadBuf, OpKind, Opcode, Position, Reth, XrcEth};

/// BTH, and for XRC the number of the shared receive queue that the request is for.
#[inline(always)]
pub(crate) fn request_head(qp: &QpShared, bth: &Bth, request: &InflightWqe) -> HeadBuf {
    let mut head = HeadBuf::new(bth);
    if qp.id.qp_type.is_xrc() {
        head = head.xrceth(XrcEth { srqn: request.wqe.remote_qpn & MASK_24 });
    }
    head
}

/// The head of packet `pkt` of a SEND or WRITE of the standard family, which has `len` bytes of payload.
pub(crate) fn message_head(qp: &QpShared, request: &InflightWqe, pkt: u32, ack_req: bool, len: u32) -> HeadBuf {
    let is_last = pkt + 1 == request.packets;
    let is_split = is_split(qp, request);
    let place = if is_split { Position::Only } else { opcodes::position(pkt == 0, is_last) };
    let opcode = opcodes::message_opcode(qp.id.qp_type, request.opcode, place);
    let info = opcode.info();
    let asks_event = request.wqe.flags & send_flags::SOLICITED as u16 != 0 && is_last && request.takes_credit();
    let bth = Bth {
        solicited: asks_event,
        pad: opcodes::pad_of(len),
        ack_req,
        ..Bth::new(opcode, qp.dest_qpn, request.first_psn.add(pkt))
    };
    let mut head = request_head(qp, &bth, request);
    if is_split {
        head = head.reth(split_reth(qp, request, pkt, len));
    } else if info.kind == OpKind::Write && place.is_start() {
        head = head.reth(Reth { addr: request.wqe.remote_addr, rkey: Rkey(request.wqe.rkey), len: request.length });
    }
    if info.has_imm || info.has_inv {
        head = opcodes::add_tail(head, opcode, &request.wqe);
    }
    head
}

/// A Q_Key with this bit in a work request means the queue pair's own Q_Key (IBA 10.2.5).
const QKEY_OWN: u32 = 1 << 31;

/// BTH, DETH and immediate data of a datagram.
pub(crate) fn datagram_head(qp: &QpShared, request: &InflightWqe) -> HeadBuf {
    let wqe = &request.wqe;
    let with_imm = request.opcode == WrOpcode::SendWithImm;
    let opcode = if with_imm { Opcode::UdSendOnlyImm } else { Opcode::UdSendOnly };
    let qkey = if wqe.remote_qkey & QKEY_OWN != 0 { qp.attr.qkey } else { Qkey(wqe.remote_qkey) };
    let bth = Bth {
        solicited: wqe.flags & send_flags::SOLICITED as u16 != 0,
        pad: opcodes::pad_of(request.length),
        ..Bth::new(opcode, Qpn::new(wqe.remote_qpn), request.first_psn)
    };
    let head = HeadBuf::new(&bth).deth(Deth { qkey, src_qpn: qp.id.qpn });
    opcodes::add_tail(head, opcode, wqe)
}
