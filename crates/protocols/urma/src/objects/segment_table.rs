//! Registered segments: token, range and right are checked on every access.

use crate::api::{SegmentConfig, access};
use crate::objects::token_ids::{TOKEN_ID_BITS, TokenIds};
use crate::pool::{PoolRef, UrmaPool};
use burst_base::Reason;
use std::collections::HashMap;

/// Segments that a node may have: a sixteenth of the token ids, so that an unknown one is seldom somebody's, and a free one is
/// found at once.
pub const SEGMENTS_MAX: usize = 1 << (TOKEN_ID_BITS - 4);

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
    /// By token id. The ids are the node's own and random: no peer makes them collide.
    by_id: HashMap<u32, PoolRef, foldhash::fast::RandomState>,
    ids: TokenIds,
}

impl SegmentTable {
    /// `seed`: of the token ids, which peers should not guess.
    pub(crate) fn new(seed: u64) -> Self {
        SegmentTable { segments: UrmaPool::new(SEGMENTS_MAX), by_id: HashMap::default(), ids: TokenIds::new(seed) }
    }
    /// Registers a segment and returns its token id. `None` if the table is full, or the segment ends behind the address space.
    pub(crate) fn insert(&mut self, owner: u32, region: u32, config: SegmentConfig) -> Option<u32> {
        config.addr.checked_add(config.len)?;
        if !self.segments.has_room() {
            return None;
        }
        let token_id = self.ids.draw(|id| self.by_id.contains_key(&id))?;
        debug_assert!(token_id >> TOKEN_ID_BITS == 0, "a token id has 20 bits");
        let at = self.segments.insert(SegmentEntry { token_id, owner, region, config }).ok()?;
        let before = self.by_id.insert(token_id, at);
        debug_assert!(before.is_none(), "a token id is given twice");
        Some(token_id)
    }
    /// Registered segments.
    pub(crate) fn len(&self) -> usize {
        self.segments.len()
    }
    pub(crate) fn remove(&mut self, token_id: u32) -> bool {
        let Some(at) = self.by_id.remove(&token_id) else { return false };
        let removed = self.segments.remove(at);
        debug_assert!(removed.is_some_and(|entry| entry.token_id == token_id), "a token id is of another segment");
        if self.by_id.is_empty() {
            self.by_id.shrink_to_fit();
        }
        true
    }
    pub(crate) fn get(&self, token_id: u32) -> Option<&SegmentConfig> {
        self.registration(token_id).map(|registration| &registration.config)
    }
    fn registration(&self, token_id: u32) -> Option<&SegmentEntry> {
        self.by_id.get(&token_id).and_then(|at| self.segments.get(*at))
    }
    /// Program of the host that registered a segment.
    pub(crate) fn owner(&self, token_id: u32) -> Option<u32> {
        self.registration(token_id).map(|registration| registration.owner)
    }
    /// The registration behind a token id, for what goes on for a while: token ids come again, perhaps with other rights, and
    /// these references do not.
    pub(crate) fn hold(&self, token_id: u32) -> PoolRef {
        self.by_id.get(&token_id).copied().unwrap_or(PoolRef::NONE)
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
    /// The region of a range that a peer may reach; else [`Reason::UbToken`], [`Reason::UbNoChannel`], [`Reason::UbRange`] or
    /// [`Reason::UbAccess`].
    pub(crate) fn check(&self, access: PeerAccess) -> Result<u32, Reason> {
        self.check_held(access).map(|(region, _)| region)
    }
    /// The same, with the registration ([`SegmentTable::hold`]).
    pub(crate) fn check_held(&self, access: PeerAccess) -> Result<(u32, PoolRef), Reason> {
        let at = *self.by_id.get(&access.token_id).ok_or(Reason::UbToken)?;
        let registration = self.segments.get(at).ok_or(Reason::UbToken)?;
        let segment = &registration.config;
        if segment.token.is_some() && segment.token != access.token {
            return Err(Reason::UbToken);
        }
        if segment.token.is_none() && !access.has_channel {
            return Err(Reason::UbNoChannel);
        }
        if !contains(segment, access.addr, access.len) {
            return Err(Reason::UbRange);
        }
        if segment.access & access::LOCAL_ONLY != 0 || segment.access & access.right != access.right {
            return Err(Reason::UbAccess);
        }
        Ok((registration.region, at))
    }
    pub(crate) fn heap_bytes(&self) -> usize {
        self.segments.heap_bytes() + self.by_id.capacity() * size_of::<(u32, PoolRef)>()
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
    /// Whether the request came by a channel: its peer receives at its address, and knows the channel's numbers. Whoever may send
    /// UDP datagrams may send requests without channel, so these need the segment's token.
    pub(crate) has_channel: bool,
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
        let mut table = SegmentTable::new(1);
        let config = SegmentConfig { addr: 0x1000, len: 0x100, token: Some(7), access: access::READ };
        let id = table.insert(0, 5, config).expect("room");
        let good = PeerAccess {
            token_id: id,
            token: Some(7),
            addr: 0x1000,
            len: 0x100,
            right: access::READ,
            has_channel: false,
        };
        assert_eq!(table.check(good), Ok(5));
        assert_eq!(table.check(PeerAccess { token: Some(8), ..good }), Err(Reason::UbToken));
        assert_eq!(table.check(PeerAccess { token: None, ..good }), Err(Reason::UbToken));
        assert_eq!(table.check(PeerAccess { token_id: id ^ 1, ..good }), Err(Reason::UbToken));
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

    #[test]
    fn a_segment_without_token_is_reached_by_a_channel_only() {
        let mut table = SegmentTable::new(1);
        let config = SegmentConfig { addr: 0x1000, len: 0x100, token: None, access: access::WRITE };
        let token_id = table.insert(0, 5, config).expect("room");
        let by_channel =
            PeerAccess { token_id, token: None, addr: 0x1000, len: 1, right: access::WRITE, has_channel: true };
        assert_eq!(table.check(by_channel), Ok(5));
        for token in [None, Some(0)] {
            let access = PeerAccess { has_channel: false, token, ..by_channel };
            assert_eq!(table.check(access), Err(Reason::UbNoChannel));
        }
    }

    #[test]
    fn an_import_that_outlives_its_segment_reaches_no_later_one() {
        let mut table = SegmentTable::new(1);
        let config = SegmentConfig { addr: 0x1000, len: 0x100, token: Some(9), access: access::READ };
        let old = table.insert(0, 5, config).expect("room");
        assert!(table.remove(old));
        let import =
            PeerAccess { token_id: old, token: Some(9), addr: 0x1000, len: 1, right: access::READ, has_channel: true };
        for n in 0..100_000 {
            let next = table.insert(0, 6, config).expect("room");
            assert_eq!(table.check(import), Err(Reason::UbToken), "after {n} registrations");
            assert!(table.remove(next));
        }
    }
}
