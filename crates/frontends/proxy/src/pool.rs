//! Rings and windows of a link's streams: slots in large registered regions.
//!
//! A slot has the ring of outgoing bytes and the window for incoming ones, of the same length. Each link has regions
//! of its own, so that a peer's keys reach no other peer's streams. Regions are added as streams come, up to the
//! worker's share of `memory`. Empty ones stay until a link needs memory that the share does not have otherwise.

use crate::rdma::{ProxyDevice, RegisteredMemory};
use burst_relay::PeerWindow;
use std::io::{Error, Result};
use std::rc::Rc;

/// Slots of one region.
const SLOTS: usize = 8;

/// A stream's memory in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSlot {
    region: usize,
    at: usize,
}

/// The regions of one link.
#[derive(Debug)]
pub struct WindowPool {
    /// `None`: freed; its number is used again.
    regions: Vec<Option<RegisteredMemory>>,
    free: Vec<WindowSlot>,
    len: u32,
}

impl WindowPool {
    /// A pool without regions, whose rings and windows have `len` bytes.
    pub fn new(len: u32) -> Self {
        Self { regions: Vec::new(), free: Vec::new(), len }
    }

    /// Length of each ring and window.
    pub fn ring_len(&self) -> u32 {
        self.len
    }

    /// Bytes of all regions.
    pub fn mapped(&self) -> u64 {
        self.regions.iter().flatten().count() as u64 * Self::region_bytes(self.len)
    }

    /// Bytes that a region takes.
    pub fn region_bytes(len: u32) -> u64 {
        (SLOTS * 2 * len as usize) as u64
    }

    /// A slot; maps another region if none is free and `may_grow`.
    ///
    /// # Errors
    /// No memory.
    pub fn take(&mut self, device: Option<&Rc<ProxyDevice>>, may_grow: bool) -> Result<WindowSlot> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        if !may_grow {
            return Err(Error::other("the configured memory is used up"));
        }
        let mut region = RegisteredMemory::map(Self::region_bytes(self.len) as usize)?;
        if let Some(device) = device {
            region.register(device)?;
        }
        let number = self.regions.iter().position(Option::is_none).unwrap_or_else(|| {
            self.regions.push(None);
            self.regions.len() - 1
        });
        self.regions[number] = Some(region);
        let slots = (0..SLOTS).map(|slot| WindowSlot { region: number, at: slot * 2 * self.len as usize });
        self.free.extend(slots);
        self.free.pop().ok_or_else(|| Error::other("a region without slots"))
    }

    /// Gives a slot back.
    pub fn give(&mut self, slot: WindowSlot) {
        self.free.push(slot);
    }

    /// Whether no slot is free.
    pub fn full(&self) -> bool {
        self.free.is_empty()
    }

    /// Frees the regions without streams. A WRITE of a stream that has just ended may still read from one: it breaks the
    /// queue pair, which the link survives.
    pub fn shrink(&mut self) {
        for number in 0..self.regions.len() {
            if self.free.iter().filter(|slot| slot.region == number).count() == SLOTS {
                self.free.retain(|slot| slot.region != number);
                self.regions[number] = None;
            }
        }
    }

    fn region(&self, slot: WindowSlot) -> &RegisteredMemory {
        self.regions[slot.region].as_ref().expect("a region with a stream is not freed")
    }

    fn region_mut(&mut self, slot: WindowSlot) -> &mut RegisteredMemory {
        self.regions[slot.region].as_mut().expect("a region with a stream is not freed")
    }

    /// Registers all regions with the device.
    ///
    /// # Errors
    /// Of `ibv_reg_mr`.
    pub fn register(&mut self, device: &Rc<ProxyDevice>) -> Result<()> {
        self.regions.iter_mut().flatten().try_for_each(|region| region.register(device))
    }

    /// Ends the registrations: the device is gone.
    pub fn deregister(&mut self) {
        self.regions.iter_mut().flatten().for_each(RegisteredMemory::deregister);
    }

    /// The slot's window as the peer has to know it.
    pub fn window(&self, slot: WindowSlot) -> PeerWindow {
        let region = self.region(slot);
        match region.keys() {
            Some((_, rkey)) => PeerWindow { address: region.address(slot.at + self.len as usize), rkey, len: self.len },
            None => PeerWindow { address: 0, rkey: 0, len: self.len },
        }
    }

    /// Address and local key of the ring's byte for an offset of the stream; `None` without a registration.
    pub fn ring_address(&self, slot: WindowSlot, offset: u64) -> Option<(u64, u32)> {
        let region = self.region(slot);
        let (lkey, _) = region.keys()?;
        Some((region.address(slot.at + (offset % u64::from(self.len)) as usize), lkey))
    }

    /// Bytes of the ring from an offset of the stream; `len` does not wrap.
    pub fn ring(&mut self, slot: WindowSlot, offset: u64, len: usize) -> &mut [u8] {
        let at = (offset % u64::from(self.len)) as usize;
        assert!(at + len <= self.len as usize, "a part of a ring does not wrap");
        self.region_mut(slot).bytes(slot.at + at, len)
    }

    /// Bytes of the window from an offset of the stream, at most `len` and up to the window's end.
    pub fn received(&mut self, slot: WindowSlot, offset: u64, len: usize) -> &mut [u8] {
        let at = (offset % u64::from(self.len)) as usize;
        let len = len.min(self.len as usize - at);
        let from = slot.at + self.len as usize + at;
        self.region_mut(slot).bytes(from, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_apart_and_limited() {
        let mut pool = WindowPool::new(4096);
        assert!(pool.take(None, false).is_err());
        let slots: Vec<WindowSlot> = (0..SLOTS).map(|_| pool.take(None, true).unwrap()).collect();
        assert_eq!(pool.mapped(), WindowPool::region_bytes(4096));
        assert!(pool.take(None, false).is_err(), "all are taken");
        for (number, slot) in slots.iter().enumerate() {
            pool.ring(*slot, 0, 4096).fill(number as u8);
            pool.received(*slot, 4096, 4096).fill(100 + number as u8);
        }
        for (number, slot) in slots.iter().enumerate() {
            assert!(pool.ring(*slot, 4096, 4096).iter().all(|b| *b == number as u8));
            assert!(pool.received(*slot, 0, 4096).iter().all(|b| *b == 100 + number as u8));
        }
        assert_eq!(pool.received(slots[0], 4000, 200).len(), 96, "up to the end of the window");
        assert_eq!(pool.window(slots[0]).address, 0, "not registered");
        pool.give(slots[3]);
        assert_eq!(pool.take(None, false).unwrap(), slots[3]);
        let more = pool.take(None, true).unwrap();
        assert_eq!(pool.mapped(), 2 * WindowPool::region_bytes(4096));
        slots.into_iter().for_each(|slot| pool.give(slot));
        pool.shrink();
        assert_eq!(pool.mapped(), WindowPool::region_bytes(4096), "the region with a stream stays");
        pool.ring(more, 0, 4096).fill(1);
        let held: Vec<WindowSlot> = (0..2 * SLOTS - 1).map(|_| pool.take(None, true).unwrap()).collect();
        assert_eq!(pool.mapped(), 2 * WindowPool::region_bytes(4096));
        assert!(!held.contains(&more));
    }
}
