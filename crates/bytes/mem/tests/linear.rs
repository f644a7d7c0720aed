//! The cost of a registration does not grow with their number: system calls, counted by tracing the process.

use burst_mem::swap::{register, release};

const PAGE: usize = 4096;

/// Registers `count` pieces of one mapping, and releases them.
fn cycle(count: usize) {
    let len = count * 4 * PAGE;
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    let piece = |i: usize| register(at as usize + i * 4 * PAGE, 2 * PAGE, true).expect("registered");
    let regs: Vec<_> = (0..count).map(piece).collect();
    regs.into_iter().for_each(release);
}

/// System calls of a child that runs `work`.
fn calls_of(work: impl FnOnce()) -> usize {
    // SAFETY: the child does the work and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: asks the parent to trace it, and waits for that.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME);
            libc::raise(libc::SIGSTOP);
        }
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    let (mut status, mut stops) = (0, 0);
    // SAFETY: our child, which stops at each system call: before and behind it.
    unsafe {
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        while libc::WIFSTOPPED(status) {
            libc::ptrace(libc::PTRACE_SYSCALL, child, 0, 0);
            libc::waitpid(child, &raw mut status, 0);
            stops += 1;
        }
    }
    assert_eq!(status, 0, "the child's work");
    stops / 2
}

#[test]
fn four_times_as_many_registrations_take_four_times_as_many_system_calls() {
    let (few, many) = (calls_of(|| cycle(250)), calls_of(|| cycle(1000)));
    assert!(many < 4 * few + few / 4, "{few} system calls for 250 registrations, {many} for 1000");
    // Opening, asking, reading and closing what the kernel says about the process and its mappings.
    assert!(many < 16 * 1000, "{many} system calls for 1000 registrations");
}
