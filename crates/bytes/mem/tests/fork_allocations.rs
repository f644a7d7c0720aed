//! The handlers of fork allocate nothing: a signal handler that forks may have interrupted the allocator.

use burst_mem::swap::{MemoryHost, add_host, fork_by, register, release};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

const PAGE: usize = 4096;

/// Counts what is asked of the system's allocator during a fork.
struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicUsize = AtomicUsize::new(0);

fn count() {
    if COUNTS.load(Relaxed) {
        CALLS.fetch_add(1, Relaxed);
    }
}

// SAFETY: the system's allocator, with a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[derive(Debug)]
struct Daemon;

impl MemoryHost for Daemon {
    fn begin_fork(&self, _in_place: bool) {}
    fn end_fork(&self) {}
}

fn anon(len: usize) -> *mut u8 {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

/// Allocations of a fork, in the parent and in its child, which the test's one thread makes.
fn allocations(fork: impl FnOnce() -> i32) -> usize {
    CALLS.store(0, Relaxed);
    COUNTS.store(true, Relaxed);
    let pid = fork();
    COUNTS.store(false, Relaxed);
    if pid == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(CALLS.load(Relaxed).min(100) as i32) };
    }
    let mut status = 0;
    // SAFETY: the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    CALLS.load(Relaxed) + libc::WEXITSTATUS(status) as usize
}

#[test]
fn a_fork_allocates_nothing() {
    let memory = anon(64 * PAGE);
    // SAFETY: memory of this test.
    unsafe { memory.write_bytes(3, 64 * PAGE) };
    let daemon = Arc::new(Daemon);
    add_host(&daemon);
    let mut registered: Vec<_> =
        (0..8).map(|i| register(memory as usize + 8 * i * PAGE, 4 * PAGE, true).expect("registered")).collect();
    if registered[0].is_in_process() {
        let _ = writeln!(std::io::stderr(), "SKIP: the kernel refuses userfaultfd here");
        return;
    }
    for _ in 0..3 {
        // SAFETY: the child ends at once.
        assert_eq!(allocations(|| unsafe { libc::fork() }), 0);
        // SAFETY: as above, without libc's handlers.
        let bare = || unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 };
        // SAFETY: one child, which ends at once.
        assert_eq!(allocations(|| unsafe { fork_by(Default::default(), |_first| bare()) }), 0);
    }
    registered.drain(..).for_each(release);
}
