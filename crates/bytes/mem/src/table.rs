//! Memory regions and windows: keys, access checks, translation (daemon side).
//!
//! **Keys.** A key is 32 bits. The high 24 are (index, generation) under a keyed permutation, so that a peer that
//! knows one key cannot compute others; the low 8 are random and belong to the variant (`ibv_inc_rkey`
//! changes only them). lkey and rkey of a region are the same number. [`crate::KeySpace`] hands keys out (control thread).
//!
//! **Table.** Each worker has its own [`MrTable`], a replica with the same regions ([`Region`]s are shared). A
//! look-up un-permutes the key, indexes an array, and compares the whole key: no hashing, no lock.
//!
//! **Life.** A region removed during a turn stays mapped until [`MrTable::reclaim`], which the worker calls
//! between turns, so that spans made in this turn stay valid.
mod finding;

pub use finding::KeyFinding;

use crate::holes;
use crate::key::{INDEX_MAX, KeyCipher};
use crate::region::Region;
use crate::window::{BindRequest, KEY_BASE, Window};
use burst_base::heap::{self, OutOfMemory};
use burst_base::verbs::access;
use burst_base::{Lkey, Qpn, Reason, Rkey};
use burst_span::Span;
use std::cell::Cell;
use std::sync::Arc;

/// The queue pair that carries a request of a peer, or a local request about windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Number of its protection domain.
    pub pd: u32,
    /// Its number.
    pub qpn: Qpn,
}

/// The object that a key belongs to.
#[derive(Debug)]
enum KeyEntry {
    Region(Arc<Region>),
    /// A region of which a page is missing: its key gives nothing.
    Broken(Arc<Region>),
    Window(Arc<Window>),
}

impl KeyEntry {
    fn region(&self, key: u32) -> Option<&Arc<Region>> {
        match self {
            KeyEntry::Region(region) if region.key == key => Some(region),
            _ => None,
        }
    }
    fn window(&self, key: u32) -> Option<&Arc<Window>> {
        match self {
            KeyEntry::Window(window) if window.base == key & KEY_BASE => Some(window),
            _ => None,
        }
    }
}

/// The replica of one worker: regions and windows by key.
#[derive(Debug)]
pub struct MrTable {
    cipher: KeyCipher,
    slots: Vec<Option<KeyEntry>>,
    removed: Vec<Arc<Region>>,
    /// [`holes::changes`] when it was last looked at.
    changes_seen: u64,
    /// [`holes::broken`] when broken regions were last looked for.
    broken_seen: u64,
    /// The keys looked up last by this side's programs and by peers, most of which use one again and again.
    last_local: LastKey,
    last_remote: LastKey,
}

/// A key and its index. Un-permuting costs four times what the rest of a look-up does.
#[derive(Debug)]
struct LastKey(Cell<(u32, u32)>);

impl LastKey {
    fn new(cipher: &KeyCipher) -> LastKey {
        LastKey(Cell::new((0, cipher.index(0) as u32)))
    }
    /// The index of `key`.
    #[inline(always)]
    fn index(&self, cipher: &KeyCipher, key: u32) -> usize {
        let (known, index) = self.0.get();
        if known == key { index as usize } else { self.unpermute(cipher, key) }
    }
    #[inline(never)]
    fn unpermute(&self, cipher: &KeyCipher, key: u32) -> usize {
        let index = cipher.index(key);
        self.0.set((key, index as u32));
        index
    }
}

impl MrTable {
    /// An empty table whose keys come from the [`crate::KeySpace`] with this cipher.
    pub fn new(cipher: KeyCipher) -> MrTable {
        MrTable {
            cipher,
            slots: Vec::new(),
            removed: Vec::new(),
            changes_seen: holes::changes(),
            broken_seen: holes::broken(),
            last_local: LastKey::new(&cipher),
            last_remote: LastKey::new(&cipher),
        }
    }
    fn put(&mut self, key: u32, entry: KeyEntry) -> bool {
        let index = self.cipher.index(key);
        debug_assert!(index < INDEX_MAX);
        if index >= self.slots.len() {
            self.slots.resize_with((index + 1).next_power_of_two().min(INDEX_MAX), || None);
        }
        let free = self.slots[index].is_none();
        if free {
            self.slots[index] = Some(entry);
        }
        debug_assert!(self.slots.len() <= INDEX_MAX);
        free
    }
    /// Makes room for keys whose indices are below `entries`: adding one of them then does not allocate.
    ///
    /// # Errors
    /// There is no memory.
    pub fn reserve(&mut self, entries: usize) -> Result<(), OutOfMemory> {
        heap::reserve(&mut self.slots, entries.next_power_of_two().min(INDEX_MAX))
    }
    /// Adds a region under its key. False: the slot of the key is taken; nothing has changed.
    #[must_use]
    pub fn insert(&mut self, region: Arc<Region>) -> bool {
        self.put(region.key, KeyEntry::Region(region))
    }
    /// Adds a window under its key. False: the slot of the key is taken; nothing has changed.
    #[must_use]
    pub fn insert_window(&mut self, window: Arc<Window>) -> bool {
        self.put(window.base, KeyEntry::Window(window))
    }
    /// Removes a region. Its mapping lives at least until [`MrTable::reclaim`].
    pub fn remove(&mut self, key: u32) -> Option<Arc<Region>> {
        let slot = self.slots.get_mut(self.cipher.index(key))?;
        let region = match slot.as_ref()? {
            KeyEntry::Broken(region) if region.key == key => region.clone(),
            entry => entry.region(key)?.clone(),
        };
        debug_assert_eq!(region.key, key);
        *slot = None;
        self.removed.push(region.clone());
        Some(region)
    }
    /// Removes a window; the low byte of `key` does not matter. Spans that the window has opened belong to its region.
    pub fn remove_window(&mut self, key: u32) -> Option<Arc<Window>> {
        let slot = self.slots.get_mut(self.cipher.index(key))?;
        let window = slot.as_ref()?.window(key)?.clone();
        debug_assert_eq!(window.base, key & KEY_BASE);
        *slot = None;
        // The first table that removes it.
        self.forget_window(window.close());
        Some(window)
    }
    /// A window is no longer bound to `region`.
    fn forget_window(&self, region: Option<u32>) {
        if let Some(region) = region.and_then(|key| self.get(key)) {
            region.forget_window();
        }
    }
    /// Returns memory behind the last key in use to the heap. For times without traffic: it allocates.
    pub fn shrink(&mut self) {
        let used = self.slots.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        self.slots.truncate(used);
        self.slots.shrink_to_fit();
        self.removed.shrink_to_fit();
    }
    /// Drops the removed regions. Call it between turns, when no span is alive. Returns whether missing pages of some program
    /// were touched since the last call.
    #[inline]
    pub fn reclaim(&mut self) -> bool {
        self.removed.clear();
        let changed = holes::changes() != self.changes_seen;
        if changed {
            self.close_broken();
        }
        changed
    }
    /// Takes the broken regions out of use.
    #[cold]
    fn close_broken(&mut self) {
        self.changes_seen = holes::changes();
        if holes::broken() == self.broken_seen {
            return;
        }
        self.broken_seen = holes::broken();
        for entry in self.slots.iter_mut().flatten() {
            if let KeyEntry::Region(region) = entry
                && region.is_broken()
            {
                *entry = KeyEntry::Broken(region.clone());
            }
        }
    }
    /// Why there is no usable region with this key: `unknown`, or that a page of the region is missing.
    #[cold]
    fn refusal(&self, key: u32, unknown: Reason) -> Reason {
        match self.slots.get(self.cipher.index(key)) {
            Some(Some(KeyEntry::Broken(region))) if region.key == key => region.refusal(unknown),
            _ => unknown,
        }
    }
    /// The region with this key.
    #[inline]
    pub fn get(&self, key: u32) -> Option<&Arc<Region>> {
        self.slots.get(self.cipher.index(key))?.as_ref()?.region(key)
    }
    /// The region with this key, for one of this side's programs, which mostly use one again and again.
    #[inline]
    pub fn get_local(&self, key: u32) -> Option<&Arc<Region>> {
        self.slots.get(self.last_local.index(&self.cipher, key))?.as_ref()?.region(key)
    }
    /// The region with this key, for a peer: as [`MrTable::get_local`].
    #[inline]
    pub fn get_remote(&self, key: u32) -> Option<&Arc<Region>> {
        self.slots.get(self.last_remote.index(&self.cipher, key))?.as_ref()?.region(key)
    }
    /// Number of regions and windows.
    pub fn len(&self) -> usize {
        self.slots.iter().flatten().count()
    }
    /// Whether the table has no region and no window.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Translates a local SGE that needs the rights `access` (`base::verbs::access` bits; 0 for reading). A length
    /// of 0 is always allowed, with any key (IBA 10.6.3.1).
    #[inline]
    pub fn local(&self, pd: u32, lkey: Lkey, addr: u64, len: u32, access: u32) -> Result<Span, Reason> {
        if len == 0 {
            return Ok(Span::nothing());
        }
        let entry = self.slots.get(self.last_local.index(&self.cipher, lkey.0)).and_then(Option::as_ref);
        let region = entry.and_then(|entry| entry.region(lkey.0));
        let region = region.ok_or_else(|| self.refusal(lkey.0, Reason::LocalProtection))?;
        if region.pd != pd || region.access & access != access {
            return Err(Reason::LocalProtection);
        }
        region.span(addr, len).ok_or_else(|| region.refusal(Reason::LocalProtection))
    }
    /// Translates a remote peer's range that needs the rights `access`. A length of 0 is always fine (IBA 9.7.4.1.5:
    /// the R_Key of a zero-length request is not checked).
    #[inline]
    pub fn remote(&self, by: Peer, rkey: Rkey, addr: u64, len: u32, access: u32) -> Result<Span, Reason> {
        if len == 0 {
            return Ok(Span::nothing());
        }
        match self.slots.get(self.last_remote.index(&self.cipher, rkey.0)) {
            Some(Some(KeyEntry::Region(r))) if r.key == rkey.0 && r.pd == by.pd && r.access & access == access => {
                r.span(addr, len).ok_or_else(|| r.refusal(Reason::RemoteAccess))
            }
            Some(Some(KeyEntry::Window(window))) if window.base == rkey.0 & KEY_BASE => {
                let (key, addr) = window.open(by, rkey.0, addr, len, access).ok_or(Reason::RemoteAccess)?;
                // Checked at each use: since the window was bound, the region may have been registered anew with fewer rights,
                // and then it is mapped for reading only.
                let rights = rights_to_open(access);
                let may = |region: &&Arc<Region>| region.pd == by.pd && region.access & rights == rights;
                let region = self.get(key).filter(may).ok_or(Reason::RemoteAccess)?;
                region.span(addr, len).ok_or_else(|| region.refusal(Reason::RemoteAccess))
            }
            _ => Err(self.refusal(rkey.0, Reason::RemoteAccess)),
        }
    }
    /// Carries out a bind request (IBA 10.6.7.2.2): the region must allow windows and have the rights that the window gives.
    pub fn bind(&self, by: Peer, request: &BindRequest) -> Result<(), Reason> {
        let slot = self.slots.get(self.cipher.index(request.window)).and_then(Option::as_ref);
        let window = slot.and_then(|entry| entry.window(request.window)).ok_or(Reason::WindowBind)?;
        let region = if request.len > 0 { Some(self.get(request.lkey).ok_or(Reason::WindowBind)?) } else { None };
        if let Some(region) = region {
            let rights = rights_to_open(request.access);
            let may = region.pd == by.pd && region.access & rights == rights;
            if !may || !region.contains(request.addr, request.len) {
                return Err(Reason::WindowBind);
            }
        }
        let former = window.bind(by, request).ok_or(Reason::WindowBind)?;
        region.into_iter().for_each(|region| region.add_window());
        self.forget_window(former);
        Ok(())
    }
    /// Closes a window: a peer's SEND with invalidate, or a local invalidate. Only windows of type 2 can be invalidated
    /// (IBA 10.6.7.2.6): a region belongs to its program as long as it is registered.
    pub fn invalidate(&self, by: Peer, rkey: Rkey) -> Result<(), Reason> {
        let slot = self.slots.get(self.cipher.index(rkey.0)).and_then(Option::as_ref);
        let window = slot.and_then(|entry| entry.window(rkey.0)).ok_or(Reason::RemoteAccess)?;
        let former = window.invalidate(by, rkey.0).ok_or(Reason::RemoteAccess)?;
        self.forget_window(former);
        Ok(())
    }
}

/// The rights that a region must have so that a window on it may give the rights `access` (IBA 10.6.7.2.2).
fn rights_to_open(access: u32) -> u32 {
    let writes = access & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
    access::MW_BIND | if writes { access::LOCAL_WRITE } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeySpace;

    #[test]
    fn only_another_key_than_the_last_one_is_unpermuted() {
        let mut keys = KeySpace::new(Box::new(|| 0x1234_5678_9abc_def1));
        let (cipher, a, b) = (keys.cipher(), keys.alloc().expect("a key"), keys.alloc().expect("a key"));
        let last = LastKey::new(&cipher);
        for key in [0, a, b, b ^ 0x0100_0000, a] {
            assert_eq!(last.index(&cipher, key), cipher.index(key), "{key:x}");
            // With another cipher the index would be another one: it is not asked.
            let other = KeySpace::new(Box::new(|| 0xfeed_0000_0bad_cafe)).cipher();
            assert_eq!(last.index(&other, key), cipher.index(key), "{key:x}");
        }
    }
}
