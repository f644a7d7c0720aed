//! The queue of ranges of READ responses that the peer asks for again (selective repeat), in the order in which it did. What is
//! done with them is in [`crate::response_repairs`].

use burst_base::Psn;
use burst_base::heap;

/// A bit of [`crate::responder::Responder::pending`]: ranges wait in the queue. Without it what the queue holds means nothing.
pub(crate) const READ_REPAIR_DUE: u32 = 1 << 30;
/// Ranges that wait at most.
const REPAIRS_MAX: usize = 64;

/// Packets of a response that are asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RepairPart {
    pub(crate) psn: Psn,
    pub(crate) count: u32,
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
        let waiting = &self.parts[self.next..];
        waiting
            .iter()
            .any(|part| psn.is_within(part.psn, part.count) && psn.add(count).diff(part.psn) <= part.count as i32)
    }
    /// Appends a range. False if there is no room.
    pub(crate) fn add(&mut self, psn: Psn, count: u32) -> bool {
        if self.parts.len() == REPAIRS_MAX
            || (self.parts.capacity() == 0 && heap::reserve(&mut self.parts, REPAIRS_MAX).is_err())
        {
            return false;
        }
        self.parts.push(RepairPart { psn, count });
        true
    }
    /// The first `count` packets of the first range were sent, or shall not be.
    pub(crate) fn on_sent(&mut self, count: u32) {
        let Some(part) = self.parts.get_mut(self.next) else { return };
        debug_assert!(count <= part.count);
        *part = RepairPart { psn: part.psn.add(count), count: part.count - count };
        self.next += usize::from(part.count == 0);
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
