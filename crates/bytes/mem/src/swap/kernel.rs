//! The system calls that change mappings, made without libc.
//!
//! Programs interpose `mmap`, `munmap`, `mremap` and `madvise` to learn which registrations have ended: UCX patches them in
//! libc's own code. Swapping pages does not concern such a program, because the memory is the same before and after. Its
//! replacements may also be incomplete: UCX's `mremap` has four parameters, so the fifth argument, the address that
//! MREMAP_FIXED moves to, is the random contents of a register. So these calls go to the kernel directly (rustix makes them
//! without libc), which also keeps `errno` unchanged.

use core::ptr::null_mut;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use std::os::fd::BorrowedFd;

/// Maps fresh private memory, readable and writable, at an address that the kernel chooses; `flags`: further `MAP_*` bits.
pub(crate) fn map_private(len: usize, flags: i32) -> Option<*mut u8> {
    let flags = MapFlags::PRIVATE | MapFlags::from_bits_retain(flags as u32);
    // SAFETY: a new mapping where none was.
    let p = unsafe { rustix::mm::mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
    p.ok().map(<*mut _>::cast)
}

/// Maps a part of a file, populated, at an address that the kernel chooses.
pub(crate) fn map_window(fd: i32, offset: usize, len: usize) -> Option<*mut u8> {
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    // SAFETY: a new mapping where none was; the caller's descriptor is open.
    let p = unsafe {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        rustix::mm::mmap(null_mut(), len, rights, flags, BorrowedFd::borrow_raw(fd), offset as u64)
    };
    p.ok().map(<*mut _>::cast)
}

/// Maps a part of a file over the mapping at `at`, with the rights `prot`.
///
/// # Safety
/// The caller must own the pages that are replaced.
pub(crate) unsafe fn map_over(at: usize, len: usize, prot: i32, fd: i32, offset: usize) -> bool {
    let prot = ProtFlags::from_bits_retain(prot as u32);
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: by the caller's promise; the descriptor is open.
    unsafe { rustix::mm::mmap(at as *mut _, len, prot, flags, BorrowedFd::borrow_raw(fd), offset as u64) }.is_ok()
}

/// Maps a part of a file over the mapping at `at`, copied on write: the kernel exchanges one for the other in one step.
///
/// # Safety
/// The caller must own the pages that are replaced.
pub(crate) unsafe fn map_copy_over(at: usize, len: usize, prot: i32, fd: i32, offset: usize) -> bool {
    let prot = ProtFlags::from_bits_retain(prot as u32);
    let flags = MapFlags::PRIVATE | MapFlags::FIXED;
    // SAFETY: by the caller's promise; the descriptor is open.
    unsafe { rustix::mm::mmap(at as *mut _, len, prot, flags, BorrowedFd::borrow_raw(fd), offset as u64) }.is_ok()
}

/// Maps fresh private memory over the mapping at `at`.
///
/// # Safety
/// The caller must own the pages that are replaced, and no other thread uses them.
pub(crate) unsafe fn map_fresh_over(at: usize, len: usize, prot: i32) -> bool {
    let prot = ProtFlags::from_bits_retain(prot as u32);
    // SAFETY: by the caller's promise.
    unsafe { rustix::mm::mmap_anonymous(at as *mut _, len, prot, MapFlags::PRIVATE | MapFlags::FIXED) }.is_ok()
}

/// Sets the rights of pages.
///
/// # Safety
/// The caller must own the pages, and no thread uses them by other rights.
pub(crate) unsafe fn protect(at: usize, len: usize, prot: i32) -> bool {
    // SAFETY: by the caller's promise.
    unsafe { rustix::mm::mprotect(at as *mut _, len, MprotectFlags::from_bits_retain(prot as u32)) }.is_ok()
}

/// Moves the mapping at `from` over the mapping at `to`, in one step, with the rights `prot`.
///
/// # Safety
/// The caller must own both mappings.
pub(crate) unsafe fn move_over(from: *mut u8, len: usize, to: usize, prot: i32) -> bool {
    let flags = MremapFlags::MAYMOVE;
    // SAFETY: by the caller's promise.
    unsafe {
        rustix::mm::mprotect(from.cast(), len, MprotectFlags::from_bits_retain(prot as u32)).is_ok()
            && rustix::mm::mremap_fixed(from.cast(), len, len, flags, to as *mut _).is_ok()
    }
}

/// Moves a mapping over another one, as it is.
///
/// # Safety
/// The caller must own both mappings.
pub(crate) unsafe fn move_whole(from: usize, len: usize, to: usize) -> bool {
    // SAFETY: by the caller's promise.
    unsafe { rustix::mm::mremap_fixed(from as *mut _, len, len, MremapFlags::MAYMOVE, to as *mut _) }.is_ok()
}

/// Maps fresh private memory at `at`, where nothing is. False: something is there.
pub(crate) fn map_fresh_at(at: usize, len: usize, prot: i32) -> bool {
    let (prot, flags) = (ProtFlags::from_bits_retain(prot as u32), MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE);
    // SAFETY: a new mapping where none was.
    let mapped = unsafe { rustix::mm::mmap_anonymous(at as *mut _, len, prot, flags) };
    // A kernel that does not know the flag takes the address as advice.
    if let Ok(elsewhere) = mapped
        && elsewhere as usize != at
    {
        // SAFETY: the mapping just made.
        unsafe { unmap(elsewhere.cast(), len) };
        return false;
    }
    mapped.is_ok()
}

/// Unmaps memory.
///
/// # Safety
/// The mapping must not be used any more.
pub(crate) unsafe fn unmap(at: *mut u8, len: usize) {
    // SAFETY: by the caller's promise. It fails only if no mapping is there.
    let _ = unsafe { rustix::mm::munmap(at.cast(), len) };
}

/// Makes pages present without changing their contents.
pub(crate) fn populate(at: usize, len: usize) -> bool {
    // SAFETY: reading in the kernel; the contents stay.
    unsafe { rustix::mm::madvise(at as *mut _, len, Advice::LinuxPopulateRead) }.is_ok()
}

/// Makes private pages present that will be written.
pub(crate) fn populate_for_writes(at: usize, len: usize) {
    // SAFETY: faults in the kernel; the contents stay.
    let _ = unsafe { rustix::mm::madvise(at as *mut _, len, Advice::LinuxPopulateWrite) };
}

/// Keeps the mapping of a page from being merged with its neighbours, by advice (`MADV_RANDOM`) that has no other effect on
/// anonymous memory. A failure (too many mappings) is ignored: then `realloc` may move the object.
pub(crate) fn set_apart(at: usize, len: usize) {
    // SAFETY: advice about reading ahead; the contents stay.
    let _ = unsafe { rustix::mm::madvise(at as *mut _, len, Advice::Random) };
}

/// Gives advice that changes no contents. False: the kernel refuses it, and leaves the mapping as it is.
pub(crate) fn advise(at: usize, len: usize, advice: Advice) -> bool {
    // SAFETY: the callers give advice about forks, core dumps, huge pages and merging only.
    unsafe { rustix::mm::madvise(at as *mut _, len, advice) }.is_ok()
}

/// Locks pages in memory; `untouched`: only those that are there, and others when they come.
pub(crate) fn lock(at: usize, len: usize, untouched: bool) {
    let flags = if untouched { rustix::mm::MlockFlags::ONFAULT } else { rustix::mm::MlockFlags::empty() };
    // SAFETY: the contents stay.
    let _ = unsafe { rustix::mm::mlock_with(at as *mut _, len, flags) };
}

/// Ends the lock of pages in memory.
pub(crate) fn unlock(at: usize, len: usize) {
    // SAFETY: the contents stay.
    let _ = unsafe { rustix::mm::munlock(at as *mut _, len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_without_rights_cannot_be_populated() {
        let at = map_private(4096, 0).expect("mapped");
        // SAFETY: the mapping made above, which is not read or written.
        unsafe { rustix::mm::mprotect(at.cast(), 4096, MprotectFlags::empty()) }.expect("protected");
        assert!(!populate(at as usize, 4096));
        // SAFETY: as above.
        unsafe { unmap(at, 4096) };
    }
}
