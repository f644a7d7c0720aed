//! The records of loss recovery of one worker: borrowed by a queue pair while packets are missing, and given back.
//!
//! A worker without loss has none: a record is made when it is first needed, and then kept. The number of records of each kind is
//! limited, so that no number of queue pairs and no peer makes a worker need more memory. A queue pair that gets none, because of
//! the limit or because the system gives no memory, goes back to the first missing packet, which needs no record.

use crate::arrivals::Arrivals;
use crate::early_receives::EarlyReceives;
use crate::losses::Losses;
use crate::packet_store::{PacketStore, StoredPacket};
use burst_base::heap::OutOfMemory;

/// Records of each kind that a worker makes at most. One has 17 KiB (arrivals), 6 KiB (receives) or 6 KiB (losses).
pub const RECORDS_MAX: usize = 256;

/// Early packets that a worker keeps at most with strict placement: 4 MiB.
pub const PACKETS_MAX: usize = 1024;

/// Records of one kind.
struct Shelf<T> {
    free: Vec<Box<T>>,
    made: usize,
    max: usize,
}

impl<T> Shelf<T> {
    fn new(max: usize) -> Self {
        Shelf { free: Vec::new(), made: 0, max }
    }
    fn take(&mut self, make: fn() -> Result<T, OutOfMemory>) -> Option<Box<T>> {
        if let Some(record) = self.free.pop() {
            return Some(record);
        }
        let record = if self.made < self.max { make().ok() } else { None }?;
        self.made += 1;
        Some(Box::new(record))
    }
    fn give(&mut self, record: Box<T>) {
        debug_assert!(self.free.len() < self.made, "a record of another pool");
        self.free.push(record);
    }
    fn in_use(&self) -> usize {
        self.made - self.free.len()
    }
}

/// The records of one worker.
pub struct RecordPool {
    arrivals: Shelf<Arrivals>,
    receives: Shelf<EarlyReceives>,
    losses: Shelf<Losses>,
    /// With strict placement: the early packets.
    packets: Option<PacketStore>,
}

impl Default for RecordPool {
    fn default() -> Self {
        RecordPool::new(RECORDS_MAX)
    }
}

impl RecordPool {
    /// A pool of at most `max` records of each kind.
    pub fn new(max: usize) -> Self {
        RecordPool { arrivals: Shelf::new(max), receives: Shelf::new(max), losses: Shelf::new(max), packets: None }
    }
    /// The same, with strict placement: early packets, at most `packets`, are kept and executed in their turn.
    pub fn strict(max: usize, packets: usize) -> Self {
        RecordPool { packets: Some(PacketStore::new(packets)), ..RecordPool::new(max) }
    }
    /// Early packets that are kept.
    pub fn packets_in_use(&self) -> usize {
        self.packets.as_ref().map_or(0, PacketStore::in_use)
    }
    pub(crate) fn is_strict(&self) -> bool {
        self.packets.is_some()
    }
    pub(crate) fn keep_packet(&mut self, packet: &[u8]) -> Option<StoredPacket> {
        self.packets.as_mut()?.keep(packet)
    }
    pub(crate) fn give_packet(&mut self, packet: StoredPacket) {
        if let Some(packets) = &mut self.packets {
            packets.give(packet);
        }
    }
    /// Records of all kinds that queue pairs have.
    pub fn in_use(&self) -> usize {
        self.arrivals.in_use() + self.receives.in_use() + self.losses.in_use()
    }
    pub(crate) fn take_arrivals(&mut self) -> Option<Box<Arrivals>> {
        self.arrivals.take(Arrivals::new)
    }
    pub(crate) fn give_arrivals(&mut self, mut record: Box<Arrivals>) {
        if let Some(packets) = &mut self.packets {
            record.take_packets().for_each(|packet| packets.give(packet));
        }
        record.clear();
        self.arrivals.give(record);
    }
    pub(crate) fn take_receives(&mut self) -> Option<Box<EarlyReceives>> {
        self.receives.take(EarlyReceives::new)
    }
    pub(crate) fn give_receives(&mut self, mut record: Box<EarlyReceives>) {
        record.clear();
        self.receives.give(record);
    }
    pub(crate) fn take_losses(&mut self) -> Option<Box<Losses>> {
        self.losses.take(Losses::new)
    }
    pub(crate) fn give_losses(&mut self, record: Box<Losses>) {
        self.losses.give(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_makes_no_more_records_than_its_limit_and_gives_them_again() {
        let mut pool = RecordPool::new(2);
        let (a, b) = (pool.take_losses().expect("first"), pool.take_losses().expect("second"));
        assert!(pool.take_losses().is_none() && pool.take_arrivals().is_some());
        assert_eq!(pool.in_use(), 3);
        pool.give_losses(a);
        assert!(pool.take_losses().is_some() && pool.take_losses().is_none());
        pool.give_losses(b);
        assert_eq!(pool.in_use(), 2);
        assert!(RecordPool::new(0).take_receives().is_none());
    }

    #[test]
    fn records_have_the_size_that_the_limit_is_chosen_for() {
        use crate::arrivals::{OPS_MAX, RUNS_MAX, TAILS_MAX};
        assert!(size_of::<Arrivals>() < 512 && RUNS_MAX * 40 + TAILS_MAX * 96 + OPS_MAX * 64 + 4096 < 27 << 10);
    }
}
