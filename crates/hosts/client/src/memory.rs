//! Protection domains and memory regions.
//!
//! A [`MemoryRegion`] owns its memory. A peer may write to it at any time, and so may the daemon for a work request in flight, so
//! it never gives out a reference: [`MemoryRegion::read`] and [`MemoryRegion::write`] copy by atomic accesses. Dropping a region
//! while a work request uses it is safe: the daemon stops using the memory first, and the request completes in error.

use crate::context::ClientContext;
use crate::cq::CompletionQueue;
use crate::error::{ClientError, Result};
use crate::qp::{QpOptions, QueuePair};
use crate::raw::memory::{self, MemoryRange, RawMr};
use burst_control::{Request, Response};
use burst_shm::Sge;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Smallest unit of a mapping.
const PAGE: usize = 4096;
/// Bytes that one atomic access copies.
const WORD: usize = size_of::<u64>();

/// Rights of a region: what peers and the owner's work requests may do with it. Combine them by `|`.
pub use burst_base::verbs::access;

/// A protection domain. Clones are the same domain; it ends when the last object in it is dropped.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(Arc<PdOwner>);

#[derive(Debug)]
struct PdOwner {
    context: ClientContext,
    handle: u32,
}

impl Drop for PdOwner {
    fn drop(&mut self) {
        let raw = self.context.raw();
        raw.release_prealloc(|init| init.pd == self.handle);
        // Nothing uses the domain any more, so the daemon does not refuse.
        let _ = raw.end_object(&Request::DeallocPd { pd: self.handle });
    }
}

impl ProtectionDomain {
    pub(crate) fn new(context: &ClientContext) -> Result<ProtectionDomain> {
        let Response::Handle(handle) = context.raw().ask(&Request::AllocPd)? else {
            return Err(ClientError::Unexpected("no protection domain"));
        };
        Ok(ProtectionDomain(Arc::new(PdOwner { context: context.clone(), handle })))
    }

    pub(crate) fn handle(&self) -> u32 {
        self.0.handle
    }

    /// The context of the domain.
    pub fn context(&self) -> &ClientContext {
        &self.0.context
    }

    /// Allocates `len` zero bytes and registers them with the rights `access` ([`access`]).
    ///
    /// # Errors
    /// EINVAL for no bytes, or a remote right to write without the local one; ENOMEM; else the daemon's refusal.
    pub fn alloc_mr(&self, len: usize, access: u32) -> Result<MemoryRegion> {
        MemoryRegion::new(self, len, access)
    }

    /// A reliable or unreliable connected queue pair (RC, UC) in state INIT, whose completions go to `send_cq` and `recv_cq`.
    ///
    /// # Errors
    /// EINVAL for capacities over the device's limits or objects of another context; else the daemon's refusal.
    pub fn create_qp(
        &self,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        options: &QpOptions,
    ) -> Result<QueuePair> {
        QueuePair::new(self, send_cq, recv_cq, options)
    }
}

/// Anonymous pages of this process.
#[derive(Debug)]
struct OwnedPages {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is accessed through atomics only.
unsafe impl Send for OwnedPages {}
// SAFETY: as above.
unsafe impl Sync for OwnedPages {}

impl OwnedPages {
    fn new(len: usize) -> Result<OwnedPages> {
        let bytes = len.checked_next_multiple_of(PAGE).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or(ClientError::Invalid("a memory region needs at least one byte"))?;
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        let base = NonNull::new(at.cast()).ok_or(ClientError::Unexpected("a mapping at address 0"))?;
        Ok(OwnedPages { base, bytes })
    }
}

impl Drop for OwnedPages {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, whose address no one else has any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Registered memory that this object owns.
#[derive(Debug)]
pub struct MemoryRegion {
    pd: ProtectionDomain,
    /// `None` only while it is dropped.
    parts: Option<(OwnedPages, RawMr)>,
    len: usize,
    addr: u64,
    lkey: u32,
    rkey: u32,
}

/// A part of a region, for this program's work requests.
#[derive(Clone, Copy, Debug)]
pub struct LocalSlice<'a> {
    pub(crate) sge: Sge,
    region: PhantomData<&'a MemoryRegion>,
}

/// A part of a region as a peer's work requests name it. A program sends it to its peer as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSlice {
    /// Address of the first byte in the owner.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Remote key.
    pub rkey: u32,
}

impl RemoteSlice {
    /// Length of [`RemoteSlice::to_bytes`].
    pub const BYTES: usize = 20;

    /// The slice as bytes for the peer, numbers in network order.
    pub fn to_bytes(self) -> [u8; RemoteSlice::BYTES] {
        let mut bytes = [0; RemoteSlice::BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// The slice that a peer has sent; `None` when there are too few bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<RemoteSlice> {
        let (addr, rest) = bytes.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (rkey, _) = rest.split_first_chunk()?;
        let (addr, len) = (u64::from_be_bytes(*addr), u64::from_be_bytes(*len));
        Some(RemoteSlice { addr, len, rkey: u32::from_be_bytes(*rkey) })
    }
}

impl MemoryRegion {
    fn new(pd: &ProtectionDomain, len: usize, access: u32) -> Result<MemoryRegion> {
        let remote_writes = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
        if access & remote_writes != 0 && access & access::LOCAL_WRITE == 0 {
            return Err(ClientError::Invalid("a remote right to write needs LOCAL_WRITE (IBA 10.6.3.1)"));
        }
        if access & (access::ZERO_BASED | access::ON_DEMAND | access::HUGETLB) != 0 {
            return Err(ClientError::Invalid("a region of this kind is not offered by this interface"));
        }
        let pages = OwnedPages::new(len)?;
        let addr = pages.base.as_ptr() as usize;
        let range = MemoryRange { addr, len, iova: addr as u64, access, replaces: None };
        let raw = memory::register(pd.context().raw(), pd.handle(), range)?;
        let (lkey, rkey) = (raw.lkey, raw.rkey);
        Ok(MemoryRegion { pd: pd.clone(), parts: Some((pages, raw)), len, addr: addr as u64, lkey, rkey })
    }

    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    fn check(&self, range: &Range<usize>) -> Result<()> {
        let inside = range.start <= range.end && range.end <= self.len;
        if inside { Ok(()) } else { Err(ClientError::Invalid("the range is not inside the memory region")) }
    }

    /// A part of the region for a work request of this program.
    ///
    /// # Errors
    /// EINVAL when the range is not inside the region, or has 4 GiB or more.
    pub fn slice(&self, range: Range<usize>) -> Result<LocalSlice<'_>> {
        self.check(&range)?;
        let length = u32::try_from(range.len()).map_err(|_| ClientError::Invalid("an SGE has less than 4 GiB"))?;
        let sge = Sge { addr: self.addr + range.start as u64, length, lkey: self.lkey };
        Ok(LocalSlice { sge, region: PhantomData })
    }

    /// A part of the region for the work requests of a peer.
    ///
    /// # Errors
    /// EINVAL when the range is not inside the region.
    pub fn remote(&self, range: Range<usize>) -> Result<RemoteSlice> {
        self.check(&range)?;
        Ok(RemoteSlice { addr: self.addr + range.start as u64, len: range.len() as u64, rkey: self.rkey })
    }

    /// Address of byte `offset`, which is inside the region.
    fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.len);
        let base = self.parts.as_ref().map_or(NonNull::dangling(), |(pages, _)| pages.base);
        // SAFETY: the mapping has at least `len` bytes, and the callers have checked the offset.
        unsafe { base.add(offset) }
    }

    fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: inside the mapping, which lives as long as `self` and is accessed through atomics only.
        unsafe { AtomicU8::from_ptr(self.at(offset).as_ptr()) }
    }

    /// Copies bytes from `offset` on out of the region. Bytes that a peer is writing at the time may be old or new, each by
    /// itself.
    ///
    /// # Errors
    /// EINVAL when the bytes are not all inside the region.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.check(&(offset..offset.saturating_add(to.len())))?;
        let mut done = 0;
        while done < to.len() {
            let (at, rest) = (offset + done, &mut to[done..]);
            // Whole words where both are there: eight times fewer accesses.
            if at.is_multiple_of(WORD) && rest.len() >= WORD {
                let word = self.word(at)?.load(Ordering::Relaxed);
                rest[..WORD].copy_from_slice(&word.to_ne_bytes());
                done += WORD;
            } else {
                rest[0] = self.byte(at).load(Ordering::Relaxed);
                done += 1;
            }
        }
        Ok(())
    }

    /// Copies bytes into the region from `offset` on.
    ///
    /// # Errors
    /// EINVAL when the bytes are not all inside the region.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.check(&(offset..offset.saturating_add(from.len())))?;
        let mut done = 0;
        while done < from.len() {
            let (at, rest) = (offset + done, &from[done..]);
            match rest.first_chunk::<WORD>() {
                Some(word) if at.is_multiple_of(WORD) => {
                    self.word(at)?.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
                    done += WORD;
                }
                _ => {
                    self.byte(at).store(rest[0], Ordering::Relaxed);
                    done += 1;
                }
            }
        }
        Ok(())
    }

    /// The eight bytes at `offset` as an atomic number: what peers count with atomic requests, or a flag that they write last.
    ///
    /// # Errors
    /// EINVAL when the bytes are not inside the region, or `offset` is not a multiple of 8.
    pub fn word(&self, offset: usize) -> Result<&AtomicU64> {
        self.check(&(offset..offset.saturating_add(WORD)))?;
        if !offset.is_multiple_of(WORD) {
            return Err(ClientError::Invalid("the offset of a word is a multiple of 8"));
        }
        // SAFETY: inside the mapping, which lives as long as `self`, and aligned: mappings begin at a page.
        Ok(unsafe { AtomicU64::from_ptr(self.at(offset).as_ptr().cast()) })
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let Some((pages, raw)) = self.parts.take() else { return };
        let context = self.pd.context().raw();
        match context.end_object(&Request::DeregMr { mr: raw.handle }) {
            Ok(()) => {
                memory::unshare(context, raw.registration);
                drop(pages);
            }
            // The daemon may still write to the memory: it is never used for anything else.
            Err(_) => std::mem::forget((pages, raw.registration)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_slice_travels_as_bytes() {
        let slice = RemoteSlice { addr: 0x1234_5678_9abc_def0, len: 1 << 33, rkey: 0xfeed_beef };
        assert_eq!(RemoteSlice::from_bytes(&slice.to_bytes()), Some(slice));
        assert_eq!(RemoteSlice::from_bytes(&slice.to_bytes()[1..]), None);
    }
}
