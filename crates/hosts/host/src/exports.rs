//! What contexts lend to others: protection domains, memory regions and device memory, found by the exporter's token.
//!
//! A protection domain's number lives until the exporter and every importer have let go of it. A region stays the
//! exporter's: importers learn its keys, which end with it. Device memory is a descriptor that each importer gets.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A memory region as told to importers.
#[derive(Clone, Copy, Debug)]
pub struct ExportedMr {
    /// Its key.
    pub key: u32,
    /// Bytes.
    pub len: u64,
}

/// Device memory.
#[derive(Clone, Debug)]
pub struct ExportedDm {
    /// The memfd.
    pub fd: Arc<OwnedFd>,
    /// Bytes.
    pub len: u64,
}

/// The objects of one context that others may import, by handle.
#[derive(Debug, Default)]
pub struct ContextExports {
    /// IdAllocator of protection domains.
    pub pds: HashMap<u32, u32>,
    /// Regions.
    pub mrs: HashMap<u32, ExportedMr>,
    /// Device memory.
    pub dms: HashMap<u32, ExportedDm>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Exports {
    contexts: HashMap<u32, ContextExports>,
    /// Holders of each protection domain number.
    pd_holders: HashMap<u32, u32>,
}

impl Exports {
    /// What a context lends.
    pub fn of(&mut self, context: u32) -> &mut ContextExports {
        self.contexts.entry(context).or_default()
    }
    /// What a context lends, if it does.
    pub fn find(&self, context: u32) -> Option<&ContextExports> {
        self.contexts.get(&context)
    }
    /// A context ends.
    pub fn forget(&mut self, context: u32) {
        self.contexts.remove(&context);
    }
    /// One more context holds a protection domain.
    pub fn hold_pd(&mut self, number: u32) {
        *self.pd_holders.entry(number).or_insert(0) += 1;
    }
    /// One holder less; true when it was the last.
    pub fn drop_pd(&mut self, number: u32) -> bool {
        let left = self.pd_holders.get_mut(&number).map_or(0, |n| {
            *n -= 1;
            *n
        });
        if left == 0 {
            self.pd_holders.remove(&number);
        }
        left == 0
    }
}
