//! Holes in the memory of programs: pages of a mapped file that the program has removed, or never touched.
//!
//! A program can remove pages of a sealed memfd (`FALLOC_FL_PUNCH_HOLE`). When the daemon touches such a page, the kernel
//! allocates it and charges the daemon's control group: a program could fill the daemon's memory limit. A huge page that cannot
//! be allocated is SIGBUS, which would end the daemon. So the daemon handles SIGBUS for the mappings of programs:
//!
//! * Mappings of untrusted programs are registered with a `userfaultfd` that turns a missing page into SIGBUS
//!   (`UFFD_FEATURE_SIGBUS`). Pages that exist are mapped as always, so present memory costs nothing. Huge pages are not charged
//!   to the memory controller, and are not registered.
//! * The handler looks for the mapping in a static table. If the program's [`FillAllowance`] has room, it allocates the page and
//!   returns: programs may register shared memory that they have not touched. Private memory of honest programs has no holes,
//!   because [`crate::swap`] populates it. A signal and two system calls for each page cost more than the copy of 64 KiB. So
//!   where missing pages follow one another, the handler allocates twice as many as before, up to `FILL_PAGES_MAX`.
//!   The allowance counts the pages of each worker's thread, so that the worker can charge them to the account
//!   ([`FillAllowance::take_unpaid`]).
//! * Otherwise the handler maps private anonymous memory over the whole mapping and marks it as *broken*. The worker removes
//!   broken regions from its table before its next turn ([`crate::MrTable::reclaim`]): their keys give nothing any more.
//!
//! The handler makes system calls and touches atomics only. A SIGBUS anywhere else goes to the handler before this one.

use crate::page::PAGE;
use crate::userfaultfd::{self, REGISTER_MISSING, UFFDIO_REGISTER, UFFDIO_ZEROPAGE, USER_MODE_ONLY};
use rustix::fd::{AsFd, OwnedFd};
use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Maximum number of mappings in the table. The kernel's default limit of mappings (`vm.max_map_count`) is lower.
const SLOTS_MAX: usize = 65_536;
/// Maximum number of pages that one signal allocates: those of one turn of a queue pair.
const FILL_PAGES_MAX: usize = 16;

/// Number of threads whose pages are counted apart: as many as a daemon can have workers.
const SHARES: usize = 16;

thread_local! {
    /// Index of the counts of this thread. A constant at the beginning, and no destructor: a signal handler may read it.
    static SHARE: Cell<usize> = const { Cell::new(0) };
}

/// A mapping of a program's memory. `start` is 0 while the slot is free.
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Address of the allowance, or null: no page is allocated.
    allowance: AtomicPtr<FillAllowance>,
    /// 1: broken.
    broken: AtomicUsize,
    /// The address behind the pages that were allocated last.
    next: AtomicUsize,
    /// How many these were.
    pages: AtomicUsize,
}

static SLOTS: [Slot; SLOTS_MAX] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        allowance: AtomicPtr::new(core::ptr::null_mut()),
        broken: AtomicUsize::new(0),
        next: AtomicUsize::new(0),
        pages: AtomicUsize::new(0),
    }
}; SLOTS_MAX];
/// Slots from the first on that were ever used.
static SLOTS_USED: AtomicUsize = AtomicUsize::new(0);
/// Mappings that were broken since the start.
static BROKEN: AtomicU64 = AtomicU64::new(0);
/// How often pages were allocated or a mapping was broken since the start.
static CHANGES: AtomicU64 = AtomicU64::new(0);
static FREE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
static UFFD: OnceLock<Option<OwnedFd>> = OnceLock::new();

/// Bytes that the daemon may still allocate for the files of one account's programs.
#[derive(Debug)]
pub struct FillAllowance {
    left: AtomicU64,
    /// Pages that each worker's thread has allocated, and has not charged to the account yet.
    unpaid: [AtomicU64; SHARES],
    /// The allowance of all accounts together.
    total: Option<Arc<FillAllowance>>,
}

impl FillAllowance {
    /// An allowance of `bytes`, and no more than `total` has.
    pub fn new(bytes: u64, total: Option<Arc<FillAllowance>>) -> FillAllowance {
        FillAllowance { left: AtomicU64::new(bytes), unpaid: [const { AtomicU64::new(0) }; SHARES], total }
    }
    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        self.left.load(Relaxed)
    }
    /// Sets what is left.
    pub fn renew(&self, bytes: u64) {
        self.left.store(bytes, Relaxed);
    }
    /// Takes `bytes`. False if there are fewer; then nothing has changed. May be called by a signal handler.
    pub fn take(&self, bytes: u64) -> bool {
        let take = |left: &AtomicU64| left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_ok();
        if !take(&self.left) {
            return false;
        }
        let taken = self.total.as_ref().is_none_or(|total| take(&total.left));
        if !taken {
            self.left.fetch_add(bytes, Relaxed);
        }
        taken
    }
    /// Gives back bytes that were taken and not used.
    fn give_back(&self, bytes: u64) {
        self.left.fetch_add(bytes, Relaxed);
        if let Some(total) = &self.total {
            total.left.fetch_add(bytes, Relaxed);
        }
    }
    /// Counts pages that this thread has allocated. May be called by a signal handler.
    pub fn add_unpaid(&self, pages: u64) {
        self.unpaid[SHARE.get()].fetch_add(pages, Relaxed);
        CHANGES.fetch_add(1, SeqCst);
    }
    /// Pages that this thread has allocated since its last call: work that its worker charges to the account.
    pub fn take_unpaid(&self) -> u64 {
        self.unpaid[SHARE.get()].swap(0, Relaxed)
    }
}

/// Makes this thread count the pages that it allocates as those of worker `index`. A thread that does not call this counts them
/// as worker 0's.
pub fn count_for_worker(index: usize) {
    SHARE.set(index % SHARES);
}

/// The watch over one mapping. It ends when this is dropped, which must be before the mapping ends.
#[derive(Debug)]
pub struct HoleGuard {
    slot: usize,
    /// Keeps the allowance of the slot alive.
    _allowance: Option<Arc<FillAllowance>>,
}

/// Changes whenever pages were allocated or a mapping was broken.
#[inline]
pub fn changes() -> u64 {
    // A reader of the new value sees the new `BROKEN`.
    CHANGES.load(Acquire)
}

/// How many mappings were broken since the start.
pub fn broken() -> u64 {
    BROKEN.load(Relaxed)
}

impl HoleGuard {
    /// Watches a mapping of whole pages. `None` if the table is full.
    pub(crate) fn new(start: usize, len: usize, allowance: Option<&Arc<FillAllowance>>) -> Option<HoleGuard> {
        install();
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = match free.pop() {
            Some(slot) => slot,
            None => SLOTS_USED.fetch_update(SeqCst, SeqCst, |used| (used < SLOTS_MAX).then_some(used + 1)).ok()?,
        };
        drop(free);
        let place = &SLOTS[slot];
        debug_assert_eq!(place.start.load(SeqCst), 0, "a free slot");
        place.broken.store(0, SeqCst);
        place.next.store(0, SeqCst);
        place.allowance.store(allowance.map_or(core::ptr::null_mut(), |a| Arc::as_ptr(a).cast_mut()), SeqCst);
        place.end.store(start + len, SeqCst);
        place.start.store(start, SeqCst);
        Some(HoleGuard { slot, _allowance: allowance.cloned() })
    }

    /// Whether a page was missing that could not be allocated.
    pub fn is_broken(&self) -> bool {
        SLOTS[self.slot].broken.load(SeqCst) != 0
    }
}

impl Drop for HoleGuard {
    fn drop(&mut self) {
        let place = &SLOTS[self.slot];
        place.start.store(0, SeqCst);
        place.allowance.store(core::ptr::null_mut(), SeqCst);
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self.slot);
    }
}

/// Gives the memory of the free slots behind the last one in use back to the system. Control thread.
pub fn shrink() {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    free.sort_unstable();
    let before = SLOTS_USED.load(SeqCst);
    let mut used = before;
    while used > 0 && free.last() == Some(&(used - 1)) {
        free.pop();
        used -= 1;
    }
    free.shrink_to_fit();
    SLOTS_USED.store(used, SeqCst);
    // Returns the whole pages of the slots `used..before` to the kernel. They read as zeros afterwards, and a free slot is zeros.
    let slots = SLOTS[used..before].as_ptr_range();
    let (first, end) = ((slots.start as usize).next_multiple_of(PAGE), slots.end as usize & !(PAGE - 1));
    if first < end {
        // SAFETY: anonymous pages (.bss) that hold free slots only. The lock keeps other threads from taking one of the slots. A
        // signal handler that still reads them sees free slots before and after the call.
        unsafe { libc::madvise(first as *mut _, end - first, libc::MADV_DONTNEED) };
    }
}

/// Takes over SIGBUS, once.
fn install() {
    BEFORE.get_or_init(|| {
        // SAFETY: plain structs; the handler has the signature that SA_SIGINFO asks for. It runs on the alternative stack that
        // the standard library gives each thread.
        unsafe {
            let (mut action, mut before): (libc::sigaction, libc::sigaction) = (std::mem::zeroed(), std::mem::zeroed());
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, core::ptr::null(), &mut before);
            libc::sigaction(libc::SIGBUS, &action, core::ptr::null_mut());
            before
        }
    });
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid siginfo with the address of the fault; errno belongs to this thread.
    let healed = unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        let healed = heal((*info).si_addr() as usize);
        *errno = saved;
        healed
    };
    if healed {
        return;
    }
    let Some(before) = BEFORE.get() else { return };
    match before.sa_sigaction {
        // The access is repeated and ends the process as it would have without this handler.
        // SAFETY: an action that the kernel gave.
        libc::SIG_DFL | libc::SIG_IGN => unsafe {
            libc::sigaction(signal, before, core::ptr::null_mut());
        },
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: a handler that was installed with SA_SIGINFO has these three arguments.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: a handler that was installed without SA_SIGINFO has one argument.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// Gives a missing page memory, or replaces its mapping. False if the address is in no mapping of the table.
fn heal(addr: usize) -> bool {
    let used = SLOTS_USED.load(SeqCst).min(SLOTS_MAX);
    for slot in &SLOTS[..used] {
        let (start, end) = (slot.start.load(SeqCst), slot.end.load(SeqCst));
        if start != 0 && start <= addr && addr < end {
            return fill(slot, addr, end) || replace(slot, start, end);
        }
    }
    false
}

/// Allocates the page at `addr` if the allowance has room. If it lies behind the page that was allocated last, the pages behind
/// it that are missing are allocated, too.
fn fill(slot: &Slot, addr: usize, end: usize) -> bool {
    // SAFETY: the guard of the slot keeps the allowance alive. The mapping is in use by this thread, so its guard exists.
    let Some(allowance) = (unsafe { slot.allowance.load(SeqCst).as_ref() }) else { return false };
    let Some(Some(uffd)) = UFFD.get() else { return false };
    let page = addr & !(PAGE - 1);
    let pages = match slot.next.load(SeqCst) == page {
        true => (slot.pages.load(SeqCst) * 2).clamp(1, FILL_PAGES_MAX).min((end - page) / PAGE),
        false => 1,
    };
    // Pages behind the first are not needed now. Without room for them, or if they belong to another file, there is the first.
    let filled = match fill_pages(uffd, allowance, page, pages) {
        Some(0) | None if pages > 1 => fill_pages(uffd, allowance, page, 1),
        filled => filled,
    };
    let Some(filled) = filled else { return false };
    slot.pages.store(filled, SeqCst);
    slot.next.store(page + filled * PAGE, SeqCst);
    true
}

/// Allocates pages from `page` on, up to the first one that is there. Returns their number; `None` without room or when the
/// kernel refuses. 0: another thread has allocated the page, or the address space changed meanwhile; the access is repeated.
fn fill_pages(uffd: &OwnedFd, allowance: &FillAllowance, page: usize, pages: usize) -> Option<usize> {
    let bytes = pages * PAGE;
    if !allowance.take(bytes as u64) {
        return None;
    }
    let mut request = [page as u64, bytes as u64, 0, 0];
    // SAFETY: the kernel checks the range, whose pages are missing.
    let failed = !unsafe { userfaultfd::call(uffd.as_fd(), UFFDIO_ZEROPAGE, &mut request) };
    // SAFETY: errno belongs to this thread.
    let repeat = !failed || matches!(unsafe { *libc::__errno_location() }, libc::EEXIST | libc::EAGAIN);
    // It is the negated error if there is no page.
    let done = (request[3] as i64).max(0) as usize;
    debug_assert!(done <= bytes && done.is_multiple_of(PAGE));
    allowance.give_back((bytes - done) as u64);
    if done > 0 {
        allowance.add_unpaid((done / PAGE) as u64);
    }
    repeat.then_some(done / PAGE)
}

/// Maps private anonymous memory over a mapping and marks the mapping as broken.
fn replace(slot: &Slot, start: usize, end: usize) -> bool {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the range is a reservation of this process that belongs to the slot.
    let mapped = unsafe { libc::mmap(start as *mut _, end - start, prot, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return false;
    }
    if slot.broken.swap(1, SeqCst) == 0 {
        BROKEN.fetch_add(1, SeqCst);
        CHANGES.fetch_add(1, SeqCst);
    }
    true
}

/// Feature: an access to a missing page is SIGBUS for the thread, not a message.
const FEATURE_SIGBUS: u64 = 1 << 7;

fn open_uffd() -> Option<OwnedFd> {
    userfaultfd::open(USER_MODE_ONLY).filter(|uffd| userfaultfd::agree(uffd.as_fd(), FEATURE_SIGBUS).is_some())
}

/// Turns accesses to missing pages of a mapping into SIGBUS. False if the kernel refuses.
pub(crate) fn watch_missing(start: usize, len: usize) -> bool {
    let Some(uffd) = UFFD.get_or_init(open_uffd) else { return false };
    let mut request = [start as u64, len as u64, REGISTER_MISSING, 0];
    // SAFETY: the kernel checks the range.
    unsafe { userfaultfd::call(uffd.as_fd(), UFFDIO_REGISTER, &mut request) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swap::testing::{Memory, memfd};
    use std::os::fd::AsRawFd;

    /// An address that is mapped in no process: the guards of this test meet no fault.
    const NOWHERE: usize = 1 << 60;

    #[test]
    fn pages_are_allocated_up_to_the_first_that_is_there() {
        let _table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, holes) = (memfd(4, 0), libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE);
        let memory = Memory::of(file.as_raw_fd(), 0, 4);
        // SAFETY: numbers only. The pages 1 and 2 are missing then.
        assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), holes, PAGE as i64, 2 * PAGE as i64) }, 0);
        if !watch_missing(memory.at, 4 * PAGE) {
            assert!(matches!(UFFD.get(), Some(None)), "watched where the kernel offers it");
            return;
        }
        let Some(Some(uffd)) = UFFD.get() else { unreachable!("it watches") };
        let allowance = FillAllowance::new(10 * PAGE as u64, None);
        let before = changes();
        let fill = |page: usize, pages: usize| {
            let filled = fill_pages(uffd, &allowance, page, pages);
            (filled, allowance.left() / PAGE as u64, allowance.take_unpaid())
        };
        assert_eq!(fill(memory.page(0), 1), (Some(0), 10, 0), "it is there");
        assert_eq!(changes(), before, "nothing to look at");
        assert_eq!(fill(memory.page(1), 11), (None, 10, 0), "no room");
        assert_eq!(fill(memory.page(1), 3), (Some(2), 8, 2));
        assert_eq!(changes(), before + 1);
        assert_eq!(fill(NOWHERE, 1), (None, 8, 0), "not watched");
        assert_eq!(rustix::fs::fstat(&file).expect("open").st_blocks as usize * 512, 4 * PAGE);
    }

    #[test]
    fn what_is_left_of_an_allowance_is_set_and_taken_as_a_whole() {
        let total = Arc::new(FillAllowance::new(100, None));
        let allowance = FillAllowance::new(10, Some(total.clone()));
        assert!(allowance.take(4) && !allowance.take(7));
        assert_eq!((allowance.left(), total.left()), (6, 96));
        allowance.renew(200);
        assert!(!allowance.take(97), "the total has fewer");
        assert_eq!((allowance.left(), total.left()), (200, 96));
        assert!(allowance.take(96));
        allowance.give_back(5);
        assert_eq!((allowance.left(), total.left()), (109, 5));
    }

    #[test]
    fn the_userfaultfd_is_the_daemons_alone_and_does_not_block() {
        let Some(fd) = open_uffd() else { return };
        // SAFETY: numbers only.
        let (descriptor, flags) =
            unsafe { (libc::fcntl(fd.as_raw_fd(), libc::F_GETFD), libc::fcntl(fd.as_raw_fd(), libc::F_GETFL)) };
        assert_eq!((descriptor, flags & libc::O_NONBLOCK), (libc::FD_CLOEXEC, libc::O_NONBLOCK));
    }

    /// One test counts the slots, so others take none meanwhile.
    static TABLE: Mutex<()> = Mutex::new(());

    #[test]
    fn a_fault_is_healed_in_the_mapping_that_has_the_address() {
        let _table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
        // The last page keeps its place free of other mappings.
        let reserved = 4 * PAGE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe {
            let flags = rustix::mm::MapFlags::PRIVATE;
            rustix::mm::mmap_anonymous(core::ptr::null_mut(), reserved, rustix::mm::ProtFlags::empty(), flags)
        };
        let at = at.expect("reserved") as usize;
        let (first, second) = (at + PAGE, at + 2 * PAGE);
        let guards = [first, second].map(|start| HoleGuard::new(start, PAGE, None).expect("a slot"));
        let is_broken = || guards.each_ref().map(HoleGuard::is_broken);
        assert!(!heal(first - 1) && !heal(second + PAGE) && !heal(0) && !heal(usize::MAX));
        assert_eq!(is_broken(), [false, false]);
        let (changes_before, broken_before) = (changes(), broken());
        assert!(heal(second));
        assert_eq!(is_broken(), [false, true], "its first byte");
        assert!(heal(second - 1) && heal(first));
        assert_eq!(is_broken(), [true, true], "its last byte");
        assert!(changes() >= changes_before + 2 && broken() == broken_before + 2, "each counts once");
        // SAFETY: the two pages have memory now.
        unsafe { (first as *mut u8).write_bytes(3, 2 * PAGE) };
        drop(guards);
        assert!(!heal(first) && !heal(second));
        // SAFETY: the reservation made above, used no more.
        unsafe { rustix::mm::munmap(at as *mut _, reserved) }.expect("unmapped");
    }

    #[test]
    fn the_table_gives_back_what_many_mappings_have_used() {
        let _table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
        let guard = |at: usize| HoleGuard::new(NOWHERE + at * PAGE, PAGE, None).expect("a slot");
        let mut guards: Vec<HoleGuard> = (0..8000).map(guard).collect();
        assert!(SLOTS_USED.load(SeqCst) >= 8000);
        let kept = guards.swap_remove(0);
        drop(guards);
        shrink();
        // Other tests of this process may use some slots behind the kept one.
        assert!(SLOTS_USED.load(SeqCst) < 4000 && SLOTS_USED.load(SeqCst) > kept.slot);
        assert_eq!(SLOTS[kept.slot].start.load(SeqCst), NOWHERE, "a slot in use stays");
        assert!(SLOTS[4000..7500].iter().all(|slot| slot.start.load(SeqCst) == 0 && slot.end.load(SeqCst) == 0));
        let again: Vec<HoleGuard> = (1..8000).map(guard).collect();
        let mut slots: Vec<usize> = again.iter().map(|g| g.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        assert!(slots.len() == 7999 && !slots.contains(&kept.slot), "each slot once");
        drop((again, kept));
        shrink();
        assert_eq!(SLOTS_USED.load(SeqCst), 0);
    }
}
