//! userfaultfd: faults of an aperture's pages as messages, and the calls that resolve them.

use crate::abi::{EPERM, Status};
use burst_mem::userfaultfd::{
    self, MODE_WP, REGISTER_MISSING, REGISTER_WP, UFFDIO_COPY, UFFDIO_POISON, UFFDIO_REGISTER, UFFDIO_WAKE,
    UFFDIO_WRITEPROTECT, USER_MODE_ONLY,
};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

pub const PAGE: usize = 4096;

const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1;
const FEATURE_POISON: u64 = 1 << 14;
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
        // Without privilege only faults of the program itself are offered, not those of its system calls.
        let open = || userfaultfd::open(0).or_else(|| userfaultfd::open(USER_MODE_ONLY)).ok_or(EPERM);
        for features in [FEATURE_PAGEFAULT_FLAG_WP | FEATURE_POISON, FEATURE_PAGEFAULT_FLAG_WP] {
            let faults = PageFaults { fd: open()?, can_poison: features & FEATURE_POISON != 0 };
            if userfaultfd::agree(faults.fd.as_fd(), features).is_some() {
                let mode = REGISTER_MISSING | REGISTER_WP;
                let is_registered = faults.call(UFFDIO_REGISTER, &mut [base as u64, len as u64, mode, 0]);
                return if is_registered { Ok(faults) } else { Err(errno()) };
            }
        }
        Err(errno())
    }
    fn call<const N: usize>(&self, request: libc::c_ulong, words: &mut [u64; N]) -> bool {
        // SAFETY: the request is of `N` words; the kernel reaches the mapping that it names, whose pages it fills or protects, as
        // the aperture wants.
        unsafe { userfaultfd::call(self.fd.as_fd(), request, words) }
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
