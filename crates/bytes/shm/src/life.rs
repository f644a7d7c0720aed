//! Tells a forked child from the process that has made an object, by one load.
//!
//! A child inherits mappings and locks that belong to its parent. A [`LifePage`] is a private page that the kernel
//! wipes in a child (`MADV_WIPEONFORK`, Linux 4.14): no handler runs, no system call asks for the process id.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const PAGE: usize = 4096;

/// A word that becomes 0 in a child process.
#[derive(Debug)]
pub struct LifePage(NonNull<AtomicU32>);

// SAFETY: the page is only read after creation, through an atomic.
unsafe impl Send for LifePage {}
// SAFETY: as above.
unsafe impl Sync for LifePage {}

impl LifePage {
    /// A page that is alive in this process.
    ///
    /// # Errors
    /// When memory is exhausted, or when the kernel cannot wipe the page: an unnoticed child would use its parent's queues.
    pub fn new() -> Result<LifePage, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh anonymous mapping touches nothing that exists.
        let at = unsafe { mmap_anonymous(core::ptr::null_mut(), PAGE, prot, MapFlags::PRIVATE)? };
        // Owned from here on, so that a failure unmaps it.
        let page = LifePage(NonNull::new(at.cast()).ok_or(Errno::NOMEM)?);
        // SAFETY: the range is the mapping just made, which holds nothing yet.
        unsafe { madvise(at, PAGE, Advice::LinuxWipeOnFork)? };
        page.word().store(1, Ordering::Relaxed);
        Ok(page)
    }

    #[inline]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the mapping lives as long as `self` and is aligned to a page.
        unsafe { self.0.as_ref() }
    }

    /// Whether this is still the process that made the page.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.word().load(Ordering::Relaxed) != 0
    }
}

impl Drop for LifePage {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value alone. Unmapping a whole mapping cannot fail.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), PAGE) };
    }
}
