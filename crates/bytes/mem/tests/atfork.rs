//! Fork handlers of other libraries run while the handlers of `swap` hold the registry. UCX deregisters its cached regions
//! before every fork, in a handler that was installed before the first registration and therefore runs later.

use burst_mem::swap::{Registration, register, release};
use std::io::Write as _;
use std::sync::Mutex;
use std::time::Duration;

const LEN: usize = 64 * 4096;

static CACHED: Mutex<Vec<Registration>> = Mutex::new(Vec::new());
static MEMORY: Mutex<usize> = Mutex::new(0);

unsafe extern "C" fn empty_the_cache() {
    CACHED.lock().expect("no panic").drain(..).for_each(release);
}

/// Registers again, in the parent and in the child.
unsafe extern "C" fn fill_the_cache() {
    let at = *MEMORY.lock().expect("no panic");
    CACHED.lock().expect("no panic").push(register(at, LEN, true).expect("registered"));
}

#[test]
fn other_fork_handlers_may_register_and_release() {
    // SAFETY: functions of this program, which never goes away.
    let installed = unsafe { libc::pthread_atfork(Some(empty_the_cache), Some(fill_the_cache), Some(fill_the_cache)) };
    assert_eq!(installed, 0);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, rights, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: the mapping just made.
    let memory = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), LEN) };
    for (i, byte) in memory.iter_mut().enumerate() {
        *byte = (i / 61) as u8;
    }
    *MEMORY.lock().expect("no panic") = at as usize;
    let first = register(at as usize, LEN, true).expect("registered");
    if first.is_in_process() {
        let _ = writeln!(std::io::stderr(), "SKIP: the kernel refuses userfaultfd here");
        return release(first);
    }
    CACHED.lock().expect("no panic").push(first);
    // Ends a deadlock.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(120));
        let _ = writeln!(std::io::stderr(), "fork does not return");
        std::process::abort();
    });
    let whole = |memory: &[u8]| memory.iter().enumerate().all(|(i, byte)| *byte == (i / 61) as u8);
    for round in 0..3 {
        // SAFETY: the child only looks at its memory and ends.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let fine = whole(memory);
            memory.fill(9);
            // SAFETY: ends the child.
            unsafe { libc::_exit(if fine { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: our child.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        assert_eq!(status, 0, "the child's memory, round {round}");
        assert!(whole(memory), "the parent's memory, round {round}");
        assert_eq!(CACHED.lock().expect("no panic").len(), 1);
    }
    empty_here();
    assert!(whole(memory));
}

fn empty_here() {
    // SAFETY: as the handler.
    unsafe { empty_the_cache() };
}
