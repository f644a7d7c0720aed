//! The lines of a queue pair that most of its turns and packets use, and requests for them.
//!
//! A queue pair of 900 bytes has 15 lines. Its fields are in an order in which a turn or response of a requester uses 9 of them,
//! and a request of a responder 9: 5 lines that both use, then those of each. What only connecting, READs, ATOMICs, losses and
//! errors use lies between. With thousands of queue pairs none of these lines is in a cache, and the processor waits a tenth of a
//! microsecond for each, unless it is asked for it before. So the engine asks some queue pairs ahead.
//!
//! `repr(C)` fixes the order of fields in the structs of this crate. The ranges below are made of offsets: an assertion fails if
//! a field that moves makes them longer.

use crate::qp::Qp;
use burst_base::verbs::QpAttr;
use burst_span::prefetch_line;
use core::mem::offset_of;
use core::ops::Range;

const LINE: usize = 64;

/// Used by requester and responder: attributes, identity, flow, state, limits of sending, positions in flight.
const COMMON: Range<usize> =
    lines(offset_of!(Qp, attr) + offset_of!(QpAttr, retry_cnt), offset_of!(Qp, req.recovery.ahead) + 1);
/// Used by both: whether the family is selective repeat, and its deadline.
const FAMILY: Range<usize> = lines(offset_of!(Qp, req.sel.covered_bytes), offset_of!(Qp, req.sel.losses));
/// Used by a requester: its send queue.
const SENDING: Range<usize> = lines(offset_of!(Qp, sq), offset_of!(Qp, resp));
/// Used by a requester: where the rings of requests in flight are.
const RINGS: Range<usize> = lines(offset_of!(Qp, req.recovery.implied_at), offset_of!(Qp, req.sel));
/// Used by a requester: whether answers are due.
const ANSWERS: Range<usize> = lines(offset_of!(Qp, resp.nak_due), offset_of!(Qp, resp.expected));
/// Used by a responder: what is due, the message, the receive.
const RECEIVING: Range<usize> = lines(offset_of!(Qp, resp.nak_due), offset_of!(Qp, recv.early));

const fn lines(first: usize, end: usize) -> Range<usize> {
    first / LINE..end.div_ceil(LINE)
}

const fn count(lines: &Range<usize>) -> usize {
    lines.end - lines.start
}

const _: () = assert!(count(&COMMON) <= 4 && count(&RINGS) <= 2 && count(&FAMILY) <= 1 && count(&SENDING) <= 1);
const _: () = assert!(count(&RECEIVING) <= 5 && count(&ANSWERS) <= 1);

impl Qp {
    /// Asks the processor for `lines` of the queue pair. Its owner aligns it to a line.
    #[inline(always)]
    fn prefetch_lines(&self, lines: Range<usize>) {
        let base: *const u8 = core::ptr::from_ref(self).cast();
        lines.for_each(|line| prefetch_line(base.wrapping_add(line * LINE)));
    }

    /// Asks the processor for what a requester uses.
    #[inline(always)]
    pub fn prefetch_requester(&self) {
        self.prefetch_lines(COMMON);
        self.prefetch_lines(RINGS);
        self.prefetch_lines(FAMILY);
        self.prefetch_lines(SENDING);
        self.prefetch_lines(ANSWERS);
    }

    /// Asks the processor for what a responder uses.
    #[inline(always)]
    pub fn prefetch_responder(&self) {
        self.prefetch_lines(COMMON);
        self.prefetch_lines(FAMILY);
        self.prefetch_lines(RECEIVING);
    }

    /// Asks the processor for what the next turn reads outside of the queue pair.
    #[inline]
    pub fn prefetch_turn(&self) {
        if self.req.sq_active {
            self.sq.prefetch();
            self.req.recovery.prefetch_next();
        }
    }

    /// Asks the processor for what the next packet reads outside of the queue pair.
    #[inline]
    pub fn prefetch_packet(&self, is_response: bool) {
        if is_response {
            self.req.recovery.prefetch_oldest();
        } else {
            self.recv.prefetch();
        }
    }
}
