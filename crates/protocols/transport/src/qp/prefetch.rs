//! The lines of a queue pair that most of its turns and packets use, and requests for them.
//!
//! A queue pair has 1 KiB in 16 lines. Its fields are in an order in which a message of the standard family uses 7 lines of the
//! sender (3 that both halves use, 4 of the requester) and 7 of the receiver (these 3, 3 of the responder, and the first of the
//! requester, which tells that nothing waits to be sent). One more line holds what a requester of the selective repeat family
//! measures. What only connecting, READs, ATOMICs, losses and errors use lies between. With thousands of queue pairs none of
//! these lines is in a cache, and the processor waits a tenth of a microsecond for each, unless it is asked for it before. So the
//! engine asks some queue pairs ahead.
//!
//! `repr(C)` fixes the order of fields in the structs of this crate. The ranges below are made of offsets: an assertion fails if
//! a field that moves makes them longer.

use crate::qp::Qp;
use crate::responder::receiver::{LoadedSges, Receiver};
use burst_shm::Sge;
use burst_span::prefetch_line;
use core::mem::offset_of;
use core::ops::Range;

const LINE: usize = 64;
/// Used by requester and responder: attributes, identity; flow, port of the peer; state, answers that are due.
const COMMON: Range<usize> = lines(offset_of!(Qp, shared.attr.retry_cnt), offset_of!(Qp, resp.msn) + size_of::<u32>());
/// Used by a responder: the message, and what the family notes of packets.
const MESSAGE: Range<usize> = lines(offset_of!(Qp, resp.message), offset_of!(Qp, resp.resources));
/// Used by a responder: the receive queue, and a loaded receive with one entry.
const RECEIVE: Range<usize> = lines(
    offset_of!(Qp, resp.recv),
    offset_of!(Qp, resp.recv) + offset_of!(Receiver, sges) + offset_of!(LoadedSges, few) + size_of::<Sge>(),
);

/// Used by a requester: limits of sending, positions, the rings of requests in flight, the send queue.
const SENDING: Range<usize> = lines(offset_of!(Qp, req.sel.covered_bytes), size_of::<Qp>());
/// Used by a responder: whether its requester waits for something.
const WAITING: Range<usize> = lines(offset_of!(Qp, req.sel.covered_bytes), offset_of!(Qp, req.recovery.cursor_pkt));
/// Used by a requester of the selective repeat family: what it measures.
const MEASURED: Range<usize> = lines(offset_of!(Qp, req.sel), offset_of!(Qp, req.sel.covered_bytes));

const fn lines(first: usize, end: usize) -> Range<usize> {
    first / LINE..end.div_ceil(LINE)
}

const fn count(lines: &Range<usize>) -> usize {
    lines.end - lines.start
}

const _: () = assert!(size_of::<Qp>() == 16 * LINE && align_of::<Qp>() == LINE);

const _: () = assert!(count(&COMMON) == 3 && count(&MESSAGE) == 1 && count(&RECEIVE) == 2);

const _: () = assert!(count(&SENDING) == 4 && count(&WAITING) == 1 && count(&MEASURED) == 1);

/// Asks the processor for `lines` of the queue pair.
#[inline(always)]
fn prefetch_lines(qp: &Qp, lines: Range<usize>) {
    let base: *const u8 = core::ptr::from_ref(qp).cast();
    lines.for_each(|line| prefetch_line(base.wrapping_add(line * LINE)));
}

impl Qp {
    /// Asks the processor for what a requester uses, perhaps one of the selective repeat family.
    #[inline(always)]
    pub fn prefetch_requester(&self, is_selective: bool) {
        prefetch_lines(self, COMMON);
        prefetch_lines(self, SENDING);
        if is_selective {
            prefetch_lines(self, MEASURED);
        }
    }

    /// Asks the processor for what a responder uses.
    #[inline(always)]
    pub fn prefetch_responder(&self) {
        prefetch_lines(self, COMMON);
        prefetch_lines(self, MESSAGE);
        prefetch_lines(self, RECEIVE);
        prefetch_lines(self, WAITING);
    }

    /// Asks the processor for what the next turn reads outside of the queue pair.
    #[inline]
    pub fn prefetch_turn(&self) {
        if self.req.sq_active {
            self.req.sq.prefetch();
            self.req.recovery.prefetch_next();
        }
    }

    /// Asks the processor for what the next packet reads outside of the queue pair.
    #[inline]
    pub fn prefetch_packet(&self, is_response: bool) {
        if is_response {
            self.req.recovery.prefetch_oldest();
        } else {
            self.resp.recv.prefetch();
        }
    }
}
