//! Doorbells: a three-level bitmap per (context, worker); one bit per queue.
//!
//! The application rings by at most three atomic ORs, leaf, middle, top. The daemon drains by three levels of swaps, top,
//! middle, leaf. A ring costs the same for one queue and for a hundred thousand, and an idle context costs the
//! daemon one load.
//!
//! A process that dies while it rings blocks no other. The shared doorbell queue of the BURST paper (appendix A.1.2) has a
//! reserve step and a commit step: a producer that dies between them blocks every later one, so a watchdog must guess
//! and reclaim. Here nothing is reserved. A process that dies after the leaf and before the top leaves a leaf bit that no
//! upper level shows. The bit belongs to a queue of that process; rings of its other threads set the same upper words,
//! and the next drain that follows them clears the bit. A thread that is only delayed completes its ring later.
//!
//! The order is leaf first: if the top were set first, the daemon could swap all three levels before the leaf bit arrived,
//! and the queue would stay asleep with work in it.
//!
//! A hostile application can set any bits. [`DoorbellDrain::drain`] takes a budget and remembers where it stopped, so a
//! context costs at most its budget per turn.
use crate::area::Area;
use crate::layout::{ContextPage, DOORBELL_QUEUES, DoorbellTree, WORKER_MAX};
use crate::protocol;
use core::mem::{offset_of, size_of};
use core::sync::atomic::Ordering::Relaxed;

const MID: usize = offset_of!(DoorbellTree, mid);
const LEAF: usize = offset_of!(DoorbellTree, leaf);
const TREES: usize = offset_of!(ContextPage, doorbells);
// `drain` computes offsets from bits: three levels of 64, and 64-bit words.
const _: () = assert!(DOORBELL_QUEUES == 64 * 64 * 64 && (MID | LEAF | TREES).is_multiple_of(8));

/// The application's end: the trees of all workers in its context.
#[derive(Clone, Debug)]
pub struct Doorbells {
    area: Area,
}

impl Doorbells {
    /// From the context page (start of segment 0). None when `area` is smaller than [`ContextPage`].
    pub fn new(area: Area) -> Option<Doorbells> {
        (area.len() >= size_of::<ContextPage>()).then_some(Doorbells { area })
    }
    /// Rings `queue` at `worker`; the caller must look at [`crate::status::WorkerView::needs_wake`] afterwards. Numbers out of
    /// range change nothing.
    #[inline]
    pub fn ring(&self, worker: usize, queue: u32) {
        // `new` has checked the length; the repeated check lets the compiler drop the three bounds checks below.
        if worker >= WORKER_MAX || queue >= DOORBELL_QUEUES || self.area.len() < size_of::<ContextPage>() {
            return;
        }
        let tree = TREES + worker * size_of::<DoorbellTree>();
        let (word, group) = ((queue / 64) as usize, (queue / 4096) as usize);
        protocol::ring_bit(
            self.area.word64(tree + LEAF + 8 * word),
            self.area.word64(tree + MID + 8 * group),
            self.area.word64(tree),
            queue % 64,
            queue / 64 % 64,
            queue / 4096,
        );
    }
}

/// The daemon's end: one worker's tree of one context.
#[derive(Debug)]
pub struct DoorbellDrain {
    area: Area,
    tree: usize,
    // Bits taken from the shared words and not yet handed over: of groups, of words in `group`, of queues in `word`.
    top: u64,
    mid: u64,
    leaf: u64,
    group: usize,
    word: usize,
}

impl DoorbellDrain {
    /// From the context page. None when `area` is smaller than [`ContextPage`] or there is no such worker.
    pub fn new(area: Area, worker: usize) -> Option<DoorbellDrain> {
        let fits = area.len() >= size_of::<ContextPage>() && worker < WORKER_MAX;
        let tree = TREES + worker * size_of::<DoorbellTree>();
        fits.then_some(DoorbellDrain { area, tree, top: 0, mid: 0, leaf: 0, group: 0, word: 0 })
    }
    /// Whether a queue rings; costs one load when none does.
    #[inline]
    pub fn is_ringing(&self) -> bool {
        (self.top | self.mid | self.leaf) != 0 || self.area.word64(self.tree).load(Relaxed) != 0
    }
    /// Hands up to `budget` ringing queues to `f`, each once, and clears their bits. Returns their number; when it is `budget`,
    /// more may ring. The queue numbers are below [`DOORBELL_QUEUES`]; apart from that the application chooses them freely.
    #[inline]
    pub fn drain(&mut self, budget: usize, mut f: impl FnMut(u32)) -> usize {
        let mut n = 0;
        while n < budget && self.refill() {
            let bit = self.leaf.trailing_zeros();
            self.leaf &= self.leaf - 1;
            let queue = self.word as u32 * 64 + bit;
            debug_assert!(queue < DOORBELL_QUEUES);
            f(queue);
            n += 1;
        }
        n
    }
    /// Takes the next non-empty leaf word into `self.leaf`; false if there is none. The scan is bounded: each shared word is
    /// swapped at most once per bit above it, and the top word at most once per call.
    fn refill(&mut self) -> bool {
        if self.leaf != 0 {
            return true;
        }
        if self.top | self.mid == 0 {
            if self.area.word64(self.tree).load(Relaxed) == 0 {
                return false;
            }
            self.top = protocol::take_bits(self.area.word64(self.tree));
        }
        loop {
            while self.mid != 0 {
                let bit = self.mid.trailing_zeros() as usize;
                self.mid &= self.mid - 1;
                self.word = self.group * 64 + bit;
                self.leaf = protocol::take_bits(self.area.word64(self.tree + LEAF + 8 * self.word));
                if self.leaf != 0 {
                    return true;
                }
            }
            if self.top == 0 {
                return false;
            }
            self.group = self.top.trailing_zeros() as usize;
            self.top &= self.top - 1;
            self.mid = protocol::take_bits(self.area.word64(self.tree + MID + 8 * self.group));
        }
    }
}
