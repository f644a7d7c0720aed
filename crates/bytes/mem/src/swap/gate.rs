//! A gate between a forked child and its parent: the parent waits until the child has copied its memory.
//!
//! It is a pipe into which the child writes a byte. A child that dies closes its end, which wakes the parent as well.

use super::vma::errno;

/// Both ends of the pipe, from before the fork until each process has used its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkGate {
    read: i32,
    write: i32,
}

impl ForkGate {
    /// Opens the gate's pipe. `None`: the process has no descriptors left.
    pub(crate) fn open() -> Option<ForkGate> {
        let mut ends = [-1; 2];
        // SAFETY: two writable numbers.
        let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } == 0;
        made.then_some(ForkGate { read: ends[0], write: ends[1] })
    }

    /// In the child: lets the parent go on.
    pub(crate) fn pass(self) {
        let byte = 1u8;
        // A byte, because a process made by `clone` meanwhile may hold the write end open.
        // SAFETY: one readable byte; our own descriptors. The system call itself, because write(2) is a cancellation point.
        unsafe {
            libc::syscall(libc::SYS_write, self.write, &raw const byte, 1);
            libc::close(self.write);
            libc::close(self.read);
        }
    }

    /// In the parent: waits until the child has passed, or is dead.
    pub(crate) fn wait(self) {
        // SAFETY: our own descriptor.
        unsafe { libc::close(self.write) };
        let mut byte = 0u8;
        // SAFETY: one writable byte. The system call itself, because read(2) is a cancellation point.
        while unsafe { libc::syscall(libc::SYS_read, self.read, &raw mut byte, 1) } < 0 && errno() == libc::EINTR {}
        // SAFETY: our own descriptor.
        unsafe { libc::close(self.read) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{in_child, open_count};
    use super::*;

    fn shared_page() -> *mut u8 {
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), 4096, rights, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at.cast()
    }

    #[test]
    fn the_parent_waits_for_the_child_to_pass_or_to_die() {
        in_child(|| {
            let (before, shared) = (open_count(), shared_page());
            for dies in [false, true] {
                let gate = ForkGate::open().expect("a pipe");
                // SAFETY: a process with one thread.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    // SAFETY: a page that both processes have mapped.
                    unsafe {
                        libc::usleep(20_000);
                        shared.write_volatile(1 + u8::from(dies));
                        if dies {
                            libc::_exit(0);
                        }
                        gate.pass();
                        libc::pause();
                    }
                }
                gate.wait();
                // SAFETY: as above; our child.
                unsafe {
                    assert_eq!(shared.read_volatile(), 1 + u8::from(dies));
                    libc::kill(pid, libc::SIGKILL);
                    libc::waitpid(pid, std::ptr::null_mut(), 0);
                }
                assert_eq!(open_count(), before);
            }
        });
    }
}
