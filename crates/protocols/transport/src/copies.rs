//! The copy seam: who moves received bytes to their memory, and when.
//!
//! Without an executor ([`crate::Effects::copies`]) bytes are moved before the call returns, by the worker itself. A queue pair
//! with executors ([`crate::Qp::use_copies`]) asks one, which answers *done*, or *begun* with a [`Ticket`]: the bytes will be
//! there later. What depends on them leaves when the ticket has ended ([`crate::trail`]). No call waits.
//!
//! An executor belongs to one program, so that one that is slow, stops or lies delays no other: tickets end in their order (*all
//! up to*), whatever order the copies have. [`TicketLine`] makes that order of ends that come in any order.
//!
//! **What an executor must keep.** It has its own copy of the bytes when [`CopyExecutor::place`] returns. Copies whose memory
//! overlaps take effect in the order of their tickets; others in any order. The memory stays mapped until its tickets have ended:
//! who takes a region away waits for [`TicketLine::last`].

use crate::qp_shared::QpShared;
use burst_base::heap::{self, OutOfMemory};
use burst_base::{Nanos, Psn};
use burst_frame::MiddleRun;
use burst_span::{Span, Unreachable};

/// Most copies that one call of a queue pair begins: an executor that says it has room has room for so many. A call that needs
/// more (a long run of early packets whose turn has come) finds the others late.
pub const COPIES_PER_CALL: usize = 64;

/// A copy that was begun. Tickets of an executor are 1, 2, and so on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// What has become of bytes that were to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacedBytes {
    /// They are in their memory.
    Done,
    /// They will be when the ticket has ended.
    Begun(Ticket),
}

/// For what bytes of a device are staged: one request of one queue pair, or its answer to one READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedFor {
    /// Rises when the queue pair is reset.
    pub epoch: u32,
    /// Whether it is an answer.
    pub is_answer: bool,
    /// First PSN.
    pub psn: Psn,
    /// When it is asked for.
    pub now: Nanos,
}

impl StagedFor {
    /// Whether bytes that were staged for `self` may be sent for `later`: the same, and not [`STAGED_FOR`] ago. In that time no
    /// queue pair comes round to the same PSN.
    pub fn is_good_for(&self, later: &StagedFor) -> bool {
        let StagedFor { epoch, is_answer, psn, now } = *later;
        (self.epoch, self.is_answer, self.psn) == (epoch, is_answer, psn) && now.since(self.now) < STAGED_FOR
    }
}

/// Most bytes that are staged by one copy.
pub const STAGED_BYTES_MAX: u32 = 64 << 10;

/// Where the packets of bytes that are to be staged end.
#[derive(Clone, Copy, Debug)]
pub struct PacketCuts {
    /// Behind so many bytes first,
    pub first: u32,
    /// then behind each so many.
    pub mtu: u32,
}

impl PacketCuts {
    /// How many of `len` bytes, `offset` bytes behind the first, one copy stages: up to the end of a packet, so that each
    /// packet's bytes are of one copy.
    pub fn whole(&self, offset: u32, len: u32) -> u32 {
        if len <= STAGED_BYTES_MAX {
            return len;
        }
        let behind = (offset + STAGED_BYTES_MAX).saturating_sub(self.first) % self.mtu;
        debug_assert!(behind < STAGED_BYTES_MAX, "a packet is shorter than a copy");
        STAGED_BYTES_MAX - behind
    }
}

/// How long staged bytes may be sent.
pub const STAGED_FOR: Nanos = Nanos::from_ms(500);

/// How far the copies of an executor are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyProgress {
    /// All tickets up to this one have ended well.
    pub done: Ticket,
    /// The copy with this ticket, which is behind `done`, has failed. None of those behind it counts any more.
    pub failed: Option<Ticket>,
}

/// Moves bytes to memory.
pub trait CopyExecutor {
    /// Whether [`COPIES_PER_CALL`] copies may begin.
    fn has_room(&self) -> bool;
    /// Copies `pieces` one behind the other to `span`, whose length is that of all of them, now or later.
    ///
    /// # Errors
    /// The memory is gone, or the bytes cannot be taken now ([`Unreachable::Late`]). Some of them may have been copied.
    fn place(&mut self, span: &Span, pieces: &mut dyn Iterator<Item = &[u8]>) -> Result<PlacedBytes, Unreachable>;
    /// Asks for the bytes of `span`, which is of a device. Returns how many of them, from the first on, are staged; copies of
    /// others begin as far as there is room. With fewer than all, the queue pair is called ([`crate::Qp::on_copies`]) when more
    /// may be there.
    ///
    /// # Errors
    /// The memory is gone.
    fn stage(&mut self, _span: &Span, _cuts: PacketCuts, _tag: StagedFor) -> Result<u32, Unreachable> {
        Err(Unreachable::Gone)
    }
    /// The staged bytes of `span`, good until the end of the turn. `None`: they are not staged; then their copy begins, if there
    /// is room.
    fn staged(&mut self, _span: &Span, _tag: StagedFor) -> Option<Span> {
        None
    }
}

/// The executor of a queue pair; `None`: bytes are moved at once.
pub(crate) type Copies<'a> = Option<&'a mut dyn CopyExecutor>;

/// The executor for a call, if the queue pair has one.
#[inline(always)]
pub(crate) fn copies_of<'e>(qp: &QpShared, env: &'e mut crate::api::Env<'_>) -> Copies<'e> {
    if qp.trails { env.fx.copies() } else { None }
}

/// Moves `bytes` to `span`, which has their length.
#[inline(always)]
pub(crate) fn place(span: &Span, bytes: &[u8], copies: &mut Copies<'_>) -> Result<(), Unreachable> {
    match copies {
        None => span.write_from(bytes),
        Some(executor) => executor.place(span, &mut std::iter::once(bytes)).map(|_| ()),
    }
}

/// Moves the payload of the first packets of `train`, `len` bytes each behind a head of `head_len`, to `span`. False if its
/// memory cannot be written: the packets are handled one by one then.
#[inline(always)]
pub(crate) fn place_train(
    train: &MiddleRun<'_>,
    span: &Span,
    (head_len, len): (usize, usize),
    copies: Copies<'_>,
) -> bool {
    match copies {
        None => train.write_to(span, head_len, len),
        Some(executor) => executor.place(span, &mut train.payloads(head_len, len).take(span.len() / len)).is_ok(),
    }
}

/// The tickets of an executor: its copies end in any order, its tickets in theirs.
#[derive(Debug, Default)]
pub struct TicketLine {
    /// Tickets that have ended, without gaps.
    done: u64,
    /// Of each ticket behind `done`, in order and from `first` on as a ring, whether its copy has ended.
    ended: Vec<bool>,
    first: usize,
    open: usize,
    failed: Option<Ticket>,
}

impl TicketLine {
    /// A line for `most` open tickets.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(most: usize) -> Result<TicketLine, OutOfMemory> {
        let mut ended = heap::with_room(most)?;
        ended.resize(most, false);
        Ok(TicketLine { ended, ..TicketLine::default() })
    }
    /// Tickets that may still begin.
    pub fn room(&self) -> usize {
        self.ended.len() - self.open
    }
    /// The last ticket that has begun.
    pub fn last(&self) -> Ticket {
        Ticket(self.done + self.open as u64)
    }
    /// Begins a ticket; `None` without room, and after a failure.
    pub fn begin(&mut self) -> Option<Ticket> {
        if self.room() == 0 || self.failed.is_some() {
            return None;
        }
        let place = (self.first + self.open) % self.ended.len();
        self.ended[place] = false;
        self.open += 1;
        Some(self.last())
    }
    /// The copy of this ticket has ended, well or not. Tickets that are not open are ignored.
    pub fn end(&mut self, ticket: Ticket, is_well: bool) {
        let Some(ahead) = ticket.0.checked_sub(self.done + 1).filter(|ahead| *ahead < self.open as u64) else { return };
        if !is_well {
            self.failed = Some(self.failed.map_or(ticket, |first| first.min(ticket)));
            return;
        }
        let place = (self.first + ahead as usize) % self.ended.len();
        self.ended[place] = true;
        while self.open > 0 && self.ended[self.first] {
            self.first = (self.first + 1) % self.ended.len();
            (self.done, self.open) = (self.done + 1, self.open - 1);
        }
    }
    /// The executor has stopped: no open ticket will end.
    pub fn stop(&mut self) {
        let oldest = Ticket(self.done + 1);
        self.failed = Some(self.failed.map_or(oldest, |first| first.min(oldest)));
    }
    /// How far it is.
    pub fn progress(&self) -> CopyProgress {
        CopyProgress { done: Ticket(self.done), failed: self.failed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_packet_is_staged_by_one_copy() {
        for (mtu, first) in [(1024, 0), (4096, 0), (1024, 1000), (256, 1), (4096, 4095)] {
            let (cuts, total) = (PacketCuts { first, mtu }, 300_000);
            let mut at = 0;
            while at < total {
                let len = cuts.whole(at, total - at);
                assert!(len > 0 && len <= STAGED_BYTES_MAX);
                at += len;
                assert!(at == total || at >= first && (at - first) % mtu == 0, "{mtu} {first}: cut at {at}");
            }
        }
    }

    #[test]
    fn staged_bytes_are_of_one_request_and_not_old() {
        let tag = StagedFor { epoch: 1, is_answer: false, psn: Psn::new(7), now: Nanos(1000) };
        assert!(tag.is_good_for(&StagedFor { now: Nanos(2000), ..tag }));
        assert!(!tag.is_good_for(&StagedFor { now: tag.now + STAGED_FOR, ..tag }));
        let others = [
            StagedFor { epoch: 2, ..tag },
            StagedFor { is_answer: true, ..tag },
            StagedFor { psn: Psn::new(8), ..tag },
        ];
        assert!(others.iter().all(|other| !tag.is_good_for(other)));
    }

    #[test]
    fn tickets_end_in_their_order() {
        let mut line = TicketLine::new(3).expect("memory");
        let begun: Vec<_> = std::iter::from_fn(|| line.begin()).collect();
        assert_eq!((begun, line.room(), line.last()), (vec![Ticket(1), Ticket(2), Ticket(3)], 0, Ticket(3)));
        line.end(Ticket(3), true);
        line.end(Ticket(2), true);
        assert_eq!(line.progress(), CopyProgress::default());
        line.end(Ticket(1), true);
        assert_eq!((line.progress().done, line.room()), (Ticket(3), 3));
        // Ended twice, never begun: nothing changes.
        [0, 1, 3, 4, u64::MAX].iter().for_each(|number| line.end(Ticket(*number), true));
        assert_eq!((line.progress().done, line.begin()), (Ticket(3), Some(Ticket(4))));
    }

    #[test]
    fn a_failure_ends_none_of_the_tickets_behind_it() {
        let mut line = TicketLine::new(4).expect("memory");
        (0..4).for_each(|_| assert!(line.begin().is_some()));
        line.end(Ticket(3), false);
        line.end(Ticket(2), false);
        line.end(Ticket(4), true);
        line.end(Ticket(1), true);
        assert_eq!(line.progress(), CopyProgress { done: Ticket(1), failed: Some(Ticket(2)) });
        assert_eq!(line.begin(), None, "nothing begins any more");
        let mut stopped = TicketLine::new(4).expect("memory");
        stopped.begin();
        stopped.stop();
        assert_eq!(stopped.progress(), CopyProgress { done: Ticket(0), failed: Some(Ticket(1)) });
    }
}
