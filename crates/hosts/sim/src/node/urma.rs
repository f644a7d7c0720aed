//! A simulated host's Unified Bus: URMA's endpoint in the host's worker, with a port of its own on the same network.
//!
//! Programs have no memory, as with [`crate::run::PayloadMode::Void`]: payload has a length only. Words of eight bytes that were
//! changed or written alone are kept, so that atomics work.

use super::{BATCH_FRAMES, SimHost};
use crate::port::{SimPort, Wire, address_of};
use burst_base::Nanos;
use burst_engine::urma::{UrmaEndpoint, node_at};
use burst_span::Span;
use burst_urma::{MemoryGone, UrmaConfig, UrmaEnv, UrmaMemory, UrmaNode};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Memory without bytes, but for words that were changed or written alone.
#[derive(Debug, Default)]
struct VoidMemory {
    words: BTreeMap<u64, u64>,
}

impl UrmaMemory for VoidMemory {
    fn read(&self, _region: u32, addr: u64, out: &mut [u8]) -> Result<(), MemoryGone> {
        out.fill(0);
        if let (8, Some(word)) = (out.len(), self.words.get(&addr)) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        Ok(())
    }
    fn write(&mut self, _region: u32, addr: u64, bytes: &[u8]) -> Result<(), MemoryGone> {
        if let Ok(bytes) = bytes.try_into() {
            self.words.insert(addr, u64::from_le_bytes(bytes));
        }
        Ok(())
    }
    fn update(&mut self, _region: u32, addr: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, MemoryGone> {
        let word = self.words.entry(addr).or_default();
        let old = *word;
        *word = change(old);
        Ok(old)
    }
    fn lend(&self, _region: u32, _addr: u64, len: u32) -> Option<Span> {
        Some(Span::null(len))
    }
}

impl SimHost {
    /// Adds URMA's endpoint. Returns what its port exchanges with the network.
    ///
    /// # Errors
    /// A sentence of the endpoint's.
    pub fn add_urma(&mut self, change: impl FnOnce(&mut UrmaConfig)) -> Result<Arc<Mutex<Wire>>, String> {
        let address = address_of(self.host);
        let (port, wire) = SimPort::new(self.host, self.config.port);
        let seed = self.config.seed ^ (u64::from(self.host.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let endpoint = UrmaEndpoint::new(Box::new(port), address, BATCH_FRAMES, |mtu| {
            let mut config = UrmaConfig { mtu, ..UrmaConfig::new(node_at(address), seed) };
            change(&mut config);
            config
        })
        .map_err(|e| e.to_string())?;
        self.worker.add_urma(0, endpoint, Box::new(VoidMemory::default()));
        Ok(wire)
    }

    /// Calls something of the node; `None` without one.
    pub fn with_urma<R>(&mut self, now: Nanos, call: impl FnOnce(&mut UrmaNode, &mut UrmaEnv<'_>) -> R) -> Option<R> {
        self.worker.with_urma(now, call)
    }
}
