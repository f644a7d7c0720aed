//! Objects that a context exports to other contexts: protection domains, memory regions and device memory.
//!
//! An importer names the exporting context by a token and the object by the exporter's handle. The number of a protection domain
//! stays allocated until the exporter and every importer have released it. A memory region stays the exporter's: an importer
//! learns its key, which becomes invalid when the exporter deregisters the region. Of device memory each importer gets a
//! descriptor.

use crate::foreign::ForeignFile;
use burst_base::DeviceId;
use std::collections::HashMap;
use std::sync::Arc;

/// An exported memory region.
#[derive(Clone, Copy, Debug)]
pub struct ExportedMr {
    /// Its lkey and rkey, which are the same number.
    pub key: u32,
    /// Its length in bytes.
    pub len: u64,
}

/// Exported device memory.
#[derive(Clone, Debug)]
pub struct ExportedDm {
    /// The memfd with the memory.
    pub fd: Arc<ForeignFile>,
    /// Its length in bytes.
    pub len: u64,
}

/// The exported objects of one context, by handle.
#[derive(Debug, Default)]
pub struct ContextExports {
    /// Protection domains: their numbers.
    pub pds: HashMap<u32, u32>,
    /// Memory regions.
    pub mrs: HashMap<u32, ExportedMr>,
    /// Device memory.
    pub dms: HashMap<u32, ExportedDm>,
}

/// The exports of all contexts, and the reference counts of protection domains.
#[derive(Debug, Default)]
pub struct Exports {
    contexts: HashMap<u32, ContextExports>,
    /// How many contexts hold each protection domain, and its device, by the domain's number.
    pd_holders: HashMap<u32, (u32, DeviceId)>,
}

impl Exports {
    /// The exports of a context, to change.
    pub fn of(&mut self, context: u32) -> &mut ContextExports {
        self.contexts.entry(context).or_default()
    }
    /// The exports of a context; `None` if it never exported anything.
    pub fn find(&self, context: u32) -> Option<&ContextExports> {
        self.contexts.get(&context)
    }
    /// Removes the exports of a context that has been closed.
    pub fn remove_context(&mut self, context: u32) {
        self.contexts.remove(&context);
    }
    /// Returns the memory of ended exports to the heap.
    pub fn shrink(&mut self) {
        self.contexts.shrink_to_fit();
        self.pd_holders.shrink_to_fit();
    }
    /// Adds a holder of a protection domain. The first holder's `device` is the domain's.
    pub fn hold_pd(&mut self, number: u32, device: DeviceId) {
        self.pd_holders.entry(number).or_insert((0, device)).0 += 1;
    }
    /// Removes a holder of a protection domain. Returns the domain's device when the holder was the last.
    pub fn release_pd(&mut self, number: u32) -> Option<DeviceId> {
        let (holders, device) = self.pd_holders.get_mut(&number)?;
        assert!(*holders > 0, "protection domain {number} has no holder");
        *holders -= 1;
        if *holders > 0 {
            return None;
        }
        let device = *device;
        self.pd_holders.remove(&number);
        Some(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_holder_releases_a_protection_domain() {
        let mut exports = Exports::default();
        exports.hold_pd(3, DeviceId(1));
        exports.hold_pd(3, DeviceId(0));
        assert_eq!(exports.release_pd(3), None);
        assert_eq!(exports.release_pd(3), Some(DeviceId(1)), "the device of the first holder");
    }
}
