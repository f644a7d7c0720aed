//! userfaultfd(2): the numbers of linux/userfaultfd.h, and its calls. A request is an array of words.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Flag of [`open`]: faults of the program itself only, not those of its system calls, which need a privilege.
pub const USER_MODE_ONLY: i32 = 1;
/// The one version of the interface.
const API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
/// Start, length, a mode; the kernel adds a word.
pub const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
/// Ends the registration of a range. Argument: start, length.
pub const UFFDIO_UNREGISTER: libc::c_ulong = 0x8010_aa01;
/// Lets threads go on that wait for pages of a range. Argument: start, length.
pub const UFFDIO_WAKE: libc::c_ulong = 0x8010_aa02;
/// Start, source, length, a mode; the kernel adds the bytes that it has copied, or the negated error.
pub const UFFDIO_COPY: libc::c_ulong = 0xc028_aa03;
/// Start, length, a mode; the kernel adds the bytes that it has filled, or the negated error.
pub const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
/// Start, length, [`MODE_WP`] or 0.
pub const UFFDIO_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;
/// Start, length, a mode; the kernel adds a word.
pub const UFFDIO_POISON: libc::c_ulong = 0xc020_aa08;
/// Mode of [`UFFDIO_REGISTER`]: accesses to missing pages are faults.
pub const REGISTER_MISSING: u64 = 1;
/// Mode of [`UFFDIO_REGISTER`]: stores to protected pages are faults.
pub const REGISTER_WP: u64 = 2;
/// Mode of [`UFFDIO_WRITEPROTECT`]: protects.
pub const MODE_WP: u64 = 1;

/// A userfaultfd that does not block, by its system call; `None`: the kernel or a filter refuses.
pub fn open(flags: i32) -> Option<OwnedFd> {
    // SAFETY: numbers only.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | flags) } as RawFd;
    // SAFETY: a new descriptor that nothing else owns.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Agrees with the kernel on features, before any other call. Returns all that it offers; `None`: not all of these.
pub fn agree(uffd: BorrowedFd<'_>, features: u64) -> Option<u64> {
    let mut words = [API, features, 0];
    // SAFETY: the request concerns no memory of the process.
    let agrees = unsafe { call(uffd, UFFDIO_API, &mut words) };
    agrees.then_some(words[1])
}

/// Carries out a request. False: errno has the reason.
///
/// # Safety
/// The request has `N` words, and what it does to the pages that it names is what their owner wants.
pub unsafe fn call<const N: usize>(uffd: BorrowedFd<'_>, request: libc::c_ulong, words: &mut [u64; N]) -> bool {
    // SAFETY: the caller's promise; the array outlives the call.
    unsafe { libc::ioctl(uffd.as_raw_fd(), request, words.as_mut_ptr()) == 0 }
}
