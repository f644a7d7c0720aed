//! Large objects of glibc's `malloc` inside a longer registered range: `realloc` may move none of their pages.

use burst_mem::swap::{register, release};
use std::io::Write as _;

const PAGE: usize = 4096;
/// Bytes of an object; the range has two of them, side by side.
const OBJECT: usize = 4 * PAGE;

/// A private mapping with two objects as glibc lays them out: the second word of each is its length, with bit 1 set.
fn two_objects() -> [*mut u8; 2] {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 2 * OBJECT, rights, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    [0, OBJECT].map(|offset| {
        // SAFETY: inside of the mapping made above.
        unsafe {
            let object = at.cast::<u8>().add(offset);
            object.cast::<usize>().add(1).write(OBJECT | 2);
            object
        }
    })
}

/// Whether `mremap` moves an object, as `realloc` would.
fn moves(object: *mut u8) -> bool {
    // SAFETY: the object is not used afterwards.
    unsafe { libc::mremap(object.cast(), OBJECT, 2 * OBJECT, libc::MREMAP_MAYMOVE) != libc::MAP_FAILED }
}

#[test]
fn each_large_object_in_a_registered_range_stays_where_it_is() {
    let objects = two_objects();
    let registration = register(objects[0] as usize, 2 * OBJECT, true).expect("registered");
    if registration.is_in_process() {
        let _ = writeln!(std::io::stderr(), "SKIP: the kernel refuses userfaultfd here");
        return release(registration);
    }
    assert_eq!(objects.map(moves), [false, false]);
    release(registration);
    assert!(moves(two_objects()[0]), "one that is not registered is moved");
}
