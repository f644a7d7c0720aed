//! Registered segments: token, range and right are checked on every access.

use crate::api::{SegmentConfig, access};
use crate::pool::{PoolRef, UrmaPool};
use burst_base::Reason;

/// Segments that a node may have: their number must fit into 16 bits of the token id; 4 bits are a generation.
pub(crate) const SEGMENTS_MAX: usize = 1 << 16;

/// A registered segment.
#[derive(Debug)]
struct SegmentEntry {
    token_id: u32,
    /// Program of the host that registered it.
    owner: u32,
    /// Names its memory in calls of [`crate::UrmaMemory`].
    region: u32,
    config: SegmentConfig,
}

/// The registered segments of a node.
#[derive(Debug)]
pub(crate) struct SegmentTable {
    segments: UrmaPool<SegmentEntry>,
    generation: u32,
}

impl SegmentTable {
    pub(crate) fn new() -> Self {
        SegmentTable { segments: UrmaPool::new(SEGMENTS_MAX), generation: 0 }
    }
    /// Registers a segment and returns its token id. `None` if the table is full, or the segment ends behind the address space.
    pub(crate) fn insert(&mut self, owner: u32, region: u32, config: SegmentConfig) -> Option<u32> {
        config.addr.checked_add(config.len)?;
        let at = self.segments.insert(SegmentEntry { token_id: 0, owner, region, config }).ok()?;
        self.generation = (self.generation + 1) & 0xf;
        let token_id = self.generation << 16 | at.index();
        debug_assert!(at.index() < SEGMENTS_MAX as u32 && token_id >> 20 == 0, "a token id has 20 bits");
        self.segments.get_mut(at)?.token_id = token_id;
        Some(token_id)
    }
    /// Registered segments.
    pub(crate) fn len(&self) -> usize {
        self.segments.len()
    }
    pub(crate) fn remove(&mut self, token_id: u32) -> bool {
        if self.get(token_id).is_none() {
            return false;
        }
        self.segments.ref_of(token_id & 0xffff).is_some_and(|at| self.segments.remove(at).is_some())
    }
    pub(crate) fn get(&self, token_id: u32) -> Option<&SegmentConfig> {
        self.registration(token_id).map(|registration| &registration.config)
    }
    fn registration(&self, token_id: u32) -> Option<&SegmentEntry> {
        self.segments.at(token_id & 0xffff).filter(|registration| registration.token_id == token_id)
    }
    /// Program of the host that registered a segment.
    pub(crate) fn owner(&self, token_id: u32) -> Option<u32> {
        self.registration(token_id).map(|registration| registration.owner)
    }
    /// The registration behind a token id, for what goes on for a while: token ids come again after 16 registrations, perhaps
    /// with other rights, and these references do not.
    pub(crate) fn hold(&self, token_id: u32) -> PoolRef {
        let at = self.registration(token_id).and_then(|_| self.segments.ref_of(token_id & 0xffff));
        at.unwrap_or(PoolRef::NONE)
    }
    /// The region of a registration that is still there, if the range lies in it.
    pub(crate) fn held(&self, at: PoolRef, addr: u64, len: u32) -> Option<u32> {
        let registration = self.segments.get(at).filter(|registration| contains(&registration.config, addr, len));
        registration.map(|registration| registration.region)
    }
    /// Whether the range lies in the segment.
    pub(crate) fn is_local(&self, token_id: u32, addr: u64, len: u32) -> bool {
        self.get(token_id).is_some_and(|segment| contains(segment, addr, len))
    }
    /// The region of a range that a peer may reach; else [`Reason::UbToken`], [`Reason::UbRange`] or [`Reason::UbAccess`].
    pub(crate) fn check(&self, access: PeerAccess) -> Result<u32, Reason> {
        let registration = self.registration(access.token_id).ok_or(Reason::UbToken)?;
        let segment = &registration.config;
        if segment.token.is_some() && segment.token != access.token {
            return Err(Reason::UbToken);
        }
        if !contains(segment, access.addr, access.len) {
            return Err(Reason::UbRange);
        }
        if segment.access & access::LOCAL_ONLY != 0 || segment.access & access.right != access.right {
            return Err(Reason::UbAccess);
        }
        Ok(registration.region)
    }
    pub(crate) fn heap_bytes(&self) -> usize {
        self.segments.heap_bytes()
    }
}

/// What a peer wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerAccess {
    pub(crate) token_id: u32,
    pub(crate) token: Option<u32>,
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) right: u8,
}

fn contains(segment: &SegmentConfig, addr: u64, len: u32) -> bool {
    let end = addr.checked_add(u64::from(len));
    addr >= segment.addr && end.is_some_and(|end| end <= segment.addr + segment.len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_range_and_right_are_checked_up_to_the_last_byte() {
        let mut table = SegmentTable::new();
        let config = SegmentConfig { addr: 0x1000, len: 0x100, token: Some(7), access: access::READ };
        let id = table.insert(0, 5, config).expect("room");
        let good = PeerAccess { token_id: id, token: Some(7), addr: 0x1000, len: 0x100, right: access::READ };
        assert_eq!(table.check(good), Ok(5));
        assert_eq!(table.check(PeerAccess { token: Some(8), ..good }), Err(Reason::UbToken));
        assert_eq!(table.check(PeerAccess { token: None, ..good }), Err(Reason::UbToken));
        assert_eq!(table.check(PeerAccess { token_id: id ^ 1 << 16, ..good }), Err(Reason::UbToken));
        assert_eq!(table.check(PeerAccess { len: 0x101, ..good }), Err(Reason::UbRange));
        assert_eq!(table.check(PeerAccess { addr: 0xfff, len: 1, ..good }), Err(Reason::UbRange));
        assert_eq!(table.check(PeerAccess { addr: u64::MAX, len: 2, ..good }), Err(Reason::UbRange));
        assert_eq!(table.check(PeerAccess { right: access::WRITE, ..good }), Err(Reason::UbAccess));
        assert!(table.remove(id) && !table.remove(id));
        assert_eq!(table.check(good), Err(Reason::UbToken));
        let again =
            table.insert(0, 5, SegmentConfig { access: access::READ | access::LOCAL_ONLY, ..config }).expect("room");
        assert_ne!(again, id);
        assert_eq!(table.check(PeerAccess { token_id: again, ..good }), Err(Reason::UbAccess));
        assert_eq!(table.insert(0, 5, SegmentConfig { addr: u64::MAX, len: 2, ..config }), None);
    }
}
