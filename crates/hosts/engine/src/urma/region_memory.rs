//! Memory of URMA's programs in other processes: the regions of the worker's key table.

use burst_base::verbs::access;
use burst_mem::MrTable;
use burst_span::Span;
use burst_urma::{MemoryGone, UrmaMemory};

/// The regions of a worker's programs: a segment's region is the key of a memory region.
pub(crate) struct RegionMemory<'a>(pub &'a MrTable);

impl RegionMemory<'_> {
    fn span(&self, region: u32, addr: u64, len: usize, rights: u32) -> Result<Span, MemoryGone> {
        // Peers write, and this host's programs send: mostly, each from one region.
        let region = if rights == 0 { self.0.get_local(region) } else { self.0.get_remote(region) };
        let found = region.filter(|region| region.access & rights == rights);
        found.and_then(|region| region.span(addr, len as u32)).ok_or(MemoryGone)
    }
}

impl UrmaMemory for RegionMemory<'_> {
    fn read(&self, region: u32, addr: u64, out: &mut [u8]) -> Result<(), MemoryGone> {
        self.span(region, addr, out.len(), 0)?.read_to(out).map_err(|_| MemoryGone)
    }
    fn write(&mut self, region: u32, addr: u64, bytes: &[u8]) -> Result<(), MemoryGone> {
        self.span(region, addr, bytes.len(), access::LOCAL_WRITE)?.write_from(bytes).map_err(|_| MemoryGone)
    }
    fn write_pieces(
        &mut self,
        region: u32,
        addr: u64,
        len: u32,
        pieces: &mut dyn Iterator<Item = &[u8]>,
    ) -> Result<(), MemoryGone> {
        let span = self.span(region, addr, len as usize, access::LOCAL_WRITE)?;
        span.write_pieces(pieces).map_err(|_| MemoryGone)
    }
    fn update(&mut self, region: u32, addr: u64, change: &dyn Fn(u64) -> u64) -> Result<u64, MemoryGone> {
        let span = self.span(region, addr, 8, access::LOCAL_WRITE)?;
        let mut bytes = [0; 8];
        span.read_to(&mut bytes).map_err(|_| MemoryGone)?;
        let mut old = u64::from_ne_bytes(bytes);
        loop {
            match span.cmp_swap(old, change(old)).map_err(|_| MemoryGone)? {
                now if now == old => return Ok(old),
                now => old = now,
            }
        }
    }
    fn lend(&self, region: u32, addr: u64, len: u32) -> Option<Span> {
        self.span(region, addr, len as usize, 0).ok()
    }
}
