//! Heads of packets that were sent and received lately: those of the same messages' other packets are made of them
//! ([`crate::following`]).

use crate::channels::tx_window::{TxOwner, TxPacket};
use crate::pool::PoolRef;
use crate::records::SendRecord;
use burst_base::Psn;
use burst_ubwire::{MessageHead, Rtph, TpOpcode, UbStatus};

/// The head of a packet that was sent, of a message from registered memory; `of` says whether it is that of a packet to come.
#[derive(Debug, Default)]
pub(crate) struct LastHead {
    /// Channel, request and its attempt.
    pub(crate) of: Option<(PoolRef, TxOwner)>,
    pub(crate) head: MessageHead,
}

impl LastHead {
    /// A packet of a request leaves with this head, and others of its message follow.
    pub(crate) fn keep(&mut self, channel: PoolRef, owner: TxOwner, head: &[u8]) {
        self.of = Some((channel, owner));
        self.head.keep(head);
    }
}

/// Whether all packets of a request have one head but for the offset. An order number may get its context meanwhile.
pub(crate) const fn has_one_head(request: &SendRecord) -> bool {
    request.order_number.is_none() && request.abandoned.is_none()
}

/// The header of a packet of data.
pub(crate) const fn data_header((src_tpn, dst_tpn): (u32, u32), psn: Psn, packet: &TxPacket, ack_req: bool) -> Rtph {
    Rtph {
        last: packet.last,
        opcode: TpOpcode::Data,
        version: 0,
        padding: 0,
        src_tpn,
        dst_tpn,
        ack_req,
        flag: true,
        psn,
        status: UbStatus::SUCCESS,
        tpmsn: packet.tpmsn,
    }
}
