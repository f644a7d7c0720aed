//! Segments (sealed memfds, mapped) and the arena of a context (allocation of queues inside segments).
//!
//! The daemon makes segments, seals them against shrinking, growing and further sealing, and only then maps them:
//! no process that holds the descriptor can turn an access of another into a SIGBUS by truncation. A segment is
//! sparse, untouched pages cost nothing. The receiver of a descriptor verifies size and seals before mapping.
//!
//! The allocator is first fit over a map of free ranges, which are merged when space is freed. All space that it hands out is
//! 64-aligned and zero: fresh pages are zero, and space is zeroed when it is freed, whole pages by punching a hole (which
//! also gives the memory back to the system). The allocator belongs to the control path; its bookkeeping lies in the
//! daemon, not in the arena.
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
/// Alignment of all that the arena hands out, and unit of its lengths.
const ALIGN: usize = 64;
// Offsets in a segment fit `ShmRef::offset`, and a segment divides into the unit of allocation.
const _: () = assert!(
    SEGMENT_BYTES_MAX - 1 <= u32::MAX as u64 && SEGMENT_BYTES <= SEGMENT_BYTES_MAX && PAGE.is_multiple_of(ALIGN)
);
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
    /// The page was made by another version of Burst, or by another program.
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
        if burst_base::fault::fails() {
            return Err(rustix::io::Errno::NOMEM.into());
        }
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { rustix::mm::mmap(core::ptr::null_mut(), len, prot, MapFlags::SHARED, &fd, 0)? };
        Ok(Segment { fd: Some(fd), base: NonNull::new(base.cast()).ok_or(SegmentError::BadSize)?, len })
    }
    /// Memory of this process only, without a descriptor to send.
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
    /// Address of the first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }
    /// Length in bytes.
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
        // SAFETY: our mapping; every `Area` keeps the segment alive, so no area of it exists any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn memfd(bytes: usize) -> Result<OwnedFd, SegmentError> {
    if bytes == 0 || bytes as u64 > SEGMENT_BYTES_MAX || !bytes.is_multiple_of(PAGE) {
        return Err(SegmentError::BadSize);
    }
    if burst_base::fault::fails() {
        return Err(rustix::io::Errno::MFILE.into());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("burst", flags)?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    Ok(fd)
}

/// Bytes of a piece for `bytes`.
fn piece_len(bytes: usize) -> Result<usize, SegmentError> {
    bytes
        .max(1)
        .checked_next_multiple_of(ALIGN)
        .filter(|len| *len as u64 <= SEGMENT_BYTES_MAX)
        .ok_or(SegmentError::BadSize)
}

/// One segment of an arena with its free ranges (offset to length), which neither touch nor overlap.
#[derive(Debug)]
struct ArenaSegment {
    segment: Arc<Segment>,
    free: BTreeMap<usize, usize>,
}

impl ArenaSegment {
    /// Takes `len` bytes from the end of the first free range that is long enough; returns their offset. The end, so that
    /// what is left keeps its place in the map.
    fn take(&mut self, len: usize) -> Option<usize> {
        debug_assert!(len > 0 && len.is_multiple_of(ALIGN));
        let (&offset, have) = self.free.iter_mut().find(|(_, have)| **have >= len)?;
        *have -= len;
        let taken = offset + *have;
        if taken == offset {
            self.free.remove(&offset);
        }
        debug_assert!(taken + len <= self.segment.len() && self.is_consistent());
        Some(taken)
    }
    /// Makes `len` bytes at `offset` free, as one range with the free ranges that touch them. Panics if a part is free already.
    fn give(&mut self, mut offset: usize, mut len: usize) {
        assert!(
            len > 0 && offset <= self.segment.len() && len <= self.segment.len() - offset,
            "freed outside the segment"
        );
        if let Some((&before, &have)) = self.free.range(..=offset).next_back() {
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
        debug_assert!(self.is_consistent());
    }
    /// Whether the free ranges are aligned, inside the segment, and neither touch nor overlap.
    fn is_consistent(&self) -> bool {
        let mut end = None;
        self.free.iter().all(|(&offset, &len)| {
            let apart = end.is_none_or(|end| end < offset);
            end = Some(offset + len);
            apart && len > 0 && offset.is_multiple_of(ALIGN) && offset + len <= self.segment.len()
        })
    }
}

/// The daemon's end of a context's shared memory. Control thread only.
#[derive(Debug)]
pub struct Arena {
    rooms: Vec<ArenaSegment>,
    bytes: u64,
    /// Segment, offset and length of each piece that is handed out: a free must name a piece exactly.
    used: BTreeMap<(u32, u32), usize>,
    /// Whether [`Arena::keep_contents`] was called.
    keeps_contents: bool,
}

impl Arena {
    /// An arena with its first segment, which begins with the [`ContextPage`].
    pub fn new() -> Result<Arena, SegmentError> {
        let mut arena = Arena { rooms: Vec::new(), bytes: 0, used: BTreeMap::new(), keeps_contents: false };
        let at = arena.alloc(size_of::<ContextPage>())?;
        assert_eq!(at, ShmRef::default(), "the context page lies at the beginning");
        let page = arena.area(at, size_of::<ContextPage>()).ok_or(SegmentError::BadSize)?;
        page.word32(offset_of!(ContextPage, version)).store(ABI_VERSION, Release);
        page.word32(offset_of!(ContextPage, magic)).store(CONTEXT_MAGIC, Release);
        Ok(arena)
    }
    /// Hands out `bytes` zero bytes, 64-aligned. This may add segments: the application must then be sent each
    /// [`Arena::segment_fd`] from the number of segments that it has up to [`Arena::segments`].
    pub fn alloc(&mut self, bytes: usize) -> Result<ShmRef, SegmentError> {
        let len = piece_len(bytes)?;
        if burst_base::fault::fails() {
            return Err(SegmentError::ArenaFull);
        }
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
    /// Bytes of the segment that [`Arena::alloc`] would add for `bytes`; 0 if there is room.
    ///
    /// # Errors
    /// No segment is as long.
    pub fn growth(&self, bytes: usize) -> Result<u64, SegmentError> {
        let len = piece_len(bytes)?;
        let has_room = self.rooms.iter().any(|room| room.free.values().any(|have| *have >= len));
        Ok(if has_room { 0 } else { (len as u64).next_multiple_of(SEGMENT_BYTES) })
    }
    /// Remembers a piece that is handed out.
    fn note(&mut self, number: usize, offset: usize, len: usize) -> ShmRef {
        let at = ShmRef { segment: number as u32, offset: offset as u32 };
        let before = self.used.insert((at.segment, at.offset), len);
        assert!(before.is_none(), "handed out twice");
        at
    }
    /// Takes back a piece that [`Arena::alloc`] returned; no queue end may use it any more. False: it was not handed out.
    pub fn free(&mut self, at: ShmRef) -> bool {
        let Some(len) = self.used.remove(&(at.segment, at.offset)) else { return false };
        if self.keeps_contents {
            return true;
        }
        let room = &mut self.rooms[at.segment as usize];
        room.segment.zero(at.offset as usize, len);
        room.give(at.offset as usize, len);
        true
    }
    /// Takes back a piece with the segment that was added for it and not sent to the application. False: the segment is not the
    /// last one, or has other pieces; nothing has changed.
    pub fn withdraw(&mut self, at: ShmRef) -> bool {
        let is_last = at.segment > 0 && at.segment as usize + 1 == self.rooms.len();
        if !is_last || !self.used.range((at.segment, 0)..).map(|(piece, _)| *piece).eq([(at.segment, at.offset)]) {
            return false;
        }
        self.used.remove(&(at.segment, at.offset));
        if let Some(room) = self.rooms.pop() {
            self.bytes -= room.segment.len() as u64;
        }
        true
    }
    /// From now on a freed piece keeps its bytes, and is not handed out again. For a daemon that ends before its program: the
    /// program still polls the completions that are in its rings, and reads there which of its requests have none.
    pub fn keep_contents(&mut self) {
        self.keeps_contents = true;
    }
    /// Gives the pages of free ranges of at least [`PUNCH_BYTES_MIN`] back to the system. Small queues are only overwritten when
    /// they are freed, so their pages stay until then.
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
    /// Bytes that are handed out, rounded up to the allocator's unit.
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
    /// The `len` bytes at `at`; None when they are not inside a segment or not 64-aligned.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes of the segments in these tests, in units of [`ALIGN`].
    const UNITS: usize = 128;

    fn empty(units: usize) -> ArenaSegment {
        let segment = Arc::new(Segment::anonymous(units * ALIGN).expect("memory"));
        ArenaSegment { segment, free: BTreeMap::new() }
    }

    /// The free units as runs: first and length.
    fn runs(free: &[bool]) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (unit, _) in free.iter().enumerate().filter(|(_, free)| **free) {
            match runs.last_mut().filter(|(first, len)| first + len == unit) {
                Some((_, len)) => *len += 1,
                None => runs.push((unit, 1)),
            }
        }
        runs
    }

    proptest! {
        /// Freed in any order, ranges that touch are one, and a piece is taken from the end of the first that is long enough.
        #[test]
        fn free_ranges_like_a_bitmap(ops in prop::collection::vec((0usize..UNITS, 1usize..20, any::<bool>()), 1..120)) {
            let mut room = empty(UNITS);
            let mut free = [false; UNITS];
            for (first, len, give) in ops {
                if give {
                    let last = free[first..].iter().take(len).position(|free| *free).unwrap_or(len.min(UNITS - first));
                    if last > 0 {
                        room.give(first * ALIGN, last * ALIGN);
                        free[first..first + last].fill(true);
                    }
                } else {
                    let expect = runs(&free).into_iter().find(|(_, have)| *have >= len);
                    let expect = expect.map(|(first, have)| first + have - len);
                    prop_assert_eq!(room.take(len * ALIGN), expect.map(|unit| unit * ALIGN));
                    if let Some(unit) = expect {
                        free[unit..unit + len].fill(false);
                    }
                }
                let have: Vec<_> = room.free.iter().map(|(at, len)| (at / ALIGN, len / ALIGN)).collect();
                prop_assert_eq!(have, runs(&free));
            }
        }
    }

    #[test]
    fn space_cannot_be_freed_twice_or_outside() {
        let given = |pieces: &[(usize, usize)]| {
            let pieces = pieces.to_vec();
            std::panic::catch_unwind(move || {
                let mut room = empty(UNITS);
                pieces.iter().for_each(|(first, len)| room.give(first * ALIGN, len * ALIGN));
            })
        };
        assert!(given(&[(4, 4), (8, 4), (0, 4)]).is_ok(), "neighbours");
        assert!(given(&[(4, 4), (4, 4)]).is_err(), "the same piece");
        assert!(given(&[(4, 4), (7, 2)]).is_err(), "the end of the piece before");
        assert!(given(&[(4, 4), (2, 3)]).is_err(), "the beginning of the piece after");
        assert!(given(&[(4, 4), (3, 8)]).is_err(), "all of another piece");
        assert!(given(&[(0, UNITS)]).is_ok() && given(&[(1, UNITS)]).is_err() && given(&[(UNITS + 1, 0)]).is_err());
    }

    #[allow(clippy::mut_from_ref, reason = "shared memory, used by one thread here")]
    fn filled(segment: &Segment) -> &mut [u8] {
        // SAFETY: one thread, one slice at a time.
        unsafe { core::slice::from_raw_parts_mut(segment.base.as_ptr(), segment.len) }
    }

    #[test]
    fn exactly_the_freed_bytes_are_zeroed() {
        let segment = Segment::create(64 * PAGE).expect("a segment");
        let min = PUNCH_BYTES_MIN;
        for (offset, len) in [
            (0, min),
            (PAGE, min - 64),
            (64, min),
            (PAGE - 64, min + 128),
            (100 * 64, min + 7 * 64),
            (64 * PAGE - min, min),
            (0, 64 * PAGE),
            (PAGE, 0),
        ] {
            filled(&segment).fill(0xaa);
            segment.zero(offset, len);
            let zeroed = |i: usize| (offset..offset + len).contains(&i);
            let wrong =
                filled(&segment).iter().enumerate().find(|(i, byte)| **byte != if zeroed(*i) { 0 } else { 0xaa });
            assert_eq!(wrong, None, "{len} bytes at {offset}");
        }
        for (offset, len) in [(64 * PAGE, 64), (64, 64 * PAGE), (65 * PAGE, 0)] {
            assert!(std::panic::catch_unwind(|| segment.zero(offset, len)).is_err());
        }
    }

    #[test]
    fn a_daemon_that_ends_leaves_the_bytes_of_its_program() {
        let mut arena = Arena::new().expect("an arena");
        let pieces = [arena.alloc(1024).expect("room"), arena.alloc(2 * PUNCH_BYTES_MIN).expect("room")];
        let first = |arena: &Arena, at: ShmRef| filled(&arena.rooms[0].segment)[at.offset as usize];
        filled(&arena.rooms[0].segment).fill(1);
        arena.keep_contents();
        assert!(pieces.iter().all(|at| arena.free(*at)));
        assert_eq!(pieces.map(|at| first(&arena, at)), [1, 1]);
        assert!(!arena.free(pieces[0]), "freed twice");
        let later = arena.alloc(1024).expect("room");
        assert!(!pieces.contains(&later) && first(&arena, pieces[0]) == 1, "not handed out again");
    }

    /// Bytes that the system has allocated for a segment.
    fn allocated(segment: &Segment) -> u64 {
        rustix::fs::fstat(segment.fd().expect("a memfd")).expect("its size").st_blocks as u64 * 512
    }

    #[test]
    fn whole_pages_of_large_pieces_go_back_to_the_system() {
        let segment = Segment::create(64 * PAGE).expect("a segment");
        filled(&segment).fill(1);
        assert_eq!(allocated(&segment), 64 * PAGE as u64);
        segment.zero(PAGE, PUNCH_BYTES_MIN - 64);
        assert_eq!(allocated(&segment), 64 * PAGE as u64, "too small for a system call");
        segment.zero(64, PUNCH_BYTES_MIN);
        assert_eq!(allocated(&segment), 64 * PAGE as u64 - (PUNCH_BYTES_MIN - PAGE) as u64, "the whole pages inside");
        assert!(!segment.punch(64, PAGE), "no whole page inside");
        assert!(segment.punch(64, 2 * PAGE - 64));
        assert!(!Segment::anonymous(PAGE).expect("memory").punch(0, PAGE), "nothing to punch");
    }

    #[test]
    fn trimming_gives_back_what_small_pieces_have_left() {
        let mut arena = Arena::new().expect("an arena");
        let before = allocated(&arena.rooms[0].segment);
        let pieces: Vec<ShmRef> = (0..256).map(|_| arena.alloc(1024).expect("room")).collect();
        let used = arena.used_bytes();
        for at in &pieces {
            filled(&arena.rooms[0].segment)[at.offset as usize..][..1024].fill(1);
        }
        // All but one, which lies in the middle and keeps its page.
        pieces.iter().filter(|at| **at != pieces[128]).for_each(|at| assert!(arena.free(*at)));
        let full = allocated(&arena.rooms[0].segment);
        assert!(full >= before + (256 << 10), "overwritten, not given back: {full} and {before} before");
        arena.trim();
        let left = allocated(&arena.rooms[0].segment);
        assert!(left <= before + 3 * PAGE as u64, "{left} left, {before} before");
        assert_eq!(filled(&arena.rooms[0].segment)[pieces[128].offset as usize], 1);
        assert_eq!(used - arena.used_bytes(), 255 * 1024);
        // A free range shorter than what is worth a system call stays.
        let mut arena = Arena::new().expect("an arena");
        let pieces: Vec<ShmRef> = (0..40).map(|_| arena.alloc(2048).expect("room")).collect();
        pieces.iter().for_each(|at| filled(&arena.rooms[0].segment)[at.offset as usize..][..2048].fill(1));
        pieces[10..20].iter().for_each(|at| assert!(arena.free(*at)));
        let full = allocated(&arena.rooms[0].segment);
        arena.rooms[0].free.retain(|_, len| *len < PUNCH_BYTES_MIN);
        arena.trim();
        assert_eq!(allocated(&arena.rooms[0].segment), full);
    }

    #[test]
    fn sizes_are_whole_pages_within_the_limit() {
        let error = |bytes| Segment::create(bytes).err();
        assert_eq!(
            (error(0), error(PAGE - 1), error(PAGE + 64)),
            (Some(SegmentError::BadSize), Some(SegmentError::BadSize), Some(SegmentError::BadSize))
        );
        assert_eq!(error(SEGMENT_BYTES_MAX as usize + PAGE), Some(SegmentError::BadSize));
        let largest = Segment::create(SEGMENT_BYTES_MAX as usize).expect("sparse");
        assert_eq!((largest.len(), largest.fd().is_some()), (SEGMENT_BYTES_MAX as usize, true));
        // Of another process's descriptor the size is checked too.
        let sealed = |bytes: u64| {
            let fd = rustix::fs::memfd_create("t", MemfdFlags::ALLOW_SEALING).expect("memfd");
            rustix::fs::ftruncate(&fd, bytes).expect("size");
            rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).expect("sealed");
            Segment::map(fd).map(|s| s.len())
        };
        assert_eq!(
            (sealed(2 * PAGE as u64), sealed(SEGMENT_BYTES_MAX)),
            (Ok(2 * PAGE), Ok(SEGMENT_BYTES_MAX as usize))
        );
        for bytes in [0, 100, PAGE as u64 + 1, SEGMENT_BYTES_MAX + PAGE as u64] {
            assert_eq!(sealed(bytes), Err(SegmentError::BadSize), "{bytes}");
        }
        let private = Segment::anonymous(100).expect("memory");
        assert_eq!((private.len(), private.fd().is_none()), (PAGE, true));
    }

    #[test]
    fn an_arena_has_a_largest_number_of_segments_and_bytes() {
        let mut arena = Arena::new().expect("an arena");
        for number in 1..ARENA_SEGMENTS_MAX {
            assert_eq!(arena.alloc(SEGMENT_BYTES as usize).map(|at| at.segment as usize), Ok(number));
        }
        assert_eq!(
            (arena.segments(), arena.alloc(SEGMENT_BYTES as usize)),
            (ARENA_SEGMENTS_MAX, Err(SegmentError::ArenaFull))
        );
        let mut arena = Arena::new().expect("an arena");
        let large = (ARENA_BYTES_MAX / SEGMENT_BYTES_MAX - 1) as usize;
        for _ in 0..large {
            arena.alloc(SEGMENT_BYTES_MAX as usize).expect("room");
        }
        assert_eq!(
            arena.alloc(SEGMENT_BYTES_MAX as usize),
            Err(SegmentError::ArenaFull),
            "with the first segment it is too much"
        );
        let last = (SEGMENT_BYTES_MAX - SEGMENT_BYTES) as usize;
        assert_eq!(arena.alloc(last).map(|at| (at.segment as usize, at.offset)), Ok((large + 1, 0)), "what is left");
        assert_eq!(arena.bytes, ARENA_BYTES_MAX);
        let longer = Arena::new().expect("an arena").alloc(SEGMENT_BYTES_MAX as usize + 1);
        assert_eq!(longer, Err(SegmentError::BadSize), "longer than a segment can be");
    }

    #[test]
    fn every_error_is_a_sentence_of_its_own() {
        let errors = [
            SegmentError::Os(rustix::io::Errno::NOMEM),
            SegmentError::Unsealed,
            SegmentError::BadSize,
            SegmentError::BadVersion,
            SegmentError::ArenaFull,
        ];
        let sentences: std::collections::HashSet<String> = errors.iter().map(ToString::to_string).collect();
        assert!(sentences.len() == errors.len() && sentences.iter().all(|s| s.len() > 20), "{sentences:?}");
    }

    #[test]
    fn a_view_checks_that_segment_0_is_a_context_page() {
        let view_of = |segment: Segment| {
            let mut view = ArenaView::new();
            view.add(segment);
            (view.segments(), view.context().map(|_| ()))
        };
        assert_eq!(ArenaView::new().context().err(), Some(SegmentError::BadSize));
        let bytes = size_of::<ContextPage>().next_multiple_of(PAGE);
        assert_eq!(
            view_of(Segment::create(bytes).expect("a segment")),
            (1, Err(SegmentError::BadVersion)),
            "no magic number"
        );
        for (magic, version, good) in
            [(CONTEXT_MAGIC, ABI_VERSION, true), (CONTEXT_MAGIC, ABI_VERSION + 1, false), (0, ABI_VERSION, false)]
        {
            let segment = Segment::create(bytes).expect("a segment");
            let words = [(offset_of!(ContextPage, magic), magic), (offset_of!(ContextPage, version), version)];
            for (offset, word) in words {
                filled(&segment)[offset..offset + 4].copy_from_slice(&word.to_ne_bytes());
            }
            assert_eq!(view_of(segment).1.is_ok(), good);
        }
    }
}
