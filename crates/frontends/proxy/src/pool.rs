//! Rings and windows of a link's streams: parts of large registered regions.
//!
//! A stream has a ring of outgoing bytes and a window for incoming ones. Both begin with the same length, in a region of eight
//! streams, and can grow, each by itself: a larger part has a region of its own, and the part before is kept until its bytes are
//! needed no more ([`GrowingPart`]). Each link has regions of its own, so that a peer's keys reach no other peer's streams. On an
//! encrypted link each region has two parts of the same layout: the device reads and writes encrypted bytes in the one, and only
//! this process uses the other. Regions are added as streams come and grow, up to the worker's share of `memory`. Empty ones are
//! freed when they have stayed empty from one sweep to the next ([`WindowPool::sweep`]), and at once when a link needs memory
//! that the share does not have otherwise.

use crate::rdma::{ProxyDevice, RegisteredMemory};
use burst_relay::{BatchPlace, PeerWindow};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{Error, Result};
use std::rc::Rc;

/// Streams whose first rings and windows share a region.
const SLOTS: usize = 8;

/// Part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionPart {
    region: usize,
    at: usize,
    len: u32,
}

/// A ring or a window: byte `n` of the stream is at `n` modulo the part's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowingPart {
    now: RegionPart,
    /// For bytes below the offset.
    before: Option<(RegionPart, u64)>,
}

impl GrowingPart {
    fn at(&self, offset: u64) -> RegionPart {
        match self.before {
            Some((part, from)) if offset < from => part,
            _ => self.now,
        }
    }

    /// Whether bytes are still in the part before.
    pub fn is_growing(&self) -> bool {
        self.before.is_some()
    }

    /// `part` is for bytes from `from` on.
    pub fn grow(&mut self, part: RegionPart, from: u64) {
        assert!(self.before.is_none() && part.len > self.now.len, "one growth after the other");
        self.before = Some((self.now, from));
        self.now = part;
    }

    /// The part before, if bytes are needed from `first` on only.
    pub fn retire(&mut self, first: u64) -> Option<RegionPart> {
        self.before.take_if(|(_, from)| *from <= first).map(|(part, _)| part)
    }

    fn parts(self) -> impl Iterator<Item = RegionPart> {
        std::iter::once(self.now).chain(self.before.map(|(part, _)| part))
    }
}

/// A stream's memory in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSlot {
    /// Of outgoing bytes.
    pub ring: GrowingPart,
    /// For incoming bytes.
    pub window: GrowingPart,
}

/// What all pools of a worker have together, so that a new stream need not ask each of them.
#[derive(Debug, Default)]
pub struct PoolTotals {
    /// Bytes of all regions.
    mapped: Cell<u64>,
    /// Bytes of regions for streams that have grown.
    grown: Cell<u64>,
    /// Regions without streams.
    unused: Cell<usize>,
}

impl PoolTotals {
    /// Bytes of all regions.
    pub fn mapped(&self) -> u64 {
        self.mapped.get()
    }

    /// Bytes of regions for streams that have grown.
    pub fn grown(&self) -> u64 {
        self.grown.get()
    }

    /// Whether [`WindowPool::shrink`] would free something.
    pub fn has_unused(&self) -> bool {
        self.unused.get() > 0
    }

    /// A region of so many bytes was mapped.
    fn add(&self, bytes: u64, is_grown: bool) {
        self.mapped.set(self.mapped.get() + bytes);
        self.grown.set(self.grown.get() + if is_grown { bytes } else { 0 });
        self.unused.set(self.unused.get() + 1);
    }

    /// A region without streams was freed.
    fn remove(&self, bytes: u64, is_grown: bool) {
        self.mapped.set(self.mapped.get() - bytes);
        self.grown.set(self.grown.get() - if is_grown { bytes } else { 0 });
        self.unused.set(self.unused.get() - 1);
    }
}

/// Memory of one region.
#[derive(Debug)]
struct PoolRegion {
    /// Parts that streams have.
    used: usize,
    /// It has had no stream since the last sweep.
    was_unused: bool,
    /// It is for a stream that has grown.
    is_grown: bool,
    /// What sockets read and write; registered if nothing is encrypted.
    clear: RegisteredMemory,
    /// What the device reads and writes, if that is encrypted.
    sealed: Option<RegisteredMemory>,
}

impl PoolRegion {
    fn map(len: usize, is_sealed: bool, is_grown: bool) -> Result<Self> {
        let sealed = if is_sealed { Some(RegisteredMemory::map(len)?) } else { None };
        Ok(Self { used: 0, was_unused: false, is_grown, clear: RegisteredMemory::map(len)?, sealed })
    }

    /// The memory that the device knows.
    fn of_device(&self) -> &RegisteredMemory {
        self.sealed.as_ref().unwrap_or(&self.clear)
    }

    fn of_device_mut(&mut self) -> &mut RegisteredMemory {
        self.sealed.as_mut().unwrap_or(&mut self.clear)
    }

    /// Bytes of streams that it holds.
    fn len(&self) -> usize {
        self.clear.len()
    }
}

/// The regions of one link.
#[derive(Debug)]
pub struct WindowPool {
    /// `None`: freed; its number is used again.
    regions: Vec<Option<PoolRegion>>,
    /// By length.
    free: BTreeMap<u32, Vec<RegionPart>>,
    len: u32,
    /// Bytes of memory of all regions.
    mapped: u64,
    /// Regions without streams.
    unused: usize,
    /// The device's bytes are encrypted.
    is_sealed: bool,
    totals: Rc<PoolTotals>,
}

impl Drop for WindowPool {
    fn drop(&mut self) {
        for region in self.regions.iter().flatten() {
            if region.used > 0 {
                self.totals.unused.set(self.totals.unused.get() + 1);
            }
            self.totals.remove(self.memory_of(region.len() as u64), region.is_grown);
        }
    }
}

impl WindowPool {
    /// A pool without regions, whose rings and windows have `len` bytes at first. `is_sealed`: the link is encrypted. `totals`:
    /// of the worker.
    pub fn new(len: u32, is_sealed: bool, totals: &Rc<PoolTotals>) -> Self {
        let (regions, free) = (Vec::new(), BTreeMap::new());
        Self { regions, free, len, mapped: 0, unused: 0, is_sealed, totals: totals.clone() }
    }

    /// Length of each ring and window at first.
    pub fn ring_len(&self) -> u32 {
        self.len
    }

    /// Bytes of all regions.
    pub fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Bytes of memory for so many bytes of streams.
    pub fn memory_of(&self, bytes: u64) -> u64 {
        bytes * (1 + u64::from(self.is_sealed))
    }

    /// Bytes of streams in a region of first rings and windows.
    pub fn region_bytes(len: u32) -> u64 {
        (SLOTS * 2 * len as usize) as u64
    }

    /// Bytes of memory that a region of first rings and windows takes, twice as many of an encrypted link.
    pub fn region_memory(len: u32, is_sealed: bool) -> u64 {
        Self::region_bytes(len) * (1 + u64::from(is_sealed))
    }

    /// Bytes of memory of a stream's first ring and window.
    pub fn first_bytes(&self) -> u64 {
        self.next_region_bytes() / SLOTS as u64
    }

    /// Bytes of memory that the next region of first rings and windows takes.
    pub fn next_region_bytes(&self) -> u64 {
        Self::region_memory(self.len, self.is_sealed)
    }

    /// A slot; maps another region if none is free and `may_map`.
    ///
    /// # Errors
    /// No memory.
    pub fn take(&mut self, device: Option<&Rc<ProxyDevice>>, may_map: bool) -> Result<WindowSlot> {
        if self.full() {
            if !may_map {
                return Err(Error::other("the configured memory is used up"));
            }
            self.map(device, self.len, 2 * SLOTS, false)?;
        }
        let mut part = || self.take_part(self.len).map(|now| GrowingPart { now, before: None });
        match (part(), part()) {
            (Some(ring), Some(window)) => Ok(WindowSlot { ring, window }),
            _ => Err(Error::other("a region without slots")),
        }
    }

    /// A larger part for one ring or window; maps a region if none is free and `may_map`.
    ///
    /// # Errors
    /// No memory.
    pub fn take_larger(&mut self, device: Option<&Rc<ProxyDevice>>, len: u32, may_map: bool) -> Result<RegionPart> {
        if let Some(part) = self.take_part(len) {
            return Ok(part);
        }
        if !may_map {
            return Err(Error::other("the configured memory is used up"));
        }
        self.map(device, len, 1, true)?;
        self.take_part(len).ok_or_else(|| Error::other("a region without parts"))
    }

    /// A free part of a length.
    fn take_part(&mut self, len: u32) -> Option<RegionPart> {
        let part = self.free.get_mut(&len)?.pop()?;
        let region = self.region_mut(part);
        region.used += 1;
        region.was_unused = false;
        if region.used == 1 {
            self.unused -= 1;
            self.totals.unused.set(self.totals.unused.get() - 1);
        }
        Some(part)
    }

    fn map(&mut self, device: Option<&Rc<ProxyDevice>>, len: u32, parts: usize, is_grown: bool) -> Result<()> {
        let mut region = PoolRegion::map(parts * len as usize, self.is_sealed, is_grown)?;
        if let Some(device) = device {
            region.of_device_mut().register(device)?;
        }
        let number = self.regions.iter().position(Option::is_none).unwrap_or_else(|| {
            self.regions.push(None);
            self.regions.len() - 1
        });
        let bytes = self.memory_of(region.len() as u64);
        self.mapped += bytes;
        self.unused += 1;
        self.totals.add(bytes, is_grown);
        self.regions[number] = Some(region);
        let parts = (0..parts).map(|part| RegionPart { region: number, at: part * len as usize, len });
        self.free.entry(len).or_default().extend(parts);
        Ok(())
    }

    /// Gives a slot back.
    pub fn give(&mut self, slot: WindowSlot) {
        slot.ring.parts().chain(slot.window.parts()).for_each(|part| self.give_part(part));
    }

    /// Gives a part back.
    pub fn give_part(&mut self, part: RegionPart) {
        self.free.entry(part.len).or_default().push(part);
        let region = self.region_mut(part);
        region.used -= 1;
        if region.used == 0 {
            self.unused += 1;
            self.totals.unused.set(self.totals.unused.get() + 1);
        }
    }

    /// Whether there is no slot for another stream.
    pub fn full(&self) -> bool {
        self.free.get(&self.len).is_none_or(|parts| parts.len() < 2)
    }

    /// Frees the regions without streams. A WRITE of a stream that has just ended may still read from one: it breaks the
    /// queue pair, which the link survives.
    pub fn shrink(&mut self) {
        let all = self.regions.len();
        self.free_unused(all, |_| true);
        debug_assert_eq!(self.unused, 0, "each region without streams was freed");
    }

    /// Frees regions that have had no stream since the last sweep, at most so many, and notes which have none now. Returns how
    /// many were freed, and their bytes.
    pub fn sweep(&mut self, most: usize) -> (usize, u64) {
        let freed = self.free_unused(most, |region| region.was_unused);
        if self.unused > 0 && freed.0 < most {
            self.regions.iter_mut().flatten().for_each(|region| region.was_unused = region.used == 0);
        }
        freed
    }

    /// Frees regions without streams for which `which` holds, at most so many; returns how many, and their bytes.
    fn free_unused(&mut self, most: usize, which: impl Fn(&PoolRegion) -> bool) -> (usize, u64) {
        let (mut count, mut sum) = (0, 0);
        if self.unused == 0 {
            return (count, sum);
        }
        for number in 0..self.regions.len() {
            if count == most {
                break;
            }
            let taken = self.regions[number].take_if(|region| region.used == 0 && which(region));
            if let Some(region) = taken {
                let bytes = self.memory_of(region.len() as u64);
                self.mapped -= bytes;
                self.unused -= 1;
                self.totals.remove(bytes, region.is_grown);
                (count, sum) = (count + 1, sum + bytes);
            }
        }
        if count > 0 {
            let Self { regions, free, .. } = self;
            free.values_mut().for_each(|parts| parts.retain(|part| regions[part.region].is_some()));
        }
        (count, sum)
    }

    fn region(&self, part: RegionPart) -> &PoolRegion {
        self.regions[part.region].as_ref().expect("a region with a stream is not freed")
    }

    fn region_mut(&mut self, part: RegionPart) -> &mut PoolRegion {
        self.regions[part.region].as_mut().expect("a region with a stream is not freed")
    }

    /// Registers all regions with the device.
    ///
    /// # Errors
    /// Of `ibv_reg_mr`.
    pub fn register(&mut self, device: &Rc<ProxyDevice>) -> Result<()> {
        self.regions.iter_mut().flatten().try_for_each(|region| region.of_device_mut().register(device))
    }

    /// Ends the registrations: the device is gone.
    pub fn deregister(&mut self) {
        self.regions.iter_mut().flatten().for_each(|region| region.of_device_mut().deregister());
    }

    /// A part as the peer has to know it.
    pub fn named(&self, part: RegionPart) -> PeerWindow {
        let region = self.region(part).of_device();
        match region.keys() {
            Some((_, rkey)) => PeerWindow { address: region.address(part.at), rkey, len: part.len },
            None => PeerWindow { address: 0, rkey: 0, len: part.len },
        }
    }

    /// The slot's window as the peer has to know it, for bytes that come next.
    pub fn window(&self, slot: WindowSlot) -> PeerWindow {
        self.named(slot.window.now)
    }

    /// The slot's windows: the present one, and the one before while bytes may be missing there.
    pub fn windows(&self, slot: WindowSlot) -> impl Iterator<Item = PeerWindow> {
        slot.window.parts().map(|part| self.named(part))
    }

    /// Address and local key of the ring's byte for an offset of the stream; `None` without a registration.
    pub fn ring_address(&self, slot: WindowSlot, offset: u64) -> Option<(u64, u32)> {
        let part = slot.ring.at(offset);
        let region = self.region(part).of_device();
        let (lkey, _) = region.keys()?;
        Some((region.address(part.at + (offset % u64::from(part.len)) as usize), lkey))
    }

    /// Bytes of the ring from an offset of the stream; `len` does not wrap.
    pub fn ring(&mut self, slot: WindowSlot, offset: u64, len: usize) -> &mut [u8] {
        let part = slot.ring.at(offset);
        let at = (offset % u64::from(part.len)) as usize;
        assert!(at + len <= part.len as usize, "a part of a ring does not wrap");
        self.region_mut(part).clear.bytes(part.at + at, len)
    }

    /// Encrypts bytes of the ring in `scratch`, and puts the result where the device reads it.
    /// `seal` encrypts in place: in memory that no peer can write, so that nothing changes meanwhile.
    pub fn seal_ring(
        &mut self,
        slot: WindowSlot,
        place: BatchPlace,
        scratch: &mut Vec<u8>,
        seal: impl FnOnce(&mut [u8]),
    ) {
        let (offset, len) = (place.offset, place.len as usize);
        scratch.clear();
        scratch.extend_from_slice(self.ring(slot, offset, len));
        seal(scratch);
        let part = slot.ring.at(offset);
        let at = (offset % u64::from(part.len)) as usize;
        self.region_mut(part).of_device_mut().bytes(part.at + at, len).copy_from_slice(scratch);
    }

    /// Copies what the peer has written into the window from an offset of the stream to where no peer can change it, and returns
    /// it there. `None`: the window has its end, or that of its part, in between; or nothing is encrypted.
    pub fn take_sealed(&mut self, slot: WindowSlot, offset: u64, len: usize) -> Option<&mut [u8]> {
        let (part, at, most) = stretch(&slot, offset, len);
        let PoolRegion { clear, sealed, .. } = self.region_mut(part);
        let sealed = sealed.as_mut().filter(|_| most == len)?;
        let to = clear.bytes(part.at + at, len);
        to.copy_from_slice(sealed.bytes(part.at + at, len));
        Some(to)
    }

    /// Copies bytes of the stream from an offset on into the window.
    pub fn fill(&mut self, slot: WindowSlot, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let to = self.received(slot, offset, bytes.len());
            let (now, later) = bytes.split_at(to.len());
            to.copy_from_slice(now);
            offset += now.len() as u64;
            bytes = later;
        }
    }

    /// Bytes of the window from an offset of the stream, at most `len` and up to the part's end, or to where the next
    /// part begins.
    pub fn received(&mut self, slot: WindowSlot, offset: u64, len: usize) -> &mut [u8] {
        let (part, at, len) = stretch(&slot, offset, len);
        self.region_mut(part).clear.bytes(part.at + at, len)
    }
}

/// Where the window has the byte of an offset of the stream: part, place in it, and how many bytes follow there, at most `len`.
fn stretch(slot: &WindowSlot, offset: u64, len: usize) -> (RegionPart, usize, usize) {
    let part = slot.window.at(offset);
    let at = (offset % u64::from(part.len)) as usize;
    let len = len.min(part.len as usize - at);
    let next = slot.window.before.map(|(_, from)| from).filter(|from| offset < *from);
    (part, at, next.map_or(len, |from| len.min((from - offset) as usize)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_apart_and_limited() {
        let mut pool = WindowPool::new(4096, false, &Rc::default());
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
        assert!(!pool.full());
        let again = pool.take(None, false).unwrap();
        assert!([again.ring, again.window].iter().all(|part| [slots[3].ring, slots[3].window].contains(part)));
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

    #[test]
    fn a_sweep_frees_what_was_without_streams_since_the_last_one() {
        let mut pool = WindowPool::new(4096, false, &Rc::default());
        let one = WindowPool::region_bytes(4096);
        let slots: Vec<WindowSlot> = (0..3 * SLOTS).map(|_| pool.take(None, true).unwrap()).collect();
        assert_eq!(pool.sweep(9), (0, 0), "all have streams");
        slots[SLOTS..].iter().for_each(|slot| pool.give(*slot));
        assert_eq!((pool.sweep(9), pool.mapped()), ((0, 0), 3 * one), "they had some");
        let again = pool.take(None, false).unwrap();
        pool.give(again);
        assert_eq!((pool.sweep(9), pool.mapped()), ((1, one), 2 * one), "one was used meanwhile");
        assert_eq!(pool.sweep(0), (0, 0));
        assert_eq!((pool.sweep(1), pool.mapped()), ((1, one), one));
        assert_eq!((pool.sweep(9), pool.mapped(), pool.totals.has_unused()), ((0, 0), one, false), "one has streams");
        let more: Vec<WindowSlot> = (0..SLOTS).map(|_| pool.take(None, true).unwrap()).collect();
        assert_eq!(pool.mapped(), 2 * one);
        assert!(more.iter().all(|slot| !slots[..SLOTS].contains(slot)));
    }

    #[test]
    fn a_part_that_grows_keeps_the_bytes_below_its_offset() {
        let mut pool = WindowPool::new(4096, false, &Rc::default());
        let mut slot = pool.take(None, true).unwrap();
        let one = WindowPool::region_bytes(4096);
        pool.received(slot, 4000, 96).fill(1);
        pool.ring(slot, 4000, 96).fill(2);
        assert!(pool.take_larger(None, 8192, false).is_err());
        let part = pool.take_larger(None, 8192, true).unwrap();
        slot.window.grow(part, 5000);
        assert_eq!((pool.mapped(), pool.totals.grown()), (one + 8192, 8192));
        assert_eq!(pool.windows(slot).map(|window| window.len).collect::<Vec<_>>(), [8192, 4096]);
        assert_eq!(pool.received(slot, 4000, 9000), [1; 96], "up to the end of the part before");
        assert_eq!(pool.received(slot, 4096, 9000).len(), 5000 - 4096, "up to where the next part begins");
        pool.received(slot, 5000, 9000).fill(3);
        assert_eq!(pool.received(slot, 4000, 9000), [1; 96], "untouched");
        assert_eq!(pool.received(slot, 5000, 9000).len(), 8192 - 5000);
        assert_eq!(slot.window.retire(4999), None);
        let before = slot.window.retire(5000).unwrap();
        assert!(!slot.window.is_growing());
        assert_eq!(pool.received(slot, 8192 + 5000, 1), [3]);
        assert_eq!(pool.ring(slot, 4000, 96), [2; 96], "the ring has not grown");
        pool.give_part(before);
        pool.give(slot);
        assert_eq!(pool.take_larger(None, 8192, false).unwrap(), part, "used again");
        pool.give_part(part);
        pool.shrink();
        assert_eq!((pool.mapped(), pool.totals.grown()), (0, 0));
    }

    #[test]
    fn a_sealed_pool_has_memory_for_the_device_alone() {
        let mut pool = WindowPool::new(4096, true, &Rc::default());
        let slot = pool.take(None, true).unwrap();
        assert_eq!(pool.mapped(), 2 * WindowPool::region_bytes(4096));
        pool.ring(slot, 4000, 96).fill(7);
        let mut scratch = Vec::new();
        let place = BatchPlace { stream: 1, offset: 4000, len: 96 };
        pool.seal_ring(slot, place, &mut scratch, |bytes| bytes.iter_mut().for_each(|byte| *byte ^= 0xff));
        assert_eq!(pool.ring(slot, 4000, 96), [7; 96], "the ring keeps the clear bytes: they may be sent again");
        let ring = slot.ring.now;
        assert_eq!(pool.region_mut(ring).of_device_mut().bytes(ring.at + 4000, 96), [0xf8; 96]);
        // The peer writes; what was taken stays as it was then.
        let window = slot.window.now;
        let written =
            |pool: &mut WindowPool, byte| pool.region_mut(window).of_device_mut().bytes(window.at, 4096).fill(byte);
        written(&mut pool, 1);
        assert_eq!(pool.take_sealed(slot, 8192, 100).unwrap(), [1; 100]);
        written(&mut pool, 2);
        assert_eq!(pool.received(slot, 8192, 101), [&[1; 100][..], &[0]].concat());
        assert_eq!(pool.take_sealed(slot, 8192 + 4000, 97), None, "it would wrap");
        assert_eq!(WindowPool::new(4096, true, &Rc::default()).mapped(), 0);
    }

    #[test]
    fn the_totals_of_all_pools_are_their_sums() {
        let totals = Rc::new(PoolTotals::default());
        let mut pools = [false, true].map(|is_sealed| WindowPool::new(4096, is_sealed, &totals));
        let mut slots = Vec::new();
        for turn in 0..60 {
            let pool = &mut pools[turn % 2];
            slots.push((turn % 2, pool.take(None, true).unwrap()));
            if turn % 7 == 0 {
                let part = pool.take_larger(None, 8192, true).unwrap();
                pool.give_part(part);
            }
        }
        let sum = |pools: &[WindowPool; 2]| pools.iter().map(WindowPool::mapped).sum::<u64>();
        let one = WindowPool::region_bytes(4096);
        assert_eq!((totals.mapped(), sum(&pools)), (3 * (4 * one + 8192), 3 * (4 * one + 8192)));
        assert_eq!((totals.grown(), totals.unused.get()), (3 * 8192, 2));
        pools.iter_mut().for_each(WindowPool::shrink);
        assert_eq!((totals.grown(), totals.has_unused(), totals.mapped()), (0, false, 12 * one));
        slots.drain(..).filter(|(at, _)| *at == 0).for_each(|(_, slot)| pools[0].give(slot));
        assert_eq!((totals.unused.get(), totals.mapped()), (4, sum(&pools)));
        drop(pools);
        assert_eq!((totals.mapped(), totals.unused.get()), (0, 0), "those with streams, too");
    }
}
