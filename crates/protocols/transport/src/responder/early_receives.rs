//! Receives that were taken from the receive queue before their turn, for messages that arrive early (selective repeat).
//!
//! A SEND says which receive it consumes: the RSN is the number of receives that the messages before it consume. So its payload
//! can be placed before those messages have arrived. Of a queue pair's own queue all receives up to that number are taken; of a
//! shared queue the next one, whichever message needs it first; each message of an XRC target names its queue. The receive of the
//! message whose turn it is lies in [`crate::responder::receiver::Receiver`]; later ones are here, and move there one by one as
//! receives complete.
//!
//! A record is borrowed from the pool of the worker ([`crate::records`]), which lets it grow within limits.

use crate::peer_shares::NO_PEER;
use crate::responder::selective::arrivals::{ENTRIES_MAX, grow};
use burst_base::heap;
use burst_base::heap::OutOfMemory;
use burst_shm::Sge;
use burst_shm::layout::{RecvWqe, SGE_MAX};
use std::net::IpAddr;

/// Receives for which a new record has room.
pub(crate) const EARLY_RECEIVES_FIRST: usize = 64;
/// Scatter/gather entries of all of them.
const EARLY_SGES_FIRST: usize = 256;
/// Entries at most.
const EARLY_SGES_MAX: usize = 4 * ENTRIES_MAX;

const _: () = assert!(EARLY_SGES_FIRST >= SGE_MAX as usize);

/// A receive that was taken early.
#[derive(Clone, Copy, Debug)]
struct EarlyReceive {
    /// Number of the receive: how many are consumed before it, modulo 2^24.
    rsn: u32,
    /// XRC target: number of its shared receive queue.
    srqn: Option<u32>,
    wqe: RecvWqe,
    malformed: bool,
    /// Its entries: the first, and behind the last.
    first: usize,
    end: usize,
}

/// A receive and its entries.
pub(crate) struct TakenReceive<'a> {
    pub(crate) wqe: RecvWqe,
    pub(crate) srqn: Option<u32>,
    pub(crate) malformed: bool,
    pub(crate) sges: &'a [Sge],
}

/// The record of one queue pair.
pub(crate) struct EarlyReceives {
    pub(crate) peer: IpAddr,
    receives: Vec<EarlyReceive>,
    sges: Vec<Sge>,
}

impl EarlyReceives {
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        let (receives, sges) = (heap::with_room(EARLY_RECEIVES_FIRST)?, heap::with_room(EARLY_SGES_FIRST)?);
        Ok(EarlyReceives { peer: NO_PEER, receives, sges })
    }
    pub(crate) fn clear(&mut self) {
        self.receives.clear();
        self.sges.clear();
    }
    pub(crate) fn len(&self) -> usize {
        self.receives.len()
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.receives.is_empty()
    }
    /// Whether one more receive of any length fits.
    pub(crate) fn has_room(&self) -> bool {
        self.receives.len() < self.receives.capacity() && self.sges.len() + SGE_MAX as usize <= self.sges.capacity()
    }
    /// Doubles what has no room, within `budget` bytes. Returns the bytes.
    #[cold]
    pub(crate) fn grow(&mut self, budget: usize) -> usize {
        let used = grow(&mut self.receives, ENTRIES_MAX, budget);
        let (len, capacity) = (self.sges.len(), self.sges.capacity());
        let more = capacity.min(EARLY_SGES_MAX.saturating_sub(capacity));
        let bytes = more * size_of::<Sge>();
        let is_full = len + SGE_MAX as usize > capacity;
        let grows = is_full && bytes <= budget - used && heap::reserve(&mut self.sges, capacity + more).is_ok();
        used + if grows { bytes } else { 0 }
    }
    /// Adds receive number `rsn` of this shared receive queue (XRC); there must be room.
    pub(crate) fn add(&mut self, (rsn, srqn): (u32, Option<u32>), wqe: RecvWqe, malformed: bool, sges: &[Sge]) {
        debug_assert!(self.has_room() && self.get(rsn).is_none());
        let first = self.sges.len();
        self.sges.extend_from_slice(sges);
        self.receives.push(EarlyReceive { rsn, srqn, wqe, malformed, first, end: self.sges.len() });
    }
    /// Removes the receives of a shared receive queue.
    pub(crate) fn forget_srq(&mut self, srqn: u32) {
        while let Some(receive) = self.receives.iter().find(|receive| receive.srqn == Some(srqn)) {
            self.remove(receive.rsn);
        }
    }
    fn view(&self, at: usize) -> TakenReceive<'_> {
        let EarlyReceive { srqn, wqe, malformed, first, end, .. } = self.receives[at];
        TakenReceive { wqe, srqn, malformed, sges: &self.sges[first..end] }
    }
    /// Receive number `rsn`.
    pub(crate) fn get(&self, rsn: u32) -> Option<TakenReceive<'_>> {
        let at = self.receives.iter().position(|receive| receive.rsn == rsn)?;
        Some(self.view(at))
    }
    /// The receive that was taken first.
    pub(crate) fn oldest(&self) -> Option<(u32, TakenReceive<'_>)> {
        self.receives.first().map(|receive| (receive.rsn, self.view(0)))
    }
    /// Removes receive number `rsn`.
    pub(crate) fn remove(&mut self, rsn: u32) {
        let Some(at) = self.receives.iter().position(|receive| receive.rsn == rsn) else { return };
        let EarlyReceive { first, end, .. } = self.receives.remove(at);
        self.sges.drain(first..end);
        for receive in self.receives.iter_mut().filter(|receive| receive.first >= end) {
            (receive.first, receive.end) = (receive.first - (end - first), receive.end - (end - first));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_base::rng::Rng;

    #[test]
    fn each_receive_keeps_its_entries_in_any_order_of_removal() {
        let mut rng = Rng::new(3);
        let (mut early, mut model, mut next) = (EarlyReceives::new().expect("memory"), Vec::new(), 0u32);
        for _ in 0..5000 {
            if early.has_room() && rng.below(2) == 0 {
                let sges: Vec<Sge> =
                    (0..rng.below(6)).map(|k| Sge { addr: u64::from(next) * 10 + k, length: 1, lkey: 0 }).collect();
                let wqe = RecvWqe { wr_id: next.into(), num_sge: sges.len() as u32, reserved: 0 };
                early.add((next, None), wqe, false, &sges);
                model.push((next, sges));
                next += 1;
            } else if !model.is_empty() {
                let (rsn, sges) = model.remove(rng.below(model.len() as u64) as usize);
                let taken = early.get(rsn).expect("it was added");
                assert_eq!((taken.wqe.wr_id, taken.sges, taken.malformed), (rsn.into(), &sges[..], false));
                early.remove(rsn);
            }
            assert_eq!(early.oldest().map(|(rsn, _)| rsn), model.first().map(|(rsn, _)| *rsn));
            assert_eq!(early.is_empty(), model.is_empty());
        }
        assert!(next > 1000);
    }
}
