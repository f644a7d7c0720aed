//! Memory regions: keys, access checks, translation (daemon side).
//!
//! **Keys.** A key is 32 bits. The high 24 are (index, generation) under a keyed permutation, so that a peer that
//! knows one key knows nothing of the others; the low 8 are random and belong to the variant (`ibv_inc_rkey`
//! changes only them). lkey and rkey of a region are the same number. [`crate::KeySpace`] hands keys out (control thread).
//!
//! **Table.** Each worker has its own [`MrTable`], a replica with the same regions ([`Region`]s are shared). A
//! look-up un-permutes the key, indexes an array, and compares the whole key: no hashing, no lock.
//!
//! **Life.** A region removed during a turn stays mapped until [`MrTable::reclaim`], which the worker calls
//! between turns, so that spans made in this turn stay valid.
use crate::key::{INDEX_MAX, KeyCipher};
use crate::region::Region;
use burst_base::{Lkey, Qpn, Reason, Rkey};
use burst_span::Span;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// One worker's replica: keys to regions.
#[derive(Debug)]
pub struct MrTable {
    cipher: KeyCipher,
    slots: Vec<Option<Arc<Region>>>,
    removed: Vec<Arc<Region>>,
}

impl MrTable {
    /// An empty table whose keys come from the [`crate::KeySpace`] with this cipher.
    pub fn new(cipher: KeyCipher) -> MrTable {
        MrTable { cipher, slots: Vec::new(), removed: Vec::new() }
    }
    /// Adds a region under its key. False: the key's place is taken, nothing changed.
    #[must_use]
    pub fn insert(&mut self, region: Arc<Region>) -> bool {
        let index = self.cipher.index(region.key);
        if index >= self.slots.len() {
            self.slots.resize_with((index + 1).next_power_of_two().min(INDEX_MAX), || None);
        }
        let free = self.slots[index].is_none();
        if free {
            self.slots[index] = Some(region);
        }
        free
    }
    /// Removes a region. Its mapping lives at least until [`MrTable::reclaim`].
    pub fn remove(&mut self, key: u32) -> Option<Arc<Region>> {
        let region = self.slots.get_mut(self.cipher.index(key))?.take_if(|r| r.key == key)?;
        self.removed.push(region.clone());
        Some(region)
    }
    /// Between turns, when no span is alive: lets go of removed regions.
    pub fn reclaim(&mut self) {
        self.removed.clear();
    }
    /// The region with this key.
    #[inline]
    pub fn get(&self, key: u32) -> Option<&Arc<Region>> {
        self.slots.get(self.cipher.index(key))?.as_ref().filter(|r| r.key == key)
    }
    /// Regions.
    pub fn len(&self) -> usize {
        self.slots.iter().flatten().count()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Translates a local SGE that needs the rights `access` (`base::verbs::access` bits; 0 for reading). A length
    /// of 0 is always fine, whatever the key (IBA 10.6.3.1).
    #[inline]
    pub fn local(&self, pd: u32, lkey: Lkey, addr: u64, len: u32, access: u32) -> Result<Span, Reason> {
        if len == 0 {
            return Ok(nothing());
        }
        let region = self.get(lkey.0).ok_or(Reason::LocalProtection)?;
        if region.pd != pd || region.access & access != access {
            return Err(Reason::LocalProtection);
        }
        region.span(addr, len).ok_or(Reason::LocalProtection)
    }
    /// Translates a remote peer's range that needs the rights `access`. A length of 0 is always fine (IBA 9.7.4.1.5:
    /// the R_Key of a zero-length request is not checked).
    #[inline]
    pub fn remote(&self, pd: u32, rkey: Rkey, addr: u64, len: u32, access: u32) -> Result<Span, Reason> {
        if len == 0 {
            return Ok(nothing());
        }
        let region = self.get(rkey.0).ok_or(Reason::RemoteAccess)?;
        if region.pd != pd || region.access & access != access || !region.remote_valid.load(Acquire) {
            return Err(Reason::RemoteAccess);
        }
        region.span(addr, len).ok_or(Reason::RemoteAccess)
    }
    /// A peer's SEND with invalidate, or a local invalidate: the rkey grants no remote access any more. `qpn` is
    /// the queue pair that carries the request; a region bound to a queue pair obeys only that one.
    pub fn invalidate(&self, pd: u32, rkey: Rkey, qpn: Qpn) -> Result<(), Reason> {
        let region = self.get(rkey.0).ok_or(Reason::RemoteAccess)?;
        let bound_elsewhere = region.bound_qpn.is_some_and(|bound| bound != qpn);
        if region.pd != pd || bound_elsewhere || !region.remote_valid.swap(false, AcqRel) {
            return Err(Reason::RemoteAccess);
        }
        Ok(())
    }
}

/// The span of a zero-length request: no address.
fn nothing() -> Span {
    // SAFETY: no byte is ever accessed; the address is a well-aligned non-null one for the kernel's iovecs.
    unsafe { Span::local(core::ptr::NonNull::<u64>::dangling().as_ptr().cast(), 0) }
}
