//! A memory region and its mapping into the daemon (daemon side).
//!
//! An application describes a region by *pieces*: descriptors of shared memory with offset and length. They are
//! mapped one after the other into one reserved range, so that translation is one addition. A descriptor is
//! mapped only if it is sealed against shrinking and long enough: otherwise a truncation would be a SIGBUS here.
//! A region that cannot be mapped is reached in its process, by system calls.

use crate::holes::{FillAllowance, HoleGuard, watch_missing};
use burst_base::Reason;
use burst_base::verbs::access;
use burst_ledger::Charge;
use burst_span::{DeviceNumber, ProcessMemory, Span};
use rustix::fs::SealFlags;
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Most pieces of a region.
pub const PIECES_MAX: usize = 8;
/// The rights to write through a region: if a region has one of them, it is mapped writable.
pub const WRITE_RIGHTS: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
/// Bytes of an ordinary page.
const PAGE: u64 = 4096;
/// `f_type` of hugetlbfs (`HUGETLBFS_MAGIC`, linux/magic.h).
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// A part of a region: `len` bytes of a descriptor's file from `offset` on.
#[derive(Clone, Copy, Debug)]
pub struct MapPiece<'a> {
    /// Descriptor of shared memory.
    pub fd: BorrowedFd<'a>,
    /// Offset of the part in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Why a region was not mapped. The application may ask again for a region that is reached in its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapRefused {
    /// A descriptor is not a memfd sealed against shrinking.
    #[error("the memory is not sealed against shrinking: it is reached in its process only")]
    Unsealed,
    /// A piece lies outside its file.
    #[error("a piece lies outside its file")]
    OutOfFile,
    /// No pieces, too many, a length of zero, or pieces that do not join at page boundaries.
    #[error("the pieces cannot be mapped one after the other")]
    NotContiguous,
    /// Missing pages of the memory cannot be watched: a descriptor without the right to write, or too many mappings.
    #[error("missing pages of the memory cannot be watched: it is reached in its process only")]
    Unwatched,
    /// A system call failed.
    #[error("mapping failed: {0}")]
    Os(#[from] rustix::io::Errno),
}

/// How the daemon reaches the bytes of a region.
#[derive(Debug)]
pub enum Mapping {
    /// Mapped in the daemon.
    Local(LocalMapping),
    /// In the memory of the process that registered it, by system calls.
    InProcess {
        /// Memory of that process.
        memory: Arc<ProcessMemory>,
        /// Address of the first byte there.
        addr: u64,
    },
    /// No bytes: a region of length 0.
    Nothing,
    /// No memory: writes vanish and reads give zeroes ([`Region::null`]).
    Null,
    /// Memory that must not be accessed at present: its program forks.
    Held,
    /// As `InProcess`, while the program forks: what cannot be reached is late.
    Forking {
        /// Memory of that process.
        memory: Arc<ProcessMemory>,
        /// Address of the first byte there.
        addr: u64,
    },
    /// No memory: reads give bytes that depend on the offset in the region alone, and writes are compared with them
    /// ([`Span::pattern`]).
    Pattern,
    /// Memory of a device, which the program itself copies for this process ([`Span::device`]).
    Device {
        /// Number of the program's copier.
        copier: DeviceNumber,
        /// Address of the first byte on the device.
        addr: u64,
    },
}

impl Mapping {
    /// The same mapping; `charge` is given back when it is unmapped. Nothing but mapped memory is charged.
    #[must_use]
    pub fn charged(mut self, charge: Charge) -> Mapping {
        if let Mapping::Local(local) = &mut self {
            local.charge = Some(Box::new(charge));
        }
        self
    }
}

/// A range mapped into this process; dropping unmaps it.
#[derive(Debug)]
pub struct LocalMapping {
    /// First byte of the region.
    base: *mut u8,
    /// First byte of the address range that was reserved for the mapping.
    reserved: *mut core::ffi::c_void,
    /// Length of the reservation in bytes.
    reserved_len: usize,
    /// Whether the range is the program's, in whose process this code runs: it stays when the mapping is dropped.
    is_own: bool,
    /// The watch over missing pages; `None` where the table of watches is full.
    guard: Option<HoleGuard>,
    /// What the program pays for the mapping. Given back when it is unmapped, not when the region is deregistered.
    charge: Option<Box<Charge>>,
}

// SAFETY: the memory is reached through spans only; the struct itself is immutable.
unsafe impl Send for LocalMapping {}
// SAFETY: as above.
unsafe impl Sync for LocalMapping {}

impl Drop for LocalMapping {
    fn drop(&mut self) {
        // Before the addresses are free for another mapping.
        self.guard = None;
        if self.is_own {
            return;
        }
        // SAFETY: our own reservation; the table's `reclaim` has waited for the end of the turn.
        let _ = unsafe { rustix::mm::munmap(self.reserved, self.reserved_len) };
        self.charge = None;
    }
}

/// A registered memory region. Shared by the workers' tables.
#[derive(Debug)]
pub struct Region {
    /// The number that is both lkey and rkey.
    pub key: u32,
    /// Number of the protection domain.
    pub pd: u32,
    /// Address that requests use for the first byte (0 for zero-based regions).
    pub iova: u64,
    /// Length in bytes.
    pub len: u64,
    /// Rights: `base::verbs::access` bits.
    pub access: u32,
    /// How the bytes are reached.
    pub mapping: Mapping,
    /// How many windows are bound to it, for regions that allow windows. All registrations under one key share the number.
    pub windows: Option<Arc<AtomicU32>>,
}

impl Region {
    /// A region of `len` bytes over `mapping`. A local mapping must be as long as the region (panics otherwise): that is why
    /// each span inside the region lies inside the mapping.
    pub fn new(key: u32, pd: u32, iova: u64, len: u64, access: u32, mapping: Mapping) -> Region {
        if let Mapping::Local(local) = &mapping {
            assert!(len <= local.bytes(), "the mapping is as long as the region");
        }
        assert!(!matches!(mapping, Mapping::Nothing) || len == 0, "a region without memory has no bytes");
        let windows = (access & access::MW_BIND != 0).then(Arc::default);
        Region { key, pd, iova, len, access, mapping, windows }
    }
    /// This region with the windows of the one that had its key before: what was bound to that is bound to this.
    #[must_use]
    pub fn with_windows(mut self, former: Option<Arc<AtomicU32>>) -> Region {
        self.windows = former.or(self.windows);
        self
    }
    /// How many windows are bound to the region.
    pub fn windows(&self) -> u32 {
        self.windows.as_ref().map_or(0, |windows| windows.load(Ordering::Relaxed))
    }
    /// Notes a window that is bound to the region.
    pub(crate) fn add_window(&self) {
        if let Some(windows) = &self.windows {
            windows.fetch_add(1, Ordering::Relaxed);
        }
    }
    /// Notes that a window is no longer bound to the region.
    pub(crate) fn forget_window(&self) {
        let before = self.windows.as_ref().map(|windows| windows.fetch_sub(1, Ordering::Relaxed));
        debug_assert_ne!(before, Some(0), "a window that was noted");
    }
    /// A null region (`ibv_alloc_null_mr`): any address and length is inside, writes vanish and reads give zeroes. It is for
    /// local use only: no right lets a peer in.
    pub fn null(key: u32, pd: u32) -> Region {
        Region { key, pd, iova: 0, len: u64::MAX, access: access::LOCAL_WRITE, mapping: Mapping::Null, windows: None }
    }
    /// Bytes of address space that a mapping of `pieces` takes, with what is lost to alignment.
    ///
    /// # Errors
    /// The pieces cannot be mapped.
    pub fn mapped_bytes(pieces: &[MapPiece<'_>]) -> Result<u64, MapRefused> {
        reservation(pieces).map(|(bytes, _)| bytes)
    }
    /// The region while its program forks: the same keys, range and rights, but each access is late.
    pub fn held(&self) -> Region {
        Region { mapping: Mapping::Held, windows: self.windows.clone(), ..*self }
    }
    /// The region while its program forks, and its bytes are in the program's memory at `addr`: they are reached there.
    pub fn forking(&self, memory: Arc<ProcessMemory>, addr: u64) -> Region {
        Region { mapping: Mapping::Forking { memory, addr }, windows: self.windows.clone(), ..*self }
    }
    /// Maps `pieces` one after the other; writable only if `access` has a right to write.
    pub fn map(pieces: &[MapPiece<'_>], access: u32) -> Result<Mapping, MapRefused> {
        LocalMapping::new(pieces, access & WRITE_RIGHTS != 0, None).map(Mapping::Local)
    }
    /// [`Region::map`] for a program that is not trusted: missing pages are allocated from `allowance` only.
    pub fn map_untrusted(
        pieces: &[MapPiece<'_>],
        access: u32,
        allowance: &Arc<FillAllowance>,
    ) -> Result<Mapping, MapRefused> {
        LocalMapping::new(pieces, access & WRITE_RIGHTS != 0, Some(allowance)).map(Mapping::Local)
    }
    /// Reaches `memory` from `addr` on by system calls.
    pub fn in_process(memory: Arc<ProcessMemory>, addr: u64) -> Mapping {
        Mapping::InProcess { memory, addr }
    }
    /// `len` bytes of this process's own memory at `addr`, reached by their address. Accesses fail if the program unmaps the
    /// bytes, and reach pages that it protects, where faults can be caught ([`burst_span::catch_faults`]).
    ///
    /// # Safety
    /// The bytes are the program's: no Rust object is there that would be changed behind its back. Where faults cannot be caught,
    /// they stay mapped until the region has been removed from the workers' tables, with the rights that the region has.
    pub unsafe fn own(addr: u64, len: u64) -> Mapping {
        burst_span::catch_faults();
        let base = addr as *mut u8;
        let reserved_len = len as usize;
        Mapping::Local(LocalMapping {
            base,
            reserved: base.cast(),
            reserved_len,
            is_own: true,
            guard: None,
            charge: None,
        })
    }
    /// Whether a page of the mapping was missing and could not be allocated: the bytes are lost.
    pub fn is_broken(&self) -> bool {
        matches!(&self.mapping, Mapping::Local(local) if local.guard.as_ref().is_some_and(HoleGuard::is_broken))
    }
    /// Whether `len` bytes at `addr` (in the region's own addresses) are all inside.
    pub fn contains(&self, addr: u64, len: u64) -> bool {
        addr.checked_sub(self.iova).is_some_and(|offset| offset <= self.len && len <= self.len - offset)
    }
    /// Why [`Region::span`] gives nothing: `outside`, or that a page of the memory does not come.
    #[cold]
    pub(crate) fn refusal(&self, outside: Reason) -> Reason {
        match &self.mapping {
            Mapping::InProcess { memory, .. } if memory.has_failed() => Reason::PageMissing,
            Mapping::Local(_) if self.is_broken() => Reason::PageRemoved,
            _ => outside,
        }
    }
    /// `len` bytes at `addr` (in the region's own addresses); None when they are not all inside, or when a page of the memory
    /// does not come.
    #[inline]
    pub fn span(&self, addr: u64, len: u32) -> Option<Span> {
        let offset = addr.checked_sub(self.iova)?;
        if offset > self.len || u64::from(len) > self.len - offset {
            return None;
        }
        if let Mapping::Local(m) = &self.mapping {
            // SAFETY: inside the mapping, which is as long as the region (asserted in `new`); it stays mapped until the region is
            // reclaimed between turns. Without a right to write, `local`/`remote` hand the span to readers only.
            return Some(unsafe { Span::local(m.base.add(offset as usize), len) });
        }
        self.span_elsewhere(offset, len)
    }
    /// [`Region::span`] of a region that is not mapped here. Not inlined: mapped memory must not pay for it.
    #[cold]
    #[inline(never)]
    fn span_elsewhere(&self, offset: u64, len: u32) -> Option<Span> {
        match &self.mapping {
            Mapping::InProcess { memory, .. } if memory.has_failed() => None,
            // The descriptor stays open as long as the region exists.
            Mapping::InProcess { memory, addr } => Some(memory.span(addr.wrapping_add(offset), len)),
            Mapping::Null => Some(Span::null(len)),
            Mapping::Pattern => Some(Span::pattern(offset, len)),
            Mapping::Device { copier, addr } => Some(Span::device(*copier, addr.wrapping_add(offset), len)),
            Mapping::Held => Some(Span::held(len)),
            Mapping::Forking { memory, addr } => Some(memory.span_in_fork(addr.wrapping_add(offset), len)),
            Mapping::Nothing if len == 0 => Some(Span::nothing()),
            Mapping::Nothing | Mapping::Local(_) => None,
        }
    }
}

impl LocalMapping {
    fn new(
        pieces: &[MapPiece<'_>],
        writable: bool,
        allowance: Option<&Arc<FillAllowance>>,
    ) -> Result<LocalMapping, MapRefused> {
        let (len, align) = reservation(pieces)?;
        let len = usize::try_from(len).map_err(|_| MapRefused::NotContiguous)?;
        let lead = pieces[0].offset % page_size(&pieces[0])?;
        check_fault()?;
        // SAFETY: a new reservation at an address that the kernel chooses.
        let reserved = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::empty(), RESERVE)? };
        // From here on every return unmaps the reservation, by `drop`.
        let start = (reserved as u64).next_multiple_of(align);
        let guard = HoleGuard::new(reserved as usize, len, allowance);
        if guard.is_none() && allowance.is_some() {
            return Err(MapRefused::Unwatched);
        }
        let mapping = LocalMapping {
            base: (start + lead) as *mut u8,
            reserved,
            reserved_len: len,
            is_own: false,
            guard,
            charge: None,
        };
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let mut at = start;
        for piece in pieces {
            // SAFETY: the piece's pages lie inside our reservation from `at` on: `reservation` added up the same numbers.
            at += unsafe { map_piece(piece, at, prot, allowance.is_some())? };
        }
        assert!(at <= reserved as u64 + len as u64, "the pieces lie inside the reservation");
        Ok(mapping)
    }
    /// Mapped bytes from the first byte of the region on, at most.
    fn bytes(&self) -> u64 {
        self.reserved as u64 + self.reserved_len as u64 - self.base as u64
    }
}

/// Maps the pages of a piece at an address; returns their bytes. `is_watched`: missing ones are to show as SIGBUS.
///
/// # Safety
/// The addresses are a reservation of the caller's.
unsafe fn map_piece(piece: &MapPiece<'_>, at: u64, prot: ProtFlags, is_watched: bool) -> Result<u64, MapRefused> {
    let size = page_size(piece)?;
    let first = piece.offset / size * size;
    let bytes = (piece.offset + piece.len).next_multiple_of(size) - first;
    check_fault()?;
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: as the caller promises.
    unsafe { rustix::mm::mmap(at as *mut _, bytes as usize, prot, flags, piece.fd, first)? };
    // Huge pages are not charged to the memory of a control group.
    if is_watched && size == PAGE && !watch_missing(at as usize, bytes as usize) {
        return Err(MapRefused::Unwatched);
    }
    Ok(bytes)
}

const RESERVE: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// A mapping that a test lets fail.
fn check_fault() -> Result<(), MapRefused> {
    if burst_base::fault::fails() { Err(rustix::io::Errno::NOMEM.into()) } else { Ok(()) }
}

/// Bytes of the range that is reserved for pieces, and the alignment of the first piece in it.
fn reservation(pieces: &[MapPiece<'_>]) -> Result<(u64, u64), MapRefused> {
    if pieces.is_empty() || pieces.len() > PIECES_MAX {
        return Err(MapRefused::NotContiguous);
    }
    let align = pieces.iter().try_fold(PAGE, |most, p| page_size(p).map(|size| size.max(most)))?;
    let total = check_joints(pieces)?;
    let bytes = total.checked_next_multiple_of(align).and_then(|bytes| bytes.checked_add(align));
    // Pieces that are longer than an address space together would be mapped over whatever lies behind the range.
    bytes.map(|bytes| (bytes, align)).ok_or(MapRefused::NotContiguous)
}

/// Checks that every piece but the last ends, and every piece but the first begins, at a boundary of its pages, and
/// that huge pieces fall on addresses that suit them. Returns the bytes from the start of the first page on.
fn check_joints(pieces: &[MapPiece<'_>]) -> Result<u64, MapRefused> {
    let mut at = 0u64;
    for (i, piece) in pieces.iter().enumerate() {
        let size = page_size(piece)?;
        let first = piece.offset / size * size;
        let last = i + 1 == pieces.len();
        let end = piece.offset + piece.len;
        let joined = (i == 0 || piece.offset == first) && (last || end.is_multiple_of(size));
        if !joined || !at.is_multiple_of(size) {
            return Err(MapRefused::NotContiguous);
        }
        let end = end.checked_next_multiple_of(size).ok_or(MapRefused::NotContiguous)?;
        at = at.checked_add(end - first).ok_or(MapRefused::NotContiguous)?;
    }
    Ok(at)
}

/// Checks the seals and the size of a piece's file; returns the size of its pages.
fn page_size(piece: &MapPiece<'_>) -> Result<u64, MapRefused> {
    // Seals before the size: once sealed, the size cannot shrink any more.
    let seals = rustix::fs::fcntl_get_seals(piece.fd).map_err(|_| MapRefused::Unsealed)?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(MapRefused::Unsealed);
    }
    let size = rustix::fs::fstat(piece.fd)?.st_size as u64;
    let end = piece.offset.checked_add(piece.len).ok_or(MapRefused::OutOfFile)?;
    if piece.len == 0 || end > size {
        return Err(MapRefused::OutOfFile);
    }
    let fs = rustix::fs::fstatfs(piece.fd)?;
    Ok(if fs.f_type as i64 == HUGETLBFS_MAGIC { fs.f_bsize as u64 } else { PAGE })
}
