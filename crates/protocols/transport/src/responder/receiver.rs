//! The receive queue: loads receives, fills them, completes them.
//!
//! A receive is copied out of shared memory once (it is *loaded* then) and completes when a message has filled it. If a UC or UD
//! message breaks, the receive stays loaded for the next message (IBA 9.8.3: the receive is not consumed).

use crate::api::{RecvQueue, XrcSrq};
use crate::responder::early_receives::EarlyReceives;
use crate::sge_cursor::{Keys, Placing, SgeCursor};
use burst_base::heap::OutOfMemory;
use burst_base::num::MASK_24;
use burst_base::{Reason, heap};
use burst_shm::layout::{RecvWqe, SGE_MAX};
use burst_shm::rq::SrqConsumer;
use burst_shm::{Fetch, Sge};
use burst_span::Span;
use std::sync::Arc;

/// Result of loading a receive.
pub(crate) enum Load {
    /// A receive is loaded.
    Ready,
    /// No receive is posted.
    Empty,
    /// The queue's indices are impossible.
    Corrupt,
}

/// The receive queue and the loaded receive.
// In the order of use: see `qp::prefetch`.
#[repr(C)]
pub(crate) struct Receiver {
    queue: RecvQueue,
    pub(crate) wqe: RecvWqe,
    /// Bytes for which the loaded receive has room.
    pub(crate) room: u64,
    /// Receives completed since the queue pair was connected, modulo 2^32. The low 24 bits are the RSN of the next message.
    pub(crate) consumed: u32,
    pub(crate) loaded: bool,
    /// The loaded receive has more entries than the queue allows.
    malformed: bool,
    /// Receives taken before their turn.
    pub(crate) early: Option<Box<EarlyReceives>>,
    /// XRC target: number of the shared receive queue of the loaded receive.
    loaded_srqn: Option<u32>,
    pub(crate) sges: LoadedSges,
    /// XRC target: number of the shared receive queue in `queue`.
    srqn: Option<u32>,
    /// XRC target: the domain.
    domain: Option<u32>,
}

/// The entries of the loaded receive. Most queues allow one or two, which lie in the queue pair itself.
#[derive(Default)]
// In the order of use: see `qp::prefetch`.
#[repr(C)]
pub(crate) struct LoadedSges {
    many: Box<[Sge]>,
    pub(crate) few: [Sge; 2],
}

impl LoadedSges {
    fn reserve(&mut self, longest: usize) -> Result<(), OutOfMemory> {
        if longest > self.few.len() && self.many.is_empty() {
            let mut many = heap::with_room(longest)?;
            many.resize(longest, Sge::default());
            self.many = many.into_boxed_slice();
        }
        Ok(())
    }
    #[inline(always)]
    fn places(&mut self) -> &mut [Sge] {
        if self.many.is_empty() { &mut self.few } else { &mut self.many }
    }
    #[inline(always)]
    fn all(&self) -> &[Sge] {
        if self.many.is_empty() { &self.few } else { &self.many }
    }
}

impl Receiver {
    pub(crate) fn new(queue: RecvQueue) -> Self {
        let domain = if let RecvQueue::Xrc { domain } = queue { Some(domain) } else { None };
        Receiver {
            queue,
            domain,
            srqn: None,
            loaded_srqn: None,
            wqe: RecvWqe::default(),
            sges: LoadedSges::default(),
            loaded: false,
            malformed: false,
            room: 0,
            consumed: 0,
            early: None,
        }
    }
    /// Reserves room for the entries of a receive (the queue pair leaves RESET).
    pub(crate) fn reserve(&mut self) -> Result<(), OutOfMemory> {
        let longest = match &self.queue {
            RecvQueue::Own(rq) => rq.spec().max_sge(),
            RecvQueue::Shared(srq) => srq.spec().max_sge(),
            RecvQueue::Xrc { .. } => SGE_MAX,
            RecvQueue::None => 0,
        };
        self.sges.reserve(longest as usize)
    }
    /// Asks the processor for the receive that is loaded next.
    #[inline]
    pub(crate) fn prefetch(&self) {
        if let RecvQueue::Own(rq) = &self.queue {
            rq.prefetch();
        }
    }
    pub(crate) fn is_loaded(&self) -> bool {
        self.loaded
    }
    /// Receives posted to the queue pair's own queue, without the one that is loaded; `None` if the queue is shared.
    pub(crate) fn posted(&self) -> Option<u32> {
        match &self.queue {
            RecvQueue::Own(rq) => Some(rq.pending()),
            RecvQueue::None => Some(0),
            RecvQueue::Shared(_) | RecvQueue::Xrc { .. } => None,
        }
    }
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.queue, RecvQueue::Shared(_) | RecvQueue::Xrc { .. })
    }
    /// Loads a receive unless one is loaded.
    pub(crate) fn load(&mut self) -> Load {
        if self.loaded {
            return Load::Ready;
        }
        let fetched = match &mut self.queue {
            RecvQueue::Own(rq) => rq.fetch(&mut self.wqe, self.sges.places()),
            RecvQueue::Shared(srq) => srq.fetch(&mut self.wqe, self.sges.places()),
            RecvQueue::None | RecvQueue::Xrc { .. } => Fetch::Empty,
        };
        match fetched {
            Fetch::Empty => return Load::Empty,
            Fetch::Corrupt => return Load::Corrupt,
            Fetch::Taken(_) => self.malformed = false,
            Fetch::Malformed(_) => {
                self.malformed = true;
                self.wqe.num_sge = 0;
            }
        }
        self.loaded = true;
        self.room = self.entries().iter().map(|sge| u64::from(sge.length)).sum();
        Load::Ready
    }
    /// Takes the next receive out of the queue, unless there is none: the receive, whether it is malformed, and its entries.
    fn fetch(&mut self, sges: &mut [Sge; SGE_MAX as usize]) -> Option<(RecvWqe, bool)> {
        let mut wqe = RecvWqe::default();
        let fetched = match &mut self.queue {
            RecvQueue::Own(rq) => rq.fetch(&mut wqe, sges),
            RecvQueue::Shared(srq) => srq.fetch(&mut wqe, sges),
            RecvQueue::None | RecvQueue::Xrc { .. } => Fetch::Empty,
        };
        match fetched {
            Fetch::Taken(_) => Some((wqe, false)),
            Fetch::Malformed(_) => Some((RecvWqe { num_sge: 0, ..wqe }, true)),
            Fetch::Empty | Fetch::Corrupt => None,
        }
    }
    /// RSN of the next message.
    pub(crate) fn rsn(&self) -> u32 {
        self.consumed & MASK_24
    }
    /// Takes receive number `rsn` into `early`, unless it is there; of an own queue also those before it. The receive of the
    /// next message is loaded instead. False if there is no receive or no room for it.
    pub(crate) fn take_early(
        &mut self,
        rsn: u32,
        early: &mut EarlyReceives,
        grow: &mut dyn FnMut(&mut EarlyReceives),
    ) -> bool {
        let current = self.rsn();
        if rsn == current {
            return matches!(self.load(), Load::Ready);
        }
        if !self.is_shared() && !matches!(self.load(), Load::Ready) {
            return false;
        }
        let ahead = rsn.wrapping_sub(current) & MASK_24;
        let first = if self.is_shared() { ahead } else { 1 };
        for number in (first..=ahead).map(|k| current.wrapping_add(k) & MASK_24) {
            if early.get(number).is_some() {
                continue;
            }
            if !early.has_room() {
                grow(early);
            }
            let mut sges = [Sge::default(); SGE_MAX as usize];
            let Some((wqe, malformed)) = early.has_room().then(|| self.fetch(&mut sges)).flatten() else {
                return false;
            };
            early.add((number, self.srqn), wqe, malformed, &sges[..wqe.num_sge as usize]);
        }
        true
    }
    /// Writes `bytes` at `offset` of receive number `rsn`, which has been taken. False if it has no room there, or cannot be
    /// written.
    pub(crate) fn scatter_early(
        &self,
        (rsn, early): (u32, &EarlyReceives),
        offset: u64,
        bytes: &[u8],
        mut placing: Placing<'_>,
    ) -> bool {
        let Some(sges) = self.early_entries((rsn, early), offset + bytes.len() as u64) else { return false };
        SgeCursor::at(sges, offset).scatter(sges, bytes, &mut placing).is_ok()
    }
    /// Contiguous memory for packets of `each` bytes from `offset` of receive number `rsn` on, at most `count` packets.
    pub(crate) fn run_early(
        &self,
        (rsn, early): (u32, &EarlyReceives),
        keys: Keys<'_>,
        offset: u64,
        (each, count): (u32, u32),
    ) -> Option<Span> {
        let sges = self.early_entries((rsn, early), offset + u64::from(each) * u64::from(count))?;
        SgeCursor::at(sges, offset).run(keys, sges, each, count)
    }
    /// The entries of receive number `rsn`, if it has room for `bytes` and is one of the queue that the packet names.
    fn early_entries<'a>(&'a self, (rsn, early): (u32, &'a EarlyReceives), bytes: u64) -> Option<&'a [Sge]> {
        let (malformed, srqn, sges) = match early.get(rsn) {
            _ if rsn == self.rsn() => (self.malformed || !self.loaded, self.loaded_srqn, self.entries()),
            Some(receive) => (receive.malformed, receive.srqn, receive.sges),
            None => return None,
        };
        let room: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        (!malformed && bytes <= room && (self.domain.is_none() || srqn == self.srqn)).then_some(sges)
    }
    /// A receive has completed: loads the next one if it was taken early. In error, the order does not matter, and receives are
    /// loaded in the order in which they were taken.
    pub(crate) fn load_early(&mut self, in_error: bool) {
        let next = self.rsn();
        let Some(early) = &mut self.early else { return };
        let Some((rsn, taken)) = early.get(next).map(|taken| (next, taken)).or(early.oldest().filter(|_| in_error))
        else {
            return;
        };
        (self.wqe, self.malformed, self.loaded, self.loaded_srqn) = (taken.wqe, taken.malformed, true, taken.srqn);
        self.sges.places()[..taken.sges.len()].copy_from_slice(taken.sges);
        early.remove(rsn);
        self.room = self.entries().iter().map(|sge| u64::from(sge.length)).sum();
    }
    #[inline(always)]
    fn entries(&self) -> &[Sge] {
        &self.sges.all()[..self.wqe.num_sge as usize]
    }
    /// Whether the queue is empty and the next post will ring the doorbell.
    pub(crate) fn try_idle(&mut self) -> bool {
        match &mut self.queue {
            RecvQueue::Own(rq) => rq.try_idle(),
            RecvQueue::Shared(_) | RecvQueue::None | RecvQueue::Xrc { .. } => true,
        }
    }
    /// Removes all posted receives without completions (the queue pair goes to RESET).
    pub(crate) fn discard(&mut self) {
        debug_assert!(self.early.is_none(), "records are given back before");
        self.loaded = false;
        if let RecvQueue::Own(rq) = &mut self.queue {
            rq.discard_all();
        }
    }
    pub(crate) fn domain(&self) -> Option<u32> {
        self.domain
    }
    pub(crate) fn srqn(&self) -> Option<u32> {
        self.srqn
    }
    /// XRC target: number of the shared receive queue of the loaded receive.
    pub(crate) fn loaded_srqn(&self) -> Option<u32> {
        self.loaded_srqn.filter(|_| self.loaded)
    }
    /// Takes receives from this shared receive queue of an XRC domain from now on. Between messages a receive may be loaded, of
    /// this queue or of another, for a message that has begun to arrive early.
    pub(crate) fn take_up(&mut self, srqn: u32, srq: &XrcSrq) {
        let same = matches!(&self.queue, RecvQueue::Shared(queue) if Arc::ptr_eq(queue, &srq.queue));
        if !same {
            self.queue = RecvQueue::Shared(srq.queue.clone());
            self.srqn = Some(srqn);
        }
        if !self.loaded {
            self.loaded_srqn = Some(srqn);
        }
    }
    /// Takes receives from this shared receive queue for one early packet. Returns what [`Receiver::end_early`] needs.
    pub(crate) fn begin_early(&mut self, srqn: u32, srq: &XrcSrq) -> (RecvQueue, Option<u32>) {
        let own = (std::mem::replace(&mut self.queue, RecvQueue::None), self.srqn);
        self.take_up(srqn, srq);
        own
    }
    /// The packet was placed, or dropped.
    pub(crate) fn end_early(&mut self, own: (RecvQueue, Option<u32>)) {
        (self.queue, self.srqn) = own;
    }
    /// Forgets a shared receive queue, which was destroyed, and the receives that were taken from it.
    pub(crate) fn forget_srq(&mut self, srqn: u32) {
        let Some(domain) = self.domain else { return };
        if self.srqn == Some(srqn) {
            (self.queue, self.srqn) = (RecvQueue::Xrc { domain }, None);
        }
        self.loaded &= self.loaded_srqn != Some(srqn);
        if let Some(early) = &mut self.early {
            early.forget_srq(srqn);
        }
    }
    /// Takes receives from another ring: the shared receive queue was resized.
    pub(crate) fn follow_srq(&mut self, srq: Arc<SrqConsumer>) {
        self.queue = RecvQueue::Shared(srq);
    }
    /// Checks that the loaded receive is usable.
    pub(crate) fn check(&self) -> Result<(), Reason> {
        if self.malformed { Err(Reason::LocalOperation) } else { Ok(()) }
    }
    /// Whether a receive is loaded and usable.
    pub(crate) fn is_usable(&self) -> bool {
        self.loaded && !self.malformed
    }
    /// Contiguous memory for packets of `each` bytes from `offset` of the loaded receive on, at most `count` packets.
    pub(crate) fn run(&self, keys: Keys<'_>, offset: u64, each: u32, count: u32) -> Option<Span> {
        SgeCursor::at(self.entries(), offset).run(keys, self.entries(), each, count)
    }
    /// Writes `bytes` at `offset` of the loaded receive.
    #[inline(always)]
    pub(crate) fn scatter(&self, offset: u64, bytes: &[u8], mut placing: Placing<'_>) -> Result<(), Reason> {
        SgeCursor::at(self.entries(), offset).scatter(self.entries(), bytes, &mut placing)
    }
}
