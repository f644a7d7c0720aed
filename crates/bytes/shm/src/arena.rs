//! Segments (sealed memfds, mapped) and the arena of a context (allocation of queues inside segments).
//!
//! The daemon makes segments, seals them against shrinking, growing and further sealing, and only then maps them:
//! no process that holds the descriptor can turn an access of another into a SIGBUS by truncation. A segment is
//! sparse, untouched pages cost nothing. Whoever receives a descriptor verifies size and seals before mapping.
//!
//! The allocator is first fit over a map of free ranges, merged on free. Everything it hands out is 64-aligned and
//! zero: fresh pages are, and freed space is zeroed when it is freed, whole pages by punching a hole (which also
//! gives the memory back). It belongs to the control path; its bookkeeping lives in the daemon, not in the arena.
use crate::area::Area;
use crate::layout::{ABI_VERSION, CONTEXT_MAGIC, ContextPage, SEGMENT_BYTES, ShmRef};
use core::mem::{offset_of, size_of};
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Release;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Most segments of one arena.
pub const ARENA_SEGMENTS_MAX: usize = 256;
/// Most bytes of one arena, all segments together (address space; pages cost memory when touched).
pub const ARENA_BYTES_MAX: u64 = 16 << 30;
/// Largest segment: offsets are 32 bits.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 31;
/// Freed ranges of at least this size are given back to the system rather than overwritten.
pub const PUNCH_BYTES_MIN: usize = 64 << 10;
const PAGE: usize = 4096;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Why a segment could not be made or was refused.
#[derive(Debug, PartialEq, Eq)]
pub enum SegmentError {
    /// A system call failed.
    Os(rustix::io::Errno),
    /// The descriptor is not a memfd sealed against shrinking.
    Unsealed,
    /// The size is zero, not whole pages, or beyond [`SEGMENT_BYTES_MAX`].
    BadSize,
    /// Made by another version of Burst, or not a Burst page.
    BadVersion,
    /// The arena has reached [`ARENA_SEGMENTS_MAX`] or [`ARENA_BYTES_MAX`].
    ArenaFull,
}

impl From<rustix::io::Errno> for SegmentError {
    fn from(e: rustix::io::Errno) -> Self {
        SegmentError::Os(e)
    }
}

impl core::fmt::Display for SegmentError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SegmentError::Os(e) => write!(f, "shared memory: {e}"),
            SegmentError::Unsealed => f.write_str("shared memory is not sealed against shrinking"),
            SegmentError::BadSize => f.write_str("shared memory has an impossible size"),
            SegmentError::BadVersion => f.write_str("shared memory is of another version of Burst"),
            SegmentError::ArenaFull => f.write_str("the context has reached its limit of shared memory"),
        }
    }
}

impl std::error::Error for SegmentError {}

/// A mapped piece of shared memory. Dropping unmaps.
#[derive(Debug)]
pub struct Segment {
    fd: Option<OwnedFd>,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is reached through `Area` only, which uses atomics.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes, seals and maps a sparse segment of `bytes` (whole pages).
    pub fn create(bytes: usize) -> Result<Segment, SegmentError> {
        let fd = memfd(bytes)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        Segment::map(fd)
    }
    /// As [`Segment::create`], but later mappings can only be read-only.
    pub(crate) fn create_read_only_for_others(bytes: usize) -> Result<Segment, SegmentError> {
        let fd = memfd(bytes)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS.difference(SealFlags::SEAL))?;
        let segment = Segment::map(fd)?;
        let fd = segment.fd().ok_or(SegmentError::Unsealed)?;
        rustix::fs::fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok(segment)
    }
    /// Maps a segment received from another process, after checking its seals and size.
    pub fn map(fd: OwnedFd) -> Result<Segment, SegmentError> {
        Segment::map_as(fd, ProtFlags::READ | ProtFlags::WRITE)
    }
    /// As [`Segment::map`], for reading only.
    pub fn map_read_only(fd: OwnedFd) -> Result<Segment, SegmentError> {
        Segment::map_as(fd, ProtFlags::READ)
    }
    fn map_as(fd: OwnedFd, prot: ProtFlags) -> Result<Segment, SegmentError> {
        // Seals first: once sealed, the size that we read cannot change any more.
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| SegmentError::Unsealed)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(SegmentError::Unsealed);
        }
        let size = rustix::fs::fstat(&fd)?.st_size as u64;
        if size == 0 || size > SEGMENT_BYTES_MAX || !size.is_multiple_of(PAGE as u64) {
            return Err(SegmentError::BadSize);
        }
        let len = size as usize;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { rustix::mm::mmap(core::ptr::null_mut(), len, prot, MapFlags::SHARED, &fd, 0)? };
        Ok(Segment { fd: Some(fd), base: NonNull::new(base.cast()).ok_or(SegmentError::BadSize)?, len })
    }
    /// Memory of this process only: nothing can be sent to another process.
    pub fn anonymous(bytes: usize) -> Result<Segment, SegmentError> {
        let len = bytes.next_multiple_of(PAGE);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), len, prot, MapFlags::SHARED)? };
        Ok(Segment { fd: None, base: NonNull::new(base.cast()).ok_or(SegmentError::BadSize)?, len })
    }
    /// The descriptor to send to the other side; None for [`Segment::anonymous`].
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }
    /// First byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }
    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }
    /// Gives the whole pages of a range back to the system. False if that is not possible.
    fn punch(&self, offset: usize, len: usize) -> bool {
        let (first, last) = (offset.next_multiple_of(PAGE), (offset + len) / PAGE * PAGE);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        first < last
            && self
                .fd
                .as_ref()
                .is_some_and(|fd| rustix::fs::fallocate(fd, flags, first as u64, (last - first) as u64).is_ok())
    }
    /// Zeroes a range, giving whole pages back to the system when it is large.
    fn zero(&self, offset: usize, len: usize) {
        assert!(offset <= self.len && len <= self.len - offset);
        let (first, last) = (offset.next_multiple_of(PAGE), (offset + len) / PAGE * PAGE);
        let punched = len >= PUNCH_BYTES_MIN && self.punch(offset, len);
        let wipe = |from: usize, to: usize| {
            // SAFETY: inside the mapping; the range is free, no queue uses it. A hostile application may write at
            // the same time and spoils its own memory only.
            unsafe { core::ptr::write_bytes(self.base.as_ptr().add(from), 0, to - from) }
        };
        if punched {
            wipe(offset, first);
            wipe(last, offset + len);
        } else {
            wipe(offset, offset + len);
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: our mapping; every `Area` keeps the segment alive, so nobody uses it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn memfd(bytes: usize) -> Result<OwnedFd, SegmentError> {
    if bytes == 0 || bytes as u64 > SEGMENT_BYTES_MAX || !bytes.is_multiple_of(PAGE) {
        return Err(SegmentError::BadSize);
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("burst", flags)?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    Ok(fd)
}

/// One segment of an arena with its free ranges (offset to length).
#[derive(Debug)]
struct ArenaSegment {
    segment: Arc<Segment>,
    free: BTreeMap<usize, usize>,
}

impl ArenaSegment {
    /// From the end of the first range that is long enough: so the range keeps its place in the map.
    fn take(&mut self, len: usize) -> Option<usize> {
        let (&offset, have) = self.free.iter_mut().find(|(_, have)| **have >= len)?;
        *have -= len;
        let taken = offset + *have;
        if taken == offset {
            self.free.remove(&offset);
        }
        Some(taken)
    }
    fn give(&mut self, mut offset: usize, mut len: usize) {
        if let Some((&before, &have)) = self.free.range(..offset).next_back() {
            assert!(before + have <= offset, "freed twice");
            if before + have == offset {
                self.free.remove(&before);
                (offset, len) = (before, have + len);
            }
        }
        if let Some((&after, &have)) = self.free.range(offset + 1..).next() {
            assert!(offset + len <= after, "freed twice");
            if offset + len == after {
                self.free.remove(&after);
                len += have;
            }
        }
        self.free.insert(offset, len);
    }
}

/// The daemon's end of a context's shared memory. Control thread only.
#[derive(Debug)]
pub struct Arena {
    rooms: Vec<ArenaSegment>,
    bytes: u64,
    /// What was handed out: a free must name it exactly.
    used: BTreeMap<(u32, u32), usize>,
}

impl Arena {
    /// An arena with its first segment, which begins with the [`ContextPage`].
    pub fn new() -> Result<Arena, SegmentError> {
        let mut arena = Arena { rooms: Vec::new(), bytes: 0, used: BTreeMap::new() };
        let at = arena.alloc(size_of::<ContextPage>())?;
        assert_eq!(at, ShmRef::default(), "the context page lies at the beginning");
        let page = arena.area(at, size_of::<ContextPage>()).ok_or(SegmentError::BadSize)?;
        page.word32(offset_of!(ContextPage, version)).store(ABI_VERSION, Release);
        page.word32(offset_of!(ContextPage, magic)).store(CONTEXT_MAGIC, Release);
        Ok(arena)
    }
    /// `bytes` zero bytes, 64-aligned. May add a segment: send [`Arena::segment_fd`]s from the number that the
    /// application had to [`Arena::segments`].
    pub fn alloc(&mut self, bytes: usize) -> Result<ShmRef, SegmentError> {
        let len = bytes.max(1).checked_next_multiple_of(64).ok_or(SegmentError::BadSize)?;
        for (number, room) in self.rooms.iter_mut().enumerate() {
            if let Some(offset) = room.take(len) {
                return Ok(self.note(number, offset, len));
            }
        }
        let size = (len as u64).next_multiple_of(SEGMENT_BYTES);
        if self.rooms.len() == ARENA_SEGMENTS_MAX || self.bytes + size > ARENA_BYTES_MAX {
            return Err(SegmentError::ArenaFull);
        }
        let segment = Arc::new(Segment::create(usize::try_from(size).map_err(|_| SegmentError::BadSize)?)?);
        // The first piece of an arena is its context page, which lies at the beginning.
        let begun = if self.rooms.is_empty() { len } else { 0 };
        let mut room = ArenaSegment { free: BTreeMap::from([(begun, segment.len() - begun)]), segment };
        let offset = if begun > 0 { 0 } else { room.take(len).ok_or(SegmentError::BadSize)? };
        self.rooms.push(room);
        self.bytes += size;
        Ok(self.note(self.rooms.len() - 1, offset, len))
    }
    fn note(&mut self, number: usize, offset: usize, len: usize) -> ShmRef {
        let at = ShmRef { segment: number as u32, offset: offset as u32 };
        self.used.insert((at.segment, at.offset), len);
        at
    }
    /// Gives back what [`Arena::alloc`] returned; no queue end may use it any more. False: it was not handed out.
    pub fn free(&mut self, at: ShmRef) -> bool {
        let Some(len) = self.used.remove(&(at.segment, at.offset)) else { return false };
        let room = &mut self.rooms[at.segment as usize];
        room.segment.zero(at.offset as usize, len);
        room.give(at.offset as usize, len);
        true
    }
    /// Gives the pages of free ranges back to the system: small queues are overwritten when they are freed, and their pages
    /// stay.
    pub fn trim(&self) {
        for room in &self.rooms {
            for (offset, len) in room.free.iter().filter(|(_, len)| **len >= PUNCH_BYTES_MIN) {
                room.segment.punch(*offset, *len);
            }
        }
    }
    /// The bytes at `at`, for a queue end.
    pub fn area(&self, at: ShmRef, len: usize) -> Option<Area> {
        Area::new(&self.rooms.get(at.segment as usize)?.segment, at.offset as usize, len)
    }
    /// The context page.
    pub fn context(&self) -> Area {
        self.area(ShmRef::default(), size_of::<ContextPage>()).expect("segment 0 begins with the context page")
    }
    /// Number of segments.
    pub fn segments(&self) -> usize {
        self.rooms.len()
    }
    /// Descriptor of segment `number`, to be sent to the application.
    pub fn segment_fd(&self, number: usize) -> Option<BorrowedFd<'_>> {
        self.rooms.get(number)?.segment.fd()
    }
    /// Bytes handed out.
    pub fn used_bytes(&self) -> usize {
        self.used.values().sum()
    }
}

/// The application's end of its context's shared memory.
#[derive(Debug, Default)]
pub struct ArenaView {
    segments: Vec<Arc<Segment>>,
}

impl ArenaView {
    /// A view without segments.
    pub fn new() -> ArenaView {
        ArenaView::default()
    }
    /// Adds the next segment, in the order of the daemon's numbers.
    pub fn add(&mut self, segment: Segment) {
        self.segments.push(Arc::new(segment));
    }
    /// Number of segments.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }
    /// `len` bytes at `at`; None when they are not inside a segment or not 64-aligned.
    pub fn area(&self, at: ShmRef, len: usize) -> Option<Area> {
        Area::new(self.segments.get(at.segment as usize)?, at.offset as usize, len)
    }
    /// Address of `len` bytes at `at`.
    pub fn ptr(&self, at: ShmRef, len: usize) -> Option<NonNull<u8>> {
        self.area(at, len).and_then(|a| NonNull::new(a.as_ptr()))
    }
    /// The context page, if segment 0 is there and is of this version.
    pub fn context(&self) -> Result<Area, SegmentError> {
        let page = self.area(ShmRef::default(), size_of::<ContextPage>()).ok_or(SegmentError::BadSize)?;
        let word = |offset| page.word32(offset).load(core::sync::atomic::Ordering::Acquire);
        let good = word(offset_of!(ContextPage, magic)) == CONTEXT_MAGIC
            && word(offset_of!(ContextPage, version)) == ABI_VERSION;
        if good { Ok(page) } else { Err(SegmentError::BadVersion) }
    }
}
