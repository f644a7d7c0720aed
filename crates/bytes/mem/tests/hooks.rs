//! Programs interpose the calls that change mappings. UCX patches `mmap`, `munmap`, `mremap` and `madvise` in libc, and its
//! `mremap` takes four arguments, so that MREMAP_FIXED moves pages to the random contents of the register of the fifth.
//!
//! This test program defines these four symbols itself, which the linker allows every program. Swapping pages in place
//! changes nothing that the program can see, so none of them may be called, and nothing may depend on what they do.

use burst_mem::swap::{register, release};
use std::ffi::{c_int, c_long, c_void};
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const PAGE: usize = 4096;
const LEN: usize = 512 * PAGE;

/// Number of calls of each.
static CALLS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];

fn counts() -> [usize; 4] {
    CALLS.each_ref().map(|calls| calls.load(Relaxed))
}

/// Counts a call and returns its result.
fn noted(which: usize, result: c_long) -> *mut c_void {
    CALLS[which].fetch_add(1, Relaxed);
    result as *mut c_void
}

#[unsafe(no_mangle)]
extern "C" fn mmap(at: *mut c_void, len: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void {
    // SAFETY: the caller's promise, as for the call of libc.
    noted(0, unsafe { libc::syscall(libc::SYS_mmap, at, len, prot, flags, fd, offset) })
}

#[unsafe(no_mangle)]
extern "C" fn munmap(at: *mut c_void, len: usize) -> c_int {
    // SAFETY: the caller's promise, as for the call of libc.
    noted(1, unsafe { libc::syscall(libc::SYS_munmap, at, len) }) as usize as c_int
}

/// Like UCX's: without the parameter of the new address.
#[unsafe(no_mangle)]
extern "C" fn mremap(at: *mut c_void, old: usize, new: usize, flags: c_int) -> *mut c_void {
    // SAFETY: the caller's promise, as for the call of libc.
    noted(2, unsafe { libc::syscall(libc::SYS_mremap, at, old, new, flags, 0usize) })
}

#[unsafe(no_mangle)]
extern "C" fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller's promise, as for the call of libc.
    noted(3, unsafe { libc::syscall(libc::SYS_madvise, at, len, advice) }) as usize as c_int
}

#[test]
fn swapping_calls_no_interposed_function() {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let before = counts();
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, rights, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    assert_eq!(counts()[0], before[0] + 1, "this program's own mmap is the one that is called");
    // SAFETY: the mapping made above.
    let memory = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), LEN) };
    for (i, byte) in memory.iter_mut().enumerate() {
        *byte = (i / 61) as u8;
    }
    let before = counts();
    for round in 0..3 {
        let registration = register(at as usize, LEN, true).expect("registered");
        if registration.is_in_process() {
            let _ = writeln!(std::io::stderr(), "SKIP: the kernel refuses userfaultfd here");
            return release(registration);
        }
        release(registration);
        assert!(memory.iter().enumerate().all(|(i, byte)| *byte == (i / 61) as u8), "lost in round {round}");
    }
    assert_eq!(counts(), before, "mmap, munmap, mremap, madvise");
}
