//! Calls by which the program discards or moves memory, for registered pages: [`madvise`], [`mremap`].
//!
//! The library that has the program's symbols of these names passes each call on here, with the function behind it. Without that
//! the kernel discards nothing of a swapped page, because it is a file's: it is read again.
//!
//! * `MADV_DONTNEED`: the pages read as zeros, for the program and for a peer, and what a peer writes later arrives. (Of memory
//!   that an adapter has pinned a peer reads the old bytes, and its later writes are lost.)
//! * `MADV_FREE`: nothing happens, which the call allows.
//! * `MADV_REMOVE`: EINVAL, as of private memory.
//! * `mremap`: pages move with their region, as pinned ones; what it adds is fresh memory. EINVAL if the old mapping is to stay
//!   (`MREMAP_DONTUNMAP`, or an old length of 0): a file's pages would be at both addresses then.
//!
//! Zeros are written, not made by the kernel: the daemon has the pages mapped, and finds no hole (`mem::holes`). The kernel is
//! not asked to discard them as well, or each page would be a fault: 256 MiB take 17 ms of processor time, not 145 ms.
//!
//! Allocators make these calls under locks of their own, which whoever holds the registry's lock may be waiting for. So they do
//! not take that lock, and wait for exchanges of pages only, one at a time (`calls`).
//!
//! Not seen are calls that do not go by the symbol: system calls by other means, those that libc makes itself (its
//! allocator counts on zeros only in memory that it maps anew), and those of libraries that were bound before this one
//! was opened (`dlopen`).

use super::pool::{self, PAGE};
use super::vma::{Maps, Vma, errno};
use super::{VMAS_MAX, between_exchanges, kernel};
use core::ffi::{c_int, c_void};

/// `MADV_DONTNEED_LOCKED` (Linux 5.18).
const DONTNEED_LOCKED: c_int = 24;

/// The program's `madvise`; `next` is the function that would be called without this one.
///
/// # Safety
/// As for `madvise`: the program owns the range.
pub unsafe fn madvise(at: usize, len: usize, advice: c_int, next: impl Fn(usize, usize, c_int) -> c_int) -> c_int {
    let discards = matches!(advice, libc::MADV_DONTNEED | DONTNEED_LOCKED);
    if !(discards || matches!(advice, libc::MADV_FREE | libc::MADV_REMOVE)) || !pool::is_any_made() {
        return next(at, len, advice);
    }
    between_exchanges(|| {
        let Some((end, maps)) = range_of(at, len).zip(Maps::open()) else { return next(at, len, advice) };
        if !overlaps(&maps, at, end) {
            return next(at, len, advice);
        }
        let answer = match advice {
            // To the program it is private memory, of which the kernel removes nothing.
            libc::MADV_REMOVE => Err(libc::EINVAL),
            libc::MADV_FREE => {
                each_part(&maps, at, end, |vma, first, last| vma.is_pools() || next(first, last - first, advice) == 0)
            }
            _ => each_part(&maps, at, end, |vma, first, last| {
                // Of the pool's pages one is enough to learn what the kernel refuses: locked ones.
                let len = if vma.is_pools() { vma.page } else { last - first };
                let discarded = next(first, len, advice) == 0;
                if discarded && vma.is_pools() {
                    clear(vma, first, last);
                }
                discarded
            }),
        };
        answer.map_or_else(fail, |()| 0)
    })
}

/// Calls `f`, which returns whether the kernel has agreed, with each mapping of the range and the overlap, as the kernel goes
/// through it: up to the first refusal, which is the result, or to the end; then ENOMEM if a part is not mapped.
fn each_part(maps: &Maps, lo: usize, hi: usize, mut f: impl FnMut(&Vma, usize, usize) -> bool) -> Result<(), c_int> {
    let (mut at, mut answer) = (lo, Ok(()));
    for _ in 0..VMAS_MAX {
        let Some(vma) = maps.at_or_after(at).filter(|vma| vma.start < hi) else { break };
        let (first, last) = (vma.start.max(at), vma.end.min(hi));
        if first > at {
            answer = Err(libc::ENOMEM);
        }
        if !f(&vma, first, last) {
            match errno() {
                libc::ENOMEM => answer = Err(libc::ENOMEM),
                error => return Err(error),
            }
        }
        at = last;
        if at >= hi {
            return answer;
        }
    }
    Err(libc::ENOMEM)
}

fn fail(error: c_int) -> c_int {
    set_errno(error);
    -1
}

/// The program's `mremap`; `next` is the function that would be called without this one.
///
/// # Safety
/// As for `mremap`: the program owns the ranges.
pub unsafe fn mremap(
    old: usize,
    old_len: usize,
    new: NewPlace,
    next: impl Fn(usize, usize, NewPlace) -> *mut c_void,
) -> *mut c_void {
    if new.len == 0 || !pool::is_any_made() {
        return next(old, old_len, new);
    }
    between_exchanges(|| move_mapping(old, old_len, new, next))
}

fn move_mapping(
    old: usize,
    old_len: usize,
    new: NewPlace,
    next: impl Fn(usize, usize, NewPlace) -> *mut c_void,
) -> *mut c_void {
    const SUPPORTED: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    if new.flags & !SUPPORTED != 0 || old_len == 0 {
        let some = range_of(old, old_len.max(PAGE)).zip(Maps::open());
        if some.is_some_and(|(end, maps)| overlaps(&maps, old, end)) {
            set_errno(libc::EINVAL);
            return libc::MAP_FAILED;
        }
        return next(old, old_len, new);
    }
    let Some((end, maps)) = range_of(old, old_len).zip(Maps::open()) else { return next(old, old_len, new) };
    let Some(new_len) = new.len.checked_next_multiple_of(PAGE) else { return next(old, old_len, new) };
    let stays = new.flags & libc::MREMAP_FIXED == 0 && new_len <= end - old;
    if stays || !overlaps(&maps, old, end) {
        let answer = next(old, old_len, new);
        let error = errno();
        // Registrations that have ended may have left one mapping in several parts, which the kernel does not move.
        if answer != libc::MAP_FAILED || error != libc::EFAULT || !are_parts_of_one(&maps, old, end) {
            set_errno(error);
            return answer;
        }
    }
    let moved = Move { maps: &maps, old, end, new_len };
    match moved.carry_out(new) {
        Ok(at) => at as *mut c_void,
        Err(error) => {
            set_errno(error);
            libc::MAP_FAILED
        }
    }
}

/// Where `mremap` shall put a mapping.
#[derive(Clone, Copy, Debug)]
pub struct NewPlace {
    /// Its length in bytes.
    pub len: usize,
    /// `MREMAP_*` bits.
    pub flags: c_int,
    /// The address, with `MREMAP_FIXED`.
    pub at: usize,
}

/// The end of a range of whole pages.
fn range_of(at: usize, len: usize) -> Option<usize> {
    let end = at.checked_add(len.checked_next_multiple_of(PAGE)?)?;
    (at.is_multiple_of(PAGE) && at < end && end <= pool::ADDRESS_MAX).then_some(end)
}

/// Calls `f` with each mapping that overlaps the range, and the overlap.
fn each(maps: &Maps, lo: usize, hi: usize, mut f: impl FnMut(&Vma, usize, usize)) {
    let mut at = lo;
    for _ in 0..VMAS_MAX {
        let Some(vma) = maps.at_or_after(at).filter(|vma| vma.start < hi) else { return };
        f(&vma, vma.start.max(lo), vma.end.min(hi));
        at = vma.end;
    }
}

fn each_swapped(maps: &Maps, lo: usize, hi: usize, mut f: impl FnMut(&Vma, usize, usize)) {
    each(maps, lo, hi, |vma, first, last| {
        if vma.is_pools() {
            f(vma, first, last);
        }
    });
}

fn overlaps(maps: &Maps, lo: usize, hi: usize) -> bool {
    let mut any = false;
    each_swapped(maps, lo, hi, |_, _, _| any = true);
    any
}

/// Whether the mappings of a range are of private memory with the same rights, so that they may have been one.
fn are_parts_of_one(maps: &Maps, lo: usize, hi: usize) -> bool {
    let (mut rights, mut all) = (None, true);
    each(maps, lo, hi, |vma, _, _| {
        all &= vma.inode == 0 && !vma.shared && *rights.get_or_insert(vma.prot()) == vma.prot()
    });
    all
}

/// Writes zeros to pages of a pool.
fn clear(vma: &Vma, first: usize, last: usize) {
    let rights = vma.prot();
    debug_assert!(vma.is_pools() && first < last);
    let is_writable = rights & libc::PROT_WRITE != 0;
    // SAFETY: the program discards these pages; they have their rights again afterwards.
    unsafe {
        if is_writable || kernel::protect(first, last - first, rights | libc::PROT_WRITE) {
            kernel::populate_for_writes(first, last - first);
            core::ptr::write_bytes(first as *mut u8, 0, last - first);
        }
        if !is_writable {
            kernel::protect(first, last - first, rights);
        }
    }
}

/// A mapping that grows or moves, some of whose pages are a pool's. The kernel would let it grow over the pool's pages
/// behind, which are those of other addresses, and it does not move several mappings at once.
struct Move<'a> {
    maps: &'a Maps,
    old: usize,
    end: usize,
    new_len: usize,
}

impl Move<'_> {
    /// Returns the new address, or an error number.
    fn carry_out(&self, new: NewPlace) -> Result<usize, c_int> {
        let rights = self.rights()?;
        let old_len = self.end - self.old;
        if new.flags & libc::MREMAP_FIXED != 0 {
            let overlap = new.at < self.end && self.old < new.at.saturating_add(self.new_len);
            if new.flags & libc::MREMAP_MAYMOVE == 0 || !new.at.is_multiple_of(PAGE) || overlap {
                return Err(libc::EINVAL);
            }
            // SAFETY: the program gives up what is there.
            let there = unsafe { kernel::map_fresh_over(new.at, self.new_len, libc::PROT_NONE) };
            return if there { self.to(new.at, rights) } else { Err(libc::ENOMEM) };
        }
        if kernel::map_fresh_at(self.end, self.new_len - old_len, rights) {
            return Ok(self.old);
        }
        if new.flags & libc::MREMAP_MAYMOVE == 0 {
            return Err(libc::ENOMEM);
        }
        let place = kernel::map_private(self.new_len, 0).ok_or(libc::ENOMEM)?;
        self.to(place as usize, rights)
    }

    /// The rights of the mapping; EFAULT as from the kernel if a part is not mapped.
    fn rights(&self) -> Result<c_int, c_int> {
        let (mut at, mut rights) = (self.old, 0);
        each(self.maps, self.old, self.end, |vma, first, last| {
            if first == at {
                (at, rights) = (last, vma.prot());
            }
        });
        if at == self.end { Ok(rights) } else { Err(libc::EFAULT) }
    }

    /// Moves everything to `place`, where memory of the new length is.
    fn to(&self, place: usize, rights: c_int) -> Result<usize, c_int> {
        debug_assert!(place.is_multiple_of(PAGE) && self.new_len.is_multiple_of(PAGE) && self.old < self.end);
        let kept = self.new_len.min(self.end - self.old);
        let mut complete = true;
        each(self.maps, self.old, self.old + kept, |_, first, last| {
            // SAFETY: the program moves its own memory; what is at the place is free for it.
            complete &= unsafe { kernel::move_whole(first, last - first, place + (first - self.old)) };
        });
        if !complete {
            // Back where they were: the mapping has not moved.
            each(self.maps, place, place + kept, |_, first, last| {
                if !self.is_at(self.old + (first - place)) {
                    // SAFETY: as above.
                    unsafe { kernel::move_whole(first, last - first, self.old + (first - place)) };
                }
            });
            // SAFETY: the place is this function's.
            unsafe { kernel::unmap(place as *mut u8, self.new_len) };
            return Err(libc::ENOMEM);
        }
        // SAFETY: memory that was reserved, and the rest of the old mapping, which the program gives up.
        unsafe {
            if self.new_len > kept {
                kernel::map_fresh_over(place + kept, self.new_len - kept, rights);
            }
            if self.end - self.old > kept {
                kernel::unmap((self.old + kept) as *mut u8, self.end - self.old - kept);
            }
        }
        Ok(place)
    }
    fn is_at(&self, at: usize) -> bool {
        self.maps.at_or_after(at).is_some_and(|vma| vma.start <= at)
    }
}

fn set_errno(error: c_int) {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = error };
}
