//! The handlers of faults: what is no fault of a copy is for the handler that the process had before.
//!
//! They are installed once per process, so each test runs in a forked child.

use burst_span::{Span, Unreachable, catch_faults};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const PAGE: usize = 4096;

/// Two pages of private memory, filled with 7, which stay mapped until the test changes that.
fn pages() -> *mut u8 {
    // SAFETY: fresh memory at an address that the kernel chooses.
    unsafe {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let at = libc::mmap(std::ptr::null_mut(), 2 * PAGE, rights, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        at.cast::<u8>().write_bytes(7, 2 * PAGE);
        at.cast()
    }
}

fn protect(at: *mut u8, len: usize, rights: libc::c_int) {
    // SAFETY: pages of the test.
    assert_eq!(unsafe { libc::mprotect(at.cast(), len, rights) }, 0);
}

fn unmap(at: *mut u8, len: usize) {
    // SAFETY: pages of the test, which it reaches by spans only from now on.
    assert_eq!(unsafe { libc::munmap(at.cast(), len) }, 0);
}

/// An address at which nothing is mapped, nor will be soon: the kernel fills holes from their end, and what a sanitizer maps
/// while the copy fails would take the place of two pages.
fn hole() -> *mut u8 {
    const LEN: usize = 64 << 20;
    // SAFETY: fresh memory at an address that the kernel chooses.
    let at = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(std::ptr::null_mut(), LEN, libc::PROT_NONE, flags, -1, 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    unmap(at.cast(), LEN);
    at.cast()
}

fn span(at: *mut u8, offset: usize, len: usize) -> Span {
    // SAFETY: faults are caught.
    unsafe { Span::local(at.wrapping_add(offset), len as u32) }
}

/// The page whose access faults.
static FAULTY: AtomicUsize = AtomicUsize::new(0);

/// Lets the access succeed when it is repeated.
fn repair() {
    protect(FAULTY.load(SeqCst) as *mut u8, PAGE, libc::PROT_READ);
}

extern "C" fn plain(signal: libc::c_int) {
    if signal == libc::SIGSEGV {
        repair();
    }
}

extern "C" fn with_info(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid siginfo.
    let addr = unsafe { (*info).si_addr() } as usize;
    if signal == libc::SIGSEGV && addr == FAULTY.load(SeqCst) && !context.is_null() {
        repair();
    }
}

/// Sets the action of SIGSEGV, catches faults, lets a copy fail, and reads a protected page. Returns how the child ended: its
/// exit status, or the signal.
fn child(handler: usize, flags: libc::c_int, inside: impl FnOnce(*mut u8)) -> Result<i32, i32> {
    // SAFETY: the child runs the lines below and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: plain structs and calls.
        unsafe {
            libc::alarm(20);
            let mut action: libc::sigaction = std::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) = (handler, flags);
            libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
            let (at, gone) = (pages(), hole());
            let is_caught = catch_faults() && span(gone, 0, 8).write_from(&[1; 8]) == Err(Unreachable::Gone);
            protect(at, PAGE, libc::PROT_NONE);
            FAULTY.store(at as usize, SeqCst);
            inside(at);
            libc::_exit(if is_caught { 7 } else { 1 });
        }
    }
    let mut status = 0;
    // SAFETY: a child of this test; `status` is writable.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    if libc::WIFSIGNALED(status) { Err(libc::WTERMSIG(status)) } else { Ok(libc::WEXITSTATUS(status)) }
}

fn read(at: *mut u8) {
    // SAFETY: mapped; it is readable when the handler has repaired it.
    unsafe { at.read_volatile() };
}

#[test]
fn a_fault_elsewhere_goes_to_the_handler_before_this_one() {
    if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
        return;
    }
    for flags in [0, libc::SA_ONSTACK, libc::SA_NODEFER, libc::SA_RESETHAND] {
        assert_eq!(child(with_info as *const () as usize, flags | libc::SA_SIGINFO, read), Ok(7), "{flags:#x}");
        assert_eq!(child(plain as *const () as usize, flags, read), Ok(7), "{flags:#x}");
    }
    let twice = |at: *mut u8| {
        read(at);
        protect(at, PAGE, libc::PROT_NONE);
        read(at);
    };
    assert_eq!(child(plain as *const () as usize, libc::SA_NODEFER, twice), Ok(7));
    assert_eq!(child(plain as *const () as usize, libc::SA_RESETHAND, twice), Err(libc::SIGSEGV), "reset after one");
}

#[test]
fn a_fault_elsewhere_ends_a_process_that_had_no_handler() {
    if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
        return;
    }
    assert_eq!(child(libc::SIG_DFL, 0, read), Err(libc::SIGSEGV));
    assert_eq!(child(libc::SIG_IGN, 0, read), Err(libc::SIGSEGV), "a fault cannot be ignored");
    // SAFETY: a number.
    let sent = |_: *mut u8| assert_eq!(unsafe { libc::kill(libc::getpid(), libc::SIGSEGV) }, 0);
    assert_eq!(child(libc::SIG_DFL, 0, sent), Err(libc::SIGSEGV));
    assert_eq!(child(libc::SIG_IGN, 0, sent), Ok(7), "one that was sent can");
}

/// What a copy has left on the stack is no frame: the fault in the function that gets the same stack is not caught.
#[test]
fn a_former_frame_catches_nothing() {
    if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
        return;
    }
    #[inline(never)]
    fn uninitialised(at: *mut u8) {
        let stack = [const { std::mem::MaybeUninit::<u64>::uninit() }; 2000];
        std::hint::black_box(&stack);
        read(at);
    }
    let inside = |at: *mut u8| {
        let mut bytes = [0; 8];
        assert_eq!(span(at, PAGE, 8).read_to(&mut bytes), Ok(()));
        uninitialised(at);
    };
    assert_eq!(child(libc::SIG_DFL, 0, inside), Err(libc::SIGSEGV));
}
