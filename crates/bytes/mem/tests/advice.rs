//! What a program has said about its memory is as it was when a registration of it ends: the kernel's own list of flags
//! (`VmFlags` in `/proc/self/smaps`) is compared.

use burst_mem::swap::{register, release};
use std::io::Write as _;

const PAGE: usize = 4096;
const PAGES: usize = 64;

fn anon() -> usize {
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses. Pages without rights around it keep other mappings away.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), (PAGES + 2) * PAGE, libc::PROT_NONE, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(at.add(PAGE), PAGES * PAGE, rights), 0);
        at.add(PAGE) as usize
    }
}

/// Those of the flags `names` that each mapping of the memory has, in order of address, equal neighbours once.
fn flags(at: usize, names: &[&str]) -> Vec<String> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let (mut inside, mut found) = (false, Vec::new());
    for line in smaps.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        if let Some((Ok(first), Ok(_))) =
            range.map(|(a, b)| (usize::from_str_radix(a, 16), usize::from_str_radix(b, 16)))
        {
            inside = (at..at + PAGES * PAGE).contains(&first);
        } else if inside && let Some(list) = line.strip_prefix("VmFlags:") {
            let list: Vec<_> = list.split_whitespace().filter(|flag| names.contains(flag)).collect();
            found.push(list.join(" "));
        }
    }
    found.dedup();
    found
}

/// Gives advice to new memory, registers a part of it, and returns the flags before, meanwhile and after.
fn through_a_registration(advice: &[i32], locked: bool, names: &[&str]) -> Option<[Vec<String>; 3]> {
    let at = anon();
    // SAFETY: memory of this test.
    unsafe {
        for one in advice {
            if libc::madvise(at as *mut _, PAGES * PAGE, *one) != 0 {
                return None;
            }
        }
        if locked && libc::mlock(at as *const _, PAGES * PAGE) != 0 {
            return None;
        }
        (at as *mut u8).write_bytes(1, PAGES * PAGE / 2);
    }
    let before = flags(at, names);
    let reg = register(at + 4 * PAGE, 40 * PAGE, true).expect("registered");
    let meanwhile = flags(at, names);
    let again = register(at + 20 * PAGE, 30 * PAGE, true).expect("registered");
    release(reg);
    release(again);
    Some([before, meanwhile, flags(at, names)])
}

/// The advice that a program can give, and the flag by which the kernel shows it.
const KEPT: [(i32, &str); 5] = [
    (libc::MADV_DONTFORK, "dc"),
    (libc::MADV_DONTDUMP, "dd"),
    (libc::MADV_HUGEPAGE, "hg"),
    (libc::MADV_NOHUGEPAGE, "nh"),
    (libc::MADV_MERGEABLE, "mg"),
];
const NAMES: [&str; 6] = ["dc", "dd", "hg", "nh", "mg", "lo"];

fn check() {
    for (advice, name) in KEPT {
        let Some([before, meanwhile, after]) = through_a_registration(&[advice], false, &NAMES) else {
            let _ = writeln!(std::io::stderr(), "SKIP: the kernel knows no {name}");
            continue;
        };
        assert_eq!(before, [name]);
        assert_eq!(after, before, "{name}");
        // Shared memory cannot be merged.
        assert!(name == "mg" || meanwhile == before, "{name} while it is registered: {meanwhile:?}");
    }
    let none = through_a_registration(&[], false, &NAMES).expect("no advice");
    assert_eq!(none, [["".to_string()], ["".to_string()], ["".to_string()]].map(Vec::from));
    let several = [libc::MADV_DONTFORK, libc::MADV_DONTDUMP, libc::MADV_MERGEABLE];
    if let Some([before, _, after]) = through_a_registration(&several, true, &NAMES) {
        assert_eq!(after, before);
    }
}

#[test]
fn advice_is_as_before_when_a_registration_ends() {
    // With the threads of the test, and in a process with one.
    check();
    // SAFETY: the child checks and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let failed = std::panic::catch_unwind(check).is_err();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    let mut status = -1;
    // SAFETY: our child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0, "the child's checks");
}
