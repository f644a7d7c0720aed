//! A bounds-checked piece of a mapped segment. Shared memory is read and written only here.
//!
//! Shared words are accessed as atomics and entries as relaxed 64-bit words: if the other process writes meanwhile, a
//! copy holds some mixture of bytes, and no behaviour is undefined. Every access asserts its bounds.
use crate::arena::Segment;
use crate::layout::{Cqe, RecvWqe, SendWqe, Sge};
use core::mem::{align_of, size_of};
use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed},
};
use std::sync::Arc;

/// A type of integers only, without padding, for which every bit pattern is valid and whose size is a multiple of 8.
///
/// # Safety
/// The implementor is `repr(C)` with all of these properties.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: `layout` asserts the sizes, which leave no padding; all fields are integers.
unsafe impl Plain for SendWqe {}
// SAFETY: as above.
unsafe impl Plain for Sge {}
// SAFETY: as above.
unsafe impl Plain for RecvWqe {}
// SAFETY: as above.
unsafe impl Plain for Cqe {}

/// A piece of a segment, which it keeps mapped. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Area {
    segment: Arc<Segment>,
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is reached only through atomics (and `write_bytes`, on slots that the caller owns alone).
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// `len` bytes at `offset`, which must be a multiple of 64, of a segment. None when they are not inside.
    pub fn new(segment: &Arc<Segment>, offset: usize, len: usize) -> Option<Area> {
        if !offset.is_multiple_of(64) || offset.checked_add(len)? > segment.len() {
            return None;
        }
        // SAFETY: `offset` is inside the mapping, checked above.
        let ptr = unsafe { segment.base().add(offset) };
        Some(Area { segment: segment.clone(), ptr, len })
    }
    /// Length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }
    /// Address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }
    /// The segment that the area is a part of.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }
    #[inline]
    fn at(&self, offset: usize, len: usize, align: usize) -> *mut u8 {
        assert!(offset.is_multiple_of(align) && len <= self.len && offset <= self.len - len);
        // SAFETY: inside this area, just asserted.
        unsafe { self.ptr.as_ptr().add(offset) }
    }
    /// Asks the processor for the lines of `bytes` bytes from `offset` on.
    #[inline(always)]
    pub(crate) fn prefetch(&self, offset: usize, bytes: usize) {
        burst_span::prefetch(self.ptr.as_ptr().wrapping_add(offset), bytes);
    }
    /// The 32-bit word at `offset`.
    #[inline]
    pub(crate) fn word32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: in bounds, aligned (areas are 64-aligned), mapped as long as `self`, only accessed atomically.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4, 4).cast()) }
    }
    /// The 64-bit word at `offset`.
    #[inline]
    pub(crate) fn word64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as for `word32`.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8, 8).cast()) }
    }
    /// Copies an entry out, each byte read exactly once.
    #[inline]
    pub(crate) fn load<T: Plain>(&self, offset: usize, out: &mut T) {
        const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() >= 8) };
        let src = self.at(offset, size_of::<T>(), 8).cast::<u64>();
        let to = core::ptr::from_mut(out).cast::<u64>();
        for i in 0..size_of::<T>() / 8 {
            // SAFETY: word i is in bounds on both sides, the source is only accessed atomically, and every bit pattern is a
            // `T` (`Plain`). Word by word to its place: eight at once would need registers that the caller has to save.
            unsafe { to.add(i).write(AtomicU64::from_ptr(src.add(i)).load(Relaxed)) };
        }
    }
    /// As [`Area::load`], if the 32-bit word at byte `at` of the entry is `expected` (Acquire). One check of bounds for both.
    #[inline]
    pub(crate) fn load_if<T: Plain>(&self, offset: usize, at: usize, expected: u32, out: &mut T) -> bool {
        const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() >= 8) };
        assert!(at.is_multiple_of(4) && at < size_of::<T>());
        let src = self.at(offset, size_of::<T>(), 8);
        // SAFETY: inside the entry, just asserted, and aligned; only accessed atomically.
        if unsafe { AtomicU32::from_ptr(src.add(at).cast()) }.load(Acquire) != expected {
            return false;
        }
        self.load(offset, out);
        true
    }
    /// Copies the first `bytes` bytes (a multiple of 8) of an entry in.
    #[inline]
    pub(crate) fn store<T: Plain>(&self, offset: usize, value: &T, bytes: usize) {
        assert!(bytes <= size_of::<T>() && bytes.is_multiple_of(8));
        let dst = self.at(offset, bytes, 8).cast::<u64>();
        for i in 0..bytes / 8 {
            // SAFETY: word i is in bounds on both sides; the destination is only accessed atomically.
            unsafe {
                AtomicU64::from_ptr(dst.add(i)).store(core::ptr::from_ref(value).cast::<u64>().add(i).read(), Relaxed)
            };
        }
    }
    /// Writes words to `offset`, a multiple of 8.
    #[inline]
    #[allow(clippy::needless_range_loop)] // Unoptimised iterators would be calls in programs' fast path.
    pub(crate) fn store_words<const N: usize>(&self, offset: usize, words: [u64; N]) {
        let dst = self.at(offset, N * size_of::<u64>(), 8).cast::<u64>();
        for i in 0..N {
            // SAFETY: word i is in bounds and aligned; the destination is only accessed atomically.
            unsafe { AtomicU64::from_ptr(dst.add(i)).store(words[i], Relaxed) };
        }
    }
    /// Copies bytes out from `offset`, a multiple of 8; whole words are read, each once.
    pub(crate) fn read_bytes(&self, offset: usize, out: &mut [u8]) {
        let src = self.at(offset, out.len().next_multiple_of(8), 8).cast::<u64>();
        for (i, bytes) in out.chunks_mut(8).enumerate() {
            // SAFETY: word i is in bounds and aligned; the source is only accessed atomically.
            let word = unsafe { AtomicU64::from_ptr(src.add(i)).load(Relaxed) };
            bytes.copy_from_slice(&word.to_ne_bytes()[..bytes.len()]);
        }
    }
    /// Copies `len` bytes from `src` to `offset`, a place that the peer does not look at yet.
    ///
    /// # Safety
    /// `src .. src + len` is readable, and no other code of this process accesses the destination.
    #[inline]
    pub(crate) unsafe fn write_bytes(&self, offset: usize, src: *const u8, len: usize) {
        // SAFETY: the destination is in bounds; the rest is the caller's promise.
        unsafe { core::ptr::copy_nonoverlapping(src, self.at(offset, len, 1), len) };
    }
}
