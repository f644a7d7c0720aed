//! userfaultfd: faults of an aperture's pages as messages, and the calls that resolve them.

use crate::abi::{EPERM, Status};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub const PAGE: usize = 4096;

const API: u64 = 0xaa;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1;
const FEATURE_POISON: u64 = 1 << 14;
const USER_MODE_ONLY: libc::c_int = 1;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_WAKE: libc::c_ulong = 0x8010_aa02;
const UFFDIO_COPY: libc::c_ulong = 0xc028_aa03;
const UFFDIO_WRITEPROTECT: libc::c_ulong = 0xc018_aa06;
const UFFDIO_POISON: libc::c_ulong = 0xc020_aa08;
const REGISTER_MISSING_AND_WP: u64 = 3;
const MODE_WP: u64 = 1;
const COPY_MODE_WP: u64 = 2;
const EVENT_PAGEFAULT: u8 = 0x12;
const FLAG_WRITE: u64 = 1;
const FLAG_WP: u64 = 2;

/// A page fault.
#[derive(Clone, Copy, Debug)]
pub struct PageFault {
    pub addr: usize,
    /// A store, not a load.
    pub is_write: bool,
    /// The page is there and protected against stores.
    pub is_protected: bool,
}

/// The faults of one mapping.
pub struct PageFaults {
    fd: OwnedFd,
    can_poison: bool,
}

impl PageFaults {
    /// Receives the faults of the pages from `base` on.
    ///
    /// # Errors
    /// An errno: the system has no userfaultfd, or none that protects pages.
    pub fn new(base: usize, len: usize) -> Result<PageFaults, Status> {
        let open = |flags: libc::c_int| {
            // SAFETY: makes a descriptor; no memory is passed.
            let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | flags) } as i32;
            // SAFETY: a new descriptor that nobody else owns.
            (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
        };
        // Without privilege only faults of the program itself are offered, not those of its system calls.
        let open = || open(0).or_else(|| open(USER_MODE_ONLY)).ok_or(EPERM);
        for features in [FEATURE_PAGEFAULT_FLAG_WP | FEATURE_POISON, FEATURE_PAGEFAULT_FLAG_WP] {
            let faults = PageFaults { fd: open()?, can_poison: features & FEATURE_POISON != 0 };
            if faults.call(UFFDIO_API, &mut [API, features, 0]) {
                let is_registered =
                    faults.call(UFFDIO_REGISTER, &mut [base as u64, len as u64, REGISTER_MISSING_AND_WP, 0]);
                return if is_registered { Ok(faults) } else { Err(errno()) };
            }
        }
        Err(errno())
    }
    fn call<const N: usize>(&self, request: libc::c_ulong, words: &mut [u64; N]) -> bool {
        // SAFETY: the request is of `N` words; the kernel reaches the mapping that it names, whose pages it fills or protects, as
        // the aperture wants.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), request, words.as_mut_ptr()) == 0 }
    }
    /// The next fault, if there is one.
    pub fn next(&self) -> Option<PageFault> {
        let mut message = [0u64; 4];
        loop {
            // SAFETY: the buffer has the length of a message.
            let got = unsafe { libc::read(self.fd.as_raw_fd(), message.as_mut_ptr().cast(), size_of_val(&message)) };
            if got != size_of_val(&message) as isize {
                return None;
            }
            let [event, flags, addr, _] = message;
            if event as u8 == EVENT_PAGEFAULT {
                let (is_write, is_protected) = (flags & FLAG_WRITE != 0, flags & FLAG_WP != 0);
                return Some(PageFault { addr: addr as usize, is_write, is_protected });
            }
        }
    }
    /// Puts pages into the mapping, protected against stores, and wakes who waits for them. Pages that are there stay.
    ///
    /// # Errors
    /// An errno: the system has no memory for them. Those before are there.
    pub fn fill(&self, to: usize, bytes: &[u8]) -> Result<(), Status> {
        debug_assert!(bytes.len().is_multiple_of(PAGE) && to.is_multiple_of(PAGE));
        let mut done = 0;
        while done < bytes.len() {
            let (at, left) = (&bytes[done..], (bytes.len() - done) as u64);
            let mut words = [(to + done) as u64, at.as_ptr() as u64, left, COPY_MODE_WP, 0];
            let is_whole = self.call(UFFDIO_COPY, &mut words);
            let copied = words[4] as i64;
            if is_whole || copied == -i64::from(libc::EAGAIN) {
                done += if is_whole { bytes.len() - done } else { 0 };
            } else if copied > 0 {
                done += copied as usize;
            } else if copied == -i64::from(libc::EEXIST) {
                done += PAGE;
            } else {
                return Err((-copied) as Status);
            }
        }
        Ok(())
    }
    /// Protects pages against stores.
    pub fn protect(&self, at: usize, len: usize) {
        self.call(UFFDIO_WRITEPROTECT, &mut [at as u64, len as u64, MODE_WP]);
    }
    /// Allows stores, and wakes who waits for it.
    pub fn unprotect(&self, at: usize) {
        self.call(UFFDIO_WRITEPROTECT, &mut [at as u64, PAGE as u64, 0]);
        self.wake(at, PAGE);
    }
    pub fn wake(&self, at: usize, len: usize) {
        self.call(UFFDIO_WAKE, &mut [at as u64, len as u64]);
    }
    /// A page cannot be had: who uses it gets SIGBUS, or SIGSEGV from kernels before Linux 6.6.
    pub fn poison(&self, at: usize) {
        if !(self.can_poison && self.call(UFFDIO_POISON, &mut [at as u64, PAGE as u64, 0, 0])) {
            // SAFETY: a page of the aperture's own mapping.
            unsafe { libc::mprotect(at as *mut _, PAGE, libc::PROT_NONE) };
        }
        self.wake(at, PAGE);
    }
    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

pub fn errno() -> Status {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
