//! The handler of SIGBUS: a fault outside the mappings of programs is for the handler that the process had before.
//!
//! A handler is installed once per process, so each test runs in a forked child.

use burst_mem::Region;
use burst_mem::region::MapPiece;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const PAGE: usize = 4096;
/// The page whose access faults.
static FAULTY: AtomicUsize = AtomicUsize::new(0);

fn memfd(len: usize) -> OwnedFd {
    // SAFETY: a constant name, and numbers; the descriptor is fresh.
    unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0 && libc::ftruncate(fd, len as i64) == 0);
        OwnedFd::from_raw_fd(fd)
    }
}

/// Puts memory under the faulty page, so that the access succeeds when it is repeated.
fn repair() {
    let (rights, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: replaces the page that the test has mapped.
    unsafe { libc::mmap(FAULTY.load(SeqCst) as *mut _, PAGE, rights, flags, -1, 0) };
}

extern "C" fn plain(signal: libc::c_int) {
    if signal == libc::SIGBUS {
        repair();
    }
}

extern "C" fn with_info(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid siginfo.
    let addr = unsafe { (*info).si_addr() } as usize;
    if signal == libc::SIGBUS && addr == FAULTY.load(SeqCst) && !context.is_null() {
        repair();
    }
}

/// Sets the action of SIGBUS, lets the crate install its handler, and reads a page behind the end of a file. Returns how the
/// child ended: its exit status, or the signal.
fn child(handler: usize, flags: libc::c_int) -> Result<i32, i32> {
    // SAFETY: the child runs the lines below and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: plain structs and calls; the page is mapped and lies behind the end of its file.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) = (handler, flags);
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
            let sealed = memfd(PAGE);
            libc::fcntl(sealed.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK);
            let mapping = Region::map(&[MapPiece { fd: sealed.as_fd(), offset: 0, len: PAGE as u64 }], 0);
            let other = memfd(0);
            let at = libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, libc::MAP_SHARED, other.as_raw_fd(), 0);
            FAULTY.store(at as usize, SeqCst);
            let byte = at.cast::<u8>().read_volatile();
            libc::_exit(if mapping.is_ok() && byte == 0 { 7 } else { 1 });
        }
    }
    let mut status = 0;
    // SAFETY: a child of this test; `status` is writable.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFSIGNALED(status) { Err(libc::WTERMSIG(status)) } else { Ok(libc::WEXITSTATUS(status)) }
}

#[test]
fn a_fault_elsewhere_goes_to_the_handler_before_this_one() {
    assert_eq!(child(with_info as *const () as usize, libc::SA_SIGINFO), Ok(7), "a handler with siginfo");
    assert_eq!(child(plain as *const () as usize, 0), Ok(7), "a handler with the number only");
}

#[test]
fn a_fault_elsewhere_ends_a_process_that_had_no_handler() {
    assert_eq!(child(libc::SIG_DFL, 0), Err(libc::SIGBUS));
    assert_eq!(child(libc::SIG_IGN, 0), Err(libc::SIGBUS), "a fault cannot be ignored");
}
