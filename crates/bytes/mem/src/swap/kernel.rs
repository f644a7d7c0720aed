//! The calls that change mappings, made past libc.
//!
//! Programs interpose `mmap`, `munmap`, `mremap` and `madvise` to learn which registrations have ended: UCX patches them in libc's own
//! code. Swapping pages is none of their business (the memory is the same before and after), and what they put in
//! place is no faithful copy: UCX's `mremap` has four parameters and passes on whatever is in the register of the fifth, the
//! address that MREMAP_FIXED moves to. So these calls go to the kernel directly (rustix makes them without libc), which also leaves
//! `errno` alone.
use core::ptr::null_mut;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use std::os::fd::BorrowedFd;

/// Fresh private memory, readable and writable, at an address that the kernel chooses; `flags` of `MAP_*` beyond that.
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

/// Maps a part of a file over what is at `at`, with the rights `prot`.
///
/// # Safety
/// The pages that are replaced must be the caller's to replace.
pub(crate) unsafe fn map_over(at: usize, len: usize, prot: i32, fd: i32, offset: usize) -> bool {
    let prot = ProtFlags::from_bits_retain(prot as u32);
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the caller's; the descriptor is open.
    unsafe { rustix::mm::mmap(at as *mut _, len, prot, flags, BorrowedFd::borrow_raw(fd), offset as u64) }.is_ok()
}

/// Moves the mapping at `from` over the one at `to`, in one step, with the rights `prot`.
///
/// # Safety
/// Both must be the caller's to replace.
pub(crate) unsafe fn move_over(from: *mut u8, len: usize, to: usize, prot: i32) -> bool {
    let flags = MremapFlags::MAYMOVE;
    // SAFETY: the caller's.
    unsafe {
        rustix::mm::mprotect(from.cast(), len, MprotectFlags::from_bits_retain(prot as u32)).is_ok()
            && rustix::mm::mremap_fixed(from.cast(), len, len, flags, to as *mut _).is_ok()
    }
}

/// Unmaps.
///
/// # Safety
/// Nothing may use the mapping any more.
pub(crate) unsafe fn unmap(at: *mut u8, len: usize) {
    // SAFETY: the caller's. A refusal could only mean that nothing is mapped there.
    let _ = unsafe { rustix::mm::munmap(at.cast(), len) };
}

/// Makes pages present without changing them.
pub(crate) fn populate(at: usize, len: usize) -> bool {
    // SAFETY: reading in the kernel; the contents stay.
    unsafe { rustix::mm::madvise(at as *mut _, len, Advice::LinuxPopulateRead) }.is_ok()
}

/// Keeps a page's mapping from being joined to its neighbours, by advice that means nothing for memory. What it would be refused
/// for (too many mappings) is no reason to refuse more than that.
pub(crate) fn set_apart(at: usize, len: usize) {
    // SAFETY: advice about reading ahead; the contents stay.
    let _ = unsafe { rustix::mm::madvise(at as *mut _, len, Advice::Random) };
}
