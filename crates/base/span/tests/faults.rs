//! Local memory that the program takes away: a copy fails or takes another way.

use burst_span::{Span, Unreachable, catch_faults};
use std::sync::{Mutex, PoisonError};

const PAGE: usize = 4096;

/// Held by each test: what one has unmapped, another one's threads would map again (their stacks).
static ALONE: Mutex<()> = Mutex::new(());

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

fn span(at: *mut u8, offset: usize, len: usize) -> Span {
    // SAFETY: faults are caught.
    unsafe { Span::local(at.wrapping_add(offset), len as u32) }
}

#[test]
fn memory_that_is_unmapped_is_gone() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(catch_faults() || cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))));
    if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
        return;
    }
    for len in [1, 8, 64, 1000, PAGE, PAGE + 9] {
        let at = pages();
        unmap(at.wrapping_add(PAGE), PAGE);
        let end = span(at, PAGE + 1 - len.min(PAGE), len);
        let mut bytes = vec![0; len];
        assert_eq!(end.read_to(&mut bytes), Err(Unreachable::Gone), "{len}");
        assert_eq!(end.write_from(&bytes), Err(Unreachable::Gone), "{len}");
        let (first, second) = bytes.split_at(len / 2);
        assert_eq!(end.write_pieces([first, second].into_iter()), Err(Unreachable::Gone), "{len}");
        assert_eq!(end.with_bytes(|b| b.iter().map(|b| u32::from(*b)).sum::<u32>()), None, "{len}");
        let inside = span(at, PAGE - len.min(PAGE), len.min(PAGE));
        assert_eq!(inside.with_bytes(|b| b.len()), Some(len.min(PAGE)));
        assert_eq!(inside.read_to(&mut bytes[..len.min(PAGE)]), Ok(()));
        unmap(at, PAGE);
    }
    let at = pages();
    unmap(at, 2 * PAGE);
    assert_eq!(span(at, 8, 8).fetch_add(1), Err(Unreachable::Gone));
    assert_eq!(span(at, 8, 8).cmp_swap(1, 2), Err(Unreachable::Gone));
}

#[test]
fn protected_memory_is_reached_as_if_it_were_pinned() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !catch_faults() {
        return;
    }
    let at = pages();
    let all = span(at, PAGE - 100, 200);
    protect(at, PAGE, libc::PROT_NONE);
    protect(at.wrapping_add(PAGE), PAGE, libc::PROT_READ);
    let mut bytes = [0; 200];
    assert_eq!((all.read_to(&mut bytes), bytes), (Ok(()), [7; 200]));
    assert_eq!(all.write_from(&[9; 200]), Ok(()));
    assert_eq!(all.write_pieces([&[1; 50][..], &[2; 150]].into_iter()), Ok(()));
    assert_eq!(all.with_bytes(|b| b[0]), None, "it is read by other means");
    assert_eq!(span(at, 0, 8).fetch_add(1), Ok(u64::from_ne_bytes([7; 8])));
    assert_eq!(span(at, 0, 8).cmp_swap(u64::from_ne_bytes([7; 8]) + 1, 5), Ok(u64::from_ne_bytes([7; 8]) + 1));
    protect(at, 2 * PAGE, libc::PROT_READ);
    assert_eq!((all.read_to(&mut bytes), &bytes[..50], &bytes[50..]), (Ok(()), &[1; 50][..], &[2; 150][..]));
    assert_eq!(span(at, 0, 8).with_bytes(|b| b[0]), Some(5));
    unmap(at, 2 * PAGE);
}

#[test]
fn threads_meet_faults_at_the_same_time() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !catch_faults() {
        return;
    }
    let at = pages() as usize;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for i in 0..500 {
                    let whole = span(at as *mut u8, 64 * thread, 32);
                    let gone = span(at as *mut u8, 2 * PAGE, 16 + i % 7);
                    assert_eq!(whole.write_from(&[i as u8; 32]), Ok(()));
                    let mut bytes = [0; 32];
                    assert_eq!((whole.read_to(&mut bytes), bytes), (Ok(()), [i as u8; 32]));
                    // What lies behind the pages may be mapped: then it must not be written.
                    let _ = gone.with_bytes(|b| b.iter().fold(0u8, |sum, b| sum.wrapping_add(*b)));
                }
            });
        }
    });
    unmap(at as *mut u8, 2 * PAGE);
}
