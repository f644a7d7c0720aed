//! The read end of a pipe of events whose daemon has ended.
//!
//! It hangs up, which wakes whoever waits for it: so a program learns of the end. But it would hang up for ever, and a program
//! that waits by poll(2) or epoll(7) would be woken without end, with nothing to read. So when the program has got what is due,
//! the library opens the pipe for writing itself: from then on the descriptor *rests*. What becomes due later is announced by a
//! record of zeros, which names no object.
//!
//! While the descriptor rests, a read(2) of it would not end. Callers count the threads that may read ([`EventEnd`], or a
//! count of their own), and look at [`EndedPipe::is_resting`] after they were counted. Where `/proc` is missing, descriptors go
//! on hanging up.

use crate::raw::lock::lock;
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Records that one [`EndedPipe::drain`] takes at most: others are as many announcements of the same.
const DRAIN_MAX: usize = 4096;

/// The library's own end of a pipe with records of `N` bytes.
#[derive(Debug, Default)]
pub struct EndedPipe<const N: usize> {
    is_resting: AtomicBool,
    own: Mutex<Option<File>>,
}

impl<const N: usize> EndedPipe<N> {
    /// Whether the descriptor rests, so that nothing may wait in a read of it.
    #[inline]
    pub fn is_resting(&self) -> bool {
        // SeqCst: pairs with `rest`, after the caller was counted.
        self.is_resting.load(Ordering::SeqCst)
    }

    /// Lets the read end `fd` rest, unless other threads are counted as readers of it (`has_others`): they see the hang-up, and
    /// the last one calls this again. The caller looks once more for what is due when this returns: what became due before was
    /// not announced.
    pub fn rest(&self, fd: RawFd, has_others: impl Fn() -> bool) {
        let mut own = lock(&self.own);
        if own.is_some() || has_others() {
            return;
        }
        let Some(file) = open_again(fd) else { return };
        self.is_resting.store(true, Ordering::SeqCst);
        if has_others() {
            // Counted before it could see that the descriptor rests: it reads. Closing the file hangs up again.
            self.is_resting.store(false, Ordering::SeqCst);
            return;
        }
        *own = Some(file);
    }

    /// Makes a resting descriptor readable. One that does not rest is readable anyway.
    pub fn announce(&self) {
        if self.is_resting()
            && let Some(file) = &mut *lock(&self.own)
        {
            // A full pipe is readable.
            let _ = file.write(&[0; N]);
        }
    }

    /// Takes the announcements so far out of a resting descriptor.
    pub fn drain(&self) {
        if let Some(file) = &mut *lock(&self.own) {
            let mut record = [0; N];
            let _ = (0..DRAIN_MAX).all(|_| file.read_exact(&mut record).is_ok());
        }
    }
}

/// The read end of a pipe with records of `N` bytes, and who reads it.
#[derive(Debug, Default)]
pub struct EventEnd<const N: usize> {
    /// Threads that read the descriptor. One that was cancelled while it read counts for ever, and the descriptor never rests.
    readers: AtomicU32,
    ended: EndedPipe<N>,
}

impl<const N: usize> EventEnd<N> {
    /// Counts a thread that reads next. False: the descriptor rests, nothing may read it, and the thread is not counted.
    pub fn enter(&self) -> bool {
        // SeqCst: pairs with `rest`. Either it sees this reader, or this reader sees that the descriptor rests.
        self.readers.fetch_add(1, Ordering::SeqCst);
        let may_read = !self.ended.is_resting();
        if !may_read {
            self.leave();
        }
        may_read
    }

    /// Uncounts a thread that has read.
    pub fn leave(&self) {
        self.readers.fetch_sub(1, Ordering::SeqCst);
    }

    /// See [`EndedPipe::rest`].
    pub fn rest(&self, fd: RawFd) {
        self.ended.rest(fd, || self.readers.load(Ordering::SeqCst) != 0);
    }

    /// See [`EndedPipe::announce`].
    pub fn announce(&self) {
        self.ended.announce();
    }

    /// See [`EndedPipe::drain`].
    pub fn drain(&self) {
        self.ended.drain();
    }
}

/// A description of the same pipe, for reading and writing without blocking; `None` where `/proc` is missing.
pub fn open_again(fd: RawFd) -> Option<File> {
    let path = CString::new(format!("/proc/self/fd/{fd}")).ok()?;
    // SAFETY: a path that ends with 0; the descriptor is new and owned by the file alone.
    unsafe {
        let again = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC);
        (again >= 0).then(|| File::from_raw_fd(again))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burst_control::events::{EventPipe, EventSink};
    use std::cell::Cell;
    use std::os::fd::{AsRawFd, OwnedFd};

    /// What poll(2) says of a descriptor.
    fn events(fd: &OwnedFd) -> i16 {
        let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&mut entry, 1, 0) };
        entry.revents
    }

    fn ended() -> OwnedFd {
        let (pipe, fd) = EventPipe::new_editable().expect("a pipe");
        drop(pipe);
        fd
    }

    #[test]
    fn a_descriptor_rests_until_something_is_announced() {
        let (fd, end) = (ended(), EndedPipe::<8>::default());
        assert_eq!(events(&fd), libc::POLLHUP);
        end.announce();
        assert!(!end.is_resting() && events(&fd) == libc::POLLHUP, "nothing to announce while it hangs up");
        end.rest(fd.as_raw_fd(), || false);
        assert!(end.is_resting() && events(&fd) == 0);
        end.announce();
        end.announce();
        assert_eq!(events(&fd), libc::POLLIN);
        end.drain();
        assert!(end.is_resting() && events(&fd) == 0);
        end.rest(fd.as_raw_fd(), || true);
        assert!(end.is_resting(), "it rests already");
    }

    #[test]
    fn a_descriptor_that_another_thread_reads_goes_on_hanging_up() {
        let (fd, end) = (ended(), EndedPipe::<8>::default());
        end.rest(fd.as_raw_fd(), || true);
        assert!(!end.is_resting() && events(&fd) == libc::POLLHUP);
        // One that begins between the two looks sees a hang-up, or that the descriptor rests.
        let looks = Cell::new(0);
        end.rest(fd.as_raw_fd(), || looks.replace(looks.get() + 1) == 1);
        assert_eq!((looks.get(), end.is_resting(), events(&fd)), (2, false, libc::POLLHUP));
        end.rest(fd.as_raw_fd(), || false);
        assert!(end.is_resting() && events(&fd) == 0);
    }

    #[test]
    fn the_pipe_of_a_living_daemon_keeps_its_records() {
        let (pipe, fd) = EventPipe::new_editable().expect("a pipe");
        pipe.write(&7u64.to_ne_bytes()).expect("written");
        let end = EndedPipe::<8>::default();
        end.drain();
        assert_eq!(events(&fd), libc::POLLIN);
    }
}
