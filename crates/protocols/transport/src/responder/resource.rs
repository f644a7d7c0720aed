//! A READ or ATOMIC that a responder has accepted: what of its response is to be sent, and what was sent.
//!
//! A resource stays after it was answered, so that any part of a READ's response can be sent again. A part in front of what is
//! being sent is sent by itself, and the response goes on where it was.

use burst_base::{Psn, Rkey};
use burst_wire::OpKind;

/// A READ or ATOMIC that was accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponderResource {
    pub(crate) kind: OpKind,
    pub(crate) psn: Psn,
    pub(crate) packets: u32,
    /// Packets `start..end` are to be sent, packet `next` first. Nothing is pending when `next == end`.
    pub(crate) start: u32,
    pub(crate) next: u32,
    pub(crate) end: u32,
    /// `start`, `next` and `end` of the response that is continued after these packets, which the peer asked for again while the
    /// response was being sent.
    pub(crate) rest: Option<(u32, u32, u32)>,
    pub(crate) addr: u64,
    pub(crate) rkey: Rkey,
    /// Protection domain of the request; for XRC, of the SRQ.
    pub(crate) pd: u32,
    /// XRC: the SRQ that the request named.
    pub(crate) srqn: u32,
    pub(crate) length: u32,
    /// ATOMIC: the value before.
    pub(crate) original: u64,
    pub(crate) msn: u32,
    /// Its whole response was sent once.
    pub(crate) answered: bool,
    /// The request was of the selective repeat family, so the response is.
    pub(crate) selective: bool,
    /// The pending packets repair a gap.
    pub(crate) is_repair: bool,
    /// READ: packets of its response that were repeated.
    pub(crate) repeated: u64,
    /// READ: the highest bound that `repeated` has had.
    pub(crate) repeated_max: u64,
    /// READ of the selective repeat family ([`crate::requester::read_acks`]): bytes of its response that were ever sent; of these
    /// from the first on, the bytes that count as sent (more than those acknowledged by what is in flight); the bytes
    /// acknowledged.
    pub(crate) sent_bytes: u32,
    pub(crate) counted_bytes: u32,
    pub(crate) acked_bytes: u32,
    /// The same: packets of its response that the peer has, from the first on.
    pub(crate) held: u32,
}

/// What is sent when packets of a response are asked for again.
pub(crate) struct RepeatedPart {
    /// Packets `index..end` are sent, and then `rest`.
    pub(crate) index: u32,
    pub(crate) end: u32,
    pub(crate) rest: Option<(u32, u32, u32)>,
    /// Packets that are sent once more than they would be otherwise.
    pub(crate) again: u32,
}

impl ResponderResource {
    pub(crate) fn has_pending(&self) -> bool {
        self.next < self.end
    }
    /// Passes over pending packets that the peer has. True if nothing is pending any more.
    pub(crate) fn skip_held(&mut self) -> bool {
        self.next = self.next.max(self.held.min(self.end));
        !self.has_pending()
    }
    /// What is to be sent if packets `index..end` are asked for again. A part in front of what is being sent is sent by itself,
    /// and the response goes on where it was: then the peer repairs a gap. A part that reaches further takes the response back.
    pub(crate) fn part(&self, index: u32, end: u32) -> RepeatedPart {
        let whole = |end| RepeatedPart { index, end, rest: None, again: end - index };
        if !self.has_pending() {
            return whole(end);
        }
        let (start, next, last) = self.rest.unwrap_or((self.start, self.next, self.end));
        if end > next {
            return RepeatedPart { again: next.saturating_sub(index), ..whole(last.max(end)) };
        }
        // The parts of two repairs are sent as one.
        let (index, end, pending) = match self.rest {
            Some(_) => (index.min(self.next), end.max(self.end), self.end - self.next),
            None => (index, end, 0),
        };
        RepeatedPart { index, end, rest: Some((start, next, last)), again: end - index - pending }
    }
}

pub(crate) const EMPTY: ResponderResource = ResponderResource {
    kind: OpKind::ReadRequest,
    psn: Psn::new(0),
    packets: 0,
    start: 0,
    next: 0,
    end: 0,
    rest: None,
    addr: 0,
    rkey: Rkey(0),
    pd: 0,
    srqn: 0,
    length: 0,
    original: 0,
    msn: 0,
    answered: true,
    selective: false,
    is_repair: false,
    repeated: 0,
    repeated_max: 0,
    sent_bytes: 0,
    counted_bytes: 0,
    acked_bytes: 0,
    held: 0,
};
