//! What a program's `madvise` and `mremap` do to registered memory, called as the library that interposes them calls them.

use burst_base::verbs::access;
use burst_mem::Region;
use burst_mem::region::MapPiece;
use burst_mem::swap::{self, NewPlace, PieceSource, Registration, register, release};
use std::ffi::{c_int, c_void};
use std::io::Write as _;
use std::sync::RwLock;

const PAGE: usize = 4096;
/// Held for writing by a test that forks: until the child has its copies, what the program writes is not the daemon's yet, and
/// the daemon, which tests are here, must not touch the memory.
static FORKS: RwLock<()> = RwLock::new(());
const ALL: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE;

fn anon(pages: usize) -> *mut u8 {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, rights, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

/// Memory below all that the kernel chooses addresses for: what is unmapped there, no other test's thread gets.
fn anon_below(pages: usize) -> *mut u8 {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // Each sanitizer has memory of its own at one of the two.
    let places = [0x10_0000_0000, 0x2000_0000_0000].map(|place: usize| place as *mut c_void);
    // SAFETY: a new mapping where none is.
    let map = |place| unsafe { libc::mmap(place, pages * PAGE, rights, flags | libc::MAP_FIXED_NOREPLACE, -1, 0) };
    let at = places.into_iter().find(|place| map(*place) == *place);
    at.expect("room below").cast()
}

fn bytes<'a>(at: *mut u8, pages: usize) -> &'a mut [u8] {
    // SAFETY: memory of this test.
    unsafe { std::slice::from_raw_parts_mut(at, pages * PAGE) }
}

fn at_page(at: *mut u8, page: usize) -> *mut u8 {
    at.wrapping_add(page * PAGE)
}

fn madvise(at: *mut u8, pages: usize, advice: c_int) -> c_int {
    // SAFETY: memory of this test.
    unsafe {
        swap::madvise(at as usize, pages * PAGE, advice, |at, len, advice| libc::madvise(at as *mut _, len, advice))
    }
}

fn mremap(old: *mut u8, old_pages: usize, pages: usize, flags: c_int, to: usize) -> *mut u8 {
    let new = NewPlace { len: pages * PAGE, flags, at: to };
    let next = |old: usize, len, new: NewPlace| -> *mut c_void {
        // SAFETY: memory of this test.
        unsafe { libc::mremap(old as *mut _, len, new.len, new.flags, new.at) }
    };
    // SAFETY: memory of this test.
    unsafe { swap::mremap(old as usize, old_pages * PAGE, new, next) }.cast()
}

/// A registration and the daemon's region over it.
struct Shared {
    reg: Registration,
    region: Region,
    addr: u64,
}

impl Shared {
    /// `None`: the kernel refuses to exchange pages here.
    fn new(at: *mut u8, pages: usize) -> Option<Shared> {
        let reg = register(at as usize, pages * PAGE, true).expect("registered");
        if reg.is_in_process() {
            release(reg);
            let _ = writeln!(std::io::stderr(), "SKIP: the kernel refuses userfaultfd here");
            return None;
        }
        let piece = |p: &swap::Piece| match p.kind {
            PieceSource::Fd { fd, offset } => MapPiece { fd: reg.fd(fd).expect("fd"), offset, len: p.len as u64 },
            PieceSource::InProcess => unreachable!("asked before"),
        };
        let pieces: Vec<_> = reg.pieces().iter().map(piece).collect();
        let mapping = Region::map(&pieces, ALL).expect("mapped");
        let region = Region::new(1, 1, at as u64, (pages * PAGE) as u64, ALL, mapping);
        Some(Shared { reg, region, addr: at as u64 })
    }
    fn put(&self, page: usize, value: u8) {
        let span = self.region.span(self.addr + (page * PAGE) as u64, 1).expect("inside");
        span.write_from(&[value]).expect("there");
    }
    fn get(&self, page: usize) -> u8 {
        let mut byte = [0];
        self.region.span(self.addr + (page * PAGE) as u64, 1).expect("inside").read_to(&mut byte).expect("there");
        byte[0]
    }
    fn release(self) {
        drop(self.region);
        release(self.reg);
    }
}

#[test]
fn discarded_pages_read_as_zeros_and_stay_the_regions() {
    let _turn = FORKS.read();
    let at = anon(8);
    bytes(at, 8).fill(7);
    let Some(shared) = Shared::new(at_page(at, 2), 4) else { return };
    // From private pages into swapped ones, and on.
    assert_eq!(madvise(at_page(at, 1), 3, libc::MADV_DONTNEED), 0);
    assert_eq!(madvise(at_page(at, 5), 2, libc::MADV_DONTNEED), 0);
    let values: Vec<u8> = (0..8).map(|page| bytes(at, 8)[page * PAGE + 9]).collect();
    assert_eq!(values, [7, 0, 0, 0, 7, 0, 0, 7]);
    assert_eq!((shared.get(0), shared.get(2)), (0, 7), "what the peer reads");
    shared.put(0, 9);
    bytes(at, 8)[3 * PAGE] = 8;
    assert_eq!((bytes(at, 8)[2 * PAGE], shared.get(1)), (9, 8), "still the same page");
    shared.release();
    assert_eq!((bytes(at, 8)[2 * PAGE], bytes(at, 8)[3 * PAGE]), (9, 8));
    // Deregistered: the kernel discards.
    assert_eq!(madvise(at, 8, libc::MADV_DONTNEED), 0);
    assert!(bytes(at, 8).iter().all(|byte| *byte == 0));
}

#[test]
fn pages_without_the_right_to_write_are_discarded_as_well() {
    let _turn = FORKS.read();
    let at = anon(4);
    bytes(at, 4).fill(7);
    let Some(shared) = Shared::new(at, 4) else { return };
    for rights in [libc::PROT_READ, libc::PROT_NONE] {
        // SAFETY: memory of this test.
        assert_eq!(unsafe { libc::mprotect(at_page(at, 1).cast(), PAGE, rights) }, 0);
        assert_eq!(madvise(at_page(at, 1), 1, libc::MADV_DONTNEED), 0);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::mprotect(at_page(at, 1).cast(), PAGE, libc::PROT_READ | libc::PROT_WRITE) }, 0);
        assert_eq!((bytes(at, 4)[PAGE], bytes(at, 4)[2 * PAGE]), (0, 7));
        bytes(at, 4)[PAGE] = 5;
    }
    shared.release();
}

#[test]
fn advice_that_the_kernel_refuses_for_files_is_no_error() {
    let _turn = FORKS.read();
    let at = anon(6);
    bytes(at, 6).fill(7);
    let Some(shared) = Shared::new(at_page(at, 2), 2) else { return };
    assert_eq!(madvise(at, 6, libc::MADV_FREE), 0);
    assert_eq!(bytes(at, 6)[2 * PAGE], 7);
    // Errors of the kernel stay.
    assert_eq!(madvise(at.wrapping_add(1), 2, libc::MADV_DONTNEED), -1);
    assert_eq!(bytes(at, 6)[2 * PAGE], 7);
    shared.release();
}

#[test]
fn a_grown_mapping_moves_with_its_region() {
    let _turn = FORKS.read();
    let at = anon_below(12);
    bytes(at, 12).iter_mut().enumerate().for_each(|(i, byte)| *byte = (i / PAGE) as u8 + 1);
    let (Some(inner), Some(behind)) = (Shared::new(at_page(at, 2), 2), Shared::new(at_page(at, 8), 4)) else { return };
    // Behind the eight pages are those of another region, so it must move.
    assert!(mremap(at, 8, 16, 0, 0).cast() == libc::MAP_FAILED, "not without moving");
    let moved = mremap(at, 8, 16, libc::MREMAP_MAYMOVE, 0);
    assert!(moved.cast() != libc::MAP_FAILED && moved != at);
    let values = |at| -> Vec<u8> { bytes(at, 16).iter().step_by(PAGE).copied().collect() };
    assert_eq!(values(moved), [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
    // The adapter writes the same pages, which are at another address now.
    inner.put(1, 77);
    bytes(moved, 16)[2 * PAGE] = 66;
    assert_eq!((bytes(moved, 16)[3 * PAGE], inner.get(0)), (77, 66));
    assert_eq!(madvise(at_page(moved, 3), 1, libc::MADV_DONTNEED), 0);
    assert_eq!(inner.get(1), 0);
    // Other memory at the old address is other memory.
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: memory that has moved away.
    let other = unsafe { libc::mmap(at.cast(), 8 * PAGE, rights, flags | libc::MAP_FIXED_NOREPLACE, -1, 0) };
    assert_eq!(other.cast(), at);
    bytes(at, 8).fill(200);
    let second = register(at as usize, 8 * PAGE, true).expect("registered");
    assert!(second.is_in_process(), "the pool's pages of these addresses are in use");
    assert_eq!((bytes(moved, 16)[2 * PAGE], inner.get(0), bytes(at, 8)[2 * PAGE]), (66, 66, 200));
    release(second);
    // At the end they become private where they are.
    inner.release();
    assert_eq!(bytes(moved, 16)[2 * PAGE], 66);
    // SAFETY: memory of this test.
    assert_eq!(unsafe { libc::madvise(moved.cast(), 8 * PAGE, libc::MADV_DONTNEED) }, 0);
    assert!(bytes(moved, 8).iter().all(|byte| *byte == 0), "private again");
    let Some(third) = Shared::new(at, 8) else { panic!("the addresses are free again") };
    assert_eq!((third.get(2), bytes(at_page(at, 8), 1)[0]), (200, 9));
    third.release();
    behind.release();
}

#[test]
fn a_fork_copies_moved_pages() {
    let _turn = FORKS.write();
    let at = anon(4);
    bytes(at, 4).fill(1);
    let Some(shared) = Shared::new(at, 4) else { return };
    // Forced to move: the pages behind it are taken, or it would grow in place.
    let place = anon(8);
    let moved = mremap(at, 4, 8, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, place as usize);
    assert_eq!(moved, place);
    let mut ends = [0; 2];
    // SAFETY: two writable numbers.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: the child looks at its memory and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let mut byte = 0u8;
        // SAFETY: our own descriptor.
        unsafe { libc::read(ends[0], (&raw mut byte).cast(), 1) };
        let wrong = bytes(moved, 8)[PAGE] != 1;
        bytes(moved, 8)[0] = 99;
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(wrong)) };
    }
    bytes(moved, 8)[PAGE] = 2;
    shared.put(2, 3);
    let mut status = -1;
    // SAFETY: our own descriptors and child.
    unsafe {
        assert_eq!(libc::write(ends[1], [1u8].as_ptr().cast(), 1), 1);
        libc::waitpid(pid, &raw mut status, 0);
    }
    assert_eq!(status, 0, "the child has what was there at the fork");
    assert_eq!((bytes(moved, 8)[0], bytes(moved, 8)[2 * PAGE], shared.get(1)), (1, 3, 2));
    shared.release();
}

#[test]
fn the_kernels_error_is_the_calls() {
    let _turn = FORKS.read();
    let at = anon(4);
    let Some(shared) = Shared::new(at, 1) else { return };
    // A mapping with a name that is longer than those asked for.
    let (rights, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_FIXED);
    let name = std::ffi::CString::new("n".repeat(100)).expect("no zero byte");
    // SAFETY: a terminated name; a page of this test, which is not read.
    let file = unsafe {
        let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC);
        libc::mmap(at_page(at, 3).cast(), PAGE, rights, flags, fd, 0)
    };
    assert_eq!(file.cast(), at_page(at, 3));
    assert!(mremap(at_page(at, 2), 2, 4, libc::MREMAP_MAYMOVE, 0).cast() == libc::MAP_FAILED, "two mappings");
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
    shared.release();
}

#[test]
fn what_the_kernel_refuses_is_refused() {
    let _turn = FORKS.read();
    let at = anon(8);
    let Some(shared) = Shared::new(at_page(at, 2), 2) else { return };
    let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    assert!(mremap(at, 8, 16, libc::MREMAP_FIXED, 0x1_0000_0000).cast() == libc::MAP_FAILED, "without MAYMOVE");
    assert!(mremap(at, 8, 16, fixed, at as usize + PAGE).cast() == libc::MAP_FAILED, "over itself");
    assert!(mremap(at.wrapping_add(8), 8, 16, libc::MREMAP_MAYMOVE, 0).cast() == libc::MAP_FAILED, "no page");
    // SAFETY: memory of this test, used no more.
    assert_eq!(unsafe { libc::munmap(at_page(at, 4).cast(), PAGE) }, 0);
    assert!(mremap(at, 8, 16, libc::MREMAP_MAYMOVE, 0).cast() == libc::MAP_FAILED, "a gap");
    // A shorter one stays where it is.
    assert_eq!(mremap(at, 4, 3, 0, 0), at);
    shared.release();
}

/// Memory of these kinds is reached in the process.
#[test]
fn memory_that_cannot_be_a_files_stays_private() {
    let _turn = FORKS.write();
    let at = anon(8);
    bytes(at, 8).fill(7);
    // SAFETY: memory of this test.
    assert_eq!(unsafe { libc::madvise(at.cast(), 8 * PAGE, libc::MADV_WIPEONFORK) }, 0);
    let reg = register(at as usize, 8 * PAGE, true).expect("registered");
    assert!(reg.is_in_process(), "a child would see what it must not");
    release(reg);
    // SAFETY: the child reads one byte, and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(bytes(at, 8)[PAGE].into()) };
    }
    let mut status = 0;
    // SAFETY: the child of this test.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child finds zeros");

    let at = anon(8);
    // In a child: the limit is the whole process's, and would end the other tests.
    // SAFETY: the child registers memory, and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
        // SAFETY: `limit` is readable.
        let limited = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) } == 0;
        let stays = register(at as usize, 8 * PAGE, true).is_ok_and(|reg| reg.is_in_process());
        // SAFETY: ends the child.
        unsafe { libc::_exit(if limited && stays { 0 } else { 1 }) };
    }
    // SAFETY: the child of this test.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "a write to the pool would end the program");
}

#[test]
fn what_private_memory_does_not_allow_is_refused() {
    let _turn = FORKS.read();
    let at = anon(8);
    bytes(at, 8).fill(7);
    let Some(shared) = Shared::new(at, 8) else { return };
    let errno = || std::io::Error::last_os_error().raw_os_error();
    for (len, old_len, flags) in [(8, 8, libc::MREMAP_DONTUNMAP), (8, 0, 0)] {
        let moved = mremap(at, old_len, len, libc::MREMAP_MAYMOVE | flags, 0);
        assert!(moved.cast() == libc::MAP_FAILED && errno() == Some(libc::EINVAL), "{flags:#x}");
    }
    assert_eq!((madvise(at, 8, libc::MADV_REMOVE), errno()), (-1, Some(libc::EINVAL)));
    assert!(bytes(at, 8).iter().all(|byte| *byte == 7));
    shared.release();
}

/// Faults of this thread for which no page was read from a device.
fn faults() -> i64 {
    // SAFETY: all zeroes is a valid `rusage`, and it is writable.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage.ru_minflt
    }
}

#[test]
fn discarded_pages_stay_mapped() {
    let _turn = FORKS.read();
    let pages = 2048;
    let at = anon(pages);
    bytes(at, pages).fill(3);
    let Some(shared) = Shared::new(at, pages) else { return };
    for round in 0..3u8 {
        bytes(at, pages).fill(round + 1);
        shared.put(pages - 1, 77);
        let before = faults();
        assert_eq!(madvise(at, pages, libc::MADV_DONTNEED), 0);
        let each = faults() - before;
        assert!(each < pages as i64 / 4, "{each} faults for {pages} pages");
        assert!(bytes(at, pages).iter().all(|byte| *byte == 0));
    }
    shared.release();
}
