//! Short WRITEs towards standard peers: each packet is a message of its own.
//!
//! The first packet of a WRITE has an RETH, the others have none. Trains of ports (GSO) end where the length of packets
//! changes, so each message of a few packets would be two packets of the kernel, whatever else there is to send. As WRITE Only
//! packets, each with an RETH of its own, all packets of many messages have one length and share trains. The peer's memory gets
//! the same bytes in the same order, and no completion there reports a WRITE. (With immediate data one does, and its length.)
//!
//! Each such packet counts as a message in the peer's MSN (IBA 9.7.7.1), on which credits are built, and therefore in SSNs
//! ([`crate::requester::Requester::extra_messages`]).
//!
//! Not for UC, where the loss of one packet must drop the whole message, and not for longer messages: two packets of the
//! kernel among many cost little, and a peer has less to check in a packet without RETH.

use crate::qp_shared::QpShared;
use crate::requester::recovery::InflightWqe;
use burst_base::Rkey;
use burst_base::verbs::{QpType, WrOpcode};
use burst_wire::{Bth, Reth, XrcEth};

/// The longest message, in packets.
pub(crate) const SPLIT_PACKETS_MAX: u32 = 32;

/// Whether the packets of a SEND or WRITE of the standard family are messages of their own.
#[inline(always)]
pub(crate) fn is_split(qp: &QpShared, request: &InflightWqe) -> bool {
    request.opcode == WrOpcode::RdmaWrite
        && request.packets.wrapping_sub(2) < SPLIT_PACKETS_MAX - 1
        && qp.id.qp_type != QpType::Uc
}

/// The RETH of packet `pkt`, which has `len` bytes of payload.
pub(crate) fn split_reth(qp: &QpShared, request: &InflightWqe, pkt: u32, len: u32) -> Reth {
    Reth { addr: packet_addr(qp, request, pkt), rkey: Rkey(request.wqe.rkey), len }
}

/// Where packet `pkt` of a WRITE is written, or packet `pkt` of a READ is read.
pub(crate) fn packet_addr(qp: &QpShared, request: &InflightWqe, pkt: u32) -> u64 {
    request.wqe.remote_addr.wrapping_add(u64::from(pkt) * u64::from(qp.mtu))
}

/// Writes PSN and, if the request is split, the address of packet `pkt` into the head of another packet of the same message.
#[inline(always)]
pub(crate) fn set_place(
    qp: &QpShared,
    request: &InflightWqe,
    pkt: u32,
    is_split: bool,
    head: &mut [u8; burst_frame::HEAD_MAX],
) {
    Bth::set_psn(head, request.first_psn.add(pkt));
    if is_split {
        let at = Bth::LEN + if qp.id.qp_type.is_xrc() { XrcEth::LEN } else { 0 };
        Reth::set_addr(head, at, packet_addr(qp, request, pkt));
    }
}
