//! `/proc/self/pagemap`, which shows what is mapped at each page.

/// `/proc/self/pagemap`, open.
pub(crate) struct PageMap(i32);

impl PageMap {
    pub(crate) fn open() -> Option<PageMap> {
        // SAFETY: a constant path.
        let fd = unsafe { libc::open(c"/proc/self/pagemap".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        (fd >= 0).then_some(PageMap(fd))
    }
    pub(crate) fn fd(&self) -> i32 {
        self.0
    }
}

impl Drop for PageMap {
    fn drop(&mut self) {
        // SAFETY: our own descriptor.
        unsafe { libc::close(self.0) };
    }
}
