//! Why a responder does not execute a packet: the NAK to send, and the reason to count.

use crate::failure::NamedMemory;
use crate::responder::InboundMessage;
use burst_base::Reason;
use burst_base::verbs::{WcStatus, access};
use burst_span::Unreachable;
use burst_wire::{NakCode, OpKind, Packet};

/// Why a packet is not executed.
pub(crate) enum RequestRefusal {
    /// The request is refused by a NAK, and the queue pair goes to ERR.
    Refuse(NakCode, Reason),
    /// No receive is posted, or a page of the memory is not there yet: an RNR NAK asks for the packet again.
    NotReady(Reason),
    /// The request is refused by a NAK, the loaded receive ends with this status, and the queue pair goes to ERR.
    RefuseReceive(NakCode, WcStatus, Reason),
}

pub(crate) type CheckResult = Result<(), RequestRefusal>;

/// The refusal of a peer's request whose memory a key does not give.
pub(crate) fn access_refusal(reason: Reason) -> RequestRefusal {
    RequestRefusal::Refuse(NakCode::RemoteAccess, reason)
}

/// The refusal of a peer's request whose memory is not reached.
#[cold]
pub(crate) fn unreachable_refusal(why: Unreachable) -> RequestRefusal {
    match why {
        Unreachable::Late => RequestRefusal::NotReady(Reason::PageLate),
        Unreachable::Gone => access_refusal(Reason::RemoteAccess),
    }
}

/// The reason of a receive that cannot be written.
#[cold]
pub(crate) fn receive_reason(reason: Reason) -> Reason {
    if reason.is_of_memory() { reason } else { Reason::ReceiveProtection }
}

impl RequestRefusal {
    /// The reason to count.
    pub(crate) fn into_reason(self) -> Reason {
        match self {
            RequestRefusal::Refuse(_, reason) | RequestRefusal::RefuseReceive(_, _, reason) => reason,
            RequestRefusal::NotReady(reason) => reason,
        }
    }
}

/// The memory that a refused request of the peer names.
#[cold]
pub(crate) fn memory_of(message: Option<&InboundMessage>, pkt: &Packet<'_>) -> Option<NamedMemory> {
    let of_reth = |right| pkt.reth().map(|reth| NamedMemory { rkey: reth.rkey, addr: reth.addr, len: reth.len, right });
    match pkt.info.kind {
        OpKind::ReadRequest => of_reth(access::REMOTE_READ),
        OpKind::Write => of_reth(access::REMOTE_WRITE).or_else(|| {
            if let Some(weth) = pkt.weth() {
                let len = pkt.payload.len() as u32;
                return Some(NamedMemory { rkey: weth.rkey, addr: weth.addr, len, right: access::REMOTE_WRITE });
            }
            let message = message?;
            let InboundMessage { rkey, addr, length, .. } = *message;
            Some(NamedMemory { rkey, addr, len: length, right: access::REMOTE_WRITE })
        }),
        OpKind::Send => None,
        _ => pkt.atomic().map(|atomic| NamedMemory {
            rkey: atomic.rkey,
            addr: atomic.addr,
            len: 8,
            right: access::REMOTE_ATOMIC,
        }),
    }
}
