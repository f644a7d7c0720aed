//! Forks, while other threads unmap, move and protect memory that is registered, and map other memory where it was: no exchange
//! of pages maps the pool's pages over what is not registered, and what has moved is whole.
//!
//! `cargo test` makes 150 forks, `BURST_FORKS=20000` as many as it says.

use burst_mem::swap::{self, NewPlace, Registration, between_exchanges, register, release};
use std::ffi::c_void;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

const PAGE: usize = 4096;
const PAGES: usize = 8;
const LEN: usize = PAGES * PAGE;
/// Regions that are registered before the first of them is unmapped.
const REGIONS: usize = 24;

fn anon() -> usize {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, rights, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at as usize
}

fn fill(at: usize, value: u8) {
    for page in 0..PAGES {
        // SAFETY: memory of the calling thread.
        unsafe { ((at + page * PAGE) as *mut u8).write_volatile(value.wrapping_add(page as u8)) };
    }
}

fn is_filled(at: usize, value: u8) -> bool {
    // SAFETY: memory of the calling thread.
    (0..PAGES)
        .all(|page| unsafe { ((at + page * PAGE) as *const u8).read_volatile() } == value.wrapping_add(page as u8))
}

/// Unmaps memory as a program does whose `munmap` the library sees.
fn unmap(at: usize) {
    // SAFETY: memory of the calling thread, used no more.
    assert_eq!(between_exchanges(|| unsafe { libc::munmap(at as *mut c_void, LEN) }), 0);
}

/// Moves memory as a program does whose `mremap` the library sees. Returns its new address.
fn travel(at: usize) -> usize {
    let to = anon();
    let new = NewPlace { len: LEN, flags: libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, at: to };
    let next = |old: usize, len, new: NewPlace| -> *mut c_void {
        // SAFETY: memory of the calling thread.
        unsafe { libc::mremap(old as *mut c_void, len, new.len, new.flags, new.at) }
    };
    // SAFETY: as above.
    let moved = unsafe { swap::mremap(at, LEN, new, next) };
    assert_eq!(moved as usize, to, "{}", std::io::Error::last_os_error());
    to
}

fn protect(at: usize, rights: i32) {
    // SAFETY: memory of the calling thread.
    assert_eq!(between_exchanges(|| unsafe { libc::mprotect(at as *mut c_void, LEN / 2, rights) }), 0);
}

/// Registers memory, changes its mappings in every way, and ends the registrations. Returns how often memory was not as written.
fn change_registered_memory() -> usize {
    let mut wrong = 0;
    let regs: Vec<(usize, Registration)> = (0..REGIONS)
        .map(|i| {
            let at = anon();
            fill(at, i as u8);
            (at, register(at, LEN, true).expect("registered"))
        })
        .collect();
    for (i, (at, _)) in regs.iter().enumerate() {
        let at = match i % 3 {
            0 => *at,
            1 => travel(*at),
            _ => {
                protect(*at, libc::PROT_READ);
                protect(*at, libc::PROT_READ | libc::PROT_WRITE);
                travel(travel(*at))
            }
        };
        wrong += usize::from(!is_filled(at, i as u8));
        fill(at, 100);
        std::thread::yield_now();
        wrong += usize::from(!is_filled(at, 100));
        unmap(at);
    }
    regs.into_iter().for_each(|(_, reg)| release(reg));
    wrong
}

/// Maps memory, where other threads have just unmapped some, and looks at it. Returns how often it was not as written.
fn use_other_memory(value: u8) -> usize {
    let at = anon();
    let wrong = usize::from(!is_zero(at));
    fill(at, value);
    std::thread::yield_now();
    let wrong = wrong + usize::from(!is_filled(at, value));
    unmap(at);
    wrong
}

fn is_zero(at: usize) -> bool {
    // SAFETY: memory of the calling thread.
    (0..PAGES).all(|page| unsafe { ((at + page * PAGE) as *const u8).read_volatile() } == 0)
}

fn forks() -> usize {
    std::env::var("BURST_FORKS").ok().and_then(|text| text.parse().ok()).unwrap_or(150)
}

/// Forks. Returns whether the child found its memory as the parent had it.
fn fork(at: usize) -> bool {
    // SAFETY: the child looks at memory and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!is_filled(at, 7))) };
    }
    let mut status = -1;
    // SAFETY: our child.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    status == 0
}

#[test]
fn forks_beside_changes_of_registered_mappings() {
    let kept = anon();
    fill(kept, 7);
    let reg = register(kept, LEN, true).expect("registered");
    if reg.is_in_process() {
        let _ = writeln!(std::io::stderr(), "SKIP: the kernel refuses userfaultfd here");
        return release(reg);
    }
    let (quit, wrong, rounds) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (quit, wrong, rounds) = (&quit, &wrong, &rounds);
            scope.spawn(move || {
                while !quit.load(Relaxed) {
                    let found = if thread < 2 { change_registered_memory() } else { use_other_memory(10 + thread) };
                    wrong.fetch_add(found, Relaxed);
                    rounds.fetch_add(usize::from(thread < 2), Relaxed);
                }
            });
        }
        let children = (0..forks()).filter(|_| !fork(kept)).count();
        quit.store(true, Relaxed);
        assert_eq!(children, 0, "children with other memory");
    });
    assert_eq!(wrong.load(Relaxed), 0);
    assert!(rounds.load(Relaxed) > 0);
    assert!(is_filled(kept, 7));
    release(reg);
    let maps = std::fs::read_to_string("/proc/self/maps").expect("read");
    let left: Vec<_> = maps.lines().filter(|line| line.contains("burst-pool")).collect();
    assert!(left.is_empty(), "{left:?}");
}
