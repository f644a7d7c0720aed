//! Heads of request packets of the selective repeat family.

use crate::opcodes::{self, Work, selective_form, xrc_form};
use crate::qp_shared::QpShared;
use crate::requester::heads::request_head;
use crate::requester::recovery::InflightWqe;
use crate::requester::standard::split_writes::packet_addr;
use burst_base::Rkey;
use burst_base::num::MASK_24;
use burst_base::verbs::{WrOpcode, send_flags};
use burst_wire::{AtomicEth, Bth, HeadBuf, OpKind, Reth, Seth, Weth, XrcEth};

/// The opcodes of work requests whose last packet has immediate data or a key, one bit each.
const TAILED: u32 =
    1 << WrOpcode::SendWithImm as u32 | 1 << WrOpcode::SendWithInv as u32 | 1 << WrOpcode::RdmaWriteWithImm as u32;

/// What a packet says beside its place.
#[derive(Clone, Copy, Default)]
pub(crate) struct PacketMarks {
    pub(crate) asks_ack: bool,
    pub(crate) is_probe: bool,
    pub(crate) transmission: u8,
}

impl PacketMarks {
    /// The first transmission of a packet.
    pub(crate) fn asking(asks_ack: bool) -> PacketMarks {
        PacketMarks { asks_ack, ..PacketMarks::default() }
    }
}

fn request_seth(request: &InflightWqe, index: u32, marks: PacketMarks) -> Seth {
    let PacketMarks { is_probe, transmission, .. } = marks;
    Seth { is_probe, transmission, rsn: request.rsn & MASK_24, index, ..Seth::default() }
}

/// The head of packet `pkt` of a SEND or WRITE, which has `len` bytes of payload.
pub(crate) fn selective_message_head(
    qp: &QpShared,
    request: &InflightWqe,
    pkt: u32,
    len: u32,
    marks: PacketMarks,
) -> HeadBuf {
    let is_tailed = TAILED >> request.opcode as u32 & u32::from(pkt + 1 == request.packets) != 0;
    if is_tailed || qp.id.qp_type.is_xrc() {
        return long_message_head(qp, request, pkt, len, marks);
    }
    let [a, b, c] = selective_message_bth(qp, request, pkt, len, marks.asks_ack).words();
    let [d, e] = request_seth(request, pkt, marks).words();
    if request.work != Work::Write {
        return HeadBuf::of_words([a, b, c, d, e]);
    }
    let [f, g, h] = weth(qp, request, pkt).words();
    HeadBuf::of_words([a, b, c, d, e, f, g, h])
}

/// The same for a packet with an XRCETH, or with immediate data or a key behind the other headers.
#[inline(never)]
fn long_message_head(qp: &QpShared, request: &InflightWqe, pkt: u32, len: u32, marks: PacketMarks) -> HeadBuf {
    let bth = selective_message_bth(qp, request, pkt, len, marks.asks_ack);
    let head = match qp.id.qp_type.is_xrc() {
        true => request_head(qp, &Bth { opcode: xrc_form(bth.opcode), ..bth }, request),
        false => HeadBuf::new(&bth),
    };
    let head = head.seth(request_seth(request, pkt, marks));
    let head = if request.work == Work::Write { head.weth(weth(qp, request, pkt)) } else { head };
    opcodes::add_tail(head, bth.opcode, &request.wqe)
}

/// The BTH of a packet of RC.
#[inline(always)]
fn selective_message_bth(qp: &QpShared, request: &InflightWqe, pkt: u32, len: u32, ack_req: bool) -> Bth {
    let is_last = pkt + 1 == request.packets;
    let opcode = opcodes::selective_message_opcode(request.opcode, opcodes::position(pkt == 0, is_last));
    Bth {
        solicited: request.wqe.flags & send_flags::SOLICITED as u16 != 0 && is_last && request.takes_credit(),
        pad: opcodes::pad_of(len),
        ack_req,
        ..Bth::new(opcode, qp.dest_qpn, request.first_psn.add(pkt))
    }
}

#[inline(always)]
fn weth(qp: &QpShared, request: &InflightWqe, pkt: u32) -> Weth {
    Weth { addr: packet_addr(qp, request, pkt), rkey: Rkey(request.wqe.rkey) }
}

/// Writes PSN, index and address of packet `pkt` into the head of another middle packet of the same message.
#[inline]
pub(crate) fn set_selective_place(
    qp: &QpShared,
    request: &InflightWqe,
    pkt: u32,
    head: &mut [u8; burst_frame::HEAD_MAX],
) {
    if qp.id.qp_type.is_xrc() {
        set_place_at::<{ Bth::LEN + XrcEth::LEN }>(qp, request, pkt, head);
    } else {
        set_place_at::<{ Bth::LEN }>(qp, request, pkt, head);
    }
}

/// The SETH begins at `AT`.
#[inline(always)]
fn set_place_at<const AT: usize>(
    qp: &QpShared,
    request: &InflightWqe,
    pkt: u32,
    head: &mut [u8; burst_frame::HEAD_MAX],
) {
    Bth::set_psn(head, request.first_psn.add(pkt));
    Seth::set_index(head, AT, pkt);
    if request.work == Work::Write {
        Weth::set_addr(head, AT + Seth::LEN, packet_addr(qp, request, pkt));
    }
}

/// The head of a READ request for packets `first..end`, which lie in one piece. A repair asks for a part of a piece whose
/// request has arrived.
pub(crate) fn selective_read_head(
    qp: &QpShared,
    request: &InflightWqe,
    (first, len): (u32, u32),
    is_repair: bool,
    transmission: u8,
) -> HeadBuf {
    let piece = crate::api::READ_CHUNK_BYTES / qp.mtu;
    let opcode = selective_form(opcodes::single_opcode(qp.id.qp_type, OpKind::ReadRequest));
    let bth = Bth { ack_req: true, ..Bth::new(opcode, qp.dest_qpn, request.first_psn.add(first)) };
    let index = if is_repair { first % piece } else { 0 };
    let marks = PacketMarks { transmission, ..PacketMarks::default() };
    let seth = Seth { is_repair, ..request_seth(request, index, marks) };
    let addr = packet_addr(qp, request, first);
    request_head(qp, &bth, request).seth(seth).reth(Reth { addr, rkey: Rkey(request.wqe.rkey), len })
}

pub(crate) fn selective_atomic_head(
    qp: &QpShared,
    request: &InflightWqe,
    atomic: AtomicEth,
    transmission: u8,
) -> HeadBuf {
    let is_cas = request.opcode == WrOpcode::AtomicCmpAndSwp;
    let kind = if is_cas { OpKind::CmpSwap } else { OpKind::FetchAdd };
    let opcode = selective_form(opcodes::single_opcode(qp.id.qp_type, kind));
    let bth = Bth { ack_req: true, ..Bth::new(opcode, qp.dest_qpn, request.first_psn) };
    let marks = PacketMarks { transmission, ..PacketMarks::default() };
    request_head(qp, &bth, request).seth(request_seth(request, 0, marks)).atomic(atomic)
}

/// The ATOMIC of a request.
pub(crate) fn atomic_eth(request: &InflightWqe) -> AtomicEth {
    let wqe = &request.wqe;
    let is_cas = request.opcode == WrOpcode::AtomicCmpAndSwp;
    let (swap_add, compare) = if is_cas { (wqe.swap, wqe.compare_add) } else { (wqe.compare_add, 0) };
    AtomicEth { addr: wqe.remote_addr, rkey: Rkey(wqe.rkey), swap_add, compare }
}
