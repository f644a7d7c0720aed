//! Page swapping against the kernel: all kinds of memory, concurrent writers, forks, overlaps, misuse.
//!
//! The daemon's view is a real `Region` over the registration's pieces. As root, the whole file is run a second time as an
//! unprivileged user (`again_without_privileges`), where userfaultfd works for user-mode faults only.

use burst_base::verbs::access;
use burst_mem::region::{MapPiece, MapRefused};
use burst_mem::swap::{PieceSource, RegisterError, Registration, register, release};
use burst_mem::{ProcessMemory, Region};
use std::io::Write as _;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const ALL: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE;

/// The daemon's region over a registration.
fn map(reg: &Registration, rights: u32) -> Result<Region, MapRefused> {
    let pieces: Vec<MapPiece> = reg
        .pieces()
        .iter()
        .map(|p| match p.kind {
            PieceSource::Fd { fd, offset } => MapPiece { fd: reg.fd(fd).expect("fd"), offset, len: p.len as u64 },
            PieceSource::InProcess => panic!("not mappable"),
        })
        .collect();
    let first = reg.pieces()[0];
    let len = reg.pieces().iter().map(|p| p.len as u64).sum();
    Ok(Region::new(1, 1, first.addr as u64, len, rights, Region::map(&pieces, rights)?))
}

fn get(region: &Region, addr: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    region.span(addr as u64, len as u32).expect("inside").read_to(&mut out).expect("there");
    out
}

fn put(region: &Region, addr: usize, bytes: &[u8]) {
    region.span(addr as u64, bytes.len() as u32).expect("inside").write_from(bytes).expect("there");
}

fn anon(len: usize, flags: i32) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_ne!(p, libc::MAP_FAILED);
    p.cast()
}

fn bytes<'a>(p: *mut u8, len: usize) -> &'a mut [u8] {
    // SAFETY: memory that the test has mapped or allocated.
    unsafe { std::slice::from_raw_parts_mut(p, len) }
}

fn unmap(p: *mut u8, len: usize) {
    // SAFETY: memory of this test, used no more at these addresses.
    assert_eq!(unsafe { libc::munmap(p.cast(), len) }, 0);
}

/// Private pages read as zero afterwards.
fn discard(p: *mut u8, len: usize) {
    // SAFETY: memory of this test.
    unsafe { libc::madvise(p.cast(), len, libc::MADV_DONTNEED) };
}

fn protect(p: *mut u8, len: usize, rights: i32) {
    // SAFETY: memory of this test, used by these rights afterwards.
    assert_eq!(unsafe { libc::mprotect(p.cast(), len, rights) }, 0);
}

fn is_root() -> bool {
    // SAFETY: asks for a number.
    unsafe { libc::geteuid() == 0 }
}

/// Bytes that a file holds.
fn allocated(fd: BorrowedFd) -> i64 {
    // SAFETY: all zeroes is a valid `stat`.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `st` is writable.
    assert_eq!(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut st) }, 0);
    st.st_blocks * 512
}

/// Held for writing by tests that measure, load all cores, or fork (until the child has its copies the daemon sees no writes).
static ALONE: RwLock<()> = RwLock::new(());

fn alone() -> RwLockWriteGuard<'static, ()> {
    ALONE.write().unwrap_or_else(PoisonError::into_inner)
}

fn can_swap() -> bool {
    let p = anon(PAGE, 0);
    let reg = register(p as usize, PAGE, true).expect("registered");
    let can = !reg.is_in_process();
    release(reg);
    if !can {
        let _ = writeln!(std::io::stderr(), "SKIP: the kernel refuses userfaultfd here");
    }
    can
}

/// Registers a range and checks that both sides see each other's writes, and that the contents survive.
fn check_swapped(p: *mut u8, len: usize) {
    let memory = bytes(p, len);
    let pattern: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
    memory.copy_from_slice(&pattern);
    let reg = register(p as usize, len, true).expect("registered");
    assert!(!reg.is_in_process());
    assert_eq!(reg.pieces().len(), 1, "swapped memory is one piece");
    let region = map(&reg, ALL).expect("mapped");
    assert!(get(&region, p as usize, len) == pattern, "the daemon sees what was there");
    put(&region, p as usize + len / 2, &[0xEE]);
    // SAFETY: inside the memory of this test.
    assert_eq!(unsafe { p.add(len / 2).read_volatile() }, 0xEE, "the program sees the daemon's write");
    // SAFETY: inside the memory of this test.
    unsafe { p.add(len - 1).write_volatile(0xDD) };
    assert_eq!(get(&region, p as usize + len - 1, 1), [0xDD], "the daemon sees the program's write");
    drop(region);
    release(reg);
    let mut expect = pattern;
    (expect[len / 2], expect[len - 1]) = (0xEE, 0xDD);
    assert!(*memory == *expect, "the contents outlive the registration");
}

#[test]
fn heap_small_objects_share_a_page() {
    let _shared = ALONE.read();
    if !can_swap() {
        return;
    }
    let mut objects: Vec<Box<[u8; 200]>> = (0..64).map(|i| Box::new([i; 200])).collect();
    let regs: Vec<_> = objects.iter().map(|o| register(o.as_ptr() as usize, 200, true).expect("registered")).collect();
    let regions: Vec<_> = regs.iter().map(|r| map(r, ALL).expect("mapped")).collect();
    for (i, object) in objects.iter_mut().enumerate() {
        assert_eq!(get(&regions[i], object.as_ptr() as usize, 200), [i as u8; 200]);
        object[3] = 99;
        assert_eq!(get(&regions[i], object.as_ptr() as usize + 3, 1), [99]);
    }
    drop(regions);
    regs.into_iter().for_each(release);
    assert!(objects.iter().all(|o| o[3] == 99));
}

#[test]
fn heap_large() {
    let _shared = ALONE.read();
    if can_swap() {
        let mut v = vec![1u8; (1 << 20) + 123];
        check_swapped(v.as_mut_ptr(), v.len());
    }
}

#[test]
fn stack_with_the_live_page() {
    let _shared = ALONE.read();
    if can_swap() {
        let mut small = [5u8; 64];
        check_swapped(small.as_mut_ptr(), 64);
        let mut large = [5u8; 50_000];
        check_swapped(large.as_mut_ptr(), large.len());
        assert_eq!(small[1], 7);
    }
}

#[test]
fn bss() {
    let _shared = ALONE.read();
    static mut ZEROES: [u8; 1 << 20] = [0; 1 << 20];
    if can_swap() {
        check_swapped((&raw mut ZEROES).cast::<u8>().wrapping_add(3 * PAGE), 900_000);
    }
}

#[test]
fn transparent_huge_pages() {
    let _shared = ALONE.read();
    if can_swap() {
        let p = anon(8 << 20, 0);
        // SAFETY: memory of this test.
        unsafe { libc::madvise(p.cast(), 8 << 20, libc::MADV_HUGEPAGE) };
        check_swapped(p.wrapping_add(12_345), 5 << 20);
    }
}

#[test]
fn locked() {
    let _shared = ALONE.read();
    if can_swap() {
        let p = anon(16 * PAGE, 0);
        // SAFETY: memory of this test.
        assert_eq!(unsafe { libc::mlock(p.cast(), 16 * PAGE) }, 0);
        check_swapped(p, 16 * PAGE);
    }
}

#[test]
fn never_touched() {
    let _shared = ALONE.read();
    if can_swap() {
        let p = anon(64 * PAGE, 0);
        let reg = register(p as usize, 64 * PAGE, true).expect("registered");
        let region = map(&reg, ALL).expect("mapped");
        assert!(get(&region, p as usize, 64 * PAGE).iter().all(|b| *b == 0));
        put(&region, p as usize, &[1]);
        assert_eq!(bytes(p, 1), [1]);
        release(reg);
    }
}

#[test]
fn huge_pages() {
    let _shared = ALONE.read();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_POPULATE;
    let len = 4 << 20;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if p == libc::MAP_FAILED {
        let _ = writeln!(std::io::stderr(), "SKIP: no free huge pages (vm.nr_hugepages)");
        return;
    }
    if can_swap() {
        check_swapped(p.cast(), len);
        check_swapped(p.cast::<u8>().wrapping_add(100), 5000);
    }
    unmap(p.cast(), len);
}

#[test]
fn read_only_stays_read_only() {
    let _shared = ALONE.read();
    if !can_swap() {
        return;
    }
    let p = anon(4 * PAGE, 0);
    bytes(p, PAGE).fill(9);
    protect(p, 4 * PAGE, libc::PROT_READ);
    assert_eq!(register(p as usize, PAGE, true).err(), Some(RegisterError::Fault));
    let reg = register(p as usize, 4 * PAGE, false).expect("registered");
    let region = map(&reg, 0).expect("mapped");
    assert_eq!(get(&region, p as usize, 2), [9, 9]);
    // Still not writable: the kernel refuses to write there.
    let zero = std::fs::File::open("/dev/zero").expect("/dev/zero");
    // SAFETY: the kernel checks the address.
    assert_eq!(unsafe { libc::read(zero.as_raw_fd(), p.cast(), 1) }, -1);
    release(reg);
    // SAFETY: the kernel checks the address.
    assert_eq!(unsafe { libc::read(zero.as_raw_fd(), p.cast(), 1) }, -1);
}

fn memfd(len: usize, seal: bool) -> OwnedFd {
    // SAFETY: a constant name, and numbers; the descriptor is fresh.
    unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0 && libc::ftruncate(fd, len as i64) == 0);
        if seal {
            assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
        }
        OwnedFd::from_raw_fd(fd)
    }
}

fn shared(fd: i32, len: usize) -> *mut u8 {
    let anon = if fd < 0 { libc::MAP_ANONYMOUS } else { 0 };
    let flags = libc::MAP_SHARED | anon;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let p = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
    assert_ne!(p, libc::MAP_FAILED);
    p.cast()
}

#[test]
fn shared_memory_is_never_swapped() {
    let _shared = ALONE.read();
    let len = 8 * PAGE;
    let sealed = memfd(len, true);
    let (one, two) = (shared(sealed.as_raw_fd(), len), shared(sealed.as_raw_fd(), len));
    let reg = register(one as usize + PAGE + 1, 3 * PAGE, true).expect("registered");
    assert!(matches!(reg.pieces()[0].kind, PieceSource::Fd { offset, .. } if offset == PAGE as u64 + 1));
    let region = map(&reg, ALL).expect("mapped");
    put(&region, one as usize + PAGE + 1, &[42]);
    assert_eq!(bytes(two, len)[PAGE + 1], 42, "the program's other sharers still share");
    release(reg);

    for p in [shared(memfd(len, false).as_raw_fd(), len), shared(-1, len)] {
        let reg = register(p as usize, len, true).expect("registered");
        assert!(reg.is_in_process(), "unsealed shared memory is left alone");
        release(reg);
    }
}

#[test]
fn memory_that_cannot_be_mapped_is_not_swapped() {
    let _shared = ALONE.read();
    static mut DATA: [u8; 3 * PAGE] = [1; 3 * PAGE];
    let data = (&raw mut DATA) as usize;
    assert!(register(data, PAGE, true).expect("registered").is_in_process(), ".data");
    // A private range followed by a private file mapping: the whole range is reached in the process, no page is swapped.
    let p = anon(2 * PAGE, 0);
    let file = std::fs::File::open("/proc/self/exe").expect("exe");
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    // SAFETY: replaces pages of this test.
    let q = unsafe { libc::mmap(p.add(PAGE).cast(), PAGE, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
    assert_ne!(q, libc::MAP_FAILED);
    let reg = register(p as usize, 2 * PAGE, false).expect("registered");
    assert!(reg.is_in_process() && reg.fds() == 0);
    bytes(p, 1)[0] = 1;
    discard(p, PAGE);
    assert_eq!(bytes(p, 1)[0], 0, "was not swapped");
    release(reg);
    // The daemon reads it by system calls.
    let own = Arc::new(ProcessMemory::own().expect("own memory"));
    let region = Region::new(1, 1, p as u64, PAGE as u64, 0, Region::in_process(own, p as u64));
    bytes(p, 3).copy_from_slice(&[1, 2, 3]);
    assert_eq!(get(&region, p as usize, 3), [1, 2, 3]);
}

#[test]
fn bad_ranges_are_refused() {
    // Alone, so that no other test maps memory into the hole.
    let _alone = alone();
    let p = anon(3 * PAGE, 0);
    unmap(p.wrapping_add(PAGE), PAGE);
    assert_eq!(register(p as usize, 3 * PAGE, true).err(), Some(RegisterError::Fault));
    assert_eq!(register(p as usize, 0, true).err(), Some(RegisterError::BadRange));
    assert_eq!(register(usize::MAX - 10, 100, true).err(), Some(RegisterError::BadRange));
    assert_eq!(register(p as usize, 1 << 50, true).err(), Some(RegisterError::BadRange));
    let none = anon(PAGE, 0);
    protect(none, PAGE, libc::PROT_NONE);
    assert_eq!(register(none as usize, PAGE, true).err(), Some(RegisterError::Fault));
}

#[test]
fn pages_that_the_program_may_not_read_are_registered_for_reads() {
    let _shared = ALONE.read();
    let p = anon(2 * PAGE, 0);
    bytes(p, 2 * PAGE).fill(5);
    protect(p, PAGE, libc::PROT_NONE);
    let reg = register(p as usize, 2 * PAGE, false).expect("as the kernel pins them");
    assert!(reg.is_in_process());
    let own = Arc::new(ProcessMemory::own().expect("own memory"));
    let region = Region::new(1, 1, p as u64, 2 * PAGE as u64, 0, Region::in_process(own, p as u64));
    assert_eq!(get(&region, p as usize + PAGE - 2, 4), [5; 4]);
    release(reg);
}

#[test]
fn private_again_after_the_last_release() {
    let _shared = ALONE.read();
    if !can_swap() {
        return;
    }
    let len = 16 * PAGE;
    let p = anon(len, 0);
    bytes(p, len).fill(77);
    let whole = register(p as usize, len, true).expect("registered");
    let middle = register(p as usize + 4 * PAGE, 2 * PAGE, true).expect("registered");
    let region = map(&middle, ALL).expect("mapped");
    release(whole);
    // The middle is still shared, the rest private.
    discard(p, len);
    let now = bytes(p, len);
    assert!(now[..4 * PAGE].iter().chain(&now[6 * PAGE..]).all(|b| *b == 0), "DONTNEED zeroes private pages");
    assert!(now[4 * PAGE..6 * PAGE].iter().all(|b| *b == 77), "registered pages keep their contents");
    now[4 * PAGE] = 78;
    assert_eq!(get(&region, p as usize + 4 * PAGE, 1), [78]);
    release(middle);
    discard(p, len);
    assert!(bytes(p, len).iter().all(|b| *b == 0));
}

#[test]
fn overlapping_registrations_in_any_order() {
    let _shared = ALONE.read();
    if !can_swap() {
        return;
    }
    let len = 32 * PAGE;
    let p = anon(len, 0);
    bytes(p, len).iter_mut().enumerate().for_each(|(i, b)| *b = (i / PAGE) as u8);
    let mut regs = Vec::new();
    for (i, (first, pages)) in [(0, 10), (5, 10), (3, 20), (20, 12), (0, 32), (5, 10)].into_iter().enumerate() {
        let reg = register(p as usize + first * PAGE, pages * PAGE, true).expect("registered");
        let region = map(&reg, ALL).expect("mapped");
        let at = p as usize + (first + 1) * PAGE;
        put(&region, at + 8 * i, &[200 + i as u8]);
        assert_eq!(bytes((at + 8 * i) as *mut u8, 1), [200 + i as u8]);
        regs.push((reg, region));
    }
    for i in [3, 0, 1, 2, 0, 0] {
        let (reg, region) = regs.remove(i);
        let first = reg.pieces()[0].addr;
        bytes(first as *mut u8, 1)[0] ^= 0x55;
        assert_eq!(get(&region, first, 1), bytes(first as *mut u8, 1), "shared to the end");
        release(reg);
    }
    assert_eq!(bytes(p, len)[31 * PAGE], 31);
    discard(p, len);
    assert!(bytes(p, len).iter().all(|b| *b == 0));
}

#[test]
fn unmapped_or_moved_while_registered() {
    let _shared = ALONE.read();
    if !can_swap() {
        return;
    }
    let len = 256 * PAGE;
    // Unmapped: the memory is given back at release.
    let p = anon(len, 0);
    bytes(p, len).fill(1);
    let keep = register(anon(PAGE, 0) as usize, PAGE, true).expect("registered");
    let reg = register(p as usize, len, true).expect("registered");
    unmap(p, len);
    release(reg);
    // Replaced in part by another mapping, which is not touched.
    let p = anon(len, 0);
    bytes(p, len).fill(2);
    let reg = register(p as usize, len, true).expect("registered");
    let fixed = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: replaces pages of this test.
    unsafe { libc::mmap(p.add(8 * PAGE).cast(), 8 * PAGE, prot, fixed, -1, 0) };
    bytes(p, len)[8 * PAGE] = 3;
    let again = register(p as usize, len, true).expect("registered");
    let region = map(&again, ALL).expect("mapped");
    assert_eq!(get(&region, p as usize + 8 * PAGE, 2), [3, 0]);
    assert_eq!(get(&region, p as usize + 16 * PAGE, 1), [2]);
    release(reg);
    release(again);
    assert_eq!((bytes(p, len)[0], bytes(p, len)[8 * PAGE]), (2, 3));
    // Moved: the moved pages keep their contents.
    let reg = register(p as usize, len, true).expect("registered");
    // SAFETY: memory of this test, used at the new address only.
    let q = unsafe { libc::mremap(p.cast(), len, 2 * len, libc::MREMAP_MAYMOVE) }.cast::<u8>();
    if q.cast() != libc::MAP_FAILED {
        release(reg);
        assert_eq!(bytes(q, 1)[0], 2);
        assert!(bytes(q, len)[16 * PAGE..].iter().all(|b| *b == 2));
    }
    release(keep);
}

/// Large objects of glibc's `malloc` are mappings, which its `realloc` moves and grows by `mremap`. Programs may do that while a
/// registration lives on: UCX keeps those of memory that was sent once. Other allocators have no such objects.
#[test]
fn realloc_of_registered_memory() {
    let _shared = ALONE.read();
    if !can_swap() {
        return;
    }
    // Beyond the largest threshold that glibc chooses by itself.
    let len = 36 << 20;
    let object = |len: usize, fill: u8| {
        // Hidden from the compiler, which knows that programs do not read in front of an object of `malloc`.
        // SAFETY: allocates.
        let p = std::hint::black_box(unsafe { libc::malloc(len) }.cast::<u8>());
        // SAFETY: the word before an object is the allocator's.
        assert_eq!(unsafe { p.cast::<usize>().sub(1).read() } & 7, 2, "a mapping of its own");
        bytes(p, len).fill(fill);
        p
    };
    let (upper, lower) = (object(len, 1), object(len, 2));
    let registered = [upper, lower].map(|p| register(p as usize, len, true).expect("registered"));
    // Grown, perhaps elsewhere, and its old place taken by another object that is registered, too.
    // SAFETY: an object of `malloc`, used at the new address only.
    let grown = std::hint::black_box(unsafe { libc::realloc(lower.cast(), 2 * len) }.cast::<u8>());
    bytes(grown, 2 * len)[len..].fill(3);
    let other = object(len, 4);
    let third = register(other as usize, len, true).expect("registered");
    let check = || {
        assert!(bytes(upper, len).iter().all(|b| *b == 1));
        assert!(bytes(grown, len).iter().all(|b| *b == 2));
        assert!(bytes(grown, 2 * len)[len..].iter().all(|b| *b == 3));
        assert!(bytes(other, len).iter().all(|b| *b == 4));
    };
    check();
    registered.into_iter().for_each(release);
    release(third);
    check();
    // SAFETY: objects of `malloc`, used no more.
    [upper, grown, other].into_iter().for_each(|p| unsafe { libc::free(p.cast()) });
}

#[test]
fn memory_is_given_back() {
    // Other tests use the same pool.
    let _alone = alone();
    if !can_swap() {
        return;
    }
    let len = 4096 * PAGE;
    let probe = register(anon(PAGE, 0) as usize, PAGE, true).expect("registered");
    for unmapped in [false, true] {
        let p = anon(len, 0);
        bytes(p, len).fill(1);
        let reg = register(p as usize, len, true).expect("registered");
        let full = allocated(probe.fd(0).expect("pool"));
        assert!(full >= len as i64);
        if unmapped {
            unmap(p, len);
        }
        release(reg);
        let left = allocated(probe.fd(0).expect("pool"));
        assert!(left <= full - len as i64 / 2, "{left} of {full} left");
    }
    release(probe);
}

/// Runs `f` in a forked child and asserts that it returns true there.
fn in_child(f: impl FnOnce() -> bool) {
    // SAFETY: the child only calls `f` and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let ok = f();
        // SAFETY: ends the child.
        unsafe { libc::_exit(if ok { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: a child of this test; `status` is writable.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0, "the child's checks");
}

#[test]
fn a_forked_child_has_its_own_copy() {
    let _alone = alone();
    if !can_swap() {
        return;
    }
    let len = 40 * PAGE;
    let p = anon(len, 0);
    bytes(p, len).fill(6);
    // More than what is made private while the fork lasts.
    let mut on_stack = [6u8; 40 * PAGE];
    let stack = register(on_stack.as_mut_ptr() as usize, on_stack.len(), true).expect("registered");
    let stack_region = map(&stack, ALL).expect("mapped");
    let reg = register(p as usize, len, true).expect("registered");
    let region = map(&reg, ALL).expect("mapped");
    for round in 0..20u8 {
        put(&region, p as usize, &[round]);
        put(&stack_region, on_stack.as_ptr() as usize, &[round]);
        let here = on_stack.as_mut_ptr();
        in_child(|| {
            let (memory, stack) = (bytes(p, len), bytes(here, 40 * PAGE));
            let seen = memory[0] == round && memory[len - 1] == 6 && stack[0] == round;
            memory.fill(9);
            stack.fill(9);
            // The child can register for itself.
            let own = register(p as usize, len, true).expect("registered");
            let region = map(&own, ALL).expect("mapped");
            seen && get(&region, p as usize, len).iter().all(|b| *b == 9)
        });
        assert_eq!((bytes(p, len)[0], bytes(p, len)[len - 1]), (round, 6), "the child's writes stay there");
        // SAFETY: inside the memory of this test.
        assert_eq!((unsafe { here.read_volatile() }, get(&region, p as usize + 1, 1)[0]), (round, 6));
        // Still shared with the daemon, also the stack pages that were private for the fork.
        // SAFETY: inside the memory of this test.
        unsafe { here.write_volatile(round ^ 0xFF) };
        assert_eq!(get(&stack_region, here as usize, 1), [round ^ 0xFF]);
    }
    release(stack);
    release(reg);
    assert_eq!(on_stack[1], 6);
}

/// Processor time of this process, which does not depend on the load of the machine.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time`.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn registers_256_mib_in_under_a_second() {
    let _alone = alone();
    if !can_swap() {
        return;
    }
    let len = 256 << 20;
    let p = anon(len, 0);
    bytes(p, len).chunks_mut(PAGE).for_each(|page| page[0] = 1);
    let start = processor_time();
    let reg = register(p as usize, len, true).expect("registered");
    let first = processor_time() - start;
    let start = Instant::now();
    let second = register(p as usize, len, true).expect("registered");
    let again = start.elapsed();
    let start = Instant::now();
    release(second);
    release(reg);
    let back = start.elapsed();
    let line = format!("256 MiB: registered {first:?}, a second time {again:?}, swapped back {back:?}");
    let _ = writeln!(std::io::stderr(), "{line}");
    assert!(first.as_millis() < 1000, "{line}");
    assert_eq!(bytes(p, len)[len - PAGE], 1);
    unmap(p, len);
}

/// Writers that own every n-th counter of a range and know the value of each.
struct Writers {
    base: usize,
    slots: usize,
    go: AtomicBool,
    quit: AtomicBool,
    paused: AtomicUsize,
    lost: AtomicU64,
    writes: AtomicU64,
    shadow: Vec<AtomicU64>,
}

const WRITERS: usize = 4;

impl Writers {
    fn write(&self, number: usize) {
        let mut i = number;
        let mut x = number as u64 + 1;
        while !self.quit.load(Relaxed) {
            if !self.go.load(Acquire) {
                self.paused.fetch_add(1, AcqRel);
                while !self.go.load(Acquire) && !self.quit.load(Relaxed) {
                    std::thread::yield_now();
                }
                self.paused.fetch_sub(1, AcqRel);
                continue;
            }
            for _ in 0..64 {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                i = (x >> 33) as usize % (self.slots / WRITERS) * WRITERS + number;
                let counter = (self.base + 8 * i) as *mut u64;
                let want = self.shadow[i].load(Relaxed);
                if x & 1 == 0 {
                    // SAFETY: a counter of this writer, inside the range.
                    let had = unsafe { counter.read_volatile() };
                    self.lost.fetch_add(u64::from(had != want), Relaxed);
                    // SAFETY: a counter of this writer, inside the range.
                    unsafe { counter.write_volatile(want + 1) };
                } else {
                    // SAFETY: as above.
                    let had = unsafe { AtomicU64::from_ptr(counter) }.fetch_add(1, Relaxed);
                    self.lost.fetch_add(u64::from(had != want), Relaxed);
                }
                self.shadow[i].store(want + 1, Relaxed);
            }
            self.writes.fetch_add(64, Relaxed);
            // There are more writers than cores.
            std::thread::yield_now();
        }
        let _ = i;
    }
    fn run(&self) {
        self.go.store(true, Release);
        while self.paused.load(Acquire) != 0 {
            std::thread::yield_now();
        }
    }
    fn pause(&self) {
        self.go.store(false, Release);
        while self.paused.load(Acquire) != WRITERS {
            std::thread::yield_now();
        }
    }
    fn matches(&self, view: &[u8]) -> bool {
        view.chunks(8).zip(&self.shadow).all(|(have, want)| have == want.load(Relaxed).to_ne_bytes())
    }
}

#[test]
fn a_thousand_swaps_lose_no_write() {
    let _alone = alone();
    if !can_swap() {
        return;
    }
    let len = 16 * PAGE;
    let p = anon(len, 0);
    let slots = len / 8;
    let writers = Writers {
        base: p as usize,
        slots,
        go: AtomicBool::new(true),
        quit: AtomicBool::new(false),
        paused: AtomicUsize::new(0),
        lost: AtomicU64::new(0),
        writes: AtomicU64::new(0),
        shadow: (0..slots).map(|_| AtomicU64::new(0)).collect(),
    };
    std::thread::scope(|scope| {
        let writers = &writers;
        (0..WRITERS).for_each(|n| drop(scope.spawn(move || writers.write(n))));
        let mut bad = 0;
        for _ in 0..500 {
            // Swapped in while they write: the daemon's view must hold every write.
            writers.run();
            let reg = register(p as usize, len, true).expect("registered");
            let region = map(&reg, ALL).expect("mapped");
            writers.pause();
            bad += usize::from(!writers.matches(&get(&region, p as usize, len)));
            // Swapped out while they write: the program's view must hold every write.
            writers.run();
            drop(region);
            release(reg);
            writers.pause();
            bad += usize::from(!writers.matches(bytes(p, len)));
        }
        writers.quit.store(true, Relaxed);
        let (lost, writes) = (writers.lost.load(Relaxed), writers.writes.load(Relaxed));
        let _ = writeln!(std::io::stderr(), "1,000 swaps, {WRITERS} writers: {writes} writes, {lost} lost");
        assert_eq!((bad, lost), (0, 0));
        assert!(writes > 100_000, "the writers wrote: {writes}");
    });
}

/// System calls that write into a range while it is swapped: with full userfaultfd they wait; with user-mode faults
/// only they may fail with EFAULT.
#[test]
fn system_calls_meanwhile() {
    let _alone = alone();
    if !can_swap() {
        return;
    }
    let len = 64 * PAGE;
    let p = anon(len, 0) as usize;
    let quit = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let zero = std::fs::File::open("/dev/zero").expect("/dev/zero");
            let (mut calls, mut faults) = (0u64, 0u64);
            while !quit.load(Relaxed) {
                // SAFETY: the kernel checks the address.
                let n = unsafe { libc::read(zero.as_raw_fd(), p as *mut _, len) };
                calls += 1;
                if n != len as isize {
                    let error = std::io::Error::last_os_error().raw_os_error();
                    assert!(n > 0 || error == Some(libc::EFAULT), "read: {n} {error:?}");
                    faults += 1;
                }
            }
            (calls, faults)
        });
        for _ in 0..200 {
            release(register(p, len, true).expect("registered"));
        }
        quit.store(true, Relaxed);
        let (calls, faults) = reader.join().expect("reader");
        let root = is_root();
        let _ = writeln!(std::io::stderr(), "{calls} reads during 400 swaps, {faults} short or EFAULT, root: {root}");
        assert!(!root || faults == 0, "full userfaultfd: no call fails");
    });
}

#[test]
fn many_threads_register_and_release() {
    let _shared = ALONE.read();
    if !can_swap() {
        return;
    }
    let len = 64 * PAGE;
    let p = anon(len, 0) as usize;
    bytes(p as *mut u8, len).iter_mut().enumerate().for_each(|(i, b)| *b = (i / PAGE) as u8);
    std::thread::scope(|scope| {
        for t in 0..4usize {
            scope.spawn(move || {
                for i in 0..100usize {
                    let first = (i * 7 + t * 13) % 48;
                    let reg = register(p + first * PAGE, (1 + i % 16) * PAGE, true).expect("registered");
                    let region = map(&reg, ALL).expect("mapped");
                    assert_eq!(get(&region, p + first * PAGE + 1, 1), [first as u8]);
                    drop(region);
                    release(reg);
                }
            });
        }
    });
    discard(p as *mut u8, len);
    assert!(bytes(p as *mut u8, len).iter().all(|b| *b == 0), "all is private again");
}

#[test]
fn again_without_privileges() {
    let _alone = alone();
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};
    if !is_root() {
        return;
    }
    let dir = std::env::temp_dir().join(format!("burst-swap-test-{}", std::process::id()));
    std::fs::create_dir(&dir).expect("directory");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    let copy = dir.join("swap-test");
    std::fs::copy(std::env::current_exe().expect("own path"), &copy).expect("copied");
    let words = std::env::args().skip_while(|word| word != "--skip"); // of `scripts/threads`
    let (uid, mut again) = (65534, std::process::Command::new(&copy));
    let out = again.uid(uid).gid(uid).current_dir("/").arg("--nocapture").args(words).output().expect("started");
    std::fs::remove_dir_all(&dir).expect("removed");
    let text = String::from_utf8_lossy(&out.stderr);
    let _ = writeln!(std::io::stderr(), "--- as uid {uid}:\n{text}{}", String::from_utf8_lossy(&out.stdout));
    assert!(out.status.success(), "{}", out.status);
}
