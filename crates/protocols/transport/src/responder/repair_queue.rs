//! The queue of ranges of READ responses that the peer asks for again: in the order in which it did, or, in the standard
//! family, in the order of their PSNs, as IBA demands of responses (9.7.5.1.1). [`crate::responder::repairs`] fills and empties
//! it.

use burst_base::{Psn, heap};

/// A bit of [`crate::responder::Responder::pending`]: ranges wait in the queue. Without it what the queue holds means nothing.
pub(crate) const READ_REPAIR_DUE: u32 = 1 << 30;
/// Ranges that wait at most.
const REPAIRS_MAX: usize = 64;

/// Packets of a response that are asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RepairPart {
    pub(crate) psn: Psn,
    pub(crate) count: u32,
    /// Those of them that were sent.
    pub(crate) sent: u32,
}

/// The queue of one queue pair. It has memory from the first repair on.
#[derive(Debug, Default)]
pub(crate) struct ResponseRepairs {
    parts: Vec<RepairPart>,
    /// The first of `parts` that was not sent.
    next: usize,
}

impl ResponseRepairs {
    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.next = 0;
    }
    pub(crate) fn first(&self) -> Option<RepairPart> {
        self.parts.get(self.next).copied()
    }
    pub(crate) fn covers(&self, psn: Psn, count: u32) -> bool {
        let covers = |part: &RepairPart| {
            let first = part.psn.add(part.sent);
            psn.is_within(first, part.count - part.sent) && psn.add(count).diff(part.psn) <= part.count as i32
        };
        self.parts[self.next..].iter().any(covers)
    }
    /// Adds a range: behind all others, or, with `by_psn`, behind those with lower PSNs. False if there is no room, or it would
    /// have to come before a range of which a part was sent.
    pub(crate) fn add(&mut self, psn: Psn, count: u32, by_psn: bool) -> bool {
        let full = self.parts.len() == REPAIRS_MAX;
        if full || (self.parts.capacity() == 0 && heap::reserve(&mut self.parts, REPAIRS_MAX).is_err()) {
            return false;
        }
        if let Some(part) = self.parts.get(self.next).filter(|_| by_psn)
            && psn.is_within(part.psn, part.sent)
            && psn.add(count).is_after(part.psn.add(part.sent))
        {
            // A requester that goes back: it wants these packets from there on, and not those in between first.
            self.next += 1;
        }
        let waiting = &self.parts[self.next..];
        let behind = waiting.iter().position(|part| by_psn && part.psn.is_after(psn)).unwrap_or(waiting.len());
        if waiting.get(behind).is_some_and(|part| part.sent > 0) {
            return false;
        }
        self.parts.insert(self.next + behind, RepairPart { psn, count, sent: 0 });
        true
    }
    /// Further `count` packets of the first range were sent, or shall not be.
    pub(crate) fn on_sent(&mut self, count: u32) {
        let Some(part) = self.parts.get_mut(self.next) else { return };
        part.sent += count;
        debug_assert!(part.sent <= part.count);
        self.next += usize::from(part.sent == part.count);
    }
}

/// What becomes of a range that is asked for again.
pub(crate) enum Repair {
    /// It is sent by itself.
    Queued,
    /// It waits already.
    Waits,
    /// It cannot be sent by itself.
    Refused,
}
