//! The core of polling a completion queue.
//!
//! A completion names its queue pair by cookie. A send completion also says how many entries of its send queue are free again;
//! they are recorded there ([`SendSlots`]) after the completion's own entry is free, because another thread may post at once
//! and the completion queue must have room for the result. A completion whose queue pair has ended is dropped, as verbs promise.
//!
//! Beside the ring lies `carried`, a list that is nearly always empty: completions that had to leave the ring before the
//! program polled them (a resize, or the end of a queue pair). They come first.

use super::cookies::{CookieTable, NO_COOKIE, SendSlots};
use super::idle::SendProgress;
use burst_shm::cq::CqConsumer;
use burst_shm::{CQE_MAX, Cqe};
use std::collections::VecDeque;
use std::ptr::NonNull;

/// The data under the lock of a completion queue.
#[derive(Debug)]
pub struct CompletionRing {
    /// The ring.
    pub ring: CqConsumer,
    /// Completions that come before the ring's.
    pub carried: VecDeque<Cqe>,
    /// The completion that an extended interface is looking at.
    pub current: Cqe,
    /// What the send completions so far say of their queues.
    pub progress: SendProgress,
}

impl CompletionRing {
    /// The state over a fresh ring.
    pub fn new(ring: CqConsumer) -> CompletionRing {
        CompletionRing { ring, carried: VecDeque::new(), current: Cqe::default(), progress: SendProgress::default() }
    }

    /// Moves all completions to `carried` that `keep` accepts, and drops the others there and in the ring.
    pub fn carry(&mut self, keep: impl Fn(&Cqe) -> bool) {
        self.carried.retain(&keep);
        let carried = &mut self.carried;
        self.ring.poll_each(CQE_MAX as usize, |cqe| {
            if keep(cqe) {
                carried.push_back(*cqe);
            }
        });
    }

    /// Removes the completions of a queue pair that was destroyed or reset.
    pub fn purge(&mut self, cookie: u32) {
        self.carry(|cqe| cqe.qp_cookie != cookie);
    }

    /// Copies the next completion to `current`. False: there is none.
    #[inline(always)]
    pub fn next(&mut self, table: &CookieTable<SendSlots>) -> bool {
        next(&mut self.ring, &mut self.carried, table, &mut self.progress, &mut self.current)
    }

    /// Gives the next completion to `sink`, once. Returns how many there were: 0 or 1.
    #[inline(always)]
    pub fn take_one(&mut self, table: &CookieTable<SendSlots>, sink: impl FnOnce(&Cqe)) -> usize {
        let mut cqe = Cqe::default();
        if !next(&mut self.ring, &mut self.carried, table, &mut self.progress, &mut cqe) {
            return 0;
        }
        sink(&cqe);
        1
    }

    /// Gives up to `wanted` completions to `sink`, with their number among them. Returns how many there were. The sink is copied,
    /// not borrowed: a borrow by the cold path would keep what it captures in memory, a load per completion.
    #[inline(always)]
    pub fn take(&mut self, table: &CookieTable<SendSlots>, wanted: usize, sink: impl Fn(usize, &Cqe) + Copy) -> usize {
        let mut done = if self.carried.is_empty() { 0 } else { self.take_carried(table, wanted, sink) };
        let mut cqe = Cqe::default();
        let mut taken = false;
        // The send queue whose free entries have not been returned yet, and their count.
        let mut owed: Option<(NonNull<SendSlots>, u32)> = None;
        while done < wanted && self.ring.take_next(&mut cqe) {
            taken = true;
            match table.get(cqe.qp_cookie) {
                Some(slots) if cqe.is_recv == 0 => {
                    if owed.is_some_and(|(other, _)| other != slots) {
                        self.ring.release();
                        settle(owed, &mut self.progress);
                    }
                    owed = Some((slots, cqe.sq_consumer));
                }
                // SAFETY: as in `settle`.
                Some(slots) => unsafe { slots.as_ref() }.set_received(cqe.sq_consumer),
                None if cqe.qp_cookie != NO_COOKIE => continue,
                None => {}
            }
            sink(done, &cqe);
            done += 1;
        }
        if taken {
            self.ring.release();
            settle(owed, &mut self.progress);
        }
        done
    }

    #[cold]
    fn take_carried(
        &mut self,
        table: &CookieTable<SendSlots>,
        wanted: usize,
        sink: impl Fn(usize, &Cqe) + Copy,
    ) -> usize {
        let mut done = 0;
        while done < wanted
            && let Some(cqe) = self.carried.pop_front()
        {
            if retire(table, &cqe, &mut self.progress) {
                sink(done, &cqe);
                done += 1;
            }
        }
        done
    }
}

/// Takes the next completion of a living queue pair as a copy: its entry in the ring is free before the send queue learns that
/// it may post again. False: there is none.
#[inline(always)]
fn next(
    ring: &mut CqConsumer,
    carried: &mut VecDeque<Cqe>,
    table: &CookieTable<SendSlots>,
    progress: &mut SendProgress,
    cqe: &mut Cqe,
) -> bool {
    if carried.is_empty() {
        if !ring.poll(cqe) {
            return false;
        }
        if retire(table, cqe, progress) {
            return true;
        }
    }
    next_after_others(ring, carried, table, progress).map(|found| *cqe = found).is_some()
}

/// As [`next`], where completions were carried or their queue pairs have ended.
#[cold]
fn next_after_others(
    ring: &mut CqConsumer,
    carried: &mut VecDeque<Cqe>,
    table: &CookieTable<SendSlots>,
    progress: &mut SendProgress,
) -> Option<Cqe> {
    loop {
        let mut cqe = Cqe::default();
        if let Some(first) = carried.pop_front() {
            cqe = first;
        } else if !ring.poll(&mut cqe) {
            return None;
        }
        if retire(table, &cqe, progress) {
            return Some(cqe);
        }
    }
}

/// Records the free entries of a send queue, and how many of its requests are in flight.
#[inline]
fn settle(owed: Option<(NonNull<SendSlots>, u32)>, progress: &mut SendProgress) {
    if let Some((slots, count)) = owed {
        // SAFETY: found by `take`, whose caller holds the lock of this completion queue; the end of a queue pair passes through
        // that lock before its memory is freed.
        let slots = unsafe { slots.as_ref() };
        slots.retire(count, progress);
    }
}

/// Records the free entries that a completion reports; the completion's own entry must be free before. False: the queue pair has
/// ended. A receive of an XRC shared receive queue names no queue pair: it may be another process's.
#[inline]
fn retire(table: &CookieTable<SendSlots>, cqe: &Cqe, progress: &mut SendProgress) -> bool {
    let Some(slots) = table.get(cqe.qp_cookie) else { return cqe.qp_cookie == NO_COOKIE };
    // SAFETY: the caller holds the lock of this completion queue; the end of a queue pair passes through that lock before its
    // memory is freed.
    let slots = unsafe { slots.as_ref() };
    if cqe.is_recv == 0 {
        slots.retire(cqe.sq_consumer, progress);
    } else {
        slots.set_received(cqe.sq_consumer);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_shm::paired;

    #[test]
    fn a_poll_learns_how_many_requests_are_in_flight() {
        let slots = SendSlots::default();
        slots.set_posted(10);
        let table = CookieTable::default();
        let cookie = table.reserve().expect("room");
        // SAFETY: the slots live as long as the table.
        unsafe { table.put(cookie, NonNull::from(&slots)) };
        let (daemon, ring) = paired::cq(16);
        let mut ring = CompletionRing::new(ring);
        let completes = |sq_consumer, is_recv| {
            let cqe = Cqe { qp_cookie: cookie, sq_consumer, is_recv, ..Cqe::default() };
            assert!(daemon.publish(&cqe));
        };
        completes(1, 0);
        assert_eq!((ring.take_one(&table, |_| ()), ring.progress.outstanding), (1, 9));
        completes(2, 0);
        completes(4, 0);
        assert_eq!((ring.take(&table, 8, |_, _| ()), ring.progress.outstanding), (2, 6));
        completes(5, 0);
        assert!(ring.next(&table));
        assert_eq!(ring.progress.take(), SendProgress { finished: 5, outstanding: 5 });
        completes(1, 1);
        assert_eq!(
            (ring.take(&table, 8, |_, _| ()), ring.progress.outstanding),
            (1, 5),
            "a receive says nothing of it"
        );
        completes(7, 0);
        assert_eq!(ring.progress.finished, 0);
        ring.carry(|_| true);
        assert_eq!((ring.take(&table, 8, |_, _| ()), ring.progress.outstanding), (1, 3), "carried over a resize");
        assert_eq!(
            ring.progress.take(),
            SendProgress { finished: 2, outstanding: 3 },
            "one of them without a completion"
        );
    }
}
