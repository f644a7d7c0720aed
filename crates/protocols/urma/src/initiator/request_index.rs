//! Requests by Jetty and number, for Jetties in whose lists a search took long.

use crate::pool::PoolRef;
use std::collections::HashMap;

/// An empty index with more entries than this gives its memory back.
const KEEP: usize = 1024;

/// The requests of the Jetties that are indexed ([`crate::objects::records::Jetty::is_indexed`]).
#[derive(Debug, Default)]
pub(crate) struct RequestIndex(HashMap<(u32, u16), PoolRef, foldhash::fast::RandomState>);

impl RequestIndex {
    /// The request of a Jetty with this TASSN.
    pub(crate) fn get(&self, jetty: PoolRef, tassn: u16) -> Option<PoolRef> {
        self.0.get(&(jetty.index(), tassn)).copied()
    }
    /// Adds a request.
    #[cold]
    pub(crate) fn insert(&mut self, jetty: PoolRef, tassn: u16, at: PoolRef) {
        let before = self.0.insert((jetty.index(), tassn), at);
        debug_assert!(before.is_none(), "two requests of a Jetty have the same number");
    }
    /// Removes a request that is there.
    #[cold]
    pub(crate) fn remove(&mut self, jetty: PoolRef, tassn: u16) {
        let removed = self.0.remove(&(jetty.index(), tassn));
        debug_assert!(removed.is_some(), "a request of an indexed Jetty was not indexed");
        if self.0.is_empty() && self.0.capacity() > KEEP {
            self.0 = HashMap::default();
        }
    }
    /// Requests that are indexed.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<((u32, u16), PoolRef)>()
    }
}
