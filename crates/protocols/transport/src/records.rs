//! The records of loss recovery of one worker: borrowed by a queue pair while packets are missing, and given back.
//!
//! A worker without loss has none: a record is made when it is first needed, and then kept. The number of records of each kind is
//! limited, so that no number of queue pairs and no peer makes a worker need more memory; and each peer has a share
//! ([`crate::peer_shares`]). A queue pair that gets none, because of a limit or because the system gives no memory, goes back to
//! the first missing packet, which needs no record.

use crate::peer_shares::{PeerShares, RecordKind};
use crate::requester::selective::losses::Losses;
use crate::responder::early_receives::EarlyReceives;
use crate::responder::selective::arrivals::Arrivals;
use burst_base::heap::OutOfMemory;
use std::net::IpAddr;

/// Records of each kind that a worker makes at most. One has 17 KiB (arrivals), 6 KiB (receives) or 25 KiB (losses), and keeps
/// what it has grown by.
pub const RECORDS_MAX: usize = 256;
/// Bytes by which all records of a worker may grow together. One of the largest, for a thousand small messages behind a gap, has
/// grown by 190 KiB (arrivals) or 110 KiB (receives).
const GROWTH_MAX: usize = 8 << 20;

/// A record that knows the peer for whose packets it is used.
pub(crate) trait Lent {
    const KIND: RecordKind;
    fn peer(&mut self) -> &mut IpAddr;
}

macro_rules! lent {
    ($($record:ident: $kind:ident;)+) => {
        $(impl Lent for $record {
            const KIND: RecordKind = RecordKind::$kind;
            fn peer(&mut self) -> &mut IpAddr {
                &mut self.peer
            }
        })+
    };
}

lent! {
    Arrivals: Arrivals;
    EarlyReceives: Receives;
    Losses: Losses;
}

/// Records of one kind.
struct Shelf<T> {
    free: Vec<Box<T>>,
    made: usize,
    max: usize,
}

impl<T: Lent> Shelf<T> {
    fn new(max: usize) -> Self {
        Shelf { free: Vec::new(), made: 0, max }
    }
    fn take(&mut self, make: fn() -> Result<T, OutOfMemory>, peer: IpAddr, shares: &mut PeerShares) -> Option<Box<T>> {
        if !shares.lend(T::KIND, peer, self.max - self.in_use()) {
            return None;
        }
        let Some(mut record) = self.free.pop().or_else(|| self.make(make)) else {
            shares.take_back(T::KIND, peer);
            return None;
        };
        *record.peer() = peer;
        Some(record)
    }
    fn make(&mut self, make: fn() -> Result<T, OutOfMemory>) -> Option<Box<T>> {
        let record = if self.made < self.max { make().ok() } else { None }?;
        self.made += 1;
        Some(Box::new(record))
    }
    fn give(&mut self, mut record: Box<T>, shares: &mut PeerShares) {
        debug_assert!(self.free.len() < self.made, "a record of another pool");
        shares.take_back(T::KIND, *record.peer());
        self.free.push(record);
    }
    fn in_use(&self) -> usize {
        self.made - self.free.len()
    }
    fn is_within_limits(&self) -> bool {
        self.free.len() <= self.made && self.made <= self.max
    }
}

/// The records of one worker.
pub struct RecordPool {
    arrivals: Shelf<Arrivals>,
    receives: Shelf<EarlyReceives>,
    losses: Shelf<Losses>,
    /// Bytes by which records may still grow.
    growth_left: usize,
    shares: PeerShares,
}

impl Default for RecordPool {
    fn default() -> Self {
        RecordPool::new(RECORDS_MAX)
    }
}

impl RecordPool {
    /// A pool of at most `max` records of each kind.
    pub fn new(max: usize) -> Self {
        RecordPool {
            arrivals: Shelf::new(max),
            receives: Shelf::new(max),
            losses: Shelf::new(max),
            growth_left: GROWTH_MAX,
            shares: PeerShares::default(),
        }
    }
    /// Records of all kinds that queue pairs have.
    pub fn in_use(&self) -> usize {
        self.arrivals.in_use() + self.receives.in_use() + self.losses.in_use()
    }
    /// The invariant: no more records and bytes than there may be.
    pub fn is_within_limits(&self) -> bool {
        let shelves =
            [self.arrivals.is_within_limits(), self.receives.is_within_limits(), self.losses.is_within_limits()];
        shelves == [true; 3] && self.growth_left <= GROWTH_MAX
    }
    pub(crate) fn take_arrivals(&mut self, peer: IpAddr) -> Option<Box<Arrivals>> {
        self.arrivals.take(Arrivals::new, peer, &mut self.shares)
    }
    pub(crate) fn give_arrivals(&mut self, mut record: Box<Arrivals>) {
        record.clear();
        self.arrivals.give(record, &mut self.shares);
    }
    /// Lets the lists of a record grow that have no room.
    pub(crate) fn grow_arrivals(&mut self, record: &mut Arrivals) {
        let grown = record.grow(self.shares.growth(record.peer, self.growth_left));
        self.growth_left -= grown;
        self.shares.grew(record.peer, grown);
    }
    /// The same, for receives.
    pub(crate) fn grow_receives(&mut self, record: &mut EarlyReceives) {
        let grown = record.grow(self.shares.growth(record.peer, self.growth_left));
        self.growth_left -= grown;
        self.shares.grew(record.peer, grown);
    }
    pub(crate) fn take_receives(&mut self, peer: IpAddr) -> Option<Box<EarlyReceives>> {
        self.receives.take(EarlyReceives::new, peer, &mut self.shares)
    }
    pub(crate) fn give_receives(&mut self, mut record: Box<EarlyReceives>) {
        record.clear();
        self.receives.give(record, &mut self.shares);
    }
    pub(crate) fn take_losses(&mut self, peer: IpAddr) -> Option<Box<Losses>> {
        self.losses.take(Losses::new, peer, &mut self.shares)
    }
    pub(crate) fn give_losses(&mut self, record: Box<Losses>) {
        self.losses.give(record, &mut self.shares);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn peer(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0001 + number).into()
    }

    #[test]
    fn a_pool_makes_no_more_records_than_its_limit_and_gives_them_again() {
        let mut pool = RecordPool::new(2);
        let (a, b) = (pool.take_losses(peer(0)).expect("first"), pool.take_losses(peer(1)).expect("second"));
        assert!(pool.take_losses(peer(2)).is_none() && pool.take_arrivals(peer(0)).is_some());
        assert_eq!(pool.in_use(), 3);
        pool.give_losses(a);
        assert!(pool.take_losses(peer(2)).is_some() && pool.take_losses(peer(3)).is_none());
        pool.give_losses(b);
        assert_eq!(pool.in_use(), 2);
        assert!(RecordPool::new(0).take_receives(peer(0)).is_none());
        assert!(RecordPool::new(1).take_receives(peer(0)).is_some(), "one peer may have the only one");
    }

    #[test]
    fn greedy_peers_leave_records_and_growth_for_others() {
        let mut pool = RecordPool::default();
        for greedy in 0..3 {
            let held: Vec<_> = std::iter::from_fn(|| pool.take_arrivals(peer(greedy))).collect();
            assert_eq!(held.len(), RECORDS_MAX >> (greedy + 1));
            std::mem::forget(held);
        }
        let mut honest: Vec<_> = std::iter::from_fn(|| pool.take_arrivals(peer(9))).collect();
        assert_eq!(honest.len(), 16);
        honest.drain(..).for_each(|record| pool.give_arrivals(record));
        // Receives and losses are apart.
        assert!(pool.take_receives(peer(0)).is_some() && pool.take_losses(peer(0)).is_some());
        // A record of a greedy peer grows by half of what is left, and one of another peer by as much as that.
        let mut pool = RecordPool::default();
        let mut used = 0;
        while let Some(record) = pool.take_receives(peer(0)) {
            let before = pool.growth_left;
            pool.shares.grew(peer(0), 100 << 10);
            pool.growth_left -= pool.shares.growth(peer(0), before).min(100 << 10);
            used += before - pool.growth_left;
            std::mem::forget(record);
        }
        assert!((GROWTH_MAX / 2 - (100 << 10)..=GROWTH_MAX / 2 + (100 << 10)).contains(&used), "{used}");
        assert_eq!(pool.shares.growth(peer(1), pool.growth_left), pool.growth_left);
    }

    #[test]
    fn records_have_the_size_that_the_limit_is_chosen_for() {
        use crate::responder::selective::arrivals::{OPS_FIRST, RUNS_FIRST, TAILS_FIRST};
        assert!(size_of::<Arrivals>() < 512 && RUNS_FIRST * 40 + TAILS_FIRST * 96 + OPS_FIRST * 64 + 4096 < 18 << 10);
    }

    #[test]
    fn records_grow_within_the_limit_of_the_pool_and_no_further() {
        use crate::responder::selective::arrivals::{ENTRIES_MAX, HeldWork, RemoteRange};
        use burst_base::{Psn, Rkey};
        let mut pool = RecordPool::new(RECORDS_MAX);
        let mut grown = Vec::new();
        loop {
            let mut record = pool.take_arrivals(peer(grown.len() as u32)).expect("one more");
            let before = pool.growth_left;
            let mut held = 0;
            let range = |k: u32| RemoteRange { addr: u64::from(k) * 100, len: 10, rkey: Rkey(1) };
            loop {
                if !record.has_room(true, true, true) {
                    pool.grow_arrivals(&mut record);
                }
                if !record.has_room(true, true, true) {
                    break;
                }
                let psn = Psn::new(held);
                record.add_run(psn, range(held));
                record.hold_tail(psn, range(held), &[0; 10]);
                record.hold(psn, HeldWork::Read(range(held)));
                held += 1;
            }
            if held < ENTRIES_MAX as u32 {
                assert!(pool.growth_left < 100 << 10, "{}", pool.growth_left);
                break;
            }
            assert!(before - pool.growth_left < 190 << 10, "{}", before - pool.growth_left);
            grown.push(record);
        }
        assert!(grown.len() >= 40, "{}", grown.len());
        // A record that is given back keeps its room.
        let left = pool.growth_left;
        grown.drain(..).for_each(|record| pool.give_arrivals(record));
        let mut record = pool.take_arrivals(peer(0)).expect("one that was given back");
        (0..ENTRIES_MAX as u32)
            .for_each(|k| record.hold(Psn::new(k), HeldWork::Read(RemoteRange { addr: 0, len: 1, rkey: Rkey(1) })));
        assert_eq!(pool.growth_left, left);
    }
}
