//! Explicit accesses and apertures between two contexts.

use super::{BYTES, End, TOKEN, end};
use crate::abi::*;
use crate::accesses::*;
use crate::aperture::*;
use crate::device::urma_delete_context;
use crate::objects::*;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::ptr::null_mut;

const PAGE: usize = 4096;

/// The memory of one end, as another imports it.
fn import(from: &End, to: &End, token: &u32) -> *mut TargetSeg {
    // SAFETY: see the abstract of the tests.
    unsafe {
        let (mut seg, mut len) = (null_mut(), 0);
        assert_eq!(urma_get_seg_ctx(from.seg, &raw mut seg, &raw mut len), SUCCESS);
        let far = urma_import_seg(to.ctx, seg, token, 0, 0);
        assert!(!far.is_null());
        urma_put_seg_ctx(seg);
        far
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[test]
fn loads_stores_and_atomics_return_when_they_are_done() {
    let (a, mut b) = (end(61), end(62));
    // SAFETY: see the abstract of the tests.
    unsafe {
        let (far, wrong, there) = (import(&b, &a, &TOKEN), import(&b, &a, &7), b.memory.as_ptr() as u64);
        let (mut to, mut old) = ([0u8; 64], 0);
        assert_eq!(burst_urma_store(far, there + 3, [5u8, 6].as_ptr(), 2), SUCCESS);
        assert_eq!(b.memory[0], 0x6_0500_0000);
        assert_eq!(burst_urma_load(far, there, to.as_mut_ptr(), 64), SUCCESS);
        assert_eq!(to[..6], [0, 0, 0, 5, 6, 0]);
        b.memory[1] = 40;
        assert_eq!(burst_urma_atomic(far, there + 8, 0x22, 2, 0, &raw mut old), SUCCESS);
        assert_eq!((old, b.memory[1]), (40, 42));
        assert_eq!(burst_urma_atomic(far, there + 8, 0x20, 42, 9, null_mut()), SUCCESS);
        assert_eq!(b.memory[1], 9);

        assert_eq!(burst_urma_load(wrong, there, to.as_mut_ptr(), 8), libc::EACCES);
        assert_eq!(burst_urma_load(far, there + BYTES as u64 - 7, to.as_mut_ptr(), 8), EPERM);
        assert_eq!(burst_urma_load(far, there, to.as_mut_ptr(), 65), EINVAL);
        assert_eq!(burst_urma_store(far, there, to.as_ptr(), 0), EINVAL);
        assert_eq!(burst_urma_atomic(far, there + 4, 0x22, 1, 0, null_mut()), EINVAL);
        assert_eq!(burst_urma_atomic(far, there, 0x10, 1, 0, null_mut()), EINVAL, "READ is none");
        assert_eq!([urma_unimport_seg(far), urma_unimport_seg(wrong)], [SUCCESS; 2]);
    }
    a.delete();
    b.delete();
}

#[test]
fn an_aperture_shows_the_segment_and_stores_leave_by_a_flush() {
    let (a, mut b) = (end(63), end(64));
    b.memory.iter_mut().enumerate().for_each(|(i, word)| *word = i as u64);
    // SAFETY: see the abstract of the tests.
    unsafe {
        let (far, there) = (import(&b, &a, &TOKEN), b.memory.as_ptr() as u64);
        // It begins within the segment and ends within a page.
        let (skip, len) = (16, 3 * PAGE + 100);
        let aperture = burst_urma_map(far, there + skip, len as u64, 1);
        assert!(!aperture.is_null(), "{}", errno());
        assert_eq!(urma_delete_context(a.ctx), EAGAIN);
        let bytes = std::slice::from_raw_parts_mut(burst_urma_address(aperture), len);
        let word = |at: usize| (2 + at as u64 / 8).to_le_bytes()[at % 8];
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == word(at)));

        bytes[8..16].fill(0xee);
        bytes[2 * PAGE..2 * PAGE + 4].fill(0xdd);
        bytes[len - 1] = 0xcc;
        assert_eq!(b.memory[3], 3, "stores stay here");
        // Words beside them that others change are not undone, though they are of the same page.
        b.memory[4] = 44;
        assert_eq!(burst_urma_flush(aperture, 0, PAGE as u64), SUCCESS);
        assert_eq!((b.memory[2], b.memory[3], b.memory[4]), (2, 0xeeee_eeee_eeee_eeee, 44));
        assert_eq!(b.memory[2 + 1024] as u32, 1026, "not in the range");
        assert_eq!(bytes[16..24], 4u64.to_le_bytes(), "what others change is not seen");
        assert_eq!(burst_urma_invalidate(aperture, 0, len as u64), SUCCESS);
        assert_eq!(bytes[16..24], 44u64.to_le_bytes());
        assert_eq!((b.memory[2 + 1024] as u32, bytes[2 * PAGE]), (0xdddd_dddd, 0xdd));
        let last = (2 * 8 + len) / 8;
        assert_eq!(b.memory[last].to_le_bytes()[3], 0xcc, "the last byte");
        assert_eq!(b.memory[last].to_le_bytes()[4..], (last as u64).to_le_bytes()[4..], "and none behind it");

        // A page that the program drops comes again.
        let second = bytes.as_mut_ptr().add(PAGE);
        assert_eq!(libc::madvise(second.cast(), PAGE, libc::MADV_DONTNEED), 0);
        assert_eq!(second.read_volatile(), word(PAGE));
        bytes[0] = 0xbb;
        assert_eq!(burst_urma_flush(aperture, 1, len as u64), EINVAL, "beyond the end");
        assert_eq!(burst_urma_unmap(aperture), SUCCESS);
        assert_eq!(b.memory[2], 0xbb);
        for (va, len, flags, expected) in [
            (there, BYTES as u64 + 1, 1, EPERM),
            (there - 8, 8, 1, EPERM),
            (there, 0, 1, EINVAL),
            (there, 8, 2, EINVAL),
            (there, u64::MAX, 0, EINVAL),
        ] {
            assert!(burst_urma_map(far, va, len, flags).is_null());
            assert_eq!(errno(), expected, "{len} bytes, flags {flags}");
        }
        assert_eq!(urma_unimport_seg(far), SUCCESS);
    }
    a.delete();
    b.delete();
}

/// The stores are lost, as to any memory that is dropped; no flush waits, and none writes what others have stored meanwhile.
#[test]
fn a_page_that_is_dropped_after_stores_is_as_before_them() {
    let (a, mut b) = (end(70), end(71));
    b.memory.iter_mut().enumerate().for_each(|(i, word)| *word = i as u64);
    // SAFETY: see the abstract of the tests.
    unsafe {
        let (far, there) = (import(&b, &a, &TOKEN), b.memory.as_ptr() as u64);
        let aperture = burst_urma_map(far, there, 2 * PAGE as u64, 1);
        assert!(!aperture.is_null(), "{}", errno());
        let base = burst_urma_address(aperture).cast::<u64>();
        let drop_page = || assert_eq!(libc::madvise(base.cast(), PAGE, libc::MADV_DONTNEED), 0);
        let flush = || assert_eq!(burst_urma_flush(aperture, 0, 2 * PAGE as u64), SUCCESS);

        base.add(1).write_volatile(77);
        drop_page();
        flush();
        assert_eq!((b.memory[1], base.add(1).read_volatile()), (1, 1), "nothing was written");

        base.add(1).write_volatile(77);
        drop_page();
        b.memory[4] = 44;
        assert_eq!(
            (base.add(1).read_volatile(), base.add(4).read_volatile()),
            (1, 4),
            "what was there before the store"
        );
        base.add(2).write_volatile(22);
        b.memory[4] = 45;
        flush();
        assert_eq!(b.memory[..5], [0, 1, 22, 3, 45]);

        // A store to a dropped page finds it first.
        base.add(1).write_volatile(78);
        drop_page();
        base.add(3).write_volatile(33);
        flush();
        assert_eq!((b.memory[..4].to_vec(), base.add(1).read_volatile()), (vec![0, 1, 22, 33], 1));
        assert_eq!(burst_urma_unmap(aperture), SUCCESS);
        assert_eq!(urma_unimport_seg(far), SUCCESS);
    }
    a.delete();
    b.delete();
}

/// Two hosts store to words of one page in turn, by threads of their own, and flush: no store is lost.
#[test]
fn hosts_that_share_a_page_do_not_undo_each_others_stores() {
    let (a, b, c) = (end(65), end(66), end(67));
    // SAFETY: see the abstract of the tests.
    unsafe {
        let there = b.memory.as_ptr() as u64;
        let fars = [import(&b, &a, &TOKEN), import(&b, &c, &TOKEN)];
        let apertures = fars.map(|far| burst_urma_map(far, there, BYTES as u64, 1));
        assert!(!apertures.contains(&null_mut()));
        let places = apertures.map(|aperture| aperture as usize);
        std::thread::scope(|scope| {
            for (host, place) in places.into_iter().enumerate() {
                scope.spawn(move || {
                    let aperture = place as *mut Aperture;
                    let words = std::slice::from_raw_parts_mut(burst_urma_address(aperture).cast::<u64>(), BYTES / 8);
                    for round in 1..=20u64 {
                        for at in (host..words.len()).step_by(2) {
                            words[at] = at as u64 * 1000 + round;
                        }
                        assert_eq!(burst_urma_flush(aperture, 0, BYTES as u64), SUCCESS);
                    }
                });
            }
        });
        assert!(b.memory.iter().enumerate().all(|(at, word)| *word == at as u64 * 1000 + 20));
        for (aperture, far) in apertures.into_iter().zip(fars) {
            assert_eq!((burst_urma_unmap(aperture), urma_unimport_seg(far)), (SUCCESS, SUCCESS));
        }
    }
    a.delete();
    b.delete();
    c.delete();
}

/// Marks the process that loads from a page that cannot be fetched.
const VICTIM: &str = "BURST_TEST_VICTIM";

/// Runs this test in a process of its own, where `load` must end by SIGBUS after a sentence with these words.
fn ends_by_bus_error(test: &str, words: &str, load: impl FnOnce()) {
    if std::env::var_os(VICTIM).is_some() {
        load();
        panic!("a byte without its page");
    }
    let own = std::env::current_exe().expect("this program");
    let name = format!("tests::apertures::{test}");
    let ran = Command::new(own).args(["--exact", &name]).env(VICTIM, "1").output().expect("started");
    assert_eq!(ran.status.signal(), Some(libc::SIGBUS), "{ran:?}");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.contains(&format!("of an aperture cannot be fetched: {words}")), "{said}");
}

#[test]
fn a_page_that_cannot_be_fetched_is_a_bus_error_and_no_zero() {
    ends_by_bus_error("a_page_that_cannot_be_fetched_is_a_bus_error_and_no_zero", "Permission denied", || {
        let (a, b) = (end(68), end(69));
        // SAFETY: see the abstract of the tests; the load ends the process.
        unsafe {
            let aperture = burst_urma_map(import(&b, &a, &7), b.memory.as_ptr() as u64, PAGE as u64, 0);
            assert!(!aperture.is_null());
            burst_urma_address(aperture).read_volatile();
        }
    });
}

/// As a call of the library would that is given a pointer into an aperture.
#[test]
fn a_load_by_who_has_the_node_is_a_bus_error_and_no_endless_wait() {
    ends_by_bus_error(
        "a_load_by_who_has_the_node_is_a_bus_error_and_no_endless_wait",
        "Resource deadlock avoided",
        || {
            let (a, b) = (end(30), end(31));
            // SAFETY: see the abstract of the tests; the load ends the process.
            unsafe {
                let aperture = burst_urma_map(import(&b, &a, &TOKEN), b.memory.as_ptr() as u64, PAGE as u64, 0);
                assert!(!aperture.is_null());
                let _node = host_of(a.ctx).lock();
                burst_urma_address(aperture).read_volatile();
            }
        },
    );
}
