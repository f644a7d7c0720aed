//! What programs write to wake a sleeping worker: an eventfd for each, all of them watched by one epoll descriptor.
//!
//! Whoever holds an eventfd may read it as well as write it, and may make it block: its flags belong to the open file. With
//! one for all, a program could take the others' wake-ups, and stop a worker that reads. So each has its own, which the
//! daemon never reads: every write is news to an edge-triggered epoll, whatever the count. Between a context's end and the
//! next sleep nothing is left to be done; a program that keeps its descriptor wakes nobody any more.

use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Wake-ups looked at in one call; more are found by the next.
const EVENTS_MAX: usize = 64;

/// The wake-ups of one worker. Clones are the same.
#[derive(Clone, Debug)]
pub struct Wakes(Arc<OwnedFd>);

/// A program's way to wake a worker, which ends with this.
#[derive(Debug)]
pub struct Wake {
    all: Wakes,
    fd: OwnedFd,
}

impl Wakes {
    /// Nobody's yet.
    ///
    /// # Errors
    /// When the system has no descriptor.
    pub fn new() -> io::Result<Wakes> {
        Ok(Wakes(Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?)))
    }
    /// A way for one more program, and the descriptor to send to it.
    ///
    /// # Errors
    /// When the system has no descriptor, or watches no more.
    pub fn lend(&self) -> io::Result<(Wake, OwnedFd)> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&*self.0, &fd, EventData::new_u64(0), EventFlags::IN | EventFlags::ET)?;
        let sent = fd.try_clone()?;
        Ok((Wake { all: self.clone(), fd }, sent))
    }
    /// Readable after a wake-up.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
    /// Forgets the wake-ups so far: the worker is awake.
    pub fn take(&self) {
        let mut events = [const { Event { flags: EventFlags::empty(), data: EventData::new_u64(0) } }; EVENTS_MAX];
        // What is left, or an error, is one look more before the next sleep.
        let _ = epoll::wait(&*self.0, &mut events[..], Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        // It was added; closing alone would not do, because the program may have kept its copy.
        let _ = epoll::delete(&*self.all.0, &self.fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::fs::OFlags;

    fn is_woken(wakes: &Wakes) -> bool {
        let fd = wakes.fd();
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    }

    fn write(fd: &OwnedFd) {
        assert_eq!(rustix::io::write(fd, &1u64.to_ne_bytes()), Ok(8));
    }

    #[test]
    fn every_write_wakes_and_is_forgotten_once_taken() {
        let wakes = Wakes::new().expect("wakes");
        let lent: Vec<_> = (0..3).map(|_| wakes.lend().expect("lent")).collect();
        assert!(!is_woken(&wakes));
        for _ in 0..5 {
            lent.iter().for_each(|(_, fd)| write(fd));
            assert!(is_woken(&wakes) && is_woken(&wakes));
            wakes.take();
            assert!(!is_woken(&wakes));
        }
        (0..2 * EVENTS_MAX).for_each(|_| write(&lent[0].1));
        wakes.take();
        assert!(!is_woken(&wakes));
    }

    #[test]
    fn nobody_takes_anothers_wake_up() {
        let wakes = Wakes::new().expect("wakes");
        let ((_thief, stolen), (_honest, own)) = (wakes.lend().expect("lent"), wakes.lend().expect("lent"));
        rustix::fs::fcntl_setfl(&stolen, OFlags::empty()).expect("it blocks");
        write(&stolen);
        write(&own);
        assert_eq!(rustix::io::read(&stolen, &mut [0; 8]), Ok(8));
        assert!(is_woken(&wakes), "the other's");
        wakes.take();
        assert!(!is_woken(&wakes), "and taking does not wait");
        assert!(rustix::fs::fcntl_getfl(&own).expect("flags").contains(OFlags::NONBLOCK));
    }

    #[test]
    fn who_keeps_the_descriptor_of_a_closed_context_wakes_nobody() {
        let wakes = Wakes::new().expect("wakes");
        let (wake, kept) = wakes.lend().expect("lent");
        write(&kept);
        drop(wake);
        assert!(!is_woken(&wakes));
        write(&kept);
        assert!(!is_woken(&wakes));
    }
}
