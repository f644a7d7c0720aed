//! The daemon's allocator: the system's, with a reserve for allocations that cannot fail.
//!
//! Programs are limited to shares of the daemon's address space and memory, but the system may still give no more: another
//! process has it (`vm.overcommit_memory = 2`), or a limit of the daemon was set too low. A list that must grow then would end
//! the daemon for all programs. [`hold`] maps memory that nothing uses. When the system refuses an allocation, the mapping is
//! given back and the allocation is tried again; until [`ReserveLog::refill`] succeeds, users' requests for anything new are
//! refused ([`burst_base::Reason::MemoryReserve`]). Allocations that may fail ([`burst_base::heap::attempt`]) fail, and leave
//! the reserve.

use burst_base::heap;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::AcqRel};

/// Bytes of the reserve: more than the largest list of the control thread needs to double.
const RESERVE_BYTES: usize = 64 << 20;

/// The reserve; null while there is none. Exchanged as a whole: who gets the address owns the mapping.
static RESERVE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// The system's allocator, and the reserve.
struct ReserveAllocator;

#[global_allocator]
static ALLOCATOR: ReserveAllocator = ReserveAllocator;

/// The system gave no memory. Whether to ask again: the reserve was given back, by this thread or by another one just now.
#[cold]
fn give_up_reserve() -> bool {
    if heap::may_fail() {
        return false;
    }
    let reserve = RESERVE.swap(null_mut(), AcqRel);
    if !reserve.is_null() {
        heap::note_reserve(true);
        // SAFETY: the mapping of `hold`, which nothing uses; the exchange has made it this thread's alone.
        unsafe { libc::munmap(reserve, RESERVE_BYTES) };
    }
    true
}

/// The memory, or that of a second attempt without the reserve.
#[inline]
fn or_again(memory: *mut u8, again: impl FnOnce() -> *mut u8) -> *mut u8 {
    if memory.is_null() && give_up_reserve() { again() } else { memory }
}

// SAFETY: all memory is the system allocator's; a null pointer is returned only if it returns one.
unsafe impl GlobalAlloc for ReserveAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout, unchanged.
        let allocate = || unsafe { System.alloc(layout) };
        or_again(allocate(), allocate)
    }
    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout, unchanged.
        let allocate = || unsafe { System.alloc_zeroed(layout) };
        or_again(allocate(), allocate)
    }
    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's arguments, unchanged; a failed attempt leaves the memory as it was.
        let reallocate = || unsafe { System.realloc(memory, layout, size) };
        or_again(reallocate(), reallocate)
    }
    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's arguments, unchanged.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Makes a reserve if there is none. Whether there is one now.
pub fn hold() -> bool {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses. It is private and writable, so that it counts where the
    // kernel does not overcommit; nothing touches it, so it takes no memory.
    let mapped = unsafe { libc::mmap(null_mut(), RESERVE_BYTES, rights, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return false;
    }
    let before = RESERVE.swap(mapped, AcqRel);
    if !before.is_null() {
        // SAFETY: the former reserve, which nothing uses; the exchange has made it this thread's alone.
        unsafe { libc::munmap(before, RESERVE_BYTES) };
    }
    heap::note_reserve(false);
    true
}

/// The state of the reserve, as the control thread has logged it.
#[derive(Debug, Default)]
pub struct ReserveLog {
    is_spent: bool,
}

impl ReserveLog {
    /// Makes a new reserve if the last one was given up and the system has memory again, and logs changes. To be called in each
    /// pass of the control thread: while there is a reserve, that is one load.
    pub fn refill(&mut self) {
        if !heap::is_reserve_spent() && !self.is_spent {
            return;
        }
        if !std::mem::replace(&mut self.is_spent, true) {
            tracing::error!(
                reason = burst_base::Reason::MemoryReserve.name(),
                "the system gives no memory: the daemon uses its reserve, and refuses what users ask for"
            );
        }
        if hold() {
            self.is_spent = false;
            tracing::info!("the daemon has its reserve of memory again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Bytes of address space that this process has.
    fn mapped() -> u64 {
        let pages = std::fs::read_to_string("/proc/self/statm").expect("the kernel's word");
        pages.split(' ').next().expect("a number").parse::<u64>().expect("a number") * 4096
    }

    #[test]
    #[ignore = "limits the address space of its process: the test below runs it in one of its own"]
    fn in_a_process_without_more_address_space() {
        const PIECE: usize = 4 << 20;
        assert!(hold() && hold(), "one at a time");
        let limit = mapped() + (32 << 20);
        let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
        // SAFETY: a limit of this process, which runs this test only.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        let mut pieces: Vec<Vec<u8>> = Vec::with_capacity(64);
        // What may fail fails, and leaves the reserve.
        while let Ok(piece) = heap::with_room(PIECE) {
            pieces.push(piece);
        }
        assert!(!heap::is_reserve_spent() && pieces.len() < 60, "{} pieces", pieces.len());
        // What cannot fail takes it.
        let before = pieces.len();
        pieces.push(Vec::with_capacity(PIECE));
        assert!(heap::is_reserve_spent());
        pieces.push(vec![0; 2 * PIECE]);
        pieces[before].reserve_exact(2 * PIECE);
        assert!(!hold() && heap::is_reserve_spent(), "there is no room for a new one");
        drop(pieces);
        let mut log = ReserveLog::default();
        log.refill();
        assert!(!heap::is_reserve_spent(), "there is room again");
    }

    #[test]
    fn allocations_that_cannot_fail_take_the_reserve() {
        let name = "reserve::tests::in_a_process_without_more_address_space";
        let test = std::env::current_exe().expect("this program");
        let run = Command::new(test).args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]).output();
        let run = run.expect("a process");
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&run.stderr));
    }
}
