//! What the unit tests of swapping share: private memory, files, and a child process whose descriptors are its own.
//!
//! Tests run in threads of one process and share its descriptors. A test that closes descriptors, counts them or sets limits does
//! so in a forked child.

use super::pool::PAGE;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Private anonymous memory; dropping unmaps it.
pub(crate) struct Memory {
    pub(crate) at: usize,
    len: usize,
}

impl Memory {
    /// Memory of `pages` pages that was never touched.
    pub(crate) fn new(pages: usize) -> Memory {
        let at = super::kernel::map_private(pages * PAGE, 0).expect("mapped");
        Memory { at: at as usize, len: pages * PAGE }
    }
    /// A part of a file, shared.
    pub(crate) fn of(fd: i32, offset: usize, pages: usize) -> Memory {
        let at = super::kernel::map_window(fd, offset, pages * PAGE).expect("mapped");
        Memory { at: at as usize, len: pages * PAGE }
    }
    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
    /// The mappings in it: first address, whether it is shared, and inode.
    pub(crate) fn mappings(&self, maps: &super::vma::Maps) -> Vec<(usize, bool, u64)> {
        let mut found = Vec::new();
        maps.any(|vma| {
            if vma.start < self.at + self.len && self.at < vma.end {
                found.push((vma.start.max(self.at), vma.shared, vma.inode));
            }
            false
        });
        found
    }
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping of this value, which the test has not taken the rights from.
        unsafe { std::slice::from_raw_parts_mut(self.at as *mut u8, self.len) }
    }
    /// Address of page `i`.
    pub(crate) fn page(&self, i: usize) -> usize {
        self.at + i * PAGE
    }
    /// Sets the rights (`PROT_*`) of pages.
    pub(crate) fn protect(&self, pages: std::ops::Range<usize>, rights: i32) {
        let (at, len) = (self.page(pages.start), pages.len() * PAGE);
        // SAFETY: pages of this value, used by these rights afterwards.
        assert_eq!(unsafe { libc::mprotect(at as *mut _, len, rights) }, 0);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping of this value, used no more.
        unsafe { super::kernel::unmap(self.at as *mut u8, self.len) };
    }
}

/// A memfd of `pages` pages with these seals.
pub(crate) fn memfd(pages: usize, seals: i32) -> OwnedFd {
    // SAFETY: a constant name, and numbers; the descriptor is fresh.
    unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0 && libc::ftruncate(fd, (pages * PAGE) as i64) == 0);
        assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
        OwnedFd::from_raw_fd(fd)
    }
}

/// Another description of the same file, opened with `flags`.
pub(crate) fn reopened(fd: &OwnedFd, flags: i32) -> OwnedFd {
    let path = std::ffi::CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("no zero byte");
    // SAFETY: a terminated path; the descriptor is fresh.
    unsafe {
        let fd = libc::open(path.as_ptr(), flags | libc::O_CLOEXEC);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd)
    }
}

/// Whether a descriptor is open.
pub(crate) fn is_open(fd: i32) -> bool {
    // SAFETY: numbers only.
    unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
}

/// Whether the tests run as root.
pub(crate) fn is_root() -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::geteuid() == 0 }
}

/// Number of open descriptors.
pub(crate) fn open_count() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("listed").count()
}

/// Bytes of all mappings of this process.
pub(crate) fn mapped_bytes() -> usize {
    let mut bytes = 0;
    super::vma::Maps::open().expect("/proc/self/maps").any(|vma| {
        bytes += vma.end - vma.start;
        false
    });
    bytes
}

/// Sets a limit of this process (`RLIMIT_*`), for good.
pub(crate) fn limit(what: libc::__rlimit_resource_t, limit: u64) {
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: a readable struct.
    assert_eq!(unsafe { libc::setrlimit(what, &raw const limit) }, 0);
}

/// Seconds after which a child that hangs is killed.
const CHILD_SECONDS: u32 = 120;

/// Makes a panic in a forked child end the child. The hook that the tests have takes locks, which another thread may have held at
/// the fork; so may `set_hook`, which is therefore called before.
fn end_children_that_panic() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let (parent, before) = (std::process::id(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |info| {
            if std::process::id() == parent {
                return before(info);
            }
            let text = format!("in the child: {info}\n");
            // SAFETY: the text is readable for its length; ends the child.
            unsafe {
                libc::write(2, text.as_ptr().cast(), text.len());
                libc::_exit(1);
            }
        }));
    });
}

/// Runs `test` in a forked child; a panic there fails here, too.
pub(crate) fn in_child(test: impl FnOnce()) {
    end_children_that_panic();
    // SAFETY: the child runs the test in its only thread and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: numbers only.
        unsafe { libc::alarm(CHILD_SECONDS) };
        test();
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the child of this function; `status` is writable.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child's checks");
}
