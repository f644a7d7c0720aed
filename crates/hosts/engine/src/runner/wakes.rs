//! Wake-ups of a sleeping worker by programs: an eventfd for each context, all of them watched by one epoll descriptor.
//!
//! The holder of an eventfd can read it as well as write it, and can make it blocking, because the flags belong to the open file.
//! With one eventfd for all programs, a program could take the wake-ups of others, or block a worker that reads it. So each
//! context has its own, which the daemon never reads: every write is an event of an edge-triggered epoll, whatever the count. A
//! program that keeps the descriptor of a closed context wakes no worker.

use burst_base::fault;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Wake-ups consumed in one call; the next call consumes further ones.
const EVENTS_MAX: usize = 64;

/// The wake-ups of one worker. Clones share them.
#[derive(Clone, Debug)]
pub struct Wakes(Arc<OwnedFd>);

/// The wake-up of one context, which ends when this is dropped.
#[derive(Debug)]
pub struct Wake {
    all: Wakes,
    fd: OwnedFd,
}

impl Wakes {
    /// No wake-ups yet.
    ///
    /// # Errors
    /// When the system has no descriptor.
    pub fn new() -> io::Result<Wakes> {
        Ok(Wakes(Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?)))
    }
    /// The wake-up of one more context, and the descriptor to send to its program.
    ///
    /// # Errors
    /// When the system has no descriptor, or watches no more.
    pub fn lend(&self) -> io::Result<(Wake, OwnedFd)> {
        fault::check()?;
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        fault::check()?;
        epoll::add(&*self.0, &fd, EventData::new_u64(0), EventFlags::IN | EventFlags::ET)?;
        let sent = fault::check().and_then(|()| fd.try_clone())?;
        Ok((Wake { all: self.clone(), fd }, sent))
    }
    /// Readable after a wake-up.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
    /// Consumes the wake-ups so far, because the worker is awake.
    pub fn take(&self) {
        let mut events = [const { Event { flags: EventFlags::empty(), data: EventData::new_u64(0) } }; EVENTS_MAX];
        // Events that are left, or an error, cost one more pass before the next sleep.
        let _ = epoll::wait(&*self.0, &mut events[..], Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        // Closing the descriptor would not remove it from the epoll, because the program may have kept its copy.
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
    fn every_write_wakes_until_it_is_consumed() {
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
    fn a_program_cannot_take_the_wake_up_of_another() {
        let wakes = Wakes::new().expect("wakes");
        let ((_thief, stolen), (_honest, own)) = (wakes.lend().expect("lent"), wakes.lend().expect("lent"));
        rustix::fs::fcntl_setfl(&stolen, OFlags::empty()).expect("set to blocking");
        write(&stolen);
        write(&own);
        assert_eq!(rustix::io::read(&stolen, &mut [0; 8]), Ok(8));
        assert!(is_woken(&wakes), "by the other program");
        wakes.take();
        assert!(!is_woken(&wakes), "and consuming does not block");
        assert!(rustix::fs::fcntl_getfl(&own).expect("flags").contains(OFlags::NONBLOCK));
    }

    #[test]
    fn a_kept_descriptor_of_a_closed_context_wakes_no_worker() {
        let wakes = Wakes::new().expect("wakes");
        let (wake, kept) = wakes.lend().expect("lent");
        write(&kept);
        drop(wake);
        assert!(!is_woken(&wakes));
        write(&kept);
        assert!(!is_woken(&wakes));
    }
}
